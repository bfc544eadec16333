"""The filter over nights: better than one night, events tonight and not tomorrow, lasting changes, coverage."""

from __future__ import annotations

import functools
from dataclasses import replace
from datetime import timedelta

import numpy as np
import pytest

from sfumato.schemas.timeline import PlaceChange
from sfumato.schemas.tree import Tree, node_names
from sfumato.transforms.nights.night_posterior import Accumulated
from sfumato.transforms.nights.nights_state import Event, NightsState
from sfumato.transforms.nights.nights_update import NightMap, forget, remembered, repeated, update
from sfumato.transforms.nights.sudden_changes import FoundChange, NodeErrors
from sfumato.transforms.statistics.posterior.full_tree import FullTree, TreeMeasurement
from sfumato.transforms.statistics.posterior.unbiased import user_intervals
from tests.unit.nights.nights import (
    CELLS,
    STDDEV,
    TREE,
    USERS,
    counts_of,
    density_of,
    measure_night,
    night_of,
    run_nights,
)

CROWD = list(range(320, 324))  # the four children of a node of level 4


NODE = (1 << 8) + 80


EXTRA = 3000  # users more in each of them


@functools.cache
def four_weeks() -> tuple[NightsState, list[NightMap]]:
    return run_nights(range(28))


@pytest.fixture
def learned() -> NightsState:
    return four_weeks()[0]


@pytest.fixture
def maps() -> list[NightMap]:
    return four_weeks()[1]


def _is_crowd(change: PlaceChange) -> bool:
    """Whether a changed place is about the crowd's: of nodes that are, lie in or hold its node."""
    names, place = change.cell_ids, node_names(np.array([NODE], dtype=np.uint64))[0]
    return any(name.startswith(place) or (place.startswith(name) and len(name) > 3) for name in names)


def _reports_crowd(one: NightMap) -> bool:
    """Whether a night reports a change at the crowd's place of at least half of the crowd.

    By the family-wise rate of 5% the night would report one of the places that touch the crowd's node by chance in 8 of
    10,000 cases. Half of the crowd is 10 deviations and more of each of these places.
    """
    return any(_is_crowd(change) and abs(change.users - change.expected) > 0.5 * 4 * EXTRA for change in one.changes)


def interval(one: NightMap) -> tuple[np.ndarray, np.ndarray]:
    """The ends of the 95% intervals of the leaves' users."""
    return user_intervals(one.estimate.counts, one.estimate.stddev)


@pytest.mark.false_alarm(1e-9)
def test_update_knows_more_by_many_nights(maps: list[NightMap]) -> None:
    """Over other draws a night alone has 14 times the error, with a deviation of 1, and Friday's density 17 times."""
    friday, saturday = density_of(25), density_of(26)
    _, (alone,) = run_nights([25])
    error, one = (((found.estimate.counts - friday) ** 2).mean() for found in (maps[25], alone))
    assert error < one / 4
    error, other = (((maps[26].estimate.counts - truth) ** 2).mean() for truth in (saturday, friday))
    assert error < other / 4


def test_night_map_adds_up_and_has_no_negative_cell(maps: list[NightMap]) -> None:
    for number, one in enumerate(maps):
        assert one.estimate.counts.min() >= 0
        assert one.estimate.counts.sum() == pytest.approx(counts_of(number).sum())
        assert (interval(one)[0] <= one.estimate.counts).all()
        assert (one.estimate.counts <= interval(one)[1]).all()


@pytest.mark.false_alarm(1e-8)
def test_night_intervals_hold_the_exact_users(maps: list[NightMap]) -> None:
    """Six nights with 1,024 cells each. If 95% are held, cells being nearly independent, the deviation is 0.28%.

    Errors of neighbours are dependent through their parents, which makes it 0.6% at most, of which 3.6% are six.
    """
    held = [(interval(one)[0] <= counts_of(n)) & (counts_of(n) <= interval(one)[1]) for n, one in enumerate(maps)][-6:]
    assert 0.914 < np.mean(held) < 0.986
    crowded = [one[density_of(22 + n) > 200] for n, one in enumerate(held)]
    assert 0.9 < np.mean(np.concatenate(crowded)) < 0.995


@pytest.mark.false_alarm(5e-9)
def test_nights_without_a_change_report_few(maps: list[NightMap]) -> None:
    """At most 5% of the nights. Of 27, thirteen or more have a probability of 2e-9."""
    assert sum(bool(one.changes) for one in maps) <= 12


@pytest.mark.false_alarm(1e-9)
def test_update_sees_a_crowd_tonight_and_not_tomorrow(learned: NightsState) -> None:
    """A thirtieth of 12,800 users is asked, so the crowd's count has a deviation of 600: 4,800 are eight of them."""
    state, (tonight,) = run_nights([28], learned, CROWD, EXTRA)
    _, (quiet,) = run_nights([28], learned)
    assert _reports_crowd(tonight)
    found = [change for change in tonight.changes if _is_crowd(change)]
    assert found[0].low > found[0].expected
    shown = (tonight.estimate.counts - quiet.estimate.counts)[CROWD].sum()
    assert 0.6 * 4 * EXTRA < shown < 1.4 * 4 * EXTRA

    _, (after,) = run_nights([29], state)
    _, (without,) = run_nights([29], run_nights([28], learned)[0])
    left = (after.estimate.counts - without.estimate.counts)[CROWD].sum()
    assert abs(left) < 0.1 * 4 * EXTRA
    assert not _reports_crowd(after)


@pytest.mark.false_alarm(1e-9)
def test_update_sees_users_who_are_missing(learned: NightsState) -> None:
    """The fullest 4 cells have 2,800 users and more, the noise of their count has a deviation of 84: 0.3 are ten."""
    counts = counts_of(28)
    crowded = int(counts.reshape(-1, 4).sum(axis=1).argmax())
    counts[4 * crowded : 4 * crowded + 4] = 0
    _, one = update(learned, night_of(28), [measure_night(28, counts)], float(counts.sum()), 50.0)
    assert any(change.users < change.expected for change in one.changes)
    assert one.estimate.counts[4 * crowded : 4 * crowded + 4].sum() < 0.3 * density_of(28).reshape(-1, 4)[crowded].sum()
    assert one.estimate.counts.sum() == pytest.approx(counts.sum())


@pytest.mark.slow
@pytest.mark.false_alarm(1e-9)
def test_update_learns_a_lasting_change(learned: NightsState) -> None:
    """The crowd is expected with an error of 350 after three nights: half of it is 17 deviations."""
    state, maps = run_nights(range(28, 31), learned, CROWD, EXTRA)
    assert maps[0].changes
    expected = state.predict(night_of(31), USERS + 4 * EXTRA).counts[CROWD].sum()
    usual = density_of(31)[CROWD].sum()
    assert expected - usual > 0.5 * 4 * EXTRA
    _, (later,) = run_nights([31], state, CROWD, EXTRA)
    assert not _reports_crowd(later)


@pytest.mark.slow
@pytest.mark.false_alarm(1e-9)
def test_update_learns_a_crowd_of_saturdays(learned: NightsState) -> None:
    """Over other draws 10,300 of 12,000 are expected on Saturdays, with a deviation of 460, 0 on Mondays, with 80."""
    state = learned
    for number in (33, 40, 47):  # Saturdays
        state, _ = run_nights([number], state, CROWD, EXTRA)
        state, _ = run_nights(range(number + 1, number + 7), state)
    saturday, monday = (state.predict(night_of(n), USERS).counts[CROWD].sum() for n in (54, 56))
    assert saturday - density_of(54)[CROWD].sum() > 0.25 * 4 * EXTRA
    assert monday - density_of(56)[CROWD].sum() < 0.1 * 4 * EXTRA


def test_update_takes_trees_that_differ(learned: NightsState) -> None:
    coarse = Tree.uniform(8, 3)
    sums = measure_night(28, counts_of(28)).counts.reshape(64, -1).sum(axis=1)
    one = TreeMeasurement(coarse, sums, np.full(64, 16 * STDDEV**2), 29.0)
    state, found = update(learned, night_of(28), [one], float(counts_of(28).sum()), 50.0)
    assert found.estimate.tree == TREE
    assert state.rests_on == (replace(learned.rests_on[0], last=night_of(28)),)
    finer = Tree.uniform(8, 6)
    counts = np.repeat(measure_night(29, counts_of(29)).counts / 4, 4)
    one = TreeMeasurement(finer, counts, np.full(4 * CELLS, STDDEV**2), 29.0)
    state, found = update(state, night_of(29), [one], float(counts_of(29).sum()), 50.0)
    assert found.estimate.tree == finer
    assert state.full.tree == finer


EVENT_USERS = 100_000.0


EVENT = Event((1 << 6) + 5, night_of(5), 0.02, 0.003)


def _errors(excess: float) -> NodeErrors:
    nodes = np.array([1, EVENT.node], dtype=np.uint64)
    one = np.ones(2)
    tested = np.array([False, True])
    measured, expected = np.array([EVENT_USERS, 500 + excess]), np.array([EVENT_USERS, 500.0])
    return NodeErrors(nodes, measured, expected, 900 * one, 20_000 * one, 16 * one, 29.0, tested)


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
def test_repeated_if_the_next_night_has_the_change(days: int, excess: float, weekdays: slice | None) -> None:
    assert repeated(EVENT, _errors(excess), EVENT.night + timedelta(days=days), EVENT_USERS) == weekdays


def test_repeated_says_nothing_of_unmeasured_places() -> None:
    other = replace(EVENT, node=EVENT.node + 1)
    assert repeated(other, _errors(2000), night_of(6), EVENT_USERS) is None


def test_forget_only_shares_that_the_change_moves() -> None:
    full = FullTree.from_trees(TREE)
    known = Accumulated.empty(full)
    for one in known.precision:
        one[:] = 1e4
    expected = [np.full(len(codes), EVENT_USERS / len(codes)) for codes in full.codes]
    forget(full, known, expected, EVENT, EVENT_USERS, slice(2, 3))
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


def test_remembered_for_two_weeks() -> None:
    errors = _errors(2000)
    old = [replace(EVENT, night=night_of(number)) for number in (0, 1, 13)]
    kept = remembered(old, [FoundChange([1], [2000.0], (1300.0, 2700.0))], errors, night_of(14), EVENT_USERS)
    assert [event.night for event in kept] == [night_of(1), night_of(13), night_of(14)]
    assert kept[-1].excess == pytest.approx(0.02)
    assert kept[-1].stddev == pytest.approx(np.sqrt(900 + 20_000 + 29 * 2500) / EVENT_USERS)
