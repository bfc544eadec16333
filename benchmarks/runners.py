"""What `sfumato heatmap` costs by runner, beside a bare pass over the same files in the same run.

    python -m benchmarks.runners [--data bench_data] [--users 10] [--repeats 3]

`make flink-jar spark-jar prism` makes the engines' files, which SFUMATO_FLINK_JAR, SFUMATO_SPARK_JAR and SFUMATO_PRISM
name; an engine without its file is left out. Each run is a whole process with its engine. CPU seconds are those of
Python and of the engine together. Data set, bare pass and columns are those of benchmarks/speed.py. Prints Markdown.
"""

from __future__ import annotations

import argparse
import os
import secrets
import sys
import tempfile
from pathlib import Path

from benchmarks.speed import HEADS, Measured, Run, data_set, job_arguments, machine, run, run_floor, run_job
from sfumato.pipelines.runners.job_servers import FLINK, PRISM, SPARK
from sfumato.transforms.observability.text_tables import markdown_table

RUNNERS = {
    "DirectRunner, one thread": (None, ["direct"]),
    "DirectRunner, two threads": (None, ["direct_threads"]),
    "Flink, embedded, parallelism 2": (FLINK, ["flink", "--open_job_server"]),  # of made-up data
    "Spark, `local[2]`": (SPARK, ["spark", "--open_job_server"]),
    "Prism": (PRISM, ["prism", "--open_job_server"]),
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, default=Path("bench_data"))
    parser.add_argument("--users", type=float, default=10, metavar="N", help="millions")
    parser.add_argument("--repeats", type=int, default=3)
    options = parser.parse_args()
    options.data.mkdir(parents=True, exist_ok=True)
    folder = data_set(options.data, options.users)
    run_floor(folder)  # warms the page cache
    files = {name: engine and os.environ.get(engine.variable, "") for name, (engine, _) in RUNNERS.items()}
    here = [name for name, file in files.items() if file is None or os.path.isfile(file)]
    results: dict[str, list[tuple[Run, Run, Run | None]]] = {name: [] for name in here}
    with tempfile.TemporaryDirectory() as place:
        key = Path(place, "key")
        key.touch(0o600)
        key.write_bytes(secrets.token_bytes(32))
        heatmap = (*job_arguments("heatmap", folder, Path(place)), "--key_file", str(key), "--runner_config")
        # One runner after the other within each repeat: the machine's moods fall on all alike.
        for _ in range(options.repeats):
            start = run([sys.executable, "-c", "import apache_beam"])
            for name, runs in results.items():
                bare = run_floor(folder)
                runs.append((run_job(*heatmap, *RUNNERS[name][1]), bare, start))
                print(f"{name}: {runs[-1][0].seconds:.1f} s", file=sys.stderr, flush=True)
    rows = [[f"{options.users:g} M", name, *Measured(runs).cells()] for name, runs in results.items()]
    print(f"{machine(options.repeats)}\n\n{markdown_table([HEADS, *rows], left=(1,))}", end="")


if __name__ == "__main__":
    main()
