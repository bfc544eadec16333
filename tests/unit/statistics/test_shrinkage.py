"""Shrinkage and simultaneous intervals."""

import numpy as np
import pytest
from scipy.stats import norm

from sfumato.transforms.statistics.shrinkage import shrink, simultaneous_z
from tests.seeds import seeded_rng


@pytest.mark.false_alarm(1e-8)
def test_shrinkage_is_the_posterior_of_the_true_prior():
    rng = seeded_rng(1)
    truth = 0.3 + 0.1 * rng.standard_normal(40_000)
    variance = np.exp(rng.uniform(np.log(1e-3), np.log(1.0), len(truth)))
    noisy = truth + np.sqrt(variance) * rng.standard_normal(len(truth))
    means, posterior = shrink(noisy, variance)
    kept = 0.01 / (0.01 + variance)
    assert means == pytest.approx(0.3 + kept * (noisy - 0.3), abs=0.02)
    # Standardised errors have variance 1. Its estimate deviates by 0.011, by sqrt(2 / n) = 0.007 and by t's doubt.
    assert ((means - truth) ** 2 / posterior).mean() == pytest.approx(1, abs=0.07)


@pytest.mark.false_alarm(1e-8)
def test_equal_true_values_are_all_put_at_the_centre():
    rng = seeded_rng(3)
    variance = np.full(20_000, 4.0)
    means, posterior = shrink(10 + 2 * rng.standard_normal(20_000), variance, centre=10)
    # t is 0 half the time, else of the order v sqrt(2 / n) = 0.04. The farthest, at most 6.5 deviations away, is put so
    # far off at t = 0.26, which is six and a half of that, and the variance is a tenth at t = 0.44.
    assert np.abs(means - 10).max() < 0.1 * 2 * 4
    assert posterior.max() < 0.1 * 4


def test_simultaneous_intervals_hold_all_together():
    assert simultaneous_z(1) == pytest.approx(1.959964)
    for number in (2, 100, 10**6, 10**12):
        each = 2 * norm.sf(simultaneous_z(number))
        assert -np.expm1(number * np.log1p(-each)) == pytest.approx(0.05, rel=1e-6)
    with pytest.raises(ValueError, match="number"):
        simultaneous_z(0)
