"""Nights of the synthetic city as codes of cells: weekday rhythm, season, weather, and crowds of a chosen size.

A night has the people of `sfumato synth --days`, with the same records. The city's own events (every fourth Saturday,
about 15,000 of 193,000 users) stay. `Crowd` adds smaller ones.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import date
from functools import cached_property

import numpy as np
import scipy
from numpy.typing import NDArray

from benchmarks.city_people import density_on, density_raster
from benchmarks.evaluation.density_metrics import coarsen
from benchmarks.evaluation.in_memory import Rows, run_in_memory
from sfumato.schemas.rectangle import PENUMBRA
from sfumato.schemas.region import Grid, Places, interleave
from sfumato.schemas.rotation import Rotation
from sfumato.schemas.tree import Tree
from sfumato.transforms.counting.parameters import CountParameters
from sfumato.transforms.counting.state import CountState, Estimate
from sfumato.transforms.privacy.keys import RunKey
from sfumato.transforms.synth.city import build_city_on
from sfumato.transforms.synth.landscape import SIZE_KM, Point
from sfumato.transforms.synth.people import make_records
from sfumato.transforms.synth.random_streams import random_bits, stream_key

DEPTH = 10
SIDE = 128  # of the grid on which maps are compared
CROWD_RADIUS_KM = 0.3
_COHORTS = 1 << 17  # name of a random stream; the streams of people have small numbers
_GRID = Grid(PENUMBRA, DEPTH)
Array = NDArray[np.float64]


@dataclass(frozen=True)
class Crowd:
    """People who are at one place tonight instead of where they would be, normally distributed about it.

    Attributes:
        centre: in km from the city's west and north, each of 0..14.
        users: how many.
    """

    centre: Point
    users: int

    def density(self) -> Array:
        """Where they are expected: float64[SIDE, SIDE], sum 1, row 0 in the north. Cells at the border take the rest.

        The density falls as exp(-(distance / CROWD_RADIUS_KM)^2), as that of the city's own events.
        """
        edges = np.arange(1, SIDE) * (SIZE_KM / SIDE)
        column, row = (
            np.diff(scipy.special.ndtr((edges - at) * (2**0.5 / CROWD_RADIUS_KM)), prepend=0, append=1)
            for at in self.centre
        )
        return np.outer(row, column)

    def draw(self, rng: np.random.Generator) -> NDArray[np.uint32]:
        """Their cells: uint32[users], codes of depth DEPTH."""
        km = rng.normal(self.centre, CROWD_RADIUS_KM / 2**0.5, (self.users, 2))
        cells = np.clip(km * (_GRID.side / SIZE_KM), 0, _GRID.side - 1).astype(np.uint32)
        return interleave(cells[:, 0], cells[:, 1]).astype(np.uint32)

    def is_near(self, level: int, x: NDArray[np.int64], y: NDArray[np.int64]) -> NDArray[np.bool_]:
        """Whether cells (x, y) of a level, from the west and north, are at most two radii from the centre: bool[n]."""
        size = SIZE_KM / (1 << level)
        east, south = (
            np.maximum(np.maximum(at * size - km, km - (at + 1) * size), 0)
            for at, km in zip((x, y), self.centre, strict=True)
        )
        return np.asarray(np.hypot(east, south) <= 2 * CROWD_RADIUS_KM)


@dataclass(frozen=True)
class Night:
    """The users of a night.

    Attributes:
        day: its date.
        seed: of the people.
        people: their ids, uint64[n].
        codes: of their cells, uint32[n], depth DEPTH.
        expected: the density that they are drawn from, float64[SIDE, SIDE], sum 1, row 0 in the north.
        crowd: that was added; None without one.
        cohorts_draw: numbers the division into cohorts. The same every night, but for a night that is published again.
    """

    day: date
    seed: int
    people: NDArray[np.uint64]
    codes: NDArray[np.uint32]
    expected: Array
    crowd: Crowd | None = None
    cohorts_draw: int = 0

    @property
    def users(self) -> int:
        """How many there are."""
        return len(self.codes)

    def exact(self) -> Array:
        """The density of the exact counts: float64[SIDE, SIDE]."""
        return self._exact

    @cached_property
    def _exact(self) -> Array:
        return coarsen(density_raster(np.bincount(self.codes, minlength=_GRID.side**2)), SIDE)

    @cached_property
    def _sorted(self) -> NDArray[np.uint32]:
        return np.sort(self.codes)

    def with_crowd(self, crowd: Crowd, draw: int = 0) -> Night:
        """The same night with a crowd: users chosen at random are there. draw: numbers the draw."""
        rng = np.random.default_rng([self.seed, self.day.toordinal(), draw])
        moved, codes = rng.choice(self.users, crowd.users, replace=False), self.codes.copy()
        codes[moved] = crowd.draw(rng)
        share = crowd.users / self.users
        return replace(self, codes=codes, expected=(1 - share) * self.expected + share * crowd.density(), crowd=crowd)

    def queried(self, cohorts: int) -> NDArray[np.bool_]:
        """Whether tonight's cohort of so many holds each user: bool[n]. A user's cohort is the same every night."""
        cohort = Rotation.of_night(self.day, cohorts).cohort
        bits = random_bits(stream_key(self.seed, _COHORTS, self.cohorts_draw), self.people) >> np.uint64(32)
        return np.asarray(1 + bits % np.uint64(cohorts) == cohort)

    def entry_counts(self, tree: Tree) -> NDArray[np.int64]:
        """The exact users of a tree's entries: int64[T]."""
        below = np.searchsorted(self._sorted, tree.index.boundaries.astype(np.uint32))
        return np.asarray(tree.index.sum_intervals(np.diff(below)[None, :])[0])

    def run(self, cohorts: int, parameters: CountParameters, key: RunKey, prior: Estimate | None) -> CountState:
        """The run that asks tonight's cohort of so many."""
        rows = self.rows(cohorts)
        return run_in_memory(rows, len(rows.codes), parameters, key, prior)

    def rows(self, cohorts: int = 1) -> Rows:
        """The users of tonight's cohort, in the order of new hashes."""
        codes, places = self.codes[self.queried(cohorts)].astype(np.uint64), Places(DEPTH)
        rng = np.random.default_rng([self.seed, self.day.toordinal(), cohorts, self.cohorts_draw, 1])
        hashes = rng.integers(0, 1 << (64 - places.bits), len(codes), dtype=np.uint64)
        return Rows(places, np.sort(hashes) << np.uint64(places.bits), codes)


def make_nights(
    days: Sequence[date], people: int = 300_000, seed: int = 0, crowds: Mapping[date, Crowd] | None = None
) -> list[Night]:
    """The nights of some dates.

    Args:
        days: their dates.
        people: of the city, of whom three quarters are active on a working day.
        seed: picks the people.
        crowds: by date, added to the city's own.
    """
    nights, longitude = [], (PENUMBRA.west + PENUMBRA.east) / 2
    for day in days:
        # Day by day: cities with and without an event take turns in a small cache.
        records = make_records(0, people, 0, city=build_city_on(day), seed=seed, day=day)
        codes = _GRID.codes(records["longitude"].to_numpy(), records["latitude"].to_numpy()).astype(np.uint32)
        ids = records["user_id"].to_numpy().view(np.uint64)
        night = Night(day, seed, ids, codes, coarsen(density_on(day, seed, longitude), SIDE))
        crowd = (crowds or {}).get(day)
        nights.append(night if crowd is None else night.with_crowd(crowd))
    return nights


def exact_counts(night: Night, level: int) -> NDArray[np.int64]:
    """The night's users by cell of a level: int64[4^level], in the order of codes."""
    return np.bincount(night.codes >> np.uint32(2 * (DEPTH - level)), minlength=4**level)
