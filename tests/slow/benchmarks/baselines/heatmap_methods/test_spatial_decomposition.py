import itertools
import math

import numpy as np
import pytest

from benchmarks.baselines.heatmap_methods.pyramid import Pyramid, choose_levels, pruned
from benchmarks.baselines.heatmap_methods.spatial_decomposition import SpatialDecomposition, consistent_levels
from sfumato.transforms.heatmap.parameters import HeatmapParameters
from tests.rejections import rejects
from tests.seeds import seeded_rng
from tests.unit.heatmap.methods.oracle import group_of, least_squares, run, some_rows

DEPTH = 3


def design() -> np.ndarray:
    """Which leaves each node of levels 1..3 covers: float64[84, 64], level by level."""
    rows = [
        [leaf >> 2 * (DEPTH - level) == cell for leaf in range(64)] for level in (1, 2, 3) for cell in range(4**level)
    ]
    return np.array(rows, dtype=float)


@pytest.mark.parametrize("variances", [(1.0, 1.0, 1.0), (9.0, 4.0, 0.5), (0.1, 3.0, 80.0)])
def test_the_consistent_tree_is_the_weighted_least_squares_solution(variances: tuple[float, ...]) -> None:
    rng, a = seeded_rng(4), design()
    levels = [(rng.normal(5, 20, 4**level), variance) for level, variance in enumerate(variances, 1)]
    each = np.concatenate([np.full(len(counts), variance) for counts, variance in levels])
    leaves, covariance = least_squares(a, np.concatenate([counts for counts, _ in levels]), each)
    got = consistent_levels(levels)
    assert np.allclose(np.concatenate([counts for counts, _ in got]), a @ leaves, atol=1e-9)
    deviations = np.concatenate([np.full(len(counts), variance) for counts, variance in got])
    assert np.allclose(deviations, np.diag(a @ covariance @ a.T))
    for (upper, _), (lower, _) in itertools.pairwise(got):
        assert np.allclose(upper, lower.reshape(-1, 4).sum(axis=1))


@pytest.mark.parametrize("doubling", [3.0, -3.0])
def test_budgets_are_geometric_and_every_level_gains(doubling: float) -> None:
    method = SpatialDecomposition(budget_doubling=doubling)
    parameters = HeatmapParameters(depth=DEPTH, shard_size=100, dropout=0.5, population=400, method=method)
    state = run(parameters, group_of(some_rows(5, 400, 4, DEPTH), 4, DEPTH))
    spent = [result.spent.epsilon for result in state.results]
    assert state.budget.spent == 1
    assert np.allclose(np.divide(spent[1:], spent[:-1]), 2 ** (1 / doubling))
    raw, consistent = Pyramid.candidates(method, state, DEPTH), method.candidates(state, DEPTH)
    levels = consistent_levels([(one.counts, one.stddev[0] ** 2) for one in raw])
    for level, (before, after) in enumerate(zip(raw, consistent, strict=True)):
        assert after.counts.tolist() == levels[level][0].tolist()
        assert (after.stddev < before.stddev).all()
    chosen, every = method.decode(state, DEPTH), np.concatenate([one.counts for one in consistent])
    assert np.isin(chosen.counts, every).all()
    assert math.isclose(chosen.counts.sum(), consistent[0].counts.sum())  # whatever is split
    assert chosen.tree == pruned(consistent, choose_levels(raw, consistent, 0.0)).tree


def test_without_noise_the_tree_is_the_truth() -> None:
    rows = some_rows(6, 300, 3, DEPTH)
    method = SpatialDecomposition()
    parameters = HeatmapParameters(depth=DEPTH, shard_size=100, dropout=0.5, population=300, method=method)
    state = run(parameters, group_of(rows, 3, DEPTH), noise=False)
    for level, one in enumerate(method.candidates(state, DEPTH), 1):
        expected = np.bincount([code >> 2 * (DEPTH - level) for _, code, _ in rows], minlength=4**level)
        assert np.allclose(one.counts, expected)


@pytest.mark.parametrize("doubling", [0, 0.1, -0.4, math.nan, math.inf])
def test_bad_options_are_refused(doubling: float) -> None:
    with rejects("budget_doubling"):
        SpatialDecomposition(budget_doubling=doubling)
    with rejects("depth"):
        HeatmapParameters(depth=13, method=SpatialDecomposition())
