"""Prints how much a maintainer has to carry: lines, files, imports, and where an option is named.

    python -m tests.shape [--run]

Lines and files are those of the product and of the tests. An import closure holds what a job's module imports when it
is imported, directly or not. `--run` publishes a small heatmap and lists the product's files whose functions run
between the job's module and the noise, the ledger and the page left out.
"""

from __future__ import annotations

import argparse
import ast
import inspect
import re
import sys
import tempfile
import threading
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from types import FrameType

import pyarrow as pa
import pyarrow.parquet as pq

from tests import ROOT
from tests.planted_faults import name_of, product

LONGEST, SHORTEST = 450, 40  # lines of a module that is easy to read, and worth a file
NOT_COUNTED = ("ledger", "report", "release/builder", "view", "failures", "signals", "console", "metrics", "logs.py")


def modules() -> dict[str, Path]:
    """Returns the product's files by module name."""
    return {name_of(path): ROOT / path for path in product()}


def lines_of(path: Path) -> int:
    """Counts the lines of a file."""
    return len(path.read_text().splitlines())


def imported(path: Path, known: dict[str, Path]) -> Iterator[str]:
    """Yields the product's modules that a file imports at its top."""
    for node in ast.parse(path.read_text()).body:
        if isinstance(node, ast.ImportFrom) and node.module:
            for one in node.names:
                name = f"{node.module}.{one.name}"
                yield name if name in known else node.module
        elif isinstance(node, ast.Import):
            yield from (one.name for one in node.names)


def closure(start: str, known: dict[str, Path]) -> set[str]:
    """Returns the product's modules that importing one of them imports, itself included."""
    found, waiting = set[str](), [start]
    while waiting:
        name = waiting.pop()
        if name in known and name not in found:
            found.add(name)
            waiting += imported(known[name], known)
    return found


def option_modules(known: dict[str, Path]) -> Counter[str]:
    """Counts the modules that name each option of `heatmap`, in code or in text."""
    from sfumato.transforms.heatmap.request import HeatmapRequest

    texts = [path.read_text() for path in known.values()]
    return Counter(
        {name: sum(bool(re.search(rf"\b{name}\b", text)) for text in texts) for name in HeatmapRequest.model_fields}
    )


def files_of_a_run(folder: Path) -> list[Path]:
    """Publishes a small heatmap and returns the product's files whose functions ran, but for `NOT_COUNTED`."""
    from sfumato.pipelines.command_line.cli import main as sfumato

    log = pa.table({"user_id": range(2000), "latitude": [50.5] * 2000, "longitude": [0.1] * 2000})
    pq.write_table(log, folder / "log.parquet")
    ran = set[str]()

    def note(frame: FrameType, event: str, _: object) -> None:
        # The bodies of modules and classes run when they are imported, and are not optimised as functions are.
        if event == "call" and frame.f_code.co_flags & inspect.CO_OPTIMIZED and frame.f_code.co_name[0] != "<":
            ran.add(frame.f_code.co_filename)

    threading.setprofile(note)
    sys.setprofile(note)
    try:
        where = ["--input", f"{folder}/log.parquet", "--region=-1,50,1,51", "--output", f"{folder}/map"]
        status = sfumato(["heatmap", *where, "--depth", "6", "--epsilon", "1"])
    finally:
        sys.setprofile(None)
        threading.setprofile(None)
    assert status == 0
    product = {str(path.resolve()): path for path in modules().values()}
    paths = {product[str(Path(name).resolve())] for name in ran if str(Path(name).resolve()) in product}
    return sorted(path for path in paths if not any(word in str(path.relative_to(ROOT)) for word in NOT_COUNTED))


def main(arguments: list[str] | None = None) -> int:
    """Runs the script, and returns its exit status."""
    parser = argparse.ArgumentParser(prog="python -m tests.shape", description=__doc__.partition("\n")[0])
    parser.add_argument("--run", action="store_true", help="publish a heatmap and list the files that run")
    given = parser.parse_args(arguments)
    known = modules()
    write = sys.stdout.write
    for title, paths in (("product", list(known.values())), ("tests", sorted((ROOT / "tests").rglob("*.py")))):
        write(f"{title}: {sum(map(lines_of, paths)):,} lines in {len(paths)} files\n")
    lengths = {name: lines_of(path) for name, path in known.items() if path.name != "__init__.py"}
    for title, wanted in ((f"above {LONGEST}", range(LONGEST + 1, 10**6)), (f"below {SHORTEST}", range(SHORTEST))):
        write(f"modules {title} lines: {', '.join(name for name, n in lengths.items() if n in wanted) or 'none'}\n")
    for job in ("heatmap", "zones", "flows", "counts", "moments", "ranges_build"):
        reached = closure(f"sfumato.pipelines.{job}", known)
        write(f"import closure of pipelines/{job}.py: {len(reached)} modules\n")
    named = option_modules(known).most_common()
    write(f"modules that name an option of heatmap: {', '.join(f'{name} {count}' for name, count in named)}\n")
    if given.run:
        with tempfile.TemporaryDirectory() as folder:
            ran = files_of_a_run(Path(folder))
        write(f"files that run for a heatmap: {len(ran)}, with {sum(map(lines_of, ran)):,} lines\n")
        write("".join(f"  {lines_of(path):4}  {path.relative_to(ROOT)}\n" for path in ran))
    return 0


if __name__ == "__main__":
    sys.exit(main())
