"""Intervals of integers and the coverage of the intervals of every level, against exact distributions."""

from __future__ import annotations

import math

import numpy as np
import pytest
from numpy.typing import NDArray

from sfumato.transforms.statistics.tree_least_squares import NoisyLevel, fit_levels
from sfumato.transforms.zones.zones_release import laplace_kurtosis, lattice_margins, margins
from tests.seeds import seeded_rng


def discrete_laplace(rng: np.random.Generator, epsilon: float, shape: tuple[int, ...]) -> NDArray[np.int64]:
    decay = math.exp(-epsilon)
    return rng.geometric(1 - decay, shape) - rng.geometric(1 - decay, shape)


@pytest.mark.parametrize("epsilon", [0.1, 0.5, 0.998, 2.0])
def test_the_kurtosis_is_that_of_the_discrete_distribution(epsilon: float) -> None:
    k = np.arange(-2000, 2001)
    decay = math.exp(-epsilon)
    mass = decay ** np.abs(k) * (1 - decay) / (1 + decay)
    variance = (mass * k**2).sum()
    np.testing.assert_allclose(
        laplace_kurtosis(epsilon), (mass * k.astype(float) ** 4).sum() / variance**2 - 3, rtol=1e-9
    )


@pytest.mark.parametrize("epsilon", [0.1, 0.3, 0.5, 0.998, 1.5, 2.0, 3.0])
def test_intervals_of_integers_hold_95_per_cent(epsilon: float) -> None:
    """By summation of the exact distribution: never below 94.5%, and above 97% only where no shorter one has that."""
    sums = np.array([1, 2, 3, 8, 9])
    below, above = lattice_margins(epsilon, sums)
    assert np.isnan(below).tolist() == np.isnan(above).tolist() == [False] * 4 + [True]
    decay = math.exp(-epsilon)
    k = np.arange(-3000, 3001)
    one = decay ** np.abs(k) * (1 - decay) / (1 + decay)
    for number, low, high in zip(sums[:4], below, above, strict=False):
        mass = one
        for _ in range(int(number) - 1):
            mass = np.convolve(mass, one, mode="same")
        held = mass[(k >= -high) & (k <= low)].sum()
        shorter = mass[(k >= -high) & (k <= low - 1)].sum()
        assert held >= 0.945
        assert shorter < 0.945


def test_intervals_of_every_level_cover_95_per_cent() -> None:
    """4,000 draws of 56 zones: a level of k zones has 4,000 k intervals, and six deviations allow for the rest."""
    sizes, epsilons = (40, 12, 4), (0.8, 0.12, 0.08)
    parents = [np.arange(40) % 12, np.arange(12) % 4]
    rng = seeded_rng(7)
    draws = 4_000
    truth = [rng.poisson(30, sizes[0]).astype(float)]
    for parent in parents:
        truth.append(np.bincount(parent, truth[-1]))
    levels = []
    for exact, epsilon in zip(truth, epsilons, strict=True):
        decay = math.exp(-epsilon)
        variance = 2 * decay / (1 - decay) ** 2
        noisy = exact + discrete_laplace(rng, epsilon, (draws, len(exact)))
        levels.append(NoisyLevel(noisy, variance, laplace_kurtosis(epsilon)))
    for exact, found in zip(truth, fit_levels(levels, parents), strict=True):
        error = found.counts - exact
        half = margins(found.variance, found.kurtosis)
        covered = (np.abs(error) <= half).mean()
        spare = 6 * math.sqrt(0.95 * 0.05 / draws)  # errors of zones are correlated: as if there were one of them
        assert 0.93 - spare < 0.95 - spare < covered < 0.95 + spare
        np.testing.assert_allclose(error.var(axis=0), found.variance, rtol=6 * math.sqrt(5 / draws))
        assert np.abs(error.mean(axis=0) / np.sqrt(found.variance / draws)).max() < 5.5  # 56 means, one in 10^5
