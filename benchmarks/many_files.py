"""Ten thousand files before and while they are read: in a storage with latency, and on a disk.

    python -m benchmarks.many_files [--files 10000] [--latency 40] [--rows 1000000]

The storage is the emulator of the tests, in a process of its own, which waits `--latency` milliseconds before each
answer. `inspected` is all that a run does before its graph is built: files are listed, footers are read, and each
object has its version and digest. On the disk, `sfumato heatmap` reads the same rows in 10 files and in `--files`.
Processor times are of all threads of the client. Prints a Markdown table.
"""

from __future__ import annotations

import argparse
import io
import os
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from apache_beam.internal.gcp import auth

from sfumato.pipelines.frame.inputs import content_digests, inspect, match_files, with_rows
from sfumato.schemas.locations import LocationColumns

GOAL_S, GOAL_RATIO = 30.0, 2.0
REGION = "-1,50,1,51"


def records(rows: int) -> pa.Table:
    """Records of as many users."""
    rng = np.random.default_rng(0)
    places = rng.uniform([-1, 50], [1, 51], (rows, 2))
    ids = rng.permutation(rows).astype(np.int64)
    return pa.table({"user_id": ids, "latitude": places[:, 1], "longitude": places[:, 0]})


def serve(files: int, latency: float) -> None:
    """Runs the emulator with so many objects of 100 rows until standard input ends. Prints its address."""
    from tests.storage import BUCKET, storage_emulator

    with storage_emulator() as emulator:
        emulator.storage._write_config_to_file = lambda: None  # it would write the list of all objects for each of them
        bucket, table = BUCKET.removeprefix("gs://"), records(100)
        for number in range(files):
            content = io.BytesIO()
            pq.write_table(table.slice(number % 100), content)
            emulator.storage.create_file(
                bucket, f"logs/part-{number:05d}.parquet", content.getvalue(), _resource(bucket, number, content)
            )
        emulator.latency = latency
        print(emulator.url, flush=True)
        sys.stdin.read()
        print(len(emulator.requests), flush=True)


def _resource(bucket: str, number: int, content: io.BytesIO) -> dict[str, object]:
    from gcp_storage_emulator.handlers.objects import _make_object_resource

    resource: dict[str, object] = _make_object_resource(
        "", bucket, f"logs/part-{number:05d}.parquet", "application/octet-stream", str(len(content.getvalue()))
    )
    return resource


def inspect_remote() -> int:
    """Does what a run with a key does to its input before the graph is built. Returns the number of rows."""
    files = match_files("gs://test-bucket/logs/*.parquet")
    columns = LocationColumns()
    if len(set(content_digests(with_rows(files, columns)))) < 2:
        raise SystemExit("the objects have one digest")
    return inspect(files, columns)[0]


def timed(work: Callable[[], object]) -> tuple[float, float]:
    """Wall and processor seconds of some work, child processes included."""
    before, began = _processor(), time.perf_counter()
    work()
    return time.perf_counter() - began, _processor() - before


def _processor() -> float:
    found = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(one.ru_utime + one.ru_stime for one in found)


def heatmap(folder: Path) -> Callable[[], object]:
    """A run of `sfumato heatmap` on the files of a folder."""
    job = [
        sys.executable,
        "-m",
        "sfumato.pipelines.command_line.cli",
        "heatmap",
        "--input",
        str(folder),
        "--region",
        REGION,
    ]
    job += ["--seed", "1", "--overwrite", "--output", f"{folder}-release"]
    return lambda: subprocess.run(job, check=True, capture_output=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--files", type=int, default=10_000)
    parser.add_argument("--latency", type=float, default=40, help="milliseconds")
    parser.add_argument("--rows", type=int, default=1_000_000, help="on the disk")
    parser.add_argument("--serve", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.serve:
        serve(options.files, options.latency / 1000)
        return
    served = [sys.executable, "-m", "benchmarks.many_files", "--serve", "--files", str(options.files)]
    served += ["--latency", str(options.latency)]
    auth._Credentials._credentials_init = True  # the emulator needs none
    with subprocess.Popen(served, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as server:
        assert server.stdout is not None
        os.environ["STORAGE_EMULATOR_HOST"] = server.stdout.readline().strip()
        os.environ["DISABLE_GCS_PYTHON_CLIENT_OTEL_BUCKET_METADATA"] = "true"
        wall, processor = timed(inspect_remote)
        said, _ = server.communicate()
    print("| what | files | wall, s | processor, s | goal |", "|---|---|---|---|---|", sep="\n")
    met = "met" if wall <= GOAL_S else "missed"
    print(
        f"| inspected in a storage, {options.latency:g} ms a request, {int(said):,} requests | {options.files:,} "
        f"| {wall:.1f} | {processor:.1f} | {GOAL_S:g} s: {met} |"
    )
    with tempfile.TemporaryDirectory() as name:
        table, base = records(options.rows), None
        for files in (10, options.files):
            folder = Path(name) / str(files)
            folder.mkdir()
            for number, part in enumerate(np.array_split(np.arange(options.rows), files)):
                pq.write_table(table.slice(part[0], len(part)), folder / f"part-{number:05d}.parquet")
            wall, processor = timed(heatmap(folder))
            ratio = 1.0 if base is None else processor / base
            goal = "" if base is None else f"{GOAL_RATIO:g} times: {'met' if ratio <= GOAL_RATIO else 'missed'}"
            base = base or processor
            print(
                f"| heatmap of {options.rows:,} rows on a disk, {ratio:.1f} times the processor time "
                f"| {files:,} | {wall:.1f} | {processor:.1f} | {goal} |"
            )


if __name__ == "__main__":
    main()
