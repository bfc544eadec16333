"""Nights as counts of cells, for as many users as one likes: no array of users. And their noise on paper."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import date

import numpy as np
from numpy.typing import NDArray

from benchmarks.city_nights import DEPTH, SIDE, Crowd
from benchmarks.city_people import density_on, density_raster
from benchmarks.evaluation.density_metrics import coarsen
from benchmarks.evaluation.in_memory import planned_state
from benchmarks.month_ways import WINDOW, Array, Way
from sfumato.schemas.guarantee import CentralOrSecagg
from sfumato.schemas.rectangle import PENUMBRA
from sfumato.schemas.region import deinterleave
from sfumato.schemas.tree import Tree
from sfumato.transforms.counting.parameters import CountParameters
from sfumato.transforms.counting.state import CountState, Estimate
from sfumato.transforms.counting.sub_queries import advance_run
from sfumato.transforms.privacy.additive_noise import LAPLACE
from sfumato.transforms.privacy.keys import RunKey
from sfumato.transforms.secagg.encodings import TreeEncoding
from sfumato.transforms.secagg.shard_sums import ShardQuery, ShardTotals

_X, _Y = (one.astype(np.int64) for one in deinterleave(np.arange(4**DEPTH, dtype=np.uint64)))


@dataclass(frozen=True)
class CountNight:
    """The users of a night by cell. Who they are from night to night is not modelled: every night draws anew.

    Attributes:
        day: its date.
        seed: of the draws.
        counts: int64[4^DEPTH], users by code.
        expected: the density that they are drawn from, float64[SIDE, SIDE], sum 1, row 0 in the north.
    """

    day: date
    seed: int
    counts: NDArray[np.int64]
    expected: Array

    @property
    def users(self) -> int:
        """All of its users."""
        return int(self.counts.sum())

    def exact(self) -> Array:
        """The density of the counts: float64[SIDE, SIDE]."""
        return coarsen(density_raster(self.counts), SIDE)

    def entry_counts(self, tree: Tree) -> NDArray[np.int64]:
        """The exact users of a tree's entries: int64[T]."""
        return _entry_counts(self.counts, tree)

    def with_crowd(self, crowd: Crowd, draw: int = 0) -> CountNight:
        """The same night with a crowd: users chosen at random are there. draw: numbers the draw."""
        rng = np.random.default_rng([self.seed, self.day.toordinal(), draw])
        share = crowd.users / self.users
        gone = np.minimum(rng.multinomial(crowd.users, self.counts / self.users), self.counts)
        there = np.bincount(crowd.draw(rng)[: int(gone.sum())], minlength=len(gone))
        density = (1 - share) * self.expected + share * crowd.density()
        return replace(self, counts=self.counts - gone + there, expected=density)

    def run(self, cohorts: int, parameters: CountParameters, key: RunKey, prior: Estimate | None) -> CountState:
        """The run that asks a random part of the users, one of so many.

        The sum of n shards' Laplace noise is drawn as one: the difference of two negative binomial numbers.
        """
        rng = np.random.default_rng([self.seed, self.day.toordinal(), cohorts, 1])
        queried_counts = rng.binomial(self.counts, 1 / cohorts)
        state = planned_state(int(queried_counts.sum()), parameters, key, prior)
        remaining, shards = queried_counts, state.shard_plan.shards
        while (query := state.query) is not None:
            queried = shards
            if query.shard_range is not None:  # users of other shards are asked in other sub-queries
                queried = query.shard_range[1] - query.shard_range[0]
                queried_counts = rng.binomial(remaining, queried / (shards - query.shard_range[0]))
                remaining = remaining - queried_counts
            if not isinstance(query.encoding, TreeEncoding):
                raise TypeError("counts of nights are asked by trees")
            sums = _entry_counts(queried_counts, query.encoding.tree)
            if not parameters.is_one_batch:
                sums = sums + _sum_of_noise(query, queried, rng)
            state = advance_run(state, ShardTotals(sums, queried), parameters, key)
        return state


def _entry_counts(counts: NDArray[np.int64], tree: Tree) -> NDArray[np.int64]:
    before = np.concatenate([[0], np.cumsum(counts)])
    return np.asarray(tree.index.sum_intervals(np.diff(before[tree.index.boundaries.astype(np.int64)])[None, :])[0])


def _sum_of_noise(query: ShardQuery, shards: int, rng: np.random.Generator) -> NDArray[np.int64]:
    """The sum of the shards' discrete Laplace noise: int64[T]."""
    if query.noise.kind is not LAPLACE:
        raise TypeError("shards have Laplace noise here")
    success = -math.expm1(-query.cost / query.sensitivity)
    first, second = (rng.negative_binomial(shards, success, query.encoding.length) for _ in range(2))
    return np.asarray(first - second)


def draw_nights(
    days: Sequence[date], users: int, seed: int = 0, crowds: Mapping[date, Crowd] | None = None
) -> Iterator[CountNight]:
    """Yields the nights of some dates, each with a Poisson number of users in every cell, `users` expected in all.

    crowds: by date, added to the city's own events.
    """
    longitude = (PENUMBRA.west + PENUMBRA.east) / 2
    for day in days:
        fine = coarsen(density_on(day, seed, longitude), 1 << DEPTH)
        counts = np.random.default_rng([seed, day.toordinal(), 2]).poisson(users * fine[_Y, _X])
        night, crowd = CountNight(day, seed, counts, coarsen(fine, SIDE)), (crowds or {}).get(day)
        yield night if crowd is None else night.with_crowd(crowd)


@dataclass(frozen=True)
class PaperVariances:
    """Variances of a cell's users by a way, from public figures, as if one sub-query spent the whole night's budget.

    Attributes:
        noise: of one night, in users^2.
        sampling: of one night, in users^2, for each user of the cell.
        nights: that are averaged, as if nothing changed.
    """

    noise: float
    sampling: float
    nights: int

    @classmethod
    def of_way(cls, way: Way, trust: CentralOrSecagg, users: float, shard_size: float = 10_000) -> PaperVariances:
        """Of a way for a number of users.

        A cohort's counts are multiplied by c, and their noise variance by c^2. A cohort has a c-th of the shards. The
        asked users are a c-th of all: a cell of T users has c^2 T (1 - 1/c) / c more.
        """
        parameters, c = way.parameters(trust), way.cohorts
        one = parameters.noise_kind.stddev(parameters.budget.total) ** 2
        sums = 1.0 if parameters.is_one_batch else max(users / c / shard_size, 1.0)
        return cls(c**2 * sums * one, c - 1.0, WINDOW if way.memory == "posterior" else 1)

    def stddev(self, cell_users: float) -> float:
        """Of the users of a cell, after so many nights."""
        return math.sqrt((self.noise + self.sampling * cell_users) / self.nights)
