"""Speed and memory of the jobs that count items, as ratios to a bare pass over the same files in the same run.

    python -m benchmarks.sampled_speed [--data bench_data] [--sizes 1,10,54.6] [--repeats 3]

The floor is that of benchmarks/speed.py; duckdb groups by user first and counts 1024 x 1024 cells, without privacy.
Prints a Markdown table; each row is the run of median length.
"""

from __future__ import annotations

import argparse
import os
import platform
import subprocess
import sys
import time
from pathlib import Path

from benchmarks.speed import REGION, data_set, floor, watch

_REGION = ("--region", ",".join(map(str, REGION)))
JOBS = {
    "histogram, 1024 x 1024 cells": ("histogram", "--cells", "10", *_REGION),
    "hot spots, one level": ("hotspots", "--depth", "10", "--levels", "1", *_REGION),
    "hot spots, three levels": ("hotspots", "--depth", "10", "--levels", "3", *_REGION),
    "histogram, trusted curator": ("histogram", "--cells", "10", *_REGION, "--trust", "central"),
    "hot spots, trusted curator": ("hotspots", "--depth", "10", *_REGION, "--trust", "central"),
    "hot spots, trusted curator, 5 items a user": (
        "hotspots",
        "--depth",
        "10",
        *_REGION,
        "--trust",
        "central",
        "--max_items_per_user",
        "5",
    ),
    "quantiles, three levels": ("quantiles", "--column", "longitude", "--range", f"{REGION[0]},{REGION[2]}"),
}
_DUCKDB = """
import duckdb, sys
west, south, east, north = map(float, sys.argv[2:])
duckdb.connect(config={"threads": 2}).execute(f'''
    select x, y, count(*) from (
        select user_id, any_value(floor((longitude - {west}) * 1024 / {east - west})) as x,
               any_value(floor(({north} - latitude) * 1024 / {north - south})) as y
        from read_parquet('{sys.argv[1]}/*.parquet') group by user_id
    ) group by x, y''').fetchnumpy()
"""


def measure(folder: Path, users: float, arguments: tuple[str, ...]) -> tuple[float, list[str]]:
    """Seconds of one run, and its row: seconds, ratio, speed, peak, and seconds by phase."""
    bare = floor(folder)
    lines, seconds, peak = watch(*arguments, "--input", f"{folder}/*.parquet", "--epsilon", "1", "--delta", "1e-8")
    start = next(at for at, line in lines if "to read" in line)
    counted = next(at for at, line in lines if "read the logs" in line)
    phases = (start, counted - start, seconds - counted)
    reading = users / (counted - start) / 1e6
    row = [f"{seconds:.1f}", f"{seconds / bare:.1f}", f"{users / seconds / 1e6:.2f}", f"{reading:.1f}"]
    return seconds, [*row, f"{peak / 1e6:.0f}", *(f"{phase:.1f}" for phase in phases)]


def duckdb_row(folder: Path, users: float) -> tuple[float, list[str]]:
    """The same for duckdb."""
    bare = floor(folder)
    began = time.perf_counter()
    program = [sys.executable, "-c", _DUCKDB, str(folder), *map(str, REGION)]
    subprocess.run(program, check=True, stdout=subprocess.DEVNULL)
    seconds = time.perf_counter() - began
    row = [f"{seconds:.1f}", f"{seconds / bare:.1f}", f"{users / seconds / 1e6:.2f}", "-", "-", "-", "-", "-"]
    return seconds, row


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, default=Path("bench_data"))
    parser.add_argument("--sizes", default="1,10,54.6", help="million users, comma-separated")
    parser.add_argument("--repeats", type=int, default=3)
    options = parser.parse_args()
    options.data.mkdir(parents=True, exist_ok=True)
    heads = ["users", "job", "seconds", "times the floor", "million users/s", "of them reading and counting"]
    heads += ["peak MB", "start", "read, sample, count", "release"]
    rows = ["| " + " | ".join(heads) + " |", "|---" * len(heads) + "|"]
    for millions in map(float, options.sizes.split(",")):
        folder, users = data_set(options.data, millions), millions * 1e6
        floor(folder)  # warm the page cache
        for name, arguments in JOBS.items():
            runs = sorted(measure(folder, users, arguments) for _ in range(options.repeats))
            rows.append("| " + " | ".join([f"{millions:g} M", name, *runs[len(runs) // 2][1]]) + " |")
            print(rows[-1], file=sys.stderr, flush=True)
        runs = sorted(duckdb_row(folder, users) for _ in range(options.repeats))
        rows.append("| " + " | ".join([f"{millions:g} M", "duckdb (not private)", *runs[len(runs) // 2][1]]) + " |")
    machine = f"{os.cpu_count()} cores, {platform.machine()}, Python {platform.python_version()}"
    print(f"{machine}, median of {options.repeats}\n")
    print("\n".join(rows))


if __name__ == "__main__":
    main()
