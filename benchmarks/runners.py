"""What `sfumato heatmap` costs by runner, as ratios to one thread of the DirectRunner in the same run.

    python -m benchmarks.runners [--data bench_data] [--users 10] [--repeats 3]

`make flink-jar spark-jar prism` makes the engines' files, which SFUMATO_FLINK_JAR, SFUMATO_SPARK_JAR and SFUMATO_PRISM
name; an engine without its file is left out. Each run is a whole process with its engine. Processor seconds are those
of Python and of the engine together. The data set is that of benchmarks/speed.py. Prints a Markdown table of medians.
"""

from __future__ import annotations

import argparse
import os
import platform
import resource
import secrets
import statistics
import sys
import tempfile
from pathlib import Path

from benchmarks.speed import REGION, data_set, floor, watch
from sfumato.pipelines.job_servers import FLINK, PRISM, SPARK
from sfumato.transforms.text_tables import markdown_table

_BASE = "DirectRunner, one thread"
RUNNERS = {
    _BASE: (None, ["direct"]),
    "DirectRunner, two threads": (None, ["direct_threads"]),
    "Flink, embedded, parallelism 2": (FLINK, ["flink", "--open_job_server"]),  # of made-up data
    "Spark, `local[2]`": (SPARK, ["spark", "--open_job_server"]),
    "Prism": (PRISM, ["prism", "--open_job_server"]),
}


def processor_seconds() -> float:
    """Of all processes that this one has waited for, and of those that they waited for."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def measure(folder: Path, runner: str, key: Path) -> tuple[float, float, float]:
    """Seconds, processor seconds and peak resident MB of a heatmap, of Python and the engine together."""
    before = processor_seconds()
    _, seconds, peak = watch(
        "heatmap", "--input", f"{folder}/*.parquet", "--region", ",".join(map(str, REGION)), "--depth", "10",
        "--epsilon", "1", "--key_file", str(key), "--runner_config", *RUNNERS[runner][1],
    )  # fmt: skip
    return seconds, processor_seconds() - before, peak / 1e6


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, default=Path("bench_data"))
    parser.add_argument("--users", type=float, default=10, metavar="N", help="millions")
    parser.add_argument("--repeats", type=int, default=3)
    options = parser.parse_args()
    options.data.mkdir(parents=True, exist_ok=True)
    folder = data_set(options.data, options.users)
    floor(folder)  # warm the page cache
    files = {name: engine and os.environ.get(engine.variable, "") for name, (engine, _) in RUNNERS.items()}
    here = [name for name, file in files.items() if file is None or os.path.isfile(file)]
    results: dict[str, list[tuple[float, float, float]]] = {name: [] for name in here}
    with tempfile.TemporaryDirectory() as place:
        key = Path(place, "key")
        key.touch(0o600)
        key.write_bytes(secrets.token_bytes(32))
        # One runner after the other within each repeat: the machine's moods fall on all alike.
        for _ in range(options.repeats):
            for name, runs in results.items():
                runs.append(measure(folder, name, key))
                print(name, *(f"{number:.1f}" for number in runs[-1]), file=sys.stderr, flush=True)
    print(
        f"{options.users:g} million users, {os.cpu_count()} cores, {platform.machine()}, "
        f"Python {platform.python_version()}, median of {options.repeats}\n"
    )
    rows = [["runner", "seconds", "processor seconds", "times one thread's", "peak MB"]]
    medians = {name: list(map(statistics.median, zip(*runs, strict=True))) for name, runs in results.items()}
    for name, (seconds, busy, peak) in medians.items():
        rows.append([name, f"{seconds:.1f}", f"{busy:.1f}", f"{busy / medians[_BASE][1]:.1f}", f"{peak:,.0f}"])
    print(markdown_table(rows))


if __name__ == "__main__":
    main()
