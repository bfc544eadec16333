"""Speed and memory of `sfumato heatmap`, as ratios to a bare pass over the same files in the same run.

    python -m benchmarks.speed [--data bench_data] [--sizes 1,10,54.6] [--repeats 3] [--plot docs/images]

The floor reads two columns with pyarrow, bins them to 1024 x 1024 with NumPy and adds up: no users, no noise, no tree.
Prints Markdown tables: of
sizes and modes, and of what schedules and estimators cost at the largest size. Missing data sets are made with
`sfumato synth` (31 bytes a user on disk).
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import platform
import re
import subprocess
import sys
import tempfile
import time
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
import psutil
import pyarrow.parquet as pq

REGION = (3.00, 1.00, 3.13, 1.13)  # of `sfumato synth`
# What the estimator costs, and what the default's larger trees cost: at the largest size, in two threads.
VARIANTS = {
    "`--schedule paper --estimator last`": ["--schedule", "paper", "--estimator", "last"],
    "`--schedule paper --estimator bayes`": ["--schedule", "paper"],
    "`--schedule lean`": ["--schedule", "lean"],
    "default (`--schedule auto --estimator bayes`)": [],
}
MODES = {"one thread": "direct", "two threads": "direct_threads"}


@dataclass
class Measurement:
    """One run: seconds of the whole command, peak resident MB of its processes, seconds by phase."""

    users: int
    mode: str
    seconds: float
    floor: float
    peak_mb: float
    phases: dict[str, float]
    sub_queries: list[tuple[int, float]]
    entries: list[int]


def floor(folder: Path) -> float:
    """Seconds of the bare pass."""
    began = time.perf_counter()
    west, south, east, north = REGION
    total = np.zeros(1 << 20, dtype=np.int64)
    for path in sorted(folder.glob("*.parquet")):
        for batch in pq.ParquetFile(path).iter_batches(1 << 20, columns=["latitude", "longitude"]):
            latitude, longitude = (batch.column(i).to_numpy() for i in (0, 1))
            x = np.minimum(((longitude - west) * (1024 / (east - west))).astype(np.int32), 1023)
            y = np.minimum(((north - latitude) * (1024 / (north - south))).astype(np.int32), 1023)
            total += np.bincount(y * 1024 + x, minlength=1 << 20)
    assert total.sum() > 0
    return time.perf_counter() - began


def command(*arguments: str) -> list[str]:
    return [sys.executable, "-m", "sfumato.pipelines.cli", *arguments]


def data_set(root: Path, millions: float) -> Path:
    """The folder with logs of so many million users, made if it is missing."""
    folder = root / f"city{int(millions)}"
    if not folder.exists():
        users = round(millions * 1e6)
        subprocess.run(command("synth", "--users", str(users), "--output", str(folder)), check=True)
    return folder


def measure(folder: Path, millions: float, mode: str, options: tuple[str, ...] = ()) -> Measurement:
    """Floor and job, one after the other. Phases come from the times of the job's own progress lines."""
    bare = floor(folder)
    lines, seconds, peak = watch(
        "heatmap", "--input", f"{folder}/*.parquet", "--region", ",".join(map(str, REGION)),
        "--depth", "10", "--epsilon", "1", "--runner_config", MODES[mode], *options,
    )  # fmt: skip
    return Measurement(round(millions * 1e6), mode, seconds, bare, peak / 1e6, *phases(lines, seconds))


def watch(*arguments: str) -> tuple[list[tuple[float, str]], float, int]:
    """Runs a job: its progress lines with their times, seconds of the whole command, peak resident bytes."""
    with tempfile.TemporaryDirectory() as out:
        began = time.perf_counter()
        job = subprocess.Popen(
            command(*arguments, "--output", f"{out}/release"),
            stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, env={**os.environ, "PYTHONUNBUFFERED": "1"},
        )  # fmt: skip
        os.set_blocking(job.stderr.fileno(), False)
        lines, text, peak, looked = [], b"", 0, 0.0
        while job.poll() is None:
            if time.perf_counter() - looked > 0.25:  # looking costs some milliseconds of one of few cores
                looked = time.perf_counter()
                peak = max(peak, resident(job.pid))
            text += job.stderr.read() or b""
            while b"\n" in text:
                line, text = text.split(b"\n", 1)
                lines.append((time.perf_counter() - began, line.decode()))
            time.sleep(0.02)
        seconds = time.perf_counter() - began
        if job.returncode:
            raise SystemExit("\n".join(line for _, line in lines))
    return lines, seconds, peak


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


def phases(
    lines: list[tuple[float, str]], seconds: float
) -> tuple[dict[str, float], list[tuple[int, float]], list[int]]:
    """Seconds by phase, (entries, seconds) of the sub-queries after the first, and the entries of all."""
    start = next(at for at, line in lines if "to read" in line)
    grouped = next(at for at, line in lines if "read and grouped" in line)
    queries = [(at, int(found[1])) for at, line in lines if (found := re.search(r"sub-query \d+: (\d+) entries", line))]
    first, last = queries[0][0], queries[-1][0]
    split = {
        "start": start,
        "read, hash, group": grouped - start,
        "index, first sub-query": first - grouped,
        "other sub-queries": last - first,
        "release": seconds - last,
    }
    costs = [(entries, at - before) for (before, _), (at, entries) in itertools.pairwise(queries)]
    return split, costs, [entries for _, entries in queries]


def median(runs: list[Measurement]) -> Measurement:
    """The run of median length."""
    return sorted(runs, key=lambda run: run.seconds)[len(runs) // 2]


def table(results: list[list[Measurement]]) -> str:
    """Markdown: one row a size and mode, all of the run of median length."""
    rows = [
        "| users | mode | seconds | times the floor | million users/s | peak MB | "
        + " | ".join(results[0][0].phases)
        + " |",
        "|---" * (6 + len(results[0][0].phases)) + "|",
    ]
    for runs in results:
        run = median(runs)
        cells = [
            f"{run.users / 1e6:g} M",
            run.mode,
            f"{run.seconds:.1f}",
            f"{run.seconds / run.floor:.1f}",
            f"{run.users / run.seconds / 1e6:.2f}",
            f"{max(one.peak_mb for one in runs):.0f}",
            *(f"{value:.1f}" for value in run.phases.values()),
        ]
        rows.append("| " + " | ".join(cells) + " |")
    return "\n".join(rows)


def variants(folder: Path, millions: float, repeats: int) -> dict[str, list[Measurement]]:
    """Runs of every variant, one variant after the other within each repeat: the machine's moods fall on all alike."""
    found: dict[str, list[Measurement]] = {name: [] for name in VARIANTS}
    for _ in range(repeats):
        for name, options in VARIANTS.items():
            found[name].append(measure(folder, millions, "two threads", tuple(options)))
    return found


def variants_table(found: dict[str, list[Measurement]]) -> str:
    """Markdown: medians, and the median over repeats of the ratio to the first variant in the same repeat."""
    rows = ["| variant | seconds | times the first | entries of the sub-queries |", "|---|---|---|---|"]
    first = next(iter(found.values()))
    for name, runs in found.items():
        ratio = float(np.median([run.seconds / one.seconds for run, one in zip(runs, first, strict=True)]))
        entries = ", ".join(f"{n:,}" for n in median(runs).entries)
        rows.append(f"| {name} | {median(runs).seconds:.1f} | {ratio:.2f} | {entries} |")
    return "\n".join(rows)


def plot(results: list[list[Measurement]], many: Measurement, folder: Path) -> None:
    """scaling.png: seconds by users, and seconds by entries for each sub-query of a run of many sub-queries."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(10, 4), layout="constrained")
    by_users, by_entries = figure.subplots(1, 2)
    for mode in MODES:
        runs = [median(one) for one in results if one[0].mode == mode]
        by_users.plot([r.users / 1e6 for r in runs], [r.seconds for r in runs], "o-", label=mode)
    by_users.set(xlabel="million users", ylabel="seconds, whole command", xlim=0, ylim=0)
    entries, costs = zip(*many.sub_queries, strict=True)
    by_entries.plot(entries, costs, "o-", label=f"{many.users / 1e6:g} M users, {many.mode}, schedule paper")
    by_entries.set(xlabel="entries of the sub-query's vector (T)", ylabel="seconds of the sub-query", xlim=0, ylim=0)
    for axes in (by_users, by_entries):
        axes.legend(frameon=False)
        axes.spines[["top", "right"]].set_visible(False)
    FigureCanvasAgg(figure).print_png(str(folder / "scaling.png"))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, default=Path("bench_data"))
    parser.add_argument("--sizes", default="1,10,54.6", help="million users, comma-separated")
    parser.add_argument("--modes", default=",".join(MODES))
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--plot", type=Path, help="folder for scaling.png")
    options = parser.parse_args()
    options.data.mkdir(parents=True, exist_ok=True)
    results = []
    for millions in map(float, options.sizes.split(",")):
        folder = data_set(options.data, millions)
        floor(folder)  # warm the page cache
        for mode in options.modes.split(","):
            results.append([measure(folder, millions, mode) for _ in range(options.repeats)])
            print(table(results[-1:]).splitlines()[-1], file=sys.stderr, flush=True)
    (options.data / "speed.json").write_text(json.dumps([[asdict(run) for run in runs] for runs in results]))
    print(
        f"{os.cpu_count()} cores, {platform.machine()}, Python {platform.python_version()}, median of {options.repeats}"
    )
    print()
    print(table(results))
    print()
    found = variants(folder, millions, options.repeats)
    print(variants_table(found))
    if options.plot:
        plot(results, median(next(iter(found.values()))), options.plot)


if __name__ == "__main__":
    main()
