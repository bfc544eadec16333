"""The range from noisy counts by powers of two: its bins, what it covers, and how often noise widens it."""

from __future__ import annotations

import math

import numpy as np
import pytest
from scipy import stats

from sfumato.transforms.moments.central.bernstein_sums import BINS, count_magnitudes, find_range
from sfumato.transforms.privacy.keys import FixedSecret, RunKey
from tests.seeds import seeded_rng
from tests.statistics import FLAKE_RATE


def key(number: int) -> RunKey:
    return RunKey.derive(FixedSecret(b"automatic ranges" * 2), {"number": number})


def test_every_value_is_in_the_one_bin_whose_edges_hold_it() -> None:
    """With all users in one bin and a large epsilon the range is that bin."""
    values = [1.0, -1.0, 0.75, 2.0, 1023.9, -2.5, 3e-9, -7e18, 2.0**63]
    for number, value in enumerate(values):
        counts = 10_000 * count_magnitudes(np.array([value]))
        assert counts.sum() == 10_000
        span, sure = find_range(counts, 20.0, key(number))
        power = math.copysign(2.0 ** math.floor(math.log2(abs(value))), value)
        wide = (power, 2 * power) if value > 0 else (2 * power, power)
        assert sure
        assert (span.low, span.high) == wide
        assert span.low <= value <= span.high


def test_zeros_and_extremes_have_bins_too() -> None:
    zero, _ = find_range(10_000 * count_magnitudes(np.array([0.0])), 20.0, key(0))
    assert (zero.low, zero.high) == (0.0, 2.0**-32)
    tiny = count_magnitudes(np.array([5e-324, -1e-300, 2.0**-33]))
    assert tiny[BINS // 2] == 3
    huge = count_magnitudes(np.array([1.7e308, -1.7e308, 2.0**64]))
    assert (huge[0], huge[-1]) == (1, 2)


@pytest.mark.parametrize("sign", [-1, 1])
def test_an_end_near_zero_is_zero(sign: int) -> None:
    for least, low in ((0.5, 0.0), (1.0, 0.0), (2.0, 2.0)):
        values = sign * np.repeat(2.0 ** np.arange(math.log2(least), 4), 1000)
        span, _ = find_range(count_magnitudes(values), 20.0, key(2))
        assert sorted(np.abs([span.low, span.high])) == [low, 16.0]


def test_not_negative_numbers_have_a_range_from_zero() -> None:
    values = seeded_rng(0).poisson(3.0, 50_000).astype(np.float64)
    span, sure = find_range(count_magnitudes(values), 1.0, key(1))
    assert sure
    assert (span.low, span.high) == (0.0, 16.0)


@pytest.mark.parametrize("epsilon", [0.02, 0.5])
def test_noise_seldom_widens_the_range(epsilon: float) -> None:
    """Beyond a bin that all users are in, the noise is above the line of a step with 5% at most, at either side."""
    counts = np.round(2_000_000 / epsilon) * count_magnitudes(np.array([100.0]))
    runs = [find_range(counts.astype(np.int64), epsilon, key(number))[0] for number in range(300)]
    for wider in (sum(span.low < 64 for span in runs), sum(span.high > 128 for span in runs)):
        assert stats.binomtest(wider, 300, 0.05, "greater").pvalue > FLAKE_RATE
        assert wider  # the test would see a line that is far too high: P[none] < 1e-6
    assert all(span.low <= 64 and span.high >= 128 for span in runs)


def test_few_users_have_a_guess_and_it_is_said() -> None:
    """No bin is sure, but 250 users in adjacent bins stand out from noise of deviation 7."""
    counts = count_magnitudes(seeded_rng(0).normal(600, 100, 250))
    for number in range(20):
        span, sure = find_range(counts, 0.2, key(number))
        assert span.high >= 1024 or span.low <= 256
    span, sure = find_range(np.zeros(BINS, np.int64), 0.2, key(0))
    assert not sure
    assert span.low < span.high


def test_a_user_is_in_one_bin() -> None:
    """The largest of them is in one bin as well."""
    values = seeded_rng(3).normal(0, 1e3, 1000)
    for gone in (0, 500, 999):
        moved = count_magnitudes(values) - count_magnitudes(np.delete(values, gone))
        assert np.abs(moved).sum() == 1
