"""Flows: error, recall and coverage of `sfumato flows`, beside other mechanisms at the same epsilon.

    python -m benchmarks.flows [--runs 5] [--seed 1]

Trips are those of `sfumato synth --trips --users 100000` and, where SFUMATO_DATA is set, consecutive check-ins in Tokyo
within four hours; one trip of each user counts. L1 is the sum of absolute errors over all pairs of a level, divided by
the trips. Recall is the share of the 1,000 largest estimates that are among the 1,000 largest pairs, ties included.
Coverage is of the 95% intervals of listed flows, and of rests.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial

import numpy as np
import pyarrow.parquet as pq
from numpy.typing import NDArray

from benchmarks.baselines.flow_mechanisms import density_grid, private_od, thresholded, uniform_grid
from sfumato.schemas.locations import LocationColumns, TripColumns
from sfumato.schemas.rectangle import PENUMBRA
from sfumato.schemas.region import Grid, Region
from sfumato.transforms.flows.flow_estimate import Flows, estimate_flows
from sfumato.transforms.flows.flow_tree import measure_flows
from sfumato.transforms.flows.plan import FlowPlan
from sfumato.transforms.flows.user_trips import (
    MAX_PAIR_DEPTH,
    PAIR_BITS,
    RecordItems,
    TripItems,
    TripRule,
    count_prefixes,
    count_trips,
)
from sfumato.transforms.privacy.keys import FixedSecret, RunKey
from sfumato.transforms.synth.city import build_city
from sfumato.transforms.synth.people import make_trips

EPSILONS = (0.1, 0.5, 1.0, 2.0)
TOP = 1000
ENDS = ("origin_longitude", "origin_latitude"), ("destination_longitude", "destination_latitude")
TOKYO = Region(139.4, 35.5, 140.0, 35.9)
THRESHOLDS = (0, 1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128)


@dataclass(frozen=True)
class Trips:
    """Exact trips, one of each user: distinct codes and counts; the level at which errors are measured."""

    name: str
    codes: NDArray[np.uint64]
    counts: NDArray[np.int64]
    level: int

    @property
    def total(self) -> int:
        return int(self.counts.sum())

    def exact(self, level: int) -> NDArray[np.int64]:
        """Of all pairs of a level."""
        return count_prefixes(self.codes, self.counts, np.arange(16**level, dtype=np.uint64), PAIR_BITS - 4 * level)


def key_of(run: int) -> RunKey:
    """A key for a run."""
    return RunKey.derive(FixedSecret(b"benchmark of flows, no release"), {"run": run})


def synthetic(users: int, level: int, seed: int) -> Trips:
    """One trip of each of the synthetic city's users. Every seed has the same city with other people."""
    table = make_trips(0, users, 0, city=build_city(), seed=seed)
    items = TripItems(TripColumns(*ENDS), Grid(PENUMBRA, MAX_PAIR_DEPTH))
    return _bounded(
        f"synthetic city, seed {seed}", [items.encode(one, key_of(0), _all) for one in table.to_batches()], None, level
    )


def tokyo(folder: str, level: int) -> Trips:
    """One pair of consecutive check-ins of each user."""
    table = pq.read_table(os.path.join(folder, "foursquare_tokyo_checkins.parquet"))
    items = RecordItems(LocationColumns(time="timestamp"), Grid(TOKYO, MAX_PAIR_DEPTH))
    rule = TripRule(4 * 3600.0, 100.0, TOKYO)
    return _bounded("Tokyo", [items.encode(one, key_of(0), _all) for one in table.to_batches()], rule, level)


def _all(users: NDArray[np.uint64]) -> NDArray[np.bool_]:
    return np.ones(len(users), dtype=bool)


def _bounded(name: str, encoded: list, rule: TripRule | None, level: int) -> Trips:
    from sfumato.transforms.histogram.user_sample import merge

    counts = count_trips(merge([one.sample for one in encoded]), 1, rule, key_of(0))[0]
    return Trips(name, counts.items, counts.counts, level)


def ours(trips: Trips, epsilon: float, run: int) -> Flows:
    """A release's flows."""
    levels = measure_flows(
        trips.codes, trips.counts, PAIR_BITS, FlowPlan(epsilon), trips.total, key_of(run).narrowed({"of": trips.name})
    )
    return estimate_flows(levels)


def of_level(flows: Flows, level: int) -> NDArray[np.float64]:
    """The listed flows as estimates of all pairs of a level; what is not listed is 0."""
    estimate = np.zeros(16**level)
    for one in np.unique(flows.level[~flows.is_rest]).tolist():
        at = (flows.level == one) & ~flows.is_rest
        if one >= level:
            pairs = (flows.pair[at] >> np.uint64(4 * (one - level))).astype(np.int64)
            np.add.at(estimate, pairs, flows.trips[at])
        else:
            within = 16 ** (level - one)
            pairs = (flows.pair[at].astype(np.int64) * within)[:, None] + np.arange(within)
            estimate[pairs.ravel()] += np.repeat(flows.trips[at] / within, within)
    return estimate


def recall(estimate: NDArray[np.float64], exact: NDArray[np.int64], top: int = TOP) -> float:
    """The share of the largest estimates that are among the largest pairs, ties included."""
    least = np.sort(exact)[::-1][top - 1]
    chosen = np.argsort(-estimate, kind="stable")[:top]
    return float(((exact[chosen] >= max(least, 1)) & (estimate[chosen] > 0)).mean())


def truth_of(flows: Flows, trips: Trips) -> NDArray[np.int64]:
    """The exact trips of each row: of a rest, all of its coarse pair less those of the listed pairs in it."""
    truth = np.zeros(len(flows), np.int64)
    for level in np.unique(flows.level).tolist():
        at = flows.level == level
        truth[at] = count_prefixes(trips.codes, trips.counts, flows.pair[at], PAIR_BITS - 4 * level)
    rest = flows.is_rest
    coarse = flows.pair[~rest] >> (4 * (flows.level[~rest] - flows.level[rest][0])).astype(np.uint64)
    truth[rest] -= np.bincount(coarse.astype(np.int64), truth[~rest], int(rest.sum())).astype(np.int64)
    return truth


def coverage(flows: Flows, truth: NDArray[np.int64], rows: NDArray[np.bool_]) -> float:
    """The share of rows whose interval holds the truth."""
    held = (flows.low <= truth) & (truth <= flows.high)
    return float(held[rows].mean()) if rows.any() else float("nan")


def best(estimates: Iterator[NDArray[np.float64]], exact: NDArray[np.int64]) -> NDArray[np.float64]:
    """The estimate of least error: what a mechanism with options could do at best."""
    return min(estimates, key=lambda one: float(np.abs(one - exact).sum()))


def rivals(trips: Trips, epsilon: float, rng: np.random.Generator) -> dict[str, Callable[[], NDArray[np.float64]]]:
    """The baselines, each with the option that suits these trips best."""
    level, exact = trips.level, trips.exact(trips.level)
    of = (trips.codes, trips.counts, PAIR_BITS)

    def grid() -> NDArray[np.float64]:
        noisy = uniform_grid(*of, level, epsilon, rng)
        return best((thresholded(noisy, least) for least in THRESHOLDS), exact)

    return {
        "uniform grid, negative counts as 0": lambda: thresholded(uniform_grid(*of, level, epsilon, rng), 0),
        "uniform grid, best threshold": grid,
        "Private-OD (as assumed), best threshold": lambda: best(
            (
                private_od(*of, depth, epsilon, least, rng, level)
                for depth in (level, level + 1)
                for least in (8, 16, 32, 64, 128)
            ),
            exact,
        ),
        "density grid (as assumed), best": lambda: best(
            (
                density_grid(*of, start, epsilon, share, rng, level)
                for start in range(1, level)
                for share in (0.1, 0.3, 1.0, 3.0)
            ),
            exact,
        ),
    }


def main() -> None:
    """Prints the tables."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--seed", type=int, default=1, help="picks the people of the city")
    options = parser.parse_args()
    folder = os.environ.get("SFUMATO_DATA")
    inputs = [partial(synthetic, 100_000, 4, options.seed)]
    if folder:
        inputs.append(partial(tokyo, folder, 3))
    write = sys.stdout.write
    for make in inputs:
        trips = make()
        exact = trips.exact(trips.level)
        ordered = np.sort(exact)[::-1]
        write(
            f"\n{trips.name}: {trips.total:,} trips; at level {trips.level}, {(exact > 0).sum():,} of "
            f"{16**trips.level:,} pairs have trips, and the {TOP:,}th largest has {ordered[TOP - 1]}\n\n"
            "| epsilon | mechanism | L1 per trip | recall, top 1,000 | flows | coverage | of the top 100 | of rests |\n"
            "|---|---|---|---|---|---|---|---|\n"
        )
        for epsilon in EPSILONS:
            results = []
            for run in range(options.runs):
                flows = ours(trips, epsilon, run)
                estimate, truth = of_level(flows, trips.level), truth_of(flows, trips)
                top = np.zeros(len(flows), dtype=bool)
                listed = np.flatnonzero(~flows.is_rest)
                top[listed[np.argsort(-flows.trips[listed], kind="stable")[:100]]] = True
                results.append(
                    (
                        np.abs(estimate - exact).sum() / trips.total,
                        recall(estimate, exact),
                        len(listed),
                        coverage(flows, truth, ~flows.is_rest),
                        coverage(flows, truth, top),
                        coverage(flows, truth, flows.is_rest),
                    )
                )
            error, found, number, *covered = np.nanmean(results, axis=0)
            covers = " | ".join(f"{one:.1%}" for one in covered)
            write(f"| {epsilon:g} | sfumato flows | {error:.3f} | {found:.3f} | {number:,.0f} | {covers} |\n")
            rng = np.random.default_rng(7)
            for name, made in rivals(trips, epsilon, rng).items():
                scores = [
                    (np.abs(one - exact).sum() / trips.total, recall(one, exact), (one > 0).sum())
                    for one in (made() for _ in range(options.runs))
                ]
                error, found, number = np.mean(scores, axis=0)
                write(f"| {epsilon:g} | {name} | {error:.3f} | {found:.3f} | {number:,.0f} | | | |\n")


if __name__ == "__main__":
    main()
