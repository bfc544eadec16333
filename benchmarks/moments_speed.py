"""Speed and memory of `sfumato moments`, as ratios to a bare pass over the same column in the same run.

    python -m benchmarks.moments_speed [--data bench_data] [--sizes 10,100] [--repeats 3]

Logs of so many million users with a row each: `user_id` (int64) and `value` (float64, log-normal), Snappy, in files of
ten million rows. The floor reads the column and adds it up; duckdb averages it, without privacy. Two threads. The speed
without the start counts from the moment at which the job begins to read. Prints a Markdown table; each row is the run
of median length.
"""

from __future__ import annotations

import argparse
import platform
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from benchmarks.speed import watch

_FILE_ROWS = 10_000_000
_COLUMN = ("--column", "value", "--bits", "16", "--fraction_bits", "4", "--runner_config", "direct_threads")
JOBS = {
    "mean, rows are users": ("--rows_are_users", "--epsilon", "2"),
    "mean, rows are users, no LDP": ("--rows_are_users", "--trust", "secagg", "--no_dp"),
    "mean and variance, rows are users": ("--rows_are_users", "--epsilon", "2", "--statistics", "mean,variance"),
    "mean, one row of each user": ("--epsilon", "2"),
}
_DUCKDB = """
import duckdb, sys
connection = duckdb.connect(config={"threads": 2})
connection.execute(f"select avg(value) from read_parquet('{sys.argv[1]}/*.parquet')").fetchall()
"""


def data_set(root: Path, millions: int) -> Path:
    """The folder with logs of so many million users, made if it is missing."""
    folder = root / f"values{millions}"
    if not folder.exists():
        folder.mkdir(parents=True)
        for first in range(0, millions * 1_000_000, _FILE_ROWS):
            rows = min(_FILE_ROWS, millions * 1_000_000 - first)
            values = np.random.default_rng(first).lognormal(4, 1, rows)
            ids = np.arange(first, first + rows) * 6364136223846793005 >> 1
            table = pa.table({"user_id": ids, "value": values})
            pq.write_table(table, folder / f"{first:012d}.parquet", row_group_size=1 << 20, use_dictionary=False)
    return folder


def floor(folder: Path) -> float:
    """Seconds of the bare pass, the faster of two: the first may wait for the disk."""
    return min(_pass(folder) for _ in range(2))


def _pass(folder: Path) -> float:
    began = time.perf_counter()
    total = 0.0
    for path in sorted(folder.glob("*.parquet")):
        for batch in pq.ParquetFile(path).iter_batches(1 << 20, columns=["value"]):
            total += batch.column(0).to_numpy().sum()
    assert total > 0
    return time.perf_counter() - began


def duckdb_seconds(folder: Path) -> float:
    """Seconds of the exact mean by duckdb."""
    began = time.perf_counter()
    subprocess.run([sys.executable, "-c", _DUCKDB, str(folder)], check=True)
    return time.perf_counter() - began


def measure(folder: Path, users: float, options: tuple[str, ...]) -> tuple[float, list[str]]:
    """Seconds of one run, and its row: s, ratio to the floor, million values a second (in all; while it reads), MB."""
    bare = floor(folder)
    lines, seconds, peak = watch("moments", "--input", f"{folder}/*.parquet", *_COLUMN, *options)
    start = next(at for at, line in lines if "to read" in line)
    end = max(at for at, line in lines if ", round " in line)
    speeds = (users / seconds / 1e6, users / (end - start) / 1e6)
    return seconds, [f"{seconds:.1f}", f"{seconds / bare:.1f}", *(f"{one:.1f}" for one in speeds), f"{peak / 1e6:.0f}"]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", type=Path, default=Path("bench_data"))
    parser.add_argument("--sizes", default="10,100", help="millions of users")
    parser.add_argument("--repeats", type=int, default=3)
    options = parser.parse_args()
    print(f"{platform.machine()}, Python {platform.python_version()}; median of {options.repeats} runs\n")
    print("| users | job | s | times the floor | million values/s | without start and end | peak MB |")
    print("| ---: | :--- | ---: | ---: | ---: | ---: | ---: |")
    for millions in map(int, options.sizes.split(",")):
        folder = data_set(options.data, millions)
        for name, arguments in JOBS.items():
            runs = sorted(measure(folder, millions * 1e6, arguments) for _ in range(options.repeats))
            print(f"| {millions:,} M | {name} | {' | '.join(runs[len(runs) // 2][1])} |", flush=True)
        bare = floor(folder)
        seconds = sorted(duckdb_seconds(folder) for _ in range(options.repeats))[options.repeats // 2]
        row = f"{seconds:.1f} | {seconds / bare:.1f} | {millions / seconds:.1f} | - | -"
        print(f"| {millions:,} M | duckdb, exact mean, no privacy | {row} |", flush=True)


if __name__ == "__main__":
    main()
