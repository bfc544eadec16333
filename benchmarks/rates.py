"""Rates: Appendix B of paper 000 on two maps, what intervals cover over 200 keys, and how trees are refined.

    SFUMATO_DATA=... python -m benchmarks.rates [--keys 200] [--quick] [--picture FILE.png] [--data bench_data]
    python -m benchmarks.rates --lists [--keys 200]

Users live on 1024 x 1024 cells, of the synthetic city and of the Manhattan-like map (`SFUMATO_DATA` names its folder).
Each is infected with a chance that falls from 1 at (200, 900), column and row, with a Gaussian kernel. Who is infected
is drawn anew with every key; what an interval has to cover is the mean chance of the users in its cell. The picture is
of a release of the real job on Parquet logs. `--quick`: 10 keys.

`--lists` is about the list of the highest rates alone, on the synthetic city. The truth is each user's own probability
of being infected: the city's raster of risk, read at the user's place, or 5% everywhere. A listed place is wrong where
the mean probability of its users is not above that of all users, or where nobody is.
"""

from __future__ import annotations

import argparse
import io
import itertools
import os
import subprocess
import sys
import time
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from benchmarks.city_people import make_people
from benchmarks.evaluation.in_memory import Rows, run_in_memory
from benchmarks.few_users import markdown
from benchmarks.speed import command
from sfumato.schemas.rectangle import PENUMBRA
from sfumato.schemas.region import Grid, Places, by_row, deinterleave, interleave
from sfumato.schemas.tree import Tree, node_positions
from sfumato.transforms.counting.rates import Rates, estimate_rates
from sfumato.transforms.counting.state import Estimate
from sfumato.transforms.heatmap.request import heatmap_parameters
from sfumato.transforms.privacy.keys import FixedSecret, RunKey
from sfumato.transforms.synth.city import build_city
from sfumato.transforms.synth.landscape import risk_raster

DEPTH = 10
SIDE = 1 << DEPTH
CENTRE = (900, 200)  # row, column: the paper's (200, 900) as x and y, which is where its Lower Manhattan would be
SPREAD = 100.0  # cells, of the kernel; the paper gives none
WIDTH = 0.1  # of an interval, aimed at
NAMES = ("false", "true")
SIZES = (0, 20, 100, 1000, 10_000, 1 << 30)
SETTINGS = {
    "auto, count": {},
    "auto, interval": {"refine": "interval"},
    "lean, count": {"schedule": "lean"},
    "lean, interval": {"schedule": "lean", "refine": "interval"},
    "paper, count": {"schedule": "paper"},
    "paper, interval": {"schedule": "paper", "refine": "interval"},
}
KEY = RunKey.derive(FixedSecret(b"rates of users"), {"benchmark": "rates"})


@dataclass(frozen=True, eq=False)
class Town:
    """Users of a map. codes: uint64[n], the finest cell of each."""

    name: str
    codes: np.ndarray
    risk: str = "kernel"  # or "city", or "even"

    @cached_property
    def probability(self) -> np.ndarray:
        """With which each user is infected: float64[n]."""
        if self.risk == "even":
            return np.full(len(self.codes), 0.05)
        if self.risk == "city":
            return np.asarray(by_code(risk_raster())[(self.codes >> np.uint64(4)).astype(np.int64)])
        x, y = deinterleave(self.codes)
        return kernel(y, x)

    def rows(self, trial: int) -> Rows:
        """The users under hashes of this trial, infected or not."""
        places, rng = Places(DEPTH, 2), np.random.default_rng([trial, len(self.codes)])
        infected = rng.random(len(self.codes)) < self.probability
        limit = 1 << (64 - places.bits)
        hashes = np.sort(rng.integers(0, limit, len(self.codes), dtype=np.uint64)) << np.uint64(places.bits)
        return Rows(places, hashes, infected.astype(np.uint64) << np.uint64(2 * DEPTH) | self.codes)


def by_code(image: np.ndarray) -> np.ndarray:
    """A picture, row 0 in the north, as values by code: float64[4^depth]."""
    row, column = np.divmod(np.arange(image.size), len(image))
    values = np.zeros(image.size)
    values[interleave(column.astype(np.uint32), row.astype(np.uint32)).astype(np.int64)] = image.ravel()
    return values


def kernel(row: np.ndarray, column: np.ndarray) -> np.ndarray:
    """The chance of being infected at a cell."""
    return np.exp(-((row - CENTRE[0]) ** 2 + (column - CENTRE[1]) ** 2) / (2 * SPREAD**2))


def city_codes(users: int) -> np.ndarray:
    """The finest cell of each user of the synthetic city."""
    people = make_people(0, users, city=build_city())
    codes = Grid(PENUMBRA, DEPTH).codes(people["longitude"].to_numpy(), people["latitude"].to_numpy())
    return codes.astype(np.uint64)


def towns(users: int) -> list[Town]:
    """Both maps with so many users each."""
    city = city_codes(users)
    image = np.load(Path(os.environ["SFUMATO_DATA"]) / "manhattan_like_1024x1024.npy").astype(np.float64)
    cells = np.random.default_rng(users).choice(SIDE * SIDE, users, p=image.ravel() / image.sum())
    manhattan = interleave((cells % SIDE).astype(np.uint32), (cells // SIDE).astype(np.uint32))
    return [Town("city", city), Town("Manhattan-like", manhattan.astype(np.uint64))]


@dataclass(frozen=True, eq=False)
class Found:
    """One run: what its rates are and what they should be.

    rates: of the cells; users, truth: float64[T], true users of each and their mean chance, NaN where nobody is; entry:
    int64[n], each user's cell; entries_answered: vector entries in all that a user answers.
    """

    town: Town
    tree: Tree
    rates: Rates
    pooled: float
    users: np.ndarray
    truth: np.ndarray
    entry: np.ndarray
    entries_answered: int

    @property
    def width(self) -> np.ndarray:
        """Of the intervals: float64[T]."""
        return np.asarray((self.rates.high - self.rates.low)[0])

    @property
    def covered(self) -> np.ndarray:
        """Whether each interval holds the truth: bool[T]."""
        return np.asarray((self.rates.low[0] <= self.truth) & (self.truth <= self.rates.high[0]))

    @property
    def error(self) -> float:
        """Root mean square, over users, of their cell's rate less their own chance; the whole map's where unknown."""
        rate = np.where(np.isnan(self.rates.rate[0]), self.pooled, self.rates.rate[0])
        return float(np.sqrt(np.mean((rate[self.entry] - self.town.probability) ** 2)))

    @property
    def miss(self) -> float:
        """Distance, in finest cells, of the hotspot from the middle of the cell with the highest lower end."""
        level, x, y = node_positions(self.tree.entries)
        best = np.argmax(np.where(self.tree.areas > 0, self.rates.low[0], -1.0))
        cell = SIDE >> level[best]
        return float(np.hypot((y[best] + 0.5) * cell - CENTRE[0], (x[best] + 0.5) * cell - CENTRE[1]))


def run(town: Town, trial: int, options: dict[str, object]) -> Found:
    """One key, through the real state machine."""
    users = len(town.codes)
    parameters = heatmap_parameters("adaptive", {"depth": DEPTH, "population": users, **options}, categories=2)
    state = run_in_memory(town.rows(trial), users, parameters, KEY.narrowed({"town": town.name, "trial": trial}))
    estimate: Estimate = parameters.method.decode(state, DEPTH)
    live = state.results[-1].shards_answered
    rates = estimate_rates(estimate, NAMES, live, state.shard_plan.shards / live)
    assert rates is not None
    assert estimate.by_category is not None
    tree = estimate.tree
    entry = tree.index.owner[np.searchsorted(tree.index.boundaries, town.codes, side="right") - 1]
    here = np.bincount(entry, minlength=len(tree.entries))
    infected = np.bincount(entry, town.probability, len(tree.entries))
    return Found(
        town=town,
        tree=tree,
        rates=rates,
        pooled=float(np.clip(estimate.by_category[1].sum() / estimate.by_category.sum(), 0, 1)),
        users=here,
        truth=np.where(here > 0, infected / np.maximum(here, 1), np.nan),
        entry=entry,
        entries_answered=state.entries_per_client,
    )


def list_row(town: Town, options: dict[str, object], keys: int) -> list[str]:
    """How often the list of the highest rates holds a place whose rate is not above the average, in so many runs.

    Beside it the six highest lower ends of single cells, which is what was listed before.
    """
    average, wrong, empty, listed, above, before = float(town.probability.mean()), 0, 0, 0, 0, 0
    for trial in range(keys):
        found = run(town, trial, options)
        high = np.nan_to_num(found.truth, nan=-1.0) > average + 1e-12
        chosen = np.isfinite(found.rates.simultaneous_low[0])
        wrong += bool((chosen & ~high).any())
        empty += not chosen.any()
        listed += int(chosen.sum())
        above += int((high & (found.users >= 20)).sum())
        known = np.where(np.isnan(found.rates.rate[0]) | (found.tree.areas == 0), -1.0, found.rates.low[0])
        before += bool((~high[np.argsort(-known, kind="stable")[:6]]).any())
    return [f"{wrong}", f"{empty}", f"{listed / keys:.1f}", f"{above / keys:.1f}", f"{before}"]


def lists(keys: int) -> None:
    """The table of lists."""
    rows = []
    for users in (10_000, 100_000):
        codes = city_codes(users)
        for risk in ("city", "even"):
            for setting in ("auto, count", "auto, interval", "paper, count"):
                row = list_row(Town(f"city, {risk}", codes, risk), dict(SETTINGS[setting]), keys)
                rows.append([f"{risk}, {users:,}", setting, *row])
                print(rows[-1], file=sys.stderr)
    print(f"{keys} keys, epsilon 1; lists with a place whose rate is not above the average\n")
    heads = ["risk, users", "schedule, refined by", "wrong lists", "empty lists", "places listed",
             "places of 20 users or more above the average", "wrong before: six highest lower ends"]  # fmt: skip
    print(markdown(heads, rows))


def coverage_row(name: str, found: list[Found]) -> list[list[str]]:
    """A row for each size of cells: coverage, widths, and how many say nothing."""
    users, covered, width, rate = (
        np.concatenate(one)
        for one in zip(*((f.users, f.covered, f.width, f.rates.rate[0]) for f in found), strict=True)
    )
    rows = []
    for least, most in itertools.pairwise(SIZES):
        chosen = (users >= max(least, 1)) & (users < most)
        if chosen.sum() < 400:  # of which a coverage would be off by more than a per cent
            continue
        label = f"{least:,} to {most - 1:,}" if most < SIZES[-1] else f"{least:,} or more"
        shown = [f"{100 * covered[chosen].mean():.1f}%", f"{width[chosen].mean():.3f}"]
        rows.append([name, label, f"{chosen.sum():,}", *shown, f"{100 * np.isnan(rate[chosen]).mean():.1f}%"])
    inhabited = users > 0
    rows.append([name, "all", f"{inhabited.sum():,}", f"**{100 * covered[inhabited].mean():.1f}%**",
                 f"{width[inhabited].mean():.3f}", f"{100 * np.isnan(rate[inhabited]).mean():.1f}%"])  # fmt: skip
    return rows


def refine_row(name: str, setting: str, found: list[Found]) -> list[str]:
    """What a way of refining gives, means over keys."""
    share = np.mean([f.users[f.width <= WIDTH].sum() / f.users.sum() for f in found])
    width = np.mean([np.average(f.width, weights=f.users) for f in found])
    miss = np.array([f.miss for f in found])
    return [
        name, setting, f"{np.mean([len(f.tree.entries) for f in found]):,.0f}",
        f"{np.mean([f.entries_answered for f in found]):,.0f}", f"{width:.3f}", f"{100 * share:.0f}%",
        f"{np.mean([f.error for f in found]):.4f}", f"{np.median(miss):.0f}", f"{100 * np.mean(miss < SPREAD):.0f}%",
    ]  # fmt: skip


def write_logs(town: Town, folder: Path) -> None:
    """A log of one record a user, in the middle of her cell."""
    x, y = deinterleave(town.codes)
    region, rng = PENUMBRA, np.random.default_rng(1)
    table = {
        "user_id": np.arange(len(x)),
        "longitude": region.west + (x + 0.5) / SIDE * (region.east - region.west),
        "latitude": region.north - (y + 0.5) / SIDE * (region.north - region.south),
        "infected": rng.random(len(x)) < town.probability,
    }
    folder.mkdir(parents=True, exist_ok=True)
    pq.write_table(pa.table(table), folder / "log.parquet")


def real_release(town: Town, data: Path, *options: str) -> pa.Table:
    """The table of cells that the real job publishes."""
    logs, out = data / f"rates_{len(town.codes)}", data / "rates_out"
    write_logs(town, logs)
    region = ",".join(map(str, (PENUMBRA.west, PENUMBRA.south, PENUMBRA.east, PENUMBRA.north)))
    wanted = ["--input", f"{logs}/*.parquet", "--output", str(out), "--region", region, "--auxiliary", "infected"]
    wanted += ["--population", str(len(town.codes)), "--overwrite", *options]
    subprocess.run(command("heatmap", *wanted), check=True, stdout=sys.stderr)
    return pq.read_table(next(iter(sorted(out.rglob("cells.parquet")))))


def paint(cells: pa.Table, column: str) -> np.ndarray:
    """A column of a table of cells as a picture, float64[SIDE, SIDE]: coarse cells first, finer ones over them."""
    image, region = np.full((SIDE, SIDE), np.nan), PENUMBRA
    names = ("depth", "west", "north", column)
    for depth, west, north, value in zip(*(cells[name].to_pylist() for name in names), strict=True):
        size = SIDE >> depth
        x = round((west - region.west) / (region.east - region.west) * SIDE)
        y = round((region.north - north) / (region.north - region.south) * SIDE)
        image[y : y + size, x : x + size] = np.nan if value is None else value
    return image


def picture(town: Town, cells: pa.Table) -> bytes:
    """The truth where somebody lives, the rates, and how wide their intervals are."""
    row, column = np.mgrid[0:SIDE, 0:SIDE]
    inhabited = by_row(np.bincount((town.codes >> np.uint64(4)).astype(np.int64), minlength=4 ** (DEPTH - 2)))
    truth = np.where(np.kron(inhabited, np.ones((4, 4))) > 0, kernel(row, column), np.nan)
    rate, width = paint(cells, "rate"), paint(cells, "rate_high") - paint(cells, "rate_low")
    figure = Figure(figsize=(13.2, 4.7), dpi=100, facecolor="white", layout="constrained")
    canvas = FigureCanvasAgg(figure)
    panels = (
        ("chance of infection where users live", truth, "viridis", 1.0),
        (f"rate, ε = 1, {len(town.codes):,} users", rate, "viridis", 1.0),
        ("width of its 95% interval", width, "magma_r", 0.5),
    )
    for axes, (title, values, colours, top) in zip(figure.subplots(1, 3), panels, strict=True):
        image = axes.imshow(values, cmap=colours, vmin=0, vmax=top, interpolation="nearest")
        axes.plot(CENTRE[1], CENTRE[0], marker="+", color="black", markersize=12)
        axes.set_title(title, fontsize=12)
        axes.set_xticks([])
        axes.set_yticks([])
        axes.set_facecolor("#dddddd")
        figure.colorbar(image, ax=axes, shrink=0.85, extend="max" if top < 1 else "neither")
    file = io.BytesIO()
    canvas.print_png(file, metadata={"Software": "sfumato"})
    return file.getvalue()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--keys", type=int, default=200)
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--picture", type=Path)
    parser.add_argument("--data", type=Path, default=Path("bench_data"))
    parser.add_argument("--lists", action="store_true", help="the list of the highest rates alone")
    options = parser.parse_args()
    if options.lists:
        lists(options.keys)
        return
    keys, began = 10 if options.quick else options.keys, time.perf_counter()
    coverage, refined = [], []
    for users in (10_000, 100_000):
        for town in towns(users):
            name = f"{town.name}, {users:,}"
            for setting, given in SETTINGS.items():
                found = [run(town, trial, dict(given)) for trial in range(keys)]
                refined.append(refine_row(name, setting, found))
                if setting in ("auto, interval", "paper, count"):
                    coverage += coverage_row(f"{name}; {setting}", found)
                print(f"{name}: {setting}, {time.perf_counter() - began:.0f} s", file=sys.stderr)
    print(f"{keys} keys, epsilon 1, nominal 95%\n\nCoverage, by users in the cell\n")
    heads = ["map, users; refined by", "users in the cell", "cells", "covered", "mean width", "nothing known"]
    print(markdown(heads, coverage))
    print(f"\nRefined by count or by an interval of {WIDTH}\n")
    heads = ["map, users", "schedule, refined by", "cells", "entries per user", "mean width, by user",
             f"users with a width of at most {WIDTH}", "error, by user", "hotspot: median distance, cells",
             f"hotspot: runs below {SPREAD:g} cells"]  # fmt: skip
    print(markdown(heads, refined))
    if options.picture:
        town = towns(100_000)[1]
        wanted = ("--schedule", "lean", "--refine", "interval")
        options.picture.write_bytes(picture(town, real_release(town, options.data, *wanted)))


if __name__ == "__main__":
    main()
