"""How often the stated 95% intervals of cells and of sums of cells hold the truth, on five maps.

    SFUMATO_DATA=... python -m benchmarks.coverage [--keys 12] [--users 1000,...] [--epsilons 0.1,1,3] [--maps city,...]
                                                   [--rates]

Each key draws the users anew from the map and makes a heatmap with the default method, in memory. The truth is the
number of users in the very cells that the heatmap has. Sums are of 20 circles a key around randomly chosen users, of a
radius of 2% to 30% of the region's side: all cells, at least two, whose centre is inside.

- cells: intervals `users_low` to `users_high`, all cells. populated: of the cells that hold somebody. by user: these,
  each weighted by its users. sums: `Release.total`, its users and 1.96 times its stddev.
- The columns "count +- 1.96 stddev" are of what releases said before, and still say of `count`: the posterior's
  deviation, and for sums its squares added up, as if the errors of cells were independent.
- --rates: instead, the pointwise 95% intervals of rates. Each user is infected with a probability that falls from
  40% in the region's middle to 2%. The truth is the mean probability of a cell's users.
- error: root mean square error of sums, that of `Release.total` over that of summed counts.
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
from numpy.typing import NDArray

from benchmarks.city_people import make_people
from benchmarks.evaluation.in_memory import Rows, run_in_memory
from sfumato.schemas.known_digits import Z_95
from sfumato.schemas.rectangle import PENUMBRA
from sfumato.schemas.region import Grid, Places, Region, deinterleave, interleave
from sfumato.schemas.tree import node_positions
from sfumato.transforms.counting.estimator import unbiased_counts
from sfumato.transforms.counting.methods import Adaptive
from sfumato.transforms.counting.parameters import CountParameters
from sfumato.transforms.counting.rates import estimate_rates
from sfumato.transforms.counting.state import CountState, Estimate
from sfumato.transforms.observability.text_tables import markdown_table
from sfumato.transforms.privacy.keys import RunKey
from sfumato.transforms.privacy.secrets import seed_secret
from sfumato.transforms.statistics.posterior.unbiased import user_intervals
from sfumato.transforms.synth.city import build_city

GRIDS = {
    "gowalla": "gowalla_world_256x256.npy",
    "beijing": "beijing_taxi_starts_256x256.npy",
    "manhattan": "manhattan_like_1024x1024.npy",
}
MAPS = ("city", "cabs", *GRIDS)
_CABS = Region(-122.51, 37.70, -122.35, 37.82)
_CIRCLES = 20


@dataclass
class Coverage:
    """What runs of one setting found: per cell or sum whether it was covered, and squared errors of sums."""

    cells: list[float] = field(default_factory=list)
    populated: list[float] = field(default_factory=list)
    by_user: list[float] = field(default_factory=list)
    sums: list[float] = field(default_factory=list)
    squares: list[float] = field(default_factory=list)

    def add(self, covered: NDArray[np.bool_], truth: NDArray[np.int64]) -> None:
        """Adds a run's cells."""
        self.cells += covered.tolist()
        self.populated += covered[truth > 0].tolist()
        self.by_user.append(float(np.average(covered, weights=truth)))

    def row(self) -> list[str]:
        """The shares covered, in per cent."""
        return [f"{100 * np.mean(one):.1f}" for one in (self.cells, self.populated, self.by_user, self.sums)]


def load(name: str) -> tuple[int, NDArray[np.float64]]:
    """A map's depth and the probability of each finest cell, by code: float64[4^depth]."""
    if name in GRIDS:
        image = np.load(Path(os.environ["SFUMATO_DATA"]) / GRIDS[name]).astype(np.float64)
        row, column = np.divmod(np.arange(image.size), len(image))
        counts = np.zeros(image.size)
        counts[interleave(column.astype(np.uint32), row.astype(np.uint32)).astype(np.int64)] = image.ravel()
        return len(image).bit_length() - 1, counts / counts.sum()
    if name == "city":
        people, region = make_people(0, 400_000, city=build_city()), PENUMBRA
    else:
        people, region = pq.read_table(Path(os.environ["SFUMATO_DATA"]) / "sf_cabs_starts.parquet"), _CABS
    longitude, latitude = people["longitude"].to_numpy(), people["latitude"].to_numpy()
    here = (longitude >= region.west) & (longitude < region.east) & (latitude > region.south)
    here &= latitude <= region.north
    codes = Grid(region, 10).codes(longitude[here], latitude[here])
    return 10, np.bincount(codes.astype(np.int64), minlength=4**10) / len(codes)


def run(
    depth: int, probability: NDArray[np.float64], users: int, epsilon: float, key: int
) -> tuple[CountState, Estimate, NDArray[np.uint64]]:
    """One heatmap: its state, its map and the codes of its users."""
    rng = np.random.default_rng([key, users])
    codes = rng.choice(len(probability), users, p=probability).astype(np.uint64)
    places = Places(depth)
    hashes = np.sort(rng.integers(0, 1 << (64 - places.bits), users, dtype=np.uint64)) << np.uint64(places.bits)
    parameters = CountParameters(depth=depth, population=users, epsilon=epsilon, method=Adaptive())
    run_key = RunKey.derive(seed_secret(key), {"benchmark": "coverage", "users": users, "epsilon": epsilon})
    state = run_in_memory(Rows(places, hashes, codes), users, parameters, run_key)
    return state, parameters.method.decode(state, depth), codes


def circles(estimate: Estimate, codes: NDArray[np.uint64], seed: list[int]) -> NDArray[np.bool_]:
    """The cells of random circles around users, at least two each: bool[up to 20, cells]."""
    rng = np.random.default_rng(seed)
    level, x, y = node_positions(estimate.tree.entries)
    at_x, at_y = (x + 0.5) * 0.5**level, (y + 0.5) * 0.5**level
    user_x, user_y = ((one + 0.5) * 0.5**estimate.tree.depth for one in deinterleave(rng.choice(codes, _CIRCLES)))
    radius = np.exp(rng.uniform(np.log(0.02), np.log(0.3), _CIRCLES))
    inside = np.hypot(at_x - user_x[:, None], at_y - user_y[:, None]) < radius[:, None]
    return np.asarray(inside[inside.sum(axis=1) >= 2])


def measure(name: str, users: int, epsilon: float, keys: int) -> tuple[Coverage, Coverage]:
    """What count and stddev cover, and what the unbiased intervals and totals cover."""
    depth, probability = load(name)
    before, after = Coverage(), Coverage()
    for key in range(keys):
        state, estimate, codes = run(depth, probability, users, epsilon, key)
        index = estimate.tree.index
        owner = index.owner[np.searchsorted(index.boundaries, codes, side="right") - 1]
        truth = np.bincount(owner, minlength=len(estimate.counts))
        before.add(np.abs(estimate.counts - truth) <= Z_95 * estimate.stddev + 1e-9, truth)
        unbiased = unbiased_counts(estimate, state)
        low, high = user_intervals(unbiased.leaf_users, np.sqrt(unbiased.leaf_variances()))
        after.add((low <= truth) & (truth <= high), truth)
        for inside in circles(estimate, codes, [key, users]):
            error = float((estimate.counts - truth)[inside].sum())
            before.sums.append(error**2 <= Z_95**2 * float((estimate.stddev[inside] ** 2).sum()) + 1e-9)
            before.squares.append(error**2)
            total, stddev = unbiased.total(inside.astype(np.float64))
            after.sums.append(abs(total - truth[inside].sum()) <= Z_95 * stddev + 1e-6)
            after.squares.append((total - truth[inside].sum()) ** 2)
    return before, after


def measure_rates(name: str, users: int, epsilon: float, keys: int) -> list[str]:
    """Shares of populated cells whose rate's interval holds the truth, plainly and weighted by users; their width."""
    depth, probability = load(name)
    covered, by_user, width = [], [], []
    for key in range(keys):
        rng = np.random.default_rng([key, users])
        codes = rng.choice(len(probability), users, p=probability).astype(np.uint64)
        x, y = (one * 0.5**depth - 0.5 for one in deinterleave(codes))
        probability = 0.02 + 0.38 * np.exp(-(x**2 + y**2) / 0.04)
        marked = (rng.random(users) < probability).astype(np.uint64) << np.uint64(2 * depth) | codes
        places = Places(depth, 2)
        hashes = np.sort(rng.integers(0, 1 << (64 - places.bits), users, dtype=np.uint64)) << np.uint64(places.bits)
        parameters = CountParameters(
            depth=depth, population=users, epsilon=epsilon, method=Adaptive(refine="interval"), categories=2
        )
        run_key = RunKey.derive(seed_secret(key), {"benchmark": "coverage of rates", "users": users})
        state = run_in_memory(Rows(places, hashes, marked), users, parameters, run_key)
        estimate, live = parameters.method.decode(state, depth), state.results[-1].shards
        rates = estimate_rates(estimate, ("false", "true"), live)
        assert rates is not None
        index = estimate.tree.index
        owner = index.owner[np.searchsorted(index.boundaries, codes, side="right") - 1]
        here = np.bincount(owner, minlength=len(estimate.counts))
        truth = np.bincount(owner, probability, len(here)) / np.maximum(here, 1)
        inside = (rates.low[0] <= truth) & (truth <= rates.high[0])
        covered += inside[here > 0].tolist()
        by_user.append(np.average(inside, weights=here))
        width.append(np.average(rates.high[0] - rates.low[0], weights=here))
    return [
        f"{100 * np.mean(covered):.1f}",
        f"{100 * np.mean(by_user):.1f}",
        f"{np.mean(width):.2f}",
        f"{len(covered):,}",
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--keys", type=int, default=12)
    parser.add_argument("--maps", default=",".join(MAPS))
    parser.add_argument("--users", default="1000,10000,100000,1000000")
    parser.add_argument("--epsilons", default="0.1,1,3")
    parser.add_argument("--rates", action="store_true", help="intervals of rates in place of users")
    options = parser.parse_args()
    began, rows = time.perf_counter(), []
    if options.rates:
        for name in options.maps.split(","):
            for users in map(int, options.users.split(",")):
                for epsilon in map(float, options.epsilons.split(",")):
                    found = measure_rates(name, users, epsilon, options.keys)
                    rows.append([f"{name}, {users:,}", f"{epsilon:g}", *found])
                    print(rows[-1], file=sys.stderr)
        heads = ["map, users", "epsilon", "populated", "by user", "mean width, by user", "cells"]
        print(f"{options.keys} keys; covered, in per cent, at a stated 95%\n\n{markdown_table([heads, *rows])}")
        return
    for name in options.maps.split(","):
        for users in map(int, options.users.split(",")):
            for epsilon in map(float, options.epsilons.split(",")):
                before, after = measure(name, users, epsilon, options.keys)
                error = np.sqrt(np.mean(after.squares) / np.mean(before.squares))
                rows.append([f"{name}, {users:,}", f"{epsilon:g}", *before.row(), *after.row(), f"{error:.2f}"])
                print(rows[-1], f"{time.perf_counter() - began:.0f} s", file=sys.stderr)
    columns = np.array([row[2:] for row in rows], dtype=np.float64)
    for label, of in (("least", np.min), ("mean", np.mean), ("most", np.max)):
        rows.append([f"**{label}**", "", *(f"{one:.1f}" for one in of(columns, axis=0)[:-1]), ""])
    heads = ["cells", "populated", "by user", "sums"]
    first = ["map, users", "epsilon", *(f"count +- 1.96 stddev: {one}" for one in heads), *heads, "error"]
    print(f"{options.keys} keys; covered, in per cent, at a stated 95%\n\n{markdown_table([first, *rows])}")


if __name__ == "__main__":
    main()
