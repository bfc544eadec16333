"""Finds words and patterns that a native technical writer would not use, in documents and in texts of Python modules.

    python -m tests.language [PATH ...]

Without a path, it reads all documents, without code blocks and generated pages, and the modules in `CLEAN`: their
docstrings and strings. Exit status: 0 if nothing is found.
"""

from __future__ import annotations

import ast
import re
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

from tests import ROOT

# What is found, and what to write.
WORDS = {
    r"\balone\b(?! holds)": "only",
    r"\bby (itself|themselves)\b": "separately, independently",
    r"(?<!times )\b(so|as) many\b(?!( \w+){1,3} as\b| as\b)": "N, the number of, up to N",
    r"\b(anew|afresh)\b": "again; restarted",
    r"\bbeside\b": "next to; as well as; compared with",
    r"\bin place of\b": "instead of",
    r"\b(has|have) not\b(?! \w+(ed|en|n|t)\b)": "does not contain, has no",
    r"\b(everybody|whoever|somebody)\b(?!:)": "all users; the person who; you",
    r"\b(surely|perhaps nobody)\b": "at least N (95%); may be empty",
    r"\brests? on\b": "is based on",
    r"\bmend(s|ed|ing)?\b": "fix",
    r"\b(dear|dearer|dearest)\b": "expensive",
    r"\b(likewise|hence)\b": "leave out",
    r"\b(the like|and so on)\b": "name them",
    r"\b(is|are) told\b": "is reported",
    r"\bby chance\b": "because of sampling error",
    r"\b(whom|stood|stands?)\b(?!-| out\b)": "that; is, occurs, represents",
    r"\basked\b": "is queried, active, required",
}
# What is found in Python as well.
PYTHON_WORDS = WORDS | {
    r"\b(told|tells?) [\w ]*apart\b": "distinguish",
    r"\b(due to|noise and) chance\b": "sampling error",
    r"\bsays of\b": "states",
}
EVERYBODY = "everybody"  # a value of `--contact`, and the name of the group of all users in published tables
# Folders and modules of the product whose docstrings and strings are checked.
CLEAN = (
    "api", "schemas", "transforms/release", "transforms/report", "transforms/export", "transforms/changes",
    "transforms/inputs", "transforms/io", "transforms/geo", "transforms/observability", "transforms/privacy",
    "transforms/counting", "transforms/secagg", "transforms/moments", "transforms/histogram", "transforms/ranges",
    "transforms/quantiles", "transforms/synth", "transforms/locations", "transforms/nights", "transforms/statistics",
    "transforms/zones", "transforms/flows", "transforms/heatmap", "transforms/statement", "transforms/audit",
    "transforms/beam_support", "transforms/split", "pipelines",
)  # fmt: skip
# Their words are those of the product's options and columns.
GENERATED = {"options.md", "manifest.md", "release_files.md", "exit_codes.md"}
_CODE = re.compile(r"^( {4}|\t)|^```|^\|")  # blocks, and tables, whose cells are labels of programs


def documents() -> Iterator[Path]:
    """Yields the documents that people write."""
    yield ROOT / "README.md"
    yield ROOT / "CONTRIBUTING.md"
    yield from (path for path in sorted((ROOT / "docs").rglob("*.md")) if path.name not in GENERATED)


def modules() -> Iterator[Path]:
    """Yields the Python modules of `CLEAN`."""
    for pattern in CLEAN:
        for path in sorted(ROOT.glob(pattern)):
            yield from [path] if path.is_file() else sorted(path.rglob("*.py"))


def found_in_python(source: str) -> Iterator[tuple[int, str, str]]:
    """Yields the same as `found_in` for the strings and docstrings of a module. Code in backticks is left out."""
    for node in ast.walk(ast.parse(source)):
        if not (isinstance(node, ast.Constant) and isinstance(node.value, str)):
            continue
        if node.value == "everybody":  # the published name of a group, and a value of --contact
            continue
        plain = re.sub(r"`[^`]*`", "``", " ".join(node.value.split()))
        for pattern, better in PYTHON_WORDS.items():
            yield from ((node.lineno, hit[0], better) for hit in re.finditer(pattern, plain, re.IGNORECASE))


def found_in(text: str) -> Iterator[tuple[int, str, str]]:
    """Yields the line number, the words, and what to write instead, of all that is found outside code."""
    fenced = False
    for number, line in enumerate(text.splitlines(), 1):
        if line.startswith("```"):
            fenced = not fenced
        if fenced or _CODE.match(line):
            continue
        plain = re.sub(r"`[^`]*`|\*[^*]+\*|\([^() ]+\)", "``", line)  # code, labels of tables, addresses
        for pattern, better in WORDS.items():
            yield from ((number, hit[0], better) for hit in re.finditer(pattern, plain, re.IGNORECASE))


def main(paths: Sequence[str]) -> int:
    """Runs the script, and returns its exit status."""
    count = 0
    for path in map(Path, paths) if paths else [*documents(), *modules()]:
        find = found_in_python if path.suffix == ".py" else found_in
        for number, words, better in find(path.read_text()):
            count += 1
            sys.stdout.write(f"{path}:{number}: {words!r}: write {better}\n")
    sys.stdout.write(f"{count} found\n")
    return min(count, 1)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
