"""Time and memory of every job as a whole process, in ratios to a bare pass over its files, beside other libraries.

    python -m benchmarks.speed [--data bench_data] [--sizes 1,10,54.6] [--jobs heatmap,histogram] [--repeats 3]

Prints the table of docs/results/speed.md. The bare pass reads two columns with pyarrow, bins them to 1024 x 1024 with
NumPy and adds up, in a process of its own: no users, no noise, no tree. It runs before every other command, and a ratio
is to the pass just before it; each number is the median over the repeats. Processor seconds are user and system time of
a process and its children, which other work on the machine changes less than the wall time. Missing logs are made with
`sfumato synth`, one row a user (35 bytes a user on disk). Other libraries run on MAX_PEER_MILLIONS users at most, and
those that are not installed are left out.
"""

from __future__ import annotations

import argparse
import importlib.util
import itertools
import json
import os
import platform
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import psutil

from sfumato.transforms.observability.text_tables import markdown_table

REGION = (3.00, 1.00, 3.13, 1.13)  # of `sfumato synth`
MODES = {"one thread": "direct", "two threads": "direct_threads"}
MAX_PEER_MILLIONS = 1.0  # PipelineDP needs a minute for a million users
SIDE = 64  # cells along a side of the grid that other libraries count
_BORDERS = ",".join(map(str, REGION))
_REGION = ("--region", _BORDERS)
_CENTRAL = ("--trust", "central")
_DISTANCE = ("--column", "km_from_home")
_LOCAL = (*_DISTANCE, "--epsilon", "2", "--fraction_bits", "8")
JOBS: Mapping[str, tuple[str, ...]] = {
    "heatmap": ("heatmap", *_REGION, "--depth", "10"),
    "heatmap, schedule of the paper": ("heatmap", *_REGION, "--depth", "10", "--schedule", "paper"),
    "heatmap, trusted curator": ("heatmap", *_REGION, "--depth", "10", *_CENTRAL),
    "zones": ("zones", "--zones", "{zones}", "--id_column", "zone"),
    "histogram, 1024 x 1024 cells": ("histogram", *_REGION, "--cells", "10"),
    "histogram, trusted curator": ("histogram", *_REGION, "--cells", "10", *_CENTRAL),
    f"histogram, {SIDE} x {SIDE} cells, trusted curator": ("histogram", *_REGION, "--cells", "6", *_CENTRAL),
    "hot spots, three levels": ("hotspots", *_REGION, "--depth", "10", "--levels", "3"),
    "hot spots, trusted curator, 5 items a user": (
        *("hotspots", *_REGION, "--depth", "10", "--max_items_per_user", "5"),
        *_CENTRAL,
    ),
    "quantiles": ("quantiles", *_DISTANCE, "--range", "0,30"),
    "quantiles, trusted curator": ("quantiles", *_DISTANCE, "--range", "0,30", *_CENTRAL),
    "mean, local noise": ("moments", *_LOCAL),
    "mean, local noise, rows are users": ("moments", *_LOCAL, "--rows_are_users"),
    "mean, secure aggregation without noise": ("moments", *_DISTANCE, "--trust", "secagg", "--no_dp"),
    "mean and variance, trusted curator": ("moments", *_DISTANCE, "--statistics", "mean,variance", *_CENTRAL),
    "ranges, trusted curator": ("ranges", "build", *_REGION, "--method", "grid"),
}
PEERS: Mapping[str, tuple[str, ...]] = {  # their packages, as they are imported
    "duckdb": ("duckdb",),
    "OpenDP": ("opendp", "polars"),
    "PipelineDP": ("pipeline_dp",),
}
FLOOR, START = "bare pass", "`import apache_beam`"
_FLOOR_PROGRAM = """
import sys, numpy as np, pyarrow.parquet as pq
from pathlib import Path
west, south, east, north = map(float, sys.argv[2].split(","))
total = np.zeros(1 << 20, dtype=np.int64)
for path in sorted(Path(sys.argv[1]).glob("*.parquet")):
    for batch in pq.ParquetFile(path).iter_batches(1 << 20, columns=["latitude", "longitude"]):
        latitude, longitude = (batch.column(i).to_numpy() for i in (0, 1))
        x = np.minimum(((longitude - west) * (1024 / (east - west))).astype(np.int32), 1023)
        y = np.minimum(((north - latitude) * (1024 / (north - south))).astype(np.int32), 1023)
        total += np.bincount(y * 1024 + x, minlength=1 << 20)
assert total.sum() > 0
"""
STAGES = {"start": ("to read",), "read and group": ("read and grouped the logs", "read the logs"), "count, publish": ()}


@dataclass(frozen=True)
class Run:
    """One run of a command to its end.

    Attributes:
        seconds: wall time.
        processor: user and system time of the process and its children, seconds.
        peak: largest resident memory of all its processes together, bytes.
        lines: what it wrote to its standard error, each line with the seconds since the start.
    """

    seconds: float
    processor: float
    peak: int
    lines: list[tuple[float, str]] = field(default_factory=list)

    def stages(self) -> list[float]:
        """The seconds of each of STAGES, by the job's own progress lines; empty for other commands."""
        ends = [
            next((at for at, line in self.lines if any(mark in line for mark in marks)), None)
            for marks in STAGES.values()
            if marks
        ]
        if None in ends:
            return []
        times = [0.0, *(end for end in ends if end is not None), self.seconds]
        return [end - begin for begin, end in itertools.pairwise(times)]


def command(*arguments: str) -> list[str]:
    """The command line of sfumato."""
    return [sys.executable, "-m", "sfumato.pipelines.command_line.cli", *arguments]


def data_set(root: Path, millions: float) -> Path:
    """The folder with logs of so many million users, made if it is missing."""
    folder = root / f"city{int(millions)}"
    if not folder.exists():
        users = round(millions * 1e6)
        subprocess.run(command("synth", "--users", str(users), "--output", str(folder)), check=True)
    return folder


def run(arguments: Sequence[str]) -> Run:
    """Runs a command to its end. Ends this program with what it wrote if it fails."""
    began, lines, peak = time.perf_counter(), [], [0]
    process = subprocess.Popen(
        arguments, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True,
        env={**os.environ, "PYTHONUNBUFFERED": "1"},
    )  # fmt: skip
    ended = threading.Event()

    def look() -> None:
        while not ended.wait(0.25):  # looking costs some milliseconds of one of few cores
            peak[0] = max(peak[0], resident(process.pid))

    looking = threading.Thread(target=look)
    looking.start()
    assert process.stderr is not None
    for line in process.stderr:
        lines.append((time.perf_counter() - began, line.rstrip("\n")))
    ended.set()
    looking.join()
    _, status, usage = os.wait4(process.pid, 0)
    seconds = time.perf_counter() - began
    process.returncode = os.waitstatus_to_exitcode(status)  # or Popen would wait for it again
    process.stderr.close()
    if process.returncode:
        raise SystemExit("\n".join([" ".join(arguments), *(line for _, line in lines)]))
    return Run(seconds, usage.ru_utime + usage.ru_stime, max(peak[0], usage.ru_maxrss * 1024), lines)


def resident(pid: int) -> int:
    """Resident bytes of a process and all its children."""
    total = 0
    try:
        parent = psutil.Process(pid)
        for process in [parent, *parent.children(recursive=True)]:
            total += process.memory_info().rss
    except psutil.NoSuchProcess:
        pass
    return total


def run_job(*arguments: str) -> Run:
    """Runs a job of sfumato, whose release is removed again."""
    with tempfile.TemporaryDirectory() as out:
        return run(command(*arguments, "--output", f"{out}/release"))


def watch(*arguments: str) -> tuple[list[tuple[float, str]], float, int]:
    """Runs a job: its progress lines with their times, seconds of the whole command, peak resident bytes."""
    job = run_job(*arguments)
    return job.lines, job.seconds, job.peak


def run_floor(folder: Path) -> Run:
    """The bare pass."""
    return run([sys.executable, "-c", _FLOOR_PROGRAM, str(folder), _BORDERS])


def job_arguments(name: str, folder: Path, zones: Path) -> tuple[str, ...]:
    """The command line of one of JOBS on the logs of a folder. zones: a file of `write_zones`."""
    arguments = tuple(str(zones) if one == "{zones}" else one for one in JOBS[name])
    given = () if "--epsilon" in arguments or "--no_dp" in arguments else ("--epsilon", "1")
    given += ("--delta", "1e-8") if arguments[0] in ("histogram", "hotspots", "quantiles") else ()
    return (*arguments, "--input", f"{folder}/*.parquet", *given)


def write_zones(path: Path, side: int = 16) -> None:
    """A GeoJSON file of side x side equal zones of REGION."""
    west, south, east, north = REGION
    features = []
    for number in range(side**2):
        left, top = number % side, number // side
        x = [west + (east - west) * at / side for at in (left, left + 1)]
        y = [south + (north - south) * at / side for at in (top, top + 1)]
        ring = [[x[0], y[0]], [x[1], y[0]], [x[1], y[1]], [x[0], y[1]], [x[0], y[0]]]
        shape = {"type": "Polygon", "coordinates": [ring]}
        features.append({"type": "Feature", "properties": {"zone": f"zone {number:03d}"}, "geometry": shape})
    path.write_text(json.dumps({"type": "FeatureCollection", "features": features}))


def peer_commands(folder: Path, millions: float) -> dict[str, list[str]]:
    """The command of each library that is installed; those that are private only on logs that are not too large."""
    found = {}
    for name, packages in PEERS.items():
        if not all(importlib.util.find_spec(package) for package in packages):
            continue
        program = [sys.executable, "-m", "benchmarks.baselines.cell_counts", name, str(folder), _BORDERS]
        if name == "duckdb":
            found["duckdb, users of 1024 x 1024 cells: no guarantee"] = [*program, "1024"]
        elif millions <= MAX_PEER_MILLIONS:
            found[f"{name}, users of {SIDE} x {SIDE} cells, trusted curator"] = [*program, str(SIDE)]
    return found


@dataclass(frozen=True)
class Measured:
    """The runs of one command, each with the bare pass and the start of Beam just before it (None: not measured)."""

    runs: list[tuple[Run, Run, Run | None]]

    def cells(self) -> list[str]:
        """Of a row: medians over the runs, and the largest memory."""
        runs = [one for one, _, _ in self.runs]
        stages = [one.stages() for one in runs]
        ratios = [
            (one.seconds / floor.seconds, one.processor / floor.processor, start and one.processor / start.processor)
            for one, floor, start in self.runs
        ]
        shown = [
            *(
                f"{statistics.median(column):.1f}"
                for column in ([r.seconds for r in runs], [r.processor for r in runs])
            ),
            *(_median(column) for column in zip(*ratios, strict=True)),
            f"{max(one.peak for one in runs) / 1e6:,.0f}",
        ]
        split = [_median(column) for column in zip(*stages, strict=True)] if all(stages) else ["-"] * len(STAGES)
        return [*shown, *split]


def _median(column: Iterable[float | None]) -> str:
    numbers = [one for one in column if one is not None]
    return f"{statistics.median(numbers):.1f}" if numbers else "-"


HEADS = [
    "users", "command", "wall s", "CPU s", "wall: times the bare pass", "CPU: times the bare pass",
    "CPU: times `import apache_beam`", "peak MB", *(f"{stage}, s" for stage in STAGES),
]  # fmt: skip


def measure(folder: Path, millions: float, jobs: Sequence[str], peers: bool, repeats: int) -> list[list[str]]:
    """The rows of one size. Commands run in turn within each repeat, so other work falls on all alike."""
    start_program = [sys.executable, "-c", "import apache_beam"]
    found: dict[str, list[tuple[Run, Run, Run | None]]] = {}
    with tempfile.TemporaryDirectory() as out:
        zones = Path(out) / "zones.geojson"
        write_zones(zones)
        others = peer_commands(folder, millions) if peers else {}
        run_floor(folder)  # warms the page cache
        for number in range(repeats):
            start = run(start_program)
            found.setdefault(START, []).append((start, run_floor(folder), start))
            for name in (*jobs, *others):
                floor = run_floor(folder)
                found.setdefault(FLOOR, []).append((floor, floor, start))
                one = run(others[name]) if name in others else run_job(*job_arguments(name, folder, zones))
                found.setdefault(name, []).append((one, floor, start))
                print(f"{millions:g} M, repeat {number + 1}: {name}: {one.seconds:.1f} s", file=sys.stderr, flush=True)
    return [[f"{millions:g} M", name, *Measured(runs).cells()] for name, runs in found.items()]


def machine(repeats: int) -> str:
    """One line on where and how often was measured."""
    return f"{os.cpu_count()} cores, {platform.machine()}, Python {platform.python_version()}, median of {repeats} runs"


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, default=Path("bench_data"))
    parser.add_argument("--sizes", default="1,10,54.6", help="million users, comma-separated")
    parser.add_argument("--jobs", help="those whose names begin so, comma-separated; `peers` for the other libraries")
    parser.add_argument("--repeats", type=int, default=3)
    options = parser.parse_args(arguments)
    wanted = options.jobs.split(",") if options.jobs else ["", "peers"]
    jobs = [name for name in JOBS if any(name.startswith(one) for one in wanted)]
    if not jobs and "peers" not in wanted:
        parser.error(f"--jobs: none begins so; there are {', '.join(JOBS)}")
    options.data.mkdir(parents=True, exist_ok=True)
    lines = [HEADS]
    for millions in map(float, options.sizes.split(",")):
        folder = data_set(options.data, millions)
        lines += measure(folder, millions, jobs, "peers" in wanted, options.repeats)
    print(f"{machine(options.repeats)}\n\n{markdown_table(lines, left=(1,))}", end="")


if __name__ == "__main__":
    main()
