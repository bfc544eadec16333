"""Events of the nights before: what repeats them, what is forgotten, and how long they are remembered."""

from dataclasses import replace
from datetime import timedelta

import numpy as np
import pytest

from sfumato.transforms.heatmap.nights.night_posterior import Accumulated
from sfumato.transforms.heatmap.nights.nights_state import Event
from sfumato.transforms.heatmap.nights.nights_update import forget, remembered, repeated
from sfumato.transforms.heatmap.nights.sudden_changes import FoundChange, NodeErrors
from sfumato.transforms.heatmap.posterior.full_tree import FullTree
from tests.unit.heatmap.nights.nights import TREE, night_of

USERS = 100_000.0
EVENT = Event((1 << 6) + 5, night_of(5), 0.02, 0.003)


def _errors(excess: float) -> NodeErrors:
    nodes = np.array([1, EVENT.node], dtype=np.uint64)
    one = np.ones(2)
    tested = np.array([False, True])
    return NodeErrors(nodes, np.array([USERS, 500 + excess]), np.array([USERS, 500.0]), 900 * one, 20_000 * one,
                      16 * one, 29.0, tested)  # fmt: skip


@pytest.mark.parametrize(
    ("days", "excess", "weekdays"),
    [
        (1, 2000, slice(0, 7)),
        (3, 1700, slice(0, 7)),
        (1, 0, None),
        (1, -1500, None),
        (4, 2000, None),
        (7, 2000, slice(5, 6)),
        (14, 2000, slice(5, 6)),
        (7, 100, None),
        (21, 2000, None),
    ],
)
def test_a_change_lasts_if_the_next_night_has_it(days: int, excess: float, weekdays: slice | None) -> None:
    assert repeated(EVENT, _errors(excess), EVENT.night + timedelta(days=days), USERS) == weekdays


def test_a_place_that_is_not_measured_tells_nothing() -> None:
    other = replace(EVENT, node=EVENT.node + 1)
    assert repeated(other, _errors(2000), night_of(6), USERS) is None


def test_only_shares_that_the_change_moves_are_forgotten() -> None:
    full = FullTree.from_trees(TREE)
    known = Accumulated.empty(full)
    for one in known.precision:
        one[:] = 1e4
    expected = [np.full(len(codes), USERS / len(codes)) for codes in full.codes]
    forget(full, known, expected, EVENT, USERS, slice(2, 3))
    for level in range(1, len(full.codes)):
        changed = known.precision[level][:, 2] < 9.9e3
        path = EVENT.node - (1 << 6)
        if level <= 3:
            family = path >> (2 * (3 - level) + 2)
            assert np.flatnonzero(changed).tolist() in ([], list(range(4 * family, 4 * family + 4)))
        else:
            down = 2 * (level - 3)
            assert np.flatnonzero(changed).tolist() == list(range(path << down, (path + 1) << down))
        np.testing.assert_array_equal(np.delete(known.precision[level], 2, axis=1), 1e4)
    assert known.precision[3][4, 2] < 10  # the share of the node itself
    jump = 2000 / np.maximum(expected[2][1], 2000)
    assert known.precision[3][4, 2] == pytest.approx(1 / (1e-4 + jump**2))


def test_events_are_remembered_for_two_weeks() -> None:
    errors = _errors(2000)
    old = [replace(EVENT, night=night_of(number)) for number in (0, 1, 13)]
    kept = remembered(old, [FoundChange([1], [2000.0], (1300.0, 2700.0))], errors, night_of(14), USERS)
    assert [event.night for event in kept] == [night_of(1), night_of(13), night_of(14)]
    assert kept[-1].excess == pytest.approx(0.02)
    assert kept[-1].stddev == pytest.approx(np.sqrt(900 + 20_000 + 29 * 2500) / USERS)
