"""Nights of a small city for tests: noisy counts of a uniform tree, from a density with a weekly rhythm."""

from collections.abc import Sequence
from datetime import date, timedelta

import numpy as np
from numpy.typing import NDArray

from sfumato.schemas.tree import Tree
from sfumato.transforms.nights.nights_state import NightsState
from sfumato.transforms.nights.nights_update import NightMap, update
from sfumato.transforms.statistics.posterior.full_tree import TreeMeasurement
from tests.seeds import seeded_rng

FIRST = date(2026, 3, 2)  # a Monday
LEVEL = 5
CELLS = 4**LEVEL
TREE = Tree.uniform(8, LEVEL)
USERS = 200_000
STDDEV = 42.0
_RNG = seeded_rng(1)
_DENSITY = _RNG.gamma(2.0, 1.0, CELLS // 16).repeat(16) * _RNG.gamma(4.0, 1.0, CELLS)
# Half of 16 regions are fuller on weekends and half are emptier, so that every seed's Saturday differs as much.
_WEEKEND = np.exp(0.3 * _RNG.permutation(np.repeat([-1.0, 1.0], CELLS // 128)).repeat(64))


def night_of(number: int) -> date:
    """The date of a night, from 0."""
    return FIRST + timedelta(days=number)


def density_of(number: int) -> NDArray[np.float64]:
    """Expected users by code."""
    density = _DENSITY * (_WEEKEND if night_of(number).weekday() >= 5 else 1.0)
    return USERS * density / density.sum()


def counts_of(number: int, crowd: Sequence[int] = (), extra: int = 0) -> NDArray[np.int64]:
    """The exact users by code, with so many more in each cell of a crowd."""
    counts = seeded_rng([7, number]).poisson(density_of(number))
    counts[list(crowd)] += extra
    return counts


def measure_night(number: int, counts: NDArray[np.int64], cohorts: int = 30, seed: int = 0) -> TreeMeasurement:
    """A noisy measurement of a cohort, scaled to all users."""
    rng = seeded_rng([seed, number, 1])
    scaled = rng.binomial(counts, 1 / cohorts) * float(cohorts)
    noisy = scaled + rng.laplace(0, STDDEV / 2**0.5, CELLS)
    return TreeMeasurement(TREE, noisy, np.full(CELLS, STDDEV**2), cohorts - 1.0)


def run_nights(
    numbers: Sequence[int], state: NightsState | None = None, crowd: Sequence[int] = (), extra: int = 0, seed: int = 0
) -> tuple[NightsState, list[NightMap]]:
    """Takes in nights, all with the crowd."""
    maps = []
    for number in numbers:
        counts = counts_of(number, crowd, extra)
        measured = [measure_night(number, counts, seed=seed)]
        state, one = update(state, night_of(number), measured, float(counts.sum()), 50.0)
        maps.append(one)
    assert state is not None
    return state, maps
