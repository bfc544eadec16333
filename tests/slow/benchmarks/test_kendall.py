"""Kendall's tau from classes, against SciPy's, and from one bit of each client."""

from __future__ import annotations

import numpy as np
import pytest
from scipy import stats

from benchmarks.baselines.mean_mechanisms import RandomisedRounding
from benchmarks.bit_pairs import DATA, beside, curator, truth
from benchmarks.kendall import cells_of, estimated, tau_b
from tests.seeds import seeded_rng


@pytest.mark.parametrize("seed", range(4))
def test_tau_of_classes_is_scipys(seed: int) -> None:
    rng = seeded_rng(seed)
    x = rng.integers(0, 5, 3000)
    y = np.clip(x + rng.integers(-3, 4, 3000), 0, 6)
    cells = np.histogram2d(x, y, bins=[np.arange(8) - 0.5] * 2)[0] / 3000
    assert tau_b(cells) == pytest.approx(stats.kendalltau(x, y).statistic)
    assert tau_b(cells[::-1]) == pytest.approx(stats.kendalltau(-x, y).statistic)


def test_cells_follow_from_shares_that_reach_both() -> None:
    cells = seeded_rng(0).dirichlet(np.ones(9)).reshape(3, 3)
    shares = np.zeros((4, 4))
    shares[:3, :3] = np.cumsum(np.cumsum(cells[::-1, ::-1], axis=0), axis=1)[::-1, ::-1]
    assert cells_of(shares) == pytest.approx(cells)


def test_one_bit_of_each_client_shows_tau() -> None:
    """By docs/explanation/moments_of_pairs.md the classes err by 0.03, and the noise of 200,000 clients by 0.024."""
    values = DATA[0].clients(200_000, seeded_rng(1))
    exact = stats.kendalltau(values.real, values.imag).statistic
    found, of_classes = estimated(values, DATA[0], 8, 4.0, 0)
    assert abs(of_classes - exact) < 0.05
    assert abs(found - of_classes) < 0.1


def test_baselines_of_covariances_are_unbiased() -> None:
    """Rounding of the product about means of other thirds of the clients: within six standard errors of 40 runs."""
    data = DATA[0]
    values = data.clients(30_000, seeded_rng(2))
    _, correlation = truth(values)
    first, second, last = np.split(values, 3)
    expected = ((last.real - first.real.mean()) * (last.imag - second.imag.mean())).mean()
    rounding = np.array([beside(RandomisedRounding, values, data, None, run)[0][0] for run in range(40)])
    assert abs(rounding.mean() - expected) < 6 * rounding.std() / np.sqrt(40)
    assert curator(values, data, 5.0, 0)[1][0] == pytest.approx(correlation, abs=0.01)
