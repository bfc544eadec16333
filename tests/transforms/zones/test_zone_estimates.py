"""Constrained inference against the least squares fit of a general solver, and the coverage of its intervals."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
from numpy.typing import NDArray

from sfumato.transforms.zones.zone_estimates import (
    NoisyLevel,
    laplace_kurtosis,
    lattice_margins,
    margins,
    reconciled,
    total_variance,
)


def forest(seed: int, sizes: tuple[int, ...]) -> list[NDArray[np.int64]]:
    """Random parents; every parent has a child."""
    rng = np.random.default_rng(seed)
    found = []
    for below, above in itertools.pairwise(sizes):
        parent = np.concatenate([np.arange(above), rng.integers(0, above, below - above)])
        found.append(rng.permutation(parent))
    return found


def ancestors(parents: list[NDArray[np.int64]], size: int) -> list[NDArray[np.float64]]:
    """For each level the 0/1 matrix that adds the finest zones up."""
    above, found = np.arange(size), [np.eye(size)]
    for parent in parents:
        above = parent[above]
        matrix = np.zeros((above.max() + 1, size))
        matrix[above, np.arange(size)] = 1
        found.append(matrix)
    return found


@pytest.mark.parametrize(
    ("sizes", "variances"),
    [
        ((30,), (2.0,)),
        ((30, 6), (2.0, 9.0)),
        ((30, 6), (2.0, None)),
        ((40, 12, 3), (2.0, 5.0, 30.0)),
        ((40, 12, 3), (2.0, None, 30.0)),
        ((40, 12, 3), (2.0, 7.0, None)),
        ((25, 25, 1), (2.0, 1.0, 1e4)),
        ((60, 20, 7, 2, 1), (3.0, 1.0, 20.0, None, 5.0)),
    ],
)
def test_it_is_the_least_squares_fit_with_its_covariance(
    sizes: tuple[int, ...], variances: tuple[float | None, ...]
) -> None:
    parents = forest(1, sizes)
    matrices = ancestors(parents, sizes[0])
    rng = np.random.default_rng(2)
    levels, rows, weights, values = [], [], [], []
    kurtoses = rng.uniform(0, 3, len(sizes))
    for matrix, variance, kurtosis in zip(matrices, variances, kurtoses, strict=True):
        if variance is None:
            levels.append(NoisyLevel(None))
            continue
        counts = rng.normal(50, 20, (2, len(matrix)))
        levels.append(NoisyLevel(counts, variance, kurtosis))
        rows.append(matrix)
        weights.append(np.full(len(matrix), 1 / variance))
        values.append(counts)
    design, weight = np.concatenate(rows), np.concatenate(weights)
    covariance = np.linalg.inv(design.T * weight @ design)
    solve = covariance @ design.T * weight  # finest zones from all noisy counts
    noise = np.concatenate(
        [
            np.full(len(one), kurtosis)
            for one, kurtosis, known in zip(matrices, kurtoses, variances, strict=True)
            if known
        ]
    )
    for matrix, found in zip(matrices, reconciled(levels, parents), strict=True):
        linear = matrix @ solve
        np.testing.assert_allclose(found.counts, np.concatenate(values, axis=1) @ linear.T, rtol=1e-9)
        variance = linear**2 @ (1 / weight)
        np.testing.assert_allclose(found.variance, variance, rtol=1e-9)
        fourth = linear**4 @ (noise / weight**2)
        np.testing.assert_allclose(found.kurtosis, fourth / variance**2, rtol=1e-7, atol=1e-12)
    for picked in (np.ones(sizes[0]), rng.random(sizes[0]), rng.integers(0, 2, sizes[0]).astype(float)):
        expected = picked @ covariance @ picked
        np.testing.assert_allclose(total_variance(picked, variances, parents), expected, rtol=1e-9)


def test_a_zone_is_exactly_the_sum_of_its_parts() -> None:
    sizes = (500, 60, 7)
    parents = forest(3, sizes)
    rng = np.random.default_rng(4)
    levels = [NoisyLevel(rng.integers(-3, 90, (1, size)).astype(float), variance) for size, variance in zip(
        sizes, (3.0, 11.0, 70.0), strict=True)]  # fmt: skip
    fine, middle, coarse = reconciled(levels, parents)
    np.testing.assert_allclose(np.bincount(parents[0], fine.counts[0]), middle.counts[0], rtol=1e-12)
    np.testing.assert_allclose(np.bincount(parents[1], middle.counts[0]), coarse.counts[0], rtol=1e-12)


def test_one_level_is_left_as_it_was_counted() -> None:
    counts = np.array([[3.0, -1.0, 7.0]])
    (found,) = reconciled([NoisyLevel(counts, 2.5, 3.0)], [])
    assert found.counts.tolist() == counts.tolist()
    assert found.variance.tolist() == [2.5] * 3
    np.testing.assert_allclose(found.kurtosis, 3.0)


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
    """By summation of the exact distribution: never below 95%, and above 97% only where no shorter one has 95%."""
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
        assert held >= 0.95
        assert shorter < 0.95


def test_intervals_of_every_level_cover_95_per_cent() -> None:
    """4,000 draws of 56 zones: a level of k zones has 4,000 k intervals, and six deviations allow for the rest."""
    sizes, epsilons = (40, 12, 4), (0.8, 0.12, 0.08)
    parents = forest(6, sizes)
    rng = np.random.default_rng(7)
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
    for exact, found in zip(truth, reconciled(levels, parents), strict=True):
        error = found.counts - exact
        half = margins(found.variance, found.kurtosis)
        covered = (np.abs(error) <= half).mean()
        spare = 6 * math.sqrt(0.95 * 0.05 / draws)  # errors of zones are correlated: as if there were one of them
        assert 0.93 - spare < 0.95 - spare < covered < 0.95 + spare
        np.testing.assert_allclose(error.var(axis=0), found.variance, rtol=6 * math.sqrt(5 / draws))
        assert np.abs(error.mean(axis=0) / np.sqrt(found.variance / draws)).max() < 5.5  # 56 means, one in 10^5
