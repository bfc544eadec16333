"""PrivHP: exact without noise, pruned, and private as it says."""

from __future__ import annotations

import math

import numpy as np
import pytest

from benchmarks.baselines.privhp import consistent, level_budgets, privhp_density
from tests.seeds import seeded_rng

ENOUGH = 1e6  # an epsilon whose noise is not seen


def test_privhp_without_noise_is_the_finest_histogram_it_reaches() -> None:
    sums = seeded_rng(0).integers(0, 9, 64).astype(float)
    found = privhp_density(sums, 200, ENOUGH, kept=64, rows=1, generator=seeded_rng(1))
    np.testing.assert_allclose(found, sums / sums.sum(), atol=1e-4)
    coarse = privhp_density(sums, 4, 4.0, kept=64, rows=1, generator=seeded_rng(1))  # 4 levels of 6
    assert (np.ptp(coarse.reshape(16, 4), axis=1) == 0).all()


def test_privhp_prunes_what_is_not_among_the_largest() -> None:
    """One node a level is split, below the 16 of the fourth level: the other town stays even in its node."""
    sums = np.zeros(256)
    sums[3], sums[200] = 60.0, 40.0
    found = privhp_density(sums, 100, ENOUGH, kept=1, rows=8, generator=seeded_rng(2))
    assert found[3] == pytest.approx(0.6, abs=1e-3)
    np.testing.assert_allclose(found[192:208], 0.4 / 16, atol=1e-4)


def test_privhp_spends_epsilon_and_stays_consistent() -> None:
    for exact in (2, 5, 9):
        assert level_budgets(0.7, 9, exact, 8, 3).sum() == pytest.approx(0.7)
    children = np.array([[5.0, -2.0], [1.0, 2.0], [-1.0, -1.0], [9.0, 1.0]])
    parent = np.array([4.0, 9.0, 2.0, 0.0])
    found = consistent(parent, children)
    assert (found >= 0).all()
    np.testing.assert_allclose(found, [[4, 0], [4, 5], [1, 1], [0, 0]])


@pytest.mark.parametrize("epsilon", [0.5, 2.0])
def test_privhp_adds_the_noise_of_its_budgets(epsilon: float) -> None:
    """Two cells: the root and one level below it, whose counters have Laplace noise of half of epsilon each."""
    sums, generator = np.array([1e4, 1e4]), seeded_rng(3)
    found = [privhp_density(sums, 2, epsilon, 8, 1, generator)[0] * 2e4 - 1e4 for _ in range(4000)]
    # A child is moved by half of both children's noise: (a - b) / 2 of two Laplace variates of scale 2 / epsilon.
    expected = 2 * 2 * (2 / epsilon) ** 2 / 4
    assert np.var(found) == pytest.approx(expected, rel=6 * math.sqrt(3.5 / 4000))
