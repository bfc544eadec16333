"""Tests of all places at once: tail probabilities, the family-wise error rate, and what is found."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
from numpy.typing import NDArray

from sfumato.schemas.tree import node_levels
from sfumato.transforms.nights.sudden_changes import (
    FoundChange,
    NodeErrors,
    add_changes,
    find_sudden_changes,
    sums_without,
)
from sfumato.transforms.statistics.posterior.full_tree import (
    FullTree,
    NodeMeasurements,
    TreeMeasurement,
    add_up,
    measure,
)
from tests.seeds import seeded_rng
from tests.unit.nights.nights import CELLS, TREE

DEPTH = 5


_LEVELS = range(DEPTH + 1)


NODES = np.concatenate([np.arange(1 << 2 * level, 2 << 2 * level, dtype=np.uint64) for level in _LEVELS])


ENTRIES = 4.0 ** (DEPTH - node_levels(NODES))


def _up(cells: NDArray[np.float64]) -> NDArray[np.float64]:
    """Sums of the finest cells by node."""
    return np.concatenate([cells.reshape(4**level, -1).sum(axis=1) for level in _LEVELS])


def night(seed: int, cohorts: int = 30, extra: NDArray[np.float64] | None = None) -> NodeErrors:
    rng = seeded_rng(seed)
    expected = rng.gamma(1.0, 100.0, 4**DEPTH)
    users = expected if extra is None else expected + extra
    scaled = cohorts * rng.poisson(users / cohorts) if cohorts > 1 else users
    cells = scaled + rng.laplace(0, 42 / 2**0.5, 4**DEPTH)
    tested = node_levels(NODES) > 0
    return NodeErrors(
        NODES, _up(cells), _up(expected), 0 * ENTRIES + _up(expected), 42**2 * ENTRIES, ENTRIES, cohorts - 1.0, tested
    )


@pytest.mark.false_alarm(1e-9)
@pytest.mark.parametrize(
    ("cohorts", "users", "entries", "state"), [(30, 200, 4, 1000.0), (30, 22, 1, 68.0), (1, 200, 4, 500.0)]
)
def test_margins_are_exceeded_with_their_probability(cohorts: int, users: int, entries: int, state: float) -> None:
    """A million draws: the standard deviation of a share of 1e-3 is 3% of it, so 20% is more than 6 of them.

    The saddlepoint's margins are exceeded with 0.77 to 0.87 of it.
    """
    rng = seeded_rng(1)
    draws = rng.normal(0, math.sqrt(state), 1_000_000)
    if cohorts > 1:
        mean = (cohorts - 1) * users / cohorts**2
        draws += cohorts * (rng.poisson(mean, len(draws)) - mean)
    for _ in range(entries):
        draws += rng.laplace(0, 30, len(draws))
    one = np.ones(1)
    errors = NodeErrors(
        NODES[:1], 0 * one, users * one, state * one, 1800.0 * entries * one, entries * one, cohorts - 1.0, one > 0
    )
    for probability in (1e-2, 1e-3):
        (margin,) = errors.margins(np.array([-math.log(probability)]))
        assert 0.57 * probability < (draws > margin).mean() < 1.2 * probability


@pytest.mark.slow
@pytest.mark.false_alarm(1e-8)
@pytest.mark.parametrize("cohorts", [1, 30])
def test_few_nights_without_a_change_report_one(cohorts: int) -> None:
    """5% at most. Of 80 nights, 20 or more have a probability below 1e-8."""
    nights = (night(1000 + seed, cohorts) for seed in range(80))
    assert sum(bool(find_sudden_changes(one)) for one in nights) < 20


@pytest.mark.false_alarm(1e-8)
def test_errors_that_nodes_share_are_no_change() -> None:
    """Expectations are off by 20%, a fifth of whose variance is common to all. Of 40 nights, 14 have below 1e-8."""
    rng, found = seeded_rng(8), 0
    level = node_levels(NODES)
    expected = 100 * ENTRIES
    for _ in range(40):
        off = 0.2 * (math.sqrt(0.2) * rng.normal() + math.sqrt(0.8) * rng.normal(size=256))
        cells = np.repeat(100 * (1 + off), 4) + rng.laplace(0, 10, 4**DEPTH)
        state = (0.2 * expected) ** 2
        errors = NodeErrors(NODES, _up(cells), expected, state, 200 * ENTRIES, ENTRIES, 0.0, level == 4)
        found += bool(find_sudden_changes(errors))
    assert found < 14


def test_find_sudden_changes_skips_coarse_nodes() -> None:
    errors = night(9)
    coarse = node_levels(NODES) < 4
    assert not find_sudden_changes(replace(errors, measured=np.where(coarse, 2 * errors.expected, errors.expected)))
    few = errors.only(np.flatnonzero(coarse))
    assert not find_sudden_changes(replace(few, measured=2 * few.expected))


@pytest.mark.false_alarm(1e-9)
@pytest.mark.parametrize("sign", [1, -1])
def test_find_sudden_changes_finds_the_node(sign: int) -> None:
    """4,800 users more, measured with a deviation of 440, where 1,000 are a change."""
    extra = np.zeros(4**DEPTH)
    extra[256:272] = 300.0
    errors = night(3, extra=extra)
    if sign < 0:
        errors = replace(errors, measured=2 * errors.expected - errors.measured)
    found = find_sudden_changes(errors)
    assert found
    changed = {int(NODES[row]) for one in found for row in one.rows}
    inside = [node for node in changed if _within(node, (1 << 6) + 16) or _within((1 << 6) + 16, node)]
    assert inside
    assert sign * sum(sum(one.excess) for one in found) > 600  # of 4,800, of which a part is found


def test_find_sudden_changes_finds_a_square_between_nodes() -> None:
    """The four corners about the middle of the map have no common node but the root.

    Without errors: none of the corners stands out by itself, and all of them together do.
    """
    extra = np.zeros(4**DEPTH)
    for first in (0b00_11_11, 0b01_10_10, 0b10_01_01, 0b11_00_00):
        extra[first << 4 : (first + 1) << 4] = 70.0
    even = 100 * ENTRIES
    errors = replace(night(4), expected=even, expected_variance=even, measured=even + _up(extra))
    (found,) = find_sudden_changes(errors)
    assert len(found.rows) >= 3
    users = errors.measured[found.rows].sum()
    low, high = found.interval
    assert low < users < high
    assert not low < errors.expected[found.rows].sum() < high


def test_node_errors_intervals_invert_the_tests() -> None:
    """At each end, `measured` is as far as its margin there; an end at 0 users is not rejected."""
    errors = replace(night(7), expected_variance=0 * ENTRIES).only(np.arange(1, 85))
    errors = replace(errors, measured=np.where(np.arange(84) % 5 == 0, 0.0, errors.measured))  # some at an end
    level = np.full(84, 12.0)
    low, high = errors.intervals(level)
    for end, side in ((low, 1.0), (high, -1.0)):
        margin = replace(errors, expected=end).margins(level)
        at = (side * (errors.measured - end) - margin) / margin
        assert (np.abs(at[end > 0]) < 1e-6).all()
        assert (at[end == 0] <= 0).all()
    assert (low > 0).any()
    assert (low == 0).any()


def test_find_sudden_changes_finds_no_node_within_another() -> None:
    extra = np.zeros(4**DEPTH)
    extra[100:164] = 400.0
    extra[700] = 5000.0
    rows = [row for one in find_sudden_changes(night(5, extra=extra)) for row in one.rows]
    nodes = NODES[rows].tolist()
    assert len(set(nodes)) == len(nodes)
    assert not any(_within(one, other) for one in nodes for other in nodes if one != other)


def test_find_sudden_changes_skips_untested_nodes() -> None:
    extra = np.zeros(4**DEPTH)
    extra[700] = 5000.0
    errors = night(6, extra=extra)
    assert find_sudden_changes(errors)
    assert not find_sudden_changes(replace(errors, tested=np.zeros(len(NODES), dtype=bool)))


def _within(node: int, other: int) -> bool:
    shift = node.bit_length() - other.bit_length()
    return shift >= 0 and node >> shift == other


FULL = FullTree.from_trees(TREE)


EXPECTED = [np.full(len(codes), 100.0 * CELLS / len(codes)) for codes in FULL.codes]


LEVEL, PATH = 3, 5


INSIDE = slice(PATH * 16, PATH * 16 + 16)


def _setting(excess: float) -> tuple[NodeErrors, list[FoundChange], NodeMeasurements]:
    counts = np.full(CELLS, 100.0)
    counts[INSIDE] += excess / 16
    measured = measure(FULL, [TreeMeasurement(TREE, counts, np.full(CELLS, 1800.0), 29.0)], EXPECTED)
    sums = add_up(FULL, measured)
    nodes = np.concatenate([codes | np.uint64(1 << 2 * level) for level, codes in enumerate(FULL.codes)])
    flat = np.concatenate(EXPECTED)
    entries = np.concatenate(FULL.sums([np.ones(len(codes)) for codes in FULL.codes]))
    errors = NodeErrors(nodes, np.concatenate(sums.users), flat, flat, 1800 * entries, entries, 29.0, nodes > 1)
    row = int(np.flatnonzero(nodes == (1 << 2 * LEVEL) + PATH)[0])
    return errors, [FoundChange([row], [excess], (0.0, 900.0))], measured


@pytest.mark.parametrize("excess", [2400.0, -1200.0])
def test_sums_without_a_change_are_those_of_a_usual_night(excess: float) -> None:
    errors, found, nodes = _setting(excess)
    without = sums_without(FULL, nodes, EXPECTED, errors, found)
    for level in range(LEVEL + 1):
        np.testing.assert_allclose(without.users[level], EXPECTED[level], rtol=1e-9)
    assert without.variance[LEVEL][PATH] > excess**2
    assert np.isinf(without.variance[5][INSIDE]).all()
    assert np.isfinite(np.delete(without.variance[5], np.arange(INSIDE.start, INSIDE.stop))).all()


@pytest.mark.parametrize("excess", [2400.0, -1200.0])
def test_add_changes_adds_where_the_change_is(excess: float) -> None:
    errors, found, measured = _setting(excess)
    spread = [np.full(len(codes), 10.0) for codes in FULL.codes]
    users, variance = add_changes(FULL, EXPECTED, spread, add_up(FULL, measured), errors, found)
    cells = users[5]
    np.testing.assert_allclose(cells[INSIDE], 100 + excess / 16)
    np.testing.assert_allclose(np.delete(cells, np.arange(INSIDE.start, INSIDE.stop)), 100)
    for level in range(5):
        np.testing.assert_allclose(users[level], cells.reshape(4**level, -1).sum(axis=1))
    assert variance[LEVEL][PATH] >= 1800 * 16 + 29 * (1600 + min(excess, 0))
    assert (variance[5][INSIDE] > 10).all()
    assert EXPECTED[5].max() == 100  # the map without it is not touched


def test_add_changes_makes_no_cell_negative() -> None:
    errors, found, measured = _setting(-5000.0)
    users, _ = add_changes(FULL, EXPECTED, [0 * one for one in EXPECTED], add_up(FULL, measured), errors, found)
    assert users[5].min() == 0
