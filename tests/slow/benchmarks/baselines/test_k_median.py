"""Centres of least mean distance from the users of a map."""

from __future__ import annotations

import numpy as np
import pytest

from benchmarks.baselines.k_median import k_median, median_cost
from tests.seeds import seeded_rng


def test_k_median_finds_separate_towns() -> None:
    mass = np.zeros((64, 64))
    towns = [(10, 10), (50, 12), (30, 55)]
    for row, column in towns:
        mass[row - 1 : row + 2, column - 1 : column + 2] = 1.0
    found = k_median(mass, 3, seeded_rng(0))
    expected = sorted(((column + 0.5) / 64, (row + 0.5) / 64) for row, column in towns)
    np.testing.assert_allclose(sorted(found.tolist()), expected)
    assert median_cost(mass, found) == pytest.approx((4 * 1 + 4 * 2) / 9 / 64)
    assert median_cost(mass, found[:2]) > 5 * median_cost(mass, found)
