"""Finds words and patterns in documents that a native technical writer would not use.

    python -m tests.language [PATH ...]

Without a path, all documents are read, code blocks and generated pages left out. Exit status: 0 if nothing is found.
"""

from __future__ import annotations

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
    r"\b(everybody|whoever|somebody)\b": "all users; the person who; you",
    r"\b(surely|perhaps nobody)\b": "at least N (95%); may be empty",
    r"\brests? on\b": "is based on",
    r"\bmend(s|ed|ing)?\b": "fix",
    r"\b(dear|dearer|dearest)\b": "expensive",
    r"\b(likewise|hence)\b": "leave out",
    r"\b(the like|and so on)\b": "name them",
    r"\b(is|are) told\b": "is reported",
    r"\bby chance\b": "because of sampling error",
}
# Their words are those of the product's options and columns.
GENERATED = {"options.md", "manifest.md", "release_files.md", "exit_codes.md"}
_CODE = re.compile(r"^( {4}|\t)|^```|^\|")  # blocks, and tables, whose cells are labels of programs


def documents() -> Iterator[Path]:
    """Yields the documents that people write."""
    yield ROOT / "README.md"
    yield ROOT / "CONTRIBUTING.md"
    yield from (path for path in sorted((ROOT / "docs").rglob("*.md")) if path.name not in GENERATED)


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
    for path in map(Path, paths) if paths else documents():
        for number, words, better in found_in(path.read_text()):
            count += 1
            sys.stdout.write(f"{path}:{number}: {words!r}: write {better}\n")
    sys.stdout.write(f"{count} found\n")
    return min(count, 1)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
