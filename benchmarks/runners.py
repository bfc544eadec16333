"""Throughput of `sfumato heatmap` by runner, as ratios to a bare pass over the same files in the same run.

    SFUMATO_FLINK_JAR=build/flink/job-server.jar python -m benchmarks.runners [--data bench_data] [--users 10]

`make flink-jar` makes the jar. The floor and the data set are those of benchmarks/speed.py. Every run makes the whole
release. Flink copies the bulky data between stages; in one process they stay where they are. Prints
a Markdown table.
"""

from __future__ import annotations

import argparse
import os
import secrets
import sys
import tempfile
from pathlib import Path

from benchmarks.speed import HEADS, Measured, Run, data_set, job_arguments, machine, run, run_floor, run_job
from sfumato.transforms.text_tables import markdown_table

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
    run_floor(folder)  # warms the page cache
    results: dict[str, list[tuple[Run, Run, Run | None]]] = {runner: [] for runner in RUNNERS}
    with tempfile.TemporaryDirectory() as place:
        key = Path(place, "key")
        key.write_bytes(secrets.token_bytes(32))
        heatmap = job_arguments("heatmap", folder, Path(place))
        # One runner after the other within each repeat: the machine's moods fall on all alike.
        for _ in range(options.repeats):
            start = run([sys.executable, "-c", "import apache_beam"])
            for runner, runs in results.items():
                bare = run_floor(folder)
                runs.append((run_job(*heatmap, "--key_file", str(key), *RUNNERS[runner]), bare, start))
                print(f"{runner}: {runs[-1][0].seconds:.1f} s", file=sys.stderr, flush=True)
    rows = [[f"{options.users:g} M", runner, *Measured(runs).cells()] for runner, runs in results.items()]
    print(f"{machine(options.repeats)}\n\n{markdown_table([HEADS, *rows], left=(1,))}", end="")


if __name__ == "__main__":
    main()
