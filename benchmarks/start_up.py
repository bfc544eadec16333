"""Processor time of whole commands, as ratios to `python -c "import apache_beam"` measured in turn with them.

    python -m benchmarks.start_up [--data bench_data] [--repeats 5] [--against FOLDER]

`--against` measures another checkout's heatmap too: its folder `build/types`. Processor time is that of the command and
its children, user and system. Prints a Markdown table of medians. The data set of a million users is made if it is
missing.
"""

from __future__ import annotations

import argparse
import os
import platform
import resource
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

from benchmarks.speed import REGION, command, data_set

BEAM = "`import apache_beam`"


def commands(folder: Path, output: Path, against: Path | None) -> dict[str, tuple[list[str], dict[str, str]]]:
    """The commands with their additional environment, by the name that the table gives them."""
    logs = ["--input", f"{folder}/*.parquet", "--region", ",".join(map(str, REGION)), "--depth", "10", "--epsilon", "1"]
    heatmap = command("heatmap", *logs, "--overwrite", "--output", str(output))
    found: dict[str, tuple[list[str], dict[str, str]]] = {
        BEAM: ([sys.executable, "-c", "import apache_beam"], {}),
        "heatmap, 1 M users": (heatmap, {}),
        "`heatmap --help`": (command("heatmap", "--help"), {}),
        "`plan`": (command("plan", "--users", "1000000"), {}),
        "`--help`": (command("--help"), {}),
    }
    if against is not None:
        found["heatmap, 1 M users, the other checkout"] = (heatmap, {"PYTHONPATH": str(against)})
    return found


def processor_seconds(arguments: list[str], environment: dict[str, str]) -> float:
    """User and system time of a command that succeeds."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    subprocess.run(arguments, check=True, capture_output=True, env={**os.environ, **environment})
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, default=Path("bench_data"))
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--against", type=Path, help="folder build/types of another checkout")
    options = parser.parse_args()
    folder = data_set(options.data, 1)
    with tempfile.TemporaryDirectory() as place:
        chosen = commands(folder, Path(place) / "release", options.against)
        runs: dict[str, list[float]] = {name: [] for name in chosen}
        for _ in range(options.repeats):
            for name, one in chosen.items():
                runs[name].append(processor_seconds(*one))
    print(f"{os.cpu_count()} cores, {platform.machine()}, Python {platform.python_version()}, {options.repeats} runs\n")
    print(f"| command | processor seconds, median | times {BEAM}, median | lowest ratio | highest ratio |")
    print("|---|---|---|---|---|")
    for name, seconds in runs.items():
        ratios = [mine / beam for mine, beam in zip(seconds, runs[BEAM], strict=True)]
        cells = [statistics.median(seconds), statistics.median(ratios), min(ratios), max(ratios)]
        print(f"| {name} | {' | '.join(f'{cell:.2f}' for cell in cells)} |")


if __name__ == "__main__":
    main()
