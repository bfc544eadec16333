"""Changes are taken out of a night's sums and added to its map."""

import numpy as np
import pytest

from sfumato.transforms.heatmap.nights.sudden_changes import (
    FoundChange,
    NodeErrors,
    add_changes,
    changed_nodes,
    sums_without,
)
from sfumato.transforms.heatmap.posterior.full_tree import FullTree, SubtreeSums, TreeMeasurement, add_up, measure
from tests.unit.heatmap.nights.nights import CELLS, TREE

FULL = FullTree.from_trees(TREE)
EXPECTED = [np.full(len(codes), 100.0 * CELLS / len(codes)) for codes in FULL.codes]
LEVEL, PATH = 3, 5
INSIDE = slice(PATH * 16, PATH * 16 + 16)


def _setting(excess: float) -> tuple[NodeErrors, list[FoundChange], SubtreeSums]:
    counts = np.full(CELLS, 100.0)
    counts[INSIDE] += excess / 16
    measured = [TreeMeasurement(TREE, counts, np.full(CELLS, 1800.0), 29.0)]
    sums = add_up(FULL, measure(FULL, measured, EXPECTED))
    nodes = np.concatenate([codes | np.uint64(1 << 2 * level) for level, codes in enumerate(FULL.codes)])
    flat = np.concatenate(EXPECTED)
    entries = np.concatenate(FULL.sums([np.ones(len(codes)) for codes in FULL.codes]))
    errors = NodeErrors(nodes, np.concatenate(sums.users), flat, flat, 1800 * entries, entries, 29.0, nodes > 1)
    row = int(np.flatnonzero(nodes == (1 << 2 * LEVEL) + PATH)[0])
    return errors, [FoundChange([row], [excess], (0.0, 900.0))], sums


@pytest.mark.parametrize("excess", [2400.0, -1200.0])
def test_sums_without_a_change_are_those_of_a_usual_night(excess: float) -> None:
    errors, found, _ = _setting(excess)
    counts = np.full(CELLS, 100.0)
    counts[INSIDE] += excess / 16
    nodes = measure(FULL, [TreeMeasurement(TREE, counts, np.full(CELLS, 1800.0), 29.0)], EXPECTED)
    without = sums_without(FULL, nodes, EXPECTED, errors, found)
    for level in range(LEVEL + 1):
        np.testing.assert_allclose(without.users[level], EXPECTED[level], rtol=1e-9)
    assert without.variance[LEVEL][PATH] > excess**2
    assert np.isinf(without.variance[5][INSIDE]).all()
    assert np.isfinite(np.delete(without.variance[5], np.arange(INSIDE.start, INSIDE.stop))).all()


@pytest.mark.parametrize("excess", [2400.0, -1200.0])
def test_a_change_is_added_where_it_is(excess: float) -> None:
    errors, found, sums = _setting(excess)
    spread = [np.full(len(codes), 10.0) for codes in FULL.codes]
    users, variance = add_changes(FULL, EXPECTED, spread, sums, errors, found)
    cells = users[5]
    np.testing.assert_allclose(cells[INSIDE], 100 + excess / 16)
    np.testing.assert_allclose(np.delete(cells, np.arange(INSIDE.start, INSIDE.stop)), 100)
    for level in range(5):
        np.testing.assert_allclose(users[level], cells.reshape(4**level, -1).sum(axis=1))
    assert variance[LEVEL][PATH] >= 1800 * 16 + 29 * (1600 + min(excess, 0))
    assert (variance[5][INSIDE] > 10).all()
    assert EXPECTED[5].max() == 100  # the map without it is not touched


def test_no_cell_is_negative() -> None:
    errors, found, sums = _setting(-5000.0)
    users, _ = add_changes(FULL, EXPECTED, [0 * one for one in EXPECTED], sums, errors, found)
    assert users[5].min() == 0


def test_every_node_of_a_place_has_its_own_excess() -> None:
    assert changed_nodes([FoundChange([3, 4], [1.0, 2.0], (0.0, 9.0)), FoundChange([8], [5.0], (0.0, 9.0))]) == [
        (3, 1.0),
        (4, 2.0),
        (8, 5.0),
    ]
