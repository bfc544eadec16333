"""The rate of Theorem 1.1 of paper 001: its sparse maps, and that the error falls as it says."""

from __future__ import annotations

import numpy as np
import pytest

from benchmarks.emd_rate import FORMS, distance, slope, sparse_sums
from tests.seeds import seeded_rng


def test_all_users_are_at_one_place_in_each_square() -> None:
    sums = sparse_sums(1000, 16, seeded_rng(0))
    assert sums.sum() == 1000
    assert (np.count_nonzero(sums.reshape(4, 64, 4, 64), axis=(1, 3)) == 1).all()


def test_slope_is_that_of_a_power() -> None:
    assert slope([1, 10, 100], [3.0, 0.3, 0.03]) == pytest.approx(-1)


@pytest.mark.parametrize("form", FORMS)
def test_error_falls_with_the_number_of_users(form: str) -> None:
    """The mean of 3 runs at 100 times the users: a hundredth by the theorem, and within 5 times of that here."""
    few, many = ([distance(form, users, 4, seed) for seed in range(3)] for users in (1000, 100_000))
    assert 1 / 500 < np.mean(many) / np.mean(few) < 1 / 20
