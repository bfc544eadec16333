"""Unbiased counts and the joint distribution of their errors, against least squares written as one matrix."""

from __future__ import annotations

import numpy as np
import pytest

from sfumato.schemas.tree import Tree
from sfumato.transforms.heatmap.posterior.full_tree import FullTree, TreeMeasurement, add_up, measure
from sfumato.transforms.heatmap.posterior.unbiased import Z_95, UnbiasedCounts, user_intervals
from tests.seeds import seeded_rng
from tests.unit.heatmap.posterior.oracle import all_nodes, below

DEPTH = 3


def measured() -> tuple[FullTree, list[TreeMeasurement]]:
    """A grid and a finer, uneven tree, with noise of different variances."""
    rng = seeded_rng(3)
    deeper = np.concatenate([4 * 4 + np.arange(4), 4 * 16 + np.arange(4)]).astype(np.uint64)
    uneven = Tree.of(DEPTH, np.concatenate([Tree.uniform(DEPTH, 1).nodes, deeper]))
    trees = [Tree.uniform(DEPTH, 2), uneven]
    found = [
        TreeMeasurement(tree, rng.normal(10, 5, len(tree.entries)), np.full(len(tree.entries), variance))
        for tree, variance in zip(trees, (9.0, 2.0), strict=True)
    ]
    return FullTree.from_trees(*trees), found


def least_squares(full: FullTree, own, users: float, users_variance: float) -> tuple[np.ndarray, np.ndarray]:
    """Users of the leaves and the covariance of their errors: every measurement a row, the users in all one more."""
    nodes, leaves = all_nodes(full), np.concatenate(full.leaves)
    ends = [node for node, leaf in zip(nodes, leaves, strict=True) if leaf]
    weights, weighted = np.concatenate(own.weights), np.concatenate(own.weighted)
    rows = np.array([[below(end, node) for end in ends] for node in nodes], dtype=float)
    information = rows.T @ (weights[:, None] * rows) + np.ones((len(ends),) * 2) / users_variance
    right = rows.T @ weighted + users / users_variance
    covariance = np.linalg.inv(information)
    return covariance @ right, covariance


@pytest.mark.parametrize("users_variance", [1e-4, 30.0])
def test_users_and_errors_of_sums_are_those_of_least_squares(users_variance: float) -> None:
    full, found = measured()
    own = measure(full, found)
    root = add_up(full, own)
    weights = 1 / users_variance, 1 / root.variance[0][0]
    users = (170.0 * weights[0] + root.users[0][0] * weights[1]) / sum(weights)
    unbiased = UnbiasedCounts.from_measurements(full, own, users, 1 / sum(weights))
    users, covariance = least_squares(full, own, 170.0, users_variance)
    np.testing.assert_allclose(unbiased.leaf_users, users, rtol=1e-5)
    np.testing.assert_allclose(unbiased.leaf_variances(), np.diag(covariance), rtol=1e-5)
    rng = seeded_rng(1)
    for weights in (*(rng.random((5, len(users))) < 0.4).astype(float), rng.random(len(users)), np.ones(len(users))):
        total, stddev = unbiased.total(weights)
        assert total == pytest.approx(users @ weights, rel=1e-5)
        assert stddev == pytest.approx(np.sqrt(weights @ covariance @ weights), rel=1e-4, abs=1e-5)


def test_many_sums_at_once_are_those_one_by_one() -> None:
    full, found = measured()
    unbiased = UnbiasedCounts.from_measurements(full, measure(full, found), 170.0, 30.0)
    weights = seeded_rng(5).random((6, len(unbiased.leaf_users)))
    weights[weights < 0.5] = 0
    weights[3], weights[4] = 0, 1
    group, leaf = np.nonzero(weights)
    users, variance = unbiased.node_totals(group, *unbiased.full.leaf_nodes(leaf), weights[group, leaf], len(weights))
    expected = np.array([unbiased.total(one) for one in weights])
    np.testing.assert_allclose(users, expected[:, 0], atol=1e-9)
    np.testing.assert_allclose(np.sqrt(variance), expected[:, 1], atol=1e-9)


def test_sums_of_nodes_are_those_of_their_leaves() -> None:
    full, found = measured()
    unbiased = UnbiasedCounts.from_measurements(full, measure(full, found), 170.0, 30.0)
    rng = seeded_rng(6)
    level = np.repeat(np.arange(len(full.codes)), [len(codes) for codes in full.codes])
    node = np.concatenate([np.arange(len(codes)) for codes in full.codes])
    names = all_nodes(full)
    leaves = [name for name, leaf in zip(names, np.concatenate(full.leaves), strict=True) if leaf]
    chosen = rng.choice(len(node), 40)  # some of them twice
    weights = rng.normal(size=40)
    users, variance = unbiased.node_totals(np.zeros(40, dtype=np.int64), level[chosen], node[chosen], weights, 1)
    held = np.array([[below(end, names[one]) for end in leaves] for one in chosen], dtype=float)
    expected, stddev = unbiased.total(weights @ held)
    assert users[0] == pytest.approx(expected)
    assert np.sqrt(variance[0]) == pytest.approx(stddev)


def test_published_columns_give_the_same_totals() -> None:
    full, found = measured()
    unbiased = UnbiasedCounts.from_measurements(full, measure(full, found), 170.0, 30.0)
    nodes = np.concatenate([codes | np.uint64(4**level) for level, codes in enumerate(full.codes)])
    variance = np.concatenate([[unbiased.total_variance], *unbiased.measured_variance[1:]])
    again = UnbiasedCounts.from_nodes(nodes, np.concatenate(unbiased.users), variance)
    weights = seeded_rng(2).random(len(unbiased.leaf_users))
    assert again.total(weights) == pytest.approx(unbiased.total(weights))


def test_intervals_are_of_whole_numbers_that_are_not_negative() -> None:
    low, high = user_intervals(np.array([-9.0, 1.0, 50.0]), np.array([2.0, 2.0, 2.0]))
    assert low.tolist() == [0, 0, pytest.approx(50 - 2 * Z_95 - 0.3)]
    assert high.tolist() == [0, pytest.approx(1 + 2 * Z_95 + 0.3), pytest.approx(50 + 2 * Z_95 + 0.3)]
