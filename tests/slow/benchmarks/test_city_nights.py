"""Tests of benchmarks/city_nights.py: nights of the synthetic city, crowds and cohorts."""

from datetime import date, timedelta

import numpy as np
import pytest

from benchmarks.city_nights import DEPTH, SIDE, Crowd, Night, exact_counts, make_nights
from sfumato.schemas.region import deinterleave
from sfumato.schemas.tree import Tree
from sfumato.transforms.synth.landscape import SIZE_KM

DAY = date(2026, 10, 20)
PEOPLE = 40_000


@pytest.fixture(scope="module")
def nights() -> list[Night]:
    return make_nights([DAY, DAY + timedelta(1), DAY + timedelta(10)], PEOPLE, seed=3)


def test_counts_are_drawn_from_the_expected_density(nights: list[Night]) -> None:
    """Chi-squared over the cells with at least 5 expected users: within 6 standard deviations (1e-8) of its mean."""
    for night in nights:
        chosen = night.expected * night.users >= 5
        expected, exact = (one[chosen] * night.users for one in (night.expected, night.exact()))
        statistic, cells = ((exact - expected) ** 2 / expected).sum(), len(expected)
        assert cells > 1000
        assert abs(statistic - cells) < 6 * np.sqrt(2 * cells + (1 / expected).sum())


def test_exact_counts_by_level_add_up(nights: list[Night]) -> None:
    fine, coarse = exact_counts(nights[0], DEPTH), exact_counts(nights[0], DEPTH - 2)
    assert fine.sum() == nights[0].users == len(nights[0].people)
    assert np.array_equal(fine.reshape(-1, 16).sum(axis=1), coarse)
    tree = Tree.uniform(DEPTH, 3)
    tree = tree.refine(tree.nodes[-5:], tree.nodes[:0])
    owners = tree.index.owners(np.arange(4**DEPTH, dtype=np.uint64))
    assert np.array_equal(nights[0].entry_counts(tree), np.bincount(owners, fine, len(tree.entries)))


def test_crowd_moves_users_to_its_place(nights: list[Night]) -> None:
    crowd = Crowd((10.0, 6.45), 500)
    night = nights[0].with_crowd(crowd)
    assert night.users == nights[0].users
    assert (night.codes != nights[0].codes).sum() <= 500
    x, y = (one * (SIZE_KM / (1 << DEPTH)) for one in deinterleave(night.codes.astype(np.uint64)))
    near = np.hypot(x - 10.0, y - 6.45) < 0.6
    before = exact_counts(nights[0], DEPTH)
    x, y = (one * (SIZE_KM / (1 << DEPTH)) for one in deinterleave(np.arange(4**DEPTH, dtype=np.uint64)))
    there = int(before[np.hypot(x - 10.0, y - 6.45) < 0.6].sum())
    # 1 - exp(-4) of the crowd is within two radii: 491 users, less those who were there before; 6 deviations are 18.
    assert 491 - 18 - there * 500 / night.users - 6 * np.sqrt(there) < near.sum() - there <= 500
    assert night.expected.sum() == pytest.approx(1)
    assert crowd.density().sum() == pytest.approx(1)
    row, column = np.unravel_index(crowd.density().argmax(), (SIDE, SIDE))
    assert (int(column), int(row)) == (int(10.0 * SIDE / SIZE_KM), int(6.45 * SIDE / SIZE_KM))
    at = np.array([int(10.0 * 16 / SIZE_KM), 0]), np.array([int(6.45 * 16 / SIZE_KM), 0])
    assert crowd.is_near(4, *at).tolist() == [True, False]


def test_cohorts_are_fixed_and_share_the_users(nights: list[Night]) -> None:
    first, next_day, later = (set(night.people[night.asked(10)].tolist()) for night in nights)
    assert not first & next_day
    everybody = set(nights[0].people.tolist()) & set(nights[2].people.tolist())
    assert first & everybody == later & everybody  # ten nights later the same cohort is asked
    expected = nights[0].users / 10
    assert abs(len(first) - expected) < 6 * np.sqrt(expected)
    assert nights[0].asked(1).all()


def test_rows_are_the_asked_users(nights: list[Night]) -> None:
    rows = nights[0].rows(10)
    assert np.array_equal(rows.codes, nights[0].codes[nights[0].asked(10)])
    assert (np.diff(rows.users.astype(np.float64)) >= 0).all()
    assert not (rows.users & rows.places.mask).any()
