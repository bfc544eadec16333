"""A month of nightly maps: seconds a day, and how near each map comes to the truth with and without a warm start.

    python -m benchmarks.nightly [--users 100000] [--days 2026-10-22:2026-11-20] [--data FOLDER] [--plot docs/images]

`sfumato synth --days` makes the logs (unless they are there), and `sfumato refresh --backfill` publishes every day
twice: each map from nothing, and each from the one before. The truth is the density that a day's records are drawn
from. Errors are mean squared ones over that of the best uniform grid of the day's exact counts, as in
benchmarks/accuracy.py: a ratio of 1 is reached without privacy. Prints Markdown tables; --plot is for nightly.png.
"""

from __future__ import annotations

import argparse
import os
import platform
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass, field
from datetime import date
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import yaml
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.dates import DateFormatter, WeekdayLocator
from matplotlib.figure import Figure

from benchmarks.baselines.level_errors import best_uniform_level
from benchmarks.speed import command
from sfumato.schemas.ledger import Period
from sfumato.schemas.region import Grid
from sfumato.transforms.evaluation.density_metrics import mean_squared_error
from sfumato.transforms.release.published_release import open_release
from sfumato.transforms.synth.city import SIDE
from sfumato.transforms.synth.day_plan import density_on, event_of
from sfumato.transforms.synth.generate import count_codes, density_raster
from sfumato.transforms.synth.people import DEFAULT_REGION
from sfumato.transforms.synth.synth_request import parse_days
from sfumato.transforms.text_tables import markdown_table

DEPTH = 10
WAYS = {"from nothing": False, "warm start": True}
COLOURS = {"from nothing": "#888888", "warm start": "#c2410c"}
KEY = b"a key that anybody knows: no secret, since nobody lives in this city"


@dataclass
class Month:
    """A way of publishing: by day, seconds until the map stood, and the error of its density over the yardstick's."""

    seconds: list[float] = field(default_factory=list)
    errors: list[float] = field(default_factory=list)


def make_logs(root: Path, users: int, days: Period) -> Path:
    """The folder with the days' logs, made if it is missing."""
    folder = root / f"nightly_{users}_{days.first}_{days.last}"
    if not folder.exists():
        job = command("synth", "--users", str(users), "--days", str(days), "--output", str(folder))
        subprocess.run(job, check=True, stdout=subprocess.DEVNULL)
    return folder


def yardsticks(folder: Path, days: list[date]) -> list[tuple[np.ndarray, float, int]]:
    """Of each day: the true density float64[2^DEPTH, 2^DEPTH], the best uniform grid's error, users."""
    grid, found = Grid(DEFAULT_REGION, DEPTH), []
    block = SIDE >> DEPTH
    for day in days:
        fine = density_on(day, 0, (DEFAULT_REGION.west + DEFAULT_REGION.east) / 2)
        truth = fine.reshape(1 << DEPTH, block, 1 << DEPTH, block).sum(axis=(1, 3))
        table = pq.read_table(folder / f"dt={day}", columns=["longitude", "latitude"], partitioning=None)
        sample = density_raster(count_codes(table, grid))
        found.append((truth, best_uniform_level(sample, truth)[1], table.num_rows))
    return found


def publish(place: Path, logs: Path, days: list[date], warm: bool) -> list[float]:
    """Backfills the days into place/maps; returns seconds from one page to the next, the first from the start."""
    place.mkdir()
    (place / "key").write_bytes(KEY)
    region = [DEFAULT_REGION.west, DEFAULT_REGION.south, DEFAULT_REGION.east, DEFAULT_REGION.north]
    config = {
        "dataset": "city",
        "input": str(logs.absolute()),
        "output": "maps",
        "ledger": "ledger.db",
        "key_file": "key",
        "budget": [{"epsilon": 1, "days": 1}, {"epsilon": len(days), "days": 365}],
        "options": {"region": region, "depth": DEPTH, "epsilon": 1},
        "warm_start": warm,
    }
    (place / "refresh.yaml").write_text(yaml.safe_dump(config))
    job = command("refresh", "--config", str(place / "refresh.yaml"), "--backfill", f"{days[0]}:{days[-1]}")
    began, seconds = time.perf_counter(), []
    with (
        (place / "log").open("w") as log,
        subprocess.Popen(
            job, stdout=subprocess.PIPE, stderr=log, text=True, env={**os.environ, "PYTHONUNBUFFERED": "1"}
        ) as running,
    ):
        assert running.stdout is not None
        for line in running.stdout:
            if line.rstrip().endswith("index.html"):
                seconds.append(time.perf_counter() - began)
    if running.returncode or len(seconds) != len(days):
        raise SystemExit(f"exit status {running.returncode}\n" + (place / "log").read_text())
    return list(np.diff(seconds, prepend=0.0))


def summary(days: list[date], months: dict[str, Month]) -> str:
    """What a day takes and how good its map is, by way."""
    kinds = {
        "all days": [True] * len(days),
        "Sundays": [day.weekday() == 6 for day in days],
        "event": [event_of(day) is not None for day in days],
    }
    rows = [["", "first day, s", "median day, s", "all days, s", *(f"error, {kind}" for kind in kinds)]]
    for way, month in months.items():
        seconds = [month.seconds[0], float(np.median(month.seconds)), sum(month.seconds)]
        errors = [np.array(month.errors)[np.array(chosen)] for chosen in kinds.values()]
        means = [f"{one.mean():.3f}" if len(one) else "-" for one in errors]
        rows.append([way, *(f"{value:.1f}" for value in seconds), *means])
    return markdown_table(rows)


def by_day(days: list[date], users: list[int], months: dict[str, Month]) -> str:
    """Every day's figures."""
    ways = [f"{what}, {way}" for what in ("error", "seconds") for way in months]
    rows = [["day", "users", *ways]]
    for number, day in enumerate(days):
        name = f"{day:%a} {day}" + (" (event)" if event_of(day) else "")
        errors = [f"{month.errors[number]:.3f}" for month in months.values()]
        seconds = [f"{month.seconds[number]:.1f}" for month in months.values()]
        rows.append([name, f"{users[number]:,}", *errors, *seconds])
    return markdown_table(rows)


def plot(days: list[date], users: int, months: dict[str, Month], path: Path) -> None:
    """Error and seconds by day; weekends shaded, events marked."""
    figure = Figure(figsize=(10, 6), layout="constrained")
    above, below = figure.subplots(2, 1, sharex=True, height_ratios=[2, 1])
    places = np.array(days, dtype="datetime64[D]")
    half = np.timedelta64(12, "h")
    for axes, name in ((above, "errors"), (below, "seconds")):
        for place, day in zip(places, days, strict=True):
            if day.weekday() >= 5:
                axes.axvspan(place - half, place + half, color="#f1ede4", linewidth=0)
        for way, month in months.items():
            axes.plot(places, getattr(month, name), "o-", color=COLOURS[way], markersize=3.5, label=way)
        axes.spines[["top", "right"]].set_visible(False)
    for place, day in zip(places, days, strict=True):
        if event_of(day):
            above.axvline(place, color="#888888", linewidth=0.8, linestyle=":", zorder=1.5)
            above.text(place, 1.01, "a crowd gathers", transform=above.get_xaxis_transform(), ha="center", fontsize=9)
    above.set(
        ylabel="squared error over the best\nnon-private uniform grid's", title=f"A month of maps of {users:,} people\n"
    )
    above.axhline(1, color="#bbbbbb", linewidth=0.8, linestyle="--")
    above.margins(y=0.15)
    above.legend(frameon=False)
    below.set(ylabel="seconds", ylim=0, xlabel="day (UTC); weekends are shaded")
    below.xaxis.set_major_locator(WeekdayLocator(byweekday=0))
    below.xaxis.set_major_formatter(DateFormatter("%-d %b"))
    FigureCanvasAgg(figure).print_png(str(path))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--users", type=int, default=100_000)
    parser.add_argument("--days", default="2026-10-22:2026-11-20")
    parser.add_argument("--data", type=Path, default=Path("bench_data"))
    parser.add_argument("--plot", type=Path, help="folder for nightly.png")
    options = parser.parse_args()
    logs, days = make_logs(options.data, options.users, parse_days(options.days)), parse_days(options.days).days()
    truths = yardsticks(logs, days)
    months: dict[str, Month] = {}
    for way, warm in WAYS.items():
        with tempfile.TemporaryDirectory() as folder:
            place = Path(folder) / "month"
            months[way] = Month(publish(place, logs, days, warm))
            for day, (truth, yardstick, _) in zip(days, truths, strict=True):
                density = open_release(str(place / "maps" / "releases" / str(day))).density
                months[way].errors.append(mean_squared_error(density, truth) / yardstick)
        print(f"{way}: {sum(months[way].seconds):.0f} s", file=sys.stderr, flush=True)
    cores = len(os.sched_getaffinity(0))
    print(f"{options.users:,} people, {len(days)} days, depth {DEPTH}, epsilon 1 a day")
    print(f"{cores} cores, {platform.machine()}, Python {platform.python_version()}\n")
    print(summary(days, months))
    print(by_day(days, [users for _, _, users in truths], months))
    if options.plot:
        plot(days, options.users, months, options.plot / "nightly.png")


if __name__ == "__main__":
    main()
