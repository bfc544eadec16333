"""Throughput of `sfumato heatmap` by runner, as ratios to a bare pass over the same files in the same run.

    SFUMATO_FLINK_JAR=build/flink/job-server.jar python -m benchmarks.runners [--data bench_data] [--users 10]

`make flink-jar` makes the jar. The floor and the data set are those of benchmarks/speed.py. Every run makes the whole
release. Flink copies the bulky data between stages; in one process they stay where they are. Prints
a Markdown table.
"""

from __future__ import annotations

import argparse
import os
import platform
import secrets
import sys
import tempfile
from pathlib import Path

from benchmarks.speed import REGION, Measurement, data_set, floor, phases, table, watch

_FLINK = ("--runner_config", "flink", "--flink_open_servers")  # of made-up data
RUNNERS = {
    "DirectRunner, one thread": ["--runner_config", "direct"],
    "DirectRunner, two threads": ["--runner_config", "direct_threads"],
    "FlinkRunner, embedded cluster, parallelism 1": [
        "--runner_config",
        "flink",
        "--flink_open_servers",
        "--parallelism",
        "1",
    ],
    "FlinkRunner, embedded cluster, parallelism 2": ["--runner_config", "flink", "--flink_open_servers"],
}


def measure(folder: Path, millions: float, runner: str, key: Path) -> Measurement:
    """Floor and job, one after the other; the peak is of Python's and Java's processes together."""
    bare = floor(folder)
    lines, seconds, peak = watch(
        "heatmap", "--input", f"{folder}/*.parquet", "--region", ",".join(map(str, REGION)),
        "--depth", "10", "--epsilon", "1", "--key_file", str(key), *RUNNERS[runner],
    )  # fmt: skip
    return Measurement(round(millions * 1e6), runner, seconds, bare, peak / 1e6, *phases(lines, seconds))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, default=Path("bench_data"))
    parser.add_argument("--users", type=float, default=10, metavar="N", help="millions")
    parser.add_argument("--repeats", type=int, default=3)
    options = parser.parse_args()
    if not os.path.isfile(os.environ.get("SFUMATO_FLINK_JAR", "")):
        raise SystemExit("SFUMATO_FLINK_JAR names no file; `make flink-jar` makes one")
    options.data.mkdir(parents=True, exist_ok=True)
    folder = data_set(options.data, options.users)
    floor(folder)  # warm the page cache
    results: dict[str, list[Measurement]] = {runner: [] for runner in RUNNERS}
    with tempfile.TemporaryDirectory() as place:
        key = Path(place, "key")
        key.write_bytes(secrets.token_bytes(32))
        # One runner after the other within each repeat: the machine's moods fall on all alike.
        for _ in range(options.repeats):
            for runner, runs in results.items():
                runs.append(measure(folder, options.users, runner, key))
                print(table([runs[-1:]]).splitlines()[-1], file=sys.stderr, flush=True)
    print(
        f"{os.cpu_count()} cores, {platform.machine()}, Python {platform.python_version()}, median of {options.repeats}"
    )
    print()
    print(table(list(results.values())))


if __name__ == "__main__":
    main()
