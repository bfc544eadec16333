"""PrivTree: nodes, noise, and what one user more changes."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from benchmarks.baselines.range_methods import privtree
from benchmarks.baselines.range_methods.privtree import PrivTree, SplitRule
from tests.slow.benchmarks.baselines.range_methods.partition_checks import (
    assert_a_partition_by_key,
    collected,
    exact_users,
    rectangles,
)
from tests.statistics import FLAKE_RATE
from tests.unit.ranges.oracle import image, people_at, town

PEOPLE = town(6, 4000)
LARGEST = 60.0


@pytest.mark.parametrize("epsilon", [0.05, 1.0, 5.0])
def test_parts_cover_the_field_once_by_key(epsilon: float) -> None:
    assert_a_partition_by_key(PrivTree(), PEOPLE, epsilon)


def test_split_by_biased_counts_without_noise(monkeypatch: pytest.MonkeyPatch) -> None:
    """Noise is taken away: of a hundred nodes at the border of a split, the largest epsilon would move one in 4,000."""
    monkeypatch.setattr(privtree, "add_noise", lambda counts, *_: counts)
    base, rule = image(PEOPLE), SplitRule.from_epsilon(LARGEST / 2)
    assert rule.delta == 1
    leaves = []

    def grow(x: int, y: int, width: int, level: int) -> None:
        if width == 1 or base[y : y + width, x : x + width].sum() - level * rule.delta <= 0:
            leaves.append((x, y, x + width, y + width))
        else:
            half = width // 2
            for across, down in itertools.product((0, half), repeat=2):
                grow(x + across, y + down, half, level + 1)

    grow(0, 0, 64, 0)
    found = collected(PrivTree(), PEOPLE, LARGEST)
    assert sorted(rectangles(found)) == sorted(leaves)
    assert 100 < len(leaves) < 4096
    np.testing.assert_array_equal(found.users, exact_users(found, PEOPLE))


def upper_tail(rate: float, least: int) -> float:
    """P[Z >= least], Z discrete Laplace."""
    a = math.exp(-rate)
    return a**least / (1 + a) if least >= 0 else 1 - a ** (1 - least) / (1 + a)


def split_probability(rule: SplitRule, count: int, level: int) -> float:
    return upper_tail(rule.rate, 1 - max(count - level * rule.delta, -rule.delta))


@pytest.mark.false_alarm(1e-9)  # one p-value
@pytest.mark.parametrize("users", [0, 3, 8, 20])
def test_the_tree_has_the_noise_of_its_share(users: int) -> None:
    """How often the field of 2 x 2 cells is split, where nothing else can be."""
    people, epsilon, share, runs = people_at(1, [1] * users, [0] * users), 0.6, 0.4, 3000
    splits = sum(len(collected(PrivTree(share), people, epsilon, key).users) == 4 for key in range(runs))
    probability = split_probability(SplitRule.from_epsilon(share * epsilon), users, 0)
    assert stats.binomtest(splits, runs, probability).pvalue > FLAKE_RATE
    if users:
        wrong = split_probability(SplitRule.from_epsilon(epsilon), users, 0)
        assert stats.binomtest(splits, runs, wrong).pvalue < 1e-4


def loss(rule: SplitRule, path: list[int], splits: int) -> float:
    """ln of the probability of a tree with one user more over that without. `path` has the other users of its nodes.

    `splits` of them are split; the next, if there is one, is a leaf.
    """
    total = 0.0
    for level, count in enumerate(path[: splits + 1]):
        with_user, without = (split_probability(rule, count + more, level) for more in (1, 0))
        total += math.log(with_user / without) if level < splits else math.log((1 - with_user) / (1 - without))
    return total


EPSILONS = st.sampled_from([0.01, 0.05, 0.3, 1.0, 3.0])


@given(EPSILONS, st.integers(-3, 3), st.lists(st.integers(0, 3), min_size=1, max_size=12), st.booleans())
def test_no_tree_tells_more_than_epsilon_of_a_user(epsilon: float, near: int, more: list[int], ends: bool) -> None:
    rule = SplitRule.from_epsilon(epsilon)
    # The deepest node is near where the floor begins, and those above it hold a few more: there a user is told best.
    deepest = max(0, (len(more) - 2) * rule.delta + near)
    path = [deepest + step for step in np.cumsum(more)[::-1].tolist()]
    assert abs(loss(rule, path, len(path) - ends)) <= epsilon
