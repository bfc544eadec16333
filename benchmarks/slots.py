"""How near the maps of 24 hours come to the truth, beside separate releases and cheap ways to share a budget.

    SFUMATO_DATA=... python -m benchmarks.slots [--keys 5] [--maps city,tokyo]

city: 100,000 people of the synthetic city, one record each. Its rhythm, the users to expect, is known from 4,000,000
other people of the same city. tokyo: the check-ins of foursquare_tokyo_checkins, each as a user, by local hour.

Methods, all at total epsilon 1; depth 8:

- separate: one release (adaptive) of each hour's own users at epsilon 1. They are disjoint, so epsilon is 1 in all.
  With secure aggregation each has shards of its own, so the server learns each user's hour.
- separate, hidden: the same where everybody reports to every release, so that the server learns no hour, as with ours.
  Each release then has the noise of as many shards as ours.
- no sharing: the noisy counts by slot of our joint release, without shrinkage, spread as the map of all hours.
- product: that map times the region's profile over the hours.
- ours: `users` of slots.parquet. ours, expected: its column `expected`.

The metric is the mean squared error in users of a cell and hour, over all cells of a grid, as a ratio to that of
`separate`. Truth: the exact counts of the same drawn records, or the rhythm (its own sampling variance is subtracted).
"""

from __future__ import annotations

import argparse
import os
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
from numpy.typing import NDArray

from benchmarks.evaluation.in_memory import Rows, run_in_memory
from sfumato.pipelines.command_line import cli
from sfumato.schemas.region import Grid, Places, Region, by_row
from sfumato.schemas.slots import Slots
from sfumato.transforms.counting.estimator import density, estimate_density
from sfumato.transforms.counting.parameters import CountParameters
from sfumato.transforms.heatmap.release import add_up_to
from sfumato.transforms.heatmap.slot_maps import SlotMaps
from sfumato.transforms.locations.encode import slots_of
from sfumato.transforms.observability.text_tables import markdown_table
from sfumato.transforms.privacy.keys import RunKey
from sfumato.transforms.privacy.secrets import seed_secret

DEPTH, HOURS = 8, 24
GRIDS = (4, 5, 6)  # 16 x 16 to 64 x 64 cells
PEOPLE, CROWD = 100_000, 4_000_000
SHARD = 10_000  # users of a shard
METHODS = ("no sharing", "product", "ours", "ours, expected")
TOKYO = Region(139.45, 35.5, 139.95, 35.9)
CITY = Region(3, 1, 3.13, 1.13)
Array = NDArray[np.float64]


@dataclass(frozen=True)
class Case:
    """Users with a cell and an hour each, uint64[n]; and the users to expect, float64[24, 256, 256], or None."""

    name: str
    codes: NDArray[np.uint64]
    hours: NDArray[np.uint64]
    rhythm: Array | None

    @property
    def counts(self) -> Array:
        """Exact users by hour and cell: float64[24, 256, 256], row 0 in the north."""
        return counts_of(self.codes, self.hours)


def counts_of(codes: NDArray[np.uint64], hours: NDArray[np.uint64]) -> Array:
    """Users by hour and cell: float64[24, 256, 256], row 0 in the north."""
    places = (hours << np.uint64(2 * DEPTH) | codes).astype(np.int64)
    flat = np.bincount(places, minlength=HOURS * 4**DEPTH).reshape(HOURS, -1).astype(np.float64)
    return np.stack([by_row(one) for one in flat])


def read(paths: list[Path], region: Region, zone: str) -> tuple[NDArray[np.uint64], NDArray[np.uint64]]:
    """Cells and hours of the records of logs."""
    grid, slots = Grid(region, DEPTH), Slots("timestamp", "hour", zone)
    codes, hours = [], []
    for path in paths:
        table = pq.read_table(path, columns=["latitude", "longitude", "timestamp"])
        latitude, longitude = (np.asarray(table[name]) for name in ("latitude", "longitude"))
        inside = region.holds(longitude, latitude)
        codes.append(grid.codes(longitude[inside], latitude[inside]).astype(np.uint64))
        hours.append(slots_of(table["timestamp"].combine_chunks(), slots)[0][inside])
    return np.concatenate(codes), np.concatenate(hours)


def cases(names: list[str]) -> Iterator[Case]:
    """The cases of these names."""
    if "city" in names:
        with tempfile.TemporaryDirectory() as folder:
            found = []
            for people, seed in ((PEOPLE, 1), (CROWD, 2)):
                output = Path(folder) / str(people)
                cli.main(["synth", "--users", str(people), "--seed", str(seed), "--output", str(output)])
                found.append(read(sorted(output.glob("*.parquet")), CITY, "UTC"))
        yield Case("city", *found[0], counts_of(*found[1]) * (PEOPLE / CROWD))
    if "tokyo" in names:
        path = Path(os.environ["SFUMATO_DATA"]) / "foursquare_tokyo_checkins.parquet"
        yield Case("tokyo", *read([path], TOKYO, "Asia/Tokyo"), None)


def rows_of(codes: NDArray[np.uint64], slots: int, seed: int) -> Rows:
    """Users in the order of new hashes; codes are with the slot."""
    places = Places(DEPTH, slots)
    hashes = np.random.default_rng(seed).integers(0, 1 << (64 - places.bits), len(codes), dtype=np.uint64)
    return Rows(places, np.sort(hashes) << np.uint64(places.bits), codes)


def separate(case: Case, trust: str, key: int, hidden: bool = False) -> Array:
    """The maps of 24 releases, in users: float64[24, 256, 256]. hidden: with as many shards each as all users need."""
    maps, shards = [], max(round(len(case.codes) / SHARD), 1)
    for hour in range(HOURS):
        codes = case.codes[case.hours == hour]
        size = max(round(len(codes) / shards), 2) if hidden else SHARD
        parameters = CountParameters(depth=DEPTH, trust=trust, shard_size=size)  # type: ignore[arg-type]
        run_key = RunKey.derive(seed_secret(HOURS * key + hour), {"benchmark": "slots, separate"})
        state = run_in_memory(rows_of(codes, 1, key), len(codes), parameters, run_key)
        maps.append(estimate_density(parameters.method.decode(state, DEPTH)) * state.users_estimate()[0])
    return np.stack(maps)


def joint(case: Case, trust: str, key: int) -> tuple[dict[str, Array], float, float]:
    """The maps of our release and of the peers made of it; the share of covered counts; the map of all hours' error."""
    parameters = CountParameters(depth=DEPTH, trust=trust, slots=HOURS)  # type: ignore[arg-type]
    rows = rows_of(case.codes | case.hours << np.uint64(2 * DEPTH), HOURS, key)
    run_key = RunKey.derive(seed_secret(key), {"benchmark": "slots"})
    state = run_in_memory(rows, len(case.codes), parameters, run_key)
    estimate = add_up_to(parameters.method.decode(state, DEPTH), state.users_estimate()[0])
    made = SlotMaps.from_state(state, estimate)
    assert made is not None
    total = estimate_density(estimate) * made.users.sum()

    def spread(users: Array) -> Array:
        """Users of the slots' cells, spread as those of all hours are."""
        by_cell = np.stack([density(made.tree, one) * np.maximum(one, 0).sum() for one in users])
        evenly = density(made.tree, made.users.sum(axis=0)) * made.users.sum()
        return np.asarray(by_cell * np.divide(total, evenly, out=np.zeros_like(total), where=evenly > 0))

    profile = np.maximum(made.region, 0)
    maps = {
        "no sharing": spread(made.unbiased),
        "product": total * (profile / profile.sum())[:, None, None],
        "ours": spread(made.users),
        "ours, expected": spread(made.expected),
    }
    owner = made.tree.index.owners(case.codes)
    slots = case.hours.astype(np.int64)
    truth = np.bincount(slots * len(made.tree.entries) + owner, minlength=made.users.size).reshape(made.users.shape)
    covered = (made.low <= truth) & (truth <= made.high)
    return maps, float(covered[truth >= 3].mean()), float(((total - case.counts.sum(axis=0)) ** 2).mean())


def coarser(maps: Array, level: int) -> Array:
    """Sums of cells: float64[24, 2^level, 2^level]."""
    side = 1 << level
    return np.asarray(maps.reshape(HOURS, side, maps.shape[1] // side, side, -1).sum(axis=(2, 4)))


def errors(maps: Array, case: Case) -> Array:
    """Mean squared errors by truth and grid: float64[2, grids]; NaN without a rhythm."""
    found = np.full((2, len(GRIDS)), np.nan)
    for place, level in enumerate(GRIDS):
        mine = coarser(maps, level)
        found[0, place] = ((mine - coarser(case.counts, level)) ** 2).mean()
        if case.rhythm is not None:
            expected = coarser(case.rhythm, level)
            found[1, place] = ((mine - expected) ** 2).mean() - expected.mean() * PEOPLE / CROWD
    return found


def plain_error(case: Case, trust: str, key: int) -> float:
    """Mean squared error of a heatmap without slots at epsilon 1, in users, on the finest grid."""
    parameters = CountParameters(depth=DEPTH, trust=trust)  # type: ignore[arg-type]
    run_key = RunKey.derive(seed_secret(key), {"benchmark": "slots, plain"})
    state = run_in_memory(rows_of(case.codes, 1, key), len(case.codes), parameters, run_key)
    total = estimate_density(parameters.method.decode(state, DEPTH)) * state.users_estimate()[0]
    return float(((total - case.counts.sum(axis=0)) ** 2).mean())


def main() -> None:
    """Prints a table for each map and trust model."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--keys", type=int, default=5, help="runs of each method")
    parser.add_argument("--maps", default="city,tokyo")
    options = parser.parse_args()
    for case in cases(options.maps.split(",")):
        for trust in ("central", "secagg"):
            alone = np.mean([errors(separate(case, trust, key), case) for key in range(options.keys)], axis=0)
            runs = [joint(case, trust, key) for key in range(options.keys)]
            plain = np.mean([plain_error(case, trust, key) for key in range(options.keys)])
            print(f"\n### {case.name}, {len(case.codes):,} users, {trust}\n")
            head = [f"{1 << level} x {1 << level}" for level in GRIDS]
            table = [["method", *(f"counts, {one}" for one in head), *(f"rhythm, {one}" for one in head)]]
            table.append(["separate: MSE, users²", *(_number(one) for one in alone.ravel())])
            if trust == "secagg":
                found = np.mean([errors(separate(case, trust, key, True), case) for key in range(options.keys)], axis=0)
                table.append(["separate, hidden", *(_number(one) for one in (found / alone).ravel())])
            for name in METHODS:
                found = np.mean([errors(run[0][name], case) for run in runs], axis=0) / alone
                table.append([name, *(_number(one) for one in found.ravel())])
            print(markdown_table(table))
            covered, total = (float(np.mean([run[place] for run in runs])) for place in (1, 2))
            print(f"Intervals cover {covered:.1%} of the counts of at least 3 users.")
            print(f"The map of all hours has {total / plain:.2f} times the MSE of a heatmap without slots.")


def _number(value: float) -> str:
    return "-" if np.isnan(value) else f"{value:.3g}"


if __name__ == "__main__":
    main()
