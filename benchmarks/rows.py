"""A job's transform over rows, tables and files of one log: time and memory, in ratios to the files.

    python -m benchmarks.rows [--users 1000000] [--repeats 3]

Each run is a process of its own, with one record a user. Rows are dictionaries that a step of the pipeline makes of the
files; that step alone is the floor. Tables are the record batches of the same files. Processor seconds are user and
system time of the process and its children.
"""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from sfumato.transforms.observability.text_tables import markdown_table

_CODE = """
import glob, sys
import apache_beam as beam
import pyarrow.parquet as pq
from sfumato.beam import PrivateHeatmap

kind, folder = sys.argv[1:]
with beam.Pipeline() as pipeline:
    paths = pipeline | beam.Create(sorted(glob.glob(folder + "/*.parquet")))
    batches = lambda path: pq.ParquetFile(path).iter_batches(65536, columns=["user_id", "latitude", "longitude"])
    if kind != "files":
        paths = paths | beam.FlatMap(batches)
    if kind in ("rows", "rows without a job"):
        paths = paths | beam.FlatMap(lambda batch: batch.to_pylist())
    if kind == "rows without a job":
        _ = paths | beam.combiners.Count.Globally()
    else:
        _ = paths | PrivateHeatmap(region=(3.00, 1.00, 3.13, 1.13), depth=10) | beam.combiners.Count.Globally()
"""
_KINDS = ("files", "tables", "rows", "rows without a job")


def run(kind: str, folder: str) -> tuple[float, float, float]:
    """Returns wall seconds, processor seconds and peak megabytes of a process."""
    began = time.monotonic()
    process = subprocess.Popen([sys.executable, "-c", _CODE, kind, folder], stderr=subprocess.DEVNULL)
    _, status, used = os.wait4(process.pid, 0)
    if status:
        raise SystemExit(f"{kind}: the run ended with status {status}")
    return time.monotonic() - began, used.ru_utime + used.ru_stime, used.ru_maxrss / 1024


def main() -> None:
    """Prints the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--users", type=int, default=1_000_000)
    parser.add_argument("--repeats", type=int, default=3)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        logs = str(Path(folder) / "logs")
        sfumato = str(Path(sys.executable).with_name("sfumato"))
        command = [sfumato, "synth", "--users", str(arguments.users), "--output", logs]
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        runs = {kind: [run(kind, logs) for _ in range(arguments.repeats)] for kind in _KINDS}
    rows, floor = [], None
    for kind, found in runs.items():
        wall, cpu, peak = (statistics.median(one) for one in zip(*found, strict=True))
        floor = floor or cpu
        rows.append([kind, f"{wall:.1f}", f"{cpu:.1f}", f"{cpu / floor:.1f}", f"{peak:.0f}"])
    print(f"{arguments.users:,} users, median of {arguments.repeats}\n")
    print(markdown_table([["input", "wall s", "CPU s", "CPU: times files", "peak MB"], *rows]))


if __name__ == "__main__":
    main()
