"""Least squares on a forest against the dense fit of a general solver."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from numpy.typing import NDArray

from sfumato.transforms.statistics.tree_least_squares import (
    NoisyLevel,
    fit_levels,
    total_variance,
    upward_variances,
)
from tests.seeds import seeded_rng


def forest(seed: int, sizes: tuple[int, ...]) -> list[NDArray[np.int64]]:
    """Random parents; every parent has a child."""
    rng = seeded_rng(seed)
    found = []
    for below, above in itertools.pairwise(sizes):
        parent = np.concatenate([np.arange(above), rng.integers(0, above, below - above)])
        found.append(rng.permutation(parent))
    return found


def ancestors(parents: list[NDArray[np.int64]], size: int) -> list[NDArray[np.float64]]:
    """For each level the 0/1 matrix that adds the finest nodes up."""
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
def test_fit_levels_matches_dense_least_squares(sizes: tuple[int, ...], variances: tuple[float | None, ...]) -> None:
    parents = forest(1, sizes)
    matrices = ancestors(parents, sizes[0])
    rng = seeded_rng(2)
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
    solve = covariance @ design.T * weight  # finest nodes from all noisy counts
    noise = np.concatenate(
        [
            np.full(len(one), kurtosis)
            for one, kurtosis, known in zip(matrices, kurtoses, variances, strict=True)
            if known
        ]
    )
    for matrix, found in zip(matrices, fit_levels(levels, parents), strict=True):
        linear = matrix @ solve
        np.testing.assert_allclose(found.counts, np.concatenate(values, axis=1) @ linear.T, rtol=1e-9, atol=1e-9)
        variance = linear**2 @ (1 / weight)
        np.testing.assert_allclose(found.variance, variance, rtol=1e-9)
        fourth = linear**4 @ (noise / weight**2)
        np.testing.assert_allclose(found.kurtosis, fourth / variance**2, rtol=1e-7, atol=1e-12)
    for picked in (np.ones(sizes[0]), rng.random(sizes[0]), rng.integers(0, 2, sizes[0]).astype(float)):
        expected = picked @ covariance @ picked
        np.testing.assert_allclose(total_variance(picked, variances, parents), expected, rtol=1e-9)


def test_fit_levels_parents_are_sums() -> None:
    sizes = (500, 60, 7)
    parents = forest(3, sizes)
    rng = seeded_rng(4)
    levels = [NoisyLevel(rng.integers(-3, 90, (1, size)).astype(float), variance) for size, variance in zip(
        sizes, (3.0, 11.0, 70.0), strict=True)]  # fmt: skip
    fine, middle, coarse = fit_levels(levels, parents)
    np.testing.assert_allclose(np.bincount(parents[0], fine.counts[0]), middle.counts[0], rtol=1e-12, atol=1e-10)
    np.testing.assert_allclose(np.bincount(parents[1], middle.counts[0]), coarse.counts[0], rtol=1e-12, atol=1e-10)


def test_fit_levels_single_level() -> None:
    counts = np.array([[3.0, -1.0, 7.0]])
    (found,) = fit_levels([NoisyLevel(counts, 2.5, 3.0)], [])
    assert found.counts.tolist() == counts.tolist()
    assert found.variance.tolist() == [2.5] * 3
    np.testing.assert_allclose(found.kurtosis, 3.0)


def test_upward_variances_of_regular_trees() -> None:
    variances, fan_outs = [2.0, 5.0, 40.0], [3, 4]
    parents = [np.arange(24) // 3, np.arange(8) // 4]
    for levels in (1, 2, 3):
        noisy = [NoisyLevel(np.zeros((1, size)), one) for size, one in zip((24, 8, 2), variances, strict=True)]
        found = fit_levels(noisy[:levels], parents[: levels - 1])[-1].variance
        expected = upward_variances(variances[:levels], fan_outs[: levels - 1])[-1]
        np.testing.assert_allclose(found, expected)
    np.testing.assert_allclose(upward_variances([2.0, np.inf], [3]), [2.0, 6.0])
