"""Exact sums of Bernstein polynomials against fractions, and the range from noisy counts by powers of two."""

from __future__ import annotations

import math
from fractions import Fraction
from math import comb

import numpy as np
import pytest
from scipy import stats

from sfumato.schemas.moments import ValueRange
from sfumato.transforms.moments.central.bernstein_sums import (
    BINS,
    ExactSums,
    bernstein,
    coefficients,
    count_magnitudes,
    find_range,
    sum_values,
)
from sfumato.transforms.privacy.keys import FixedSecret, RunKey
from tests.seeds import seeded_rng
from tests.statistics import FLAKE_RATE

SPAN = ValueRange(-3.0, 5.0)


@pytest.mark.parametrize("degree", [0, 1, 8])
def test_the_polynomials_are_the_binomial_distribution(degree: int) -> None:
    t = np.linspace(0, 1, 37)
    found = bernstein(t, degree)
    expected = stats.binom.pmf(np.arange(degree + 1)[:, None], degree, t)
    assert found.shape == (degree + 1, 37)
    assert np.allclose(found, expected, rtol=1e-12, atol=1e-15)
    assert (found >= 0).all()


@pytest.mark.parametrize("degree", [1, 3, 8])
@pytest.mark.parametrize(("low", "high"), [(-3, 5), (2, 7)])
def test_coefficients_are_those_of_powers(degree: int, low: int, high: int) -> None:
    """Against exact arithmetic at 11 points, more than the degree."""
    for power in range(degree + 1):
        found = [Fraction(one) for one in coefficients(power, degree, low, high).tolist()]
        for step in range(11):
            t = Fraction(step, 10)
            basis = [comb(degree, j) * t**j * (1 - t) ** (degree - j) for j in range(degree + 1)]
            value = sum(one * part for one, part in zip(found, basis, strict=True))
            exact = (low + (high - low) * t) ** power
            assert abs(value - exact) <= Fraction(1, 10**12) * max(abs(low), abs(high)) ** power


def test_rounding_is_unbiased() -> None:
    """Over 1,000 equidistant uniforms the mean of a slot is its polynomial, within one step of the uniforms."""
    uniforms = (np.arange(1000) + 0.5) / 1000
    for value in (-2.9, 0.1, 1.0, 4.99):
        for degree in (1, 3):
            found = sum_values([np.full(1000, value)], uniforms, None, 1, [SPAN], [degree], 7).slots[0] / 1000
            exact = 7 * stats.binom.pmf(np.arange(degree + 1), degree, (value + 3) / 8)
            assert np.abs(found - exact).max() <= 2 / 1000


def test_sums_are_of_groups_and_add_up() -> None:
    rng = seeded_rng(1)
    values, uniforms, groups = rng.normal(0, 4, 500), rng.random(500), rng.integers(0, 4, 500).astype(np.uint16)
    found = sum_values([values], uniforms, groups, 5, [SPAN], [2], 1 << 16)
    for group in range(5):
        mine = groups == group
        alone = sum_values([values[mine]], uniforms[mine], None, 1, [SPAN], [2], 1 << 16)
        assert found.slots[group].tolist() == alone.slots[0].tolist()
    assert found.slots[4].tolist() == [0, 0, 0]
    halves = [
        sum_values([values[part]], uniforms[part], groups[part], 5, [SPAN], [2], 1 << 16)
        for part in (slice(0, 200), slice(200, 500))
    ]
    start = ExactSums.zeros(5, [2])
    total = start.total([start.total(halves[:1]), start.total(halves[1:])])
    assert np.array_equal(total.slots, found.slots)
    assert np.array_equal(total.outside, found.outside)
    assert not start.slots.any()  # a start is not changed


# --- the range from noisy counts ---


def key(number: int) -> RunKey:
    return RunKey.derive(FixedSecret(b"automatic ranges" * 2), {"number": number})


@pytest.mark.false_alarm(1e-9)
def test_every_value_is_in_the_one_bin_whose_edges_hold_it() -> None:
    """With all users in one bin and an epsilon of 30 the range is that bin: noise is not 0 with a rate of 2e-13."""
    values = [1.0, -1.0, 0.75, 2.0, 1023.9, -2.5, 3e-9, -7e18, 2.0**63]
    for number, value in enumerate(values):
        counts = 10_000 * count_magnitudes(np.array([value]))
        assert counts.sum() == 10_000
        span, sure = find_range(counts, 30.0, key(number))
        power = math.copysign(2.0 ** math.floor(math.log2(abs(value))), value)
        wide = (power, 2 * power) if value > 0 else (2 * power, power)
        assert sure
        assert (span.low, span.high) == wide
        assert span.low <= value <= span.high


@pytest.mark.false_alarm(1e-9)
def test_zeros_and_extremes_have_bins_too() -> None:
    zero, _ = find_range(10_000 * count_magnitudes(np.array([0.0])), 30.0, key(0))
    assert (zero.low, zero.high) == (0.0, 2.0**-32)
    tiny = count_magnitudes(np.array([5e-324, -1e-300, 2.0**-33]))
    assert tiny[BINS // 2] == 3
    huge = count_magnitudes(np.array([1.7e308, -1.7e308, 2.0**64]))
    assert (huge[0], huge[-1]) == (1, 2)


@pytest.mark.false_alarm(1e-9)
def test_not_negative_numbers_have_a_range_from_zero() -> None:
    values = seeded_rng(0).poisson(3.0, 50_000).astype(np.float64)
    span, sure = find_range(count_magnitudes(values), 1.0, key(1))
    assert sure
    # At both ends it grows by each empty power of two in 5% of runs: below 0 from 2^-32.
    assert -(2.0**-25) < span.low <= 0
    assert 16 <= span.high < 16 * 2**7


@pytest.mark.false_alarm(1e-8)
@pytest.mark.parametrize("epsilon", [0.02, 0.5])
def test_noise_seldom_widens_the_range(epsilon: float) -> None:
    """Beyond a bin that all users are in, the noise is above the line of a step with 5% at most, at either side."""
    counts = np.round(2_000_000 / epsilon) * count_magnitudes(np.array([100.0]))
    runs = [find_range(counts.astype(np.int64), epsilon, key(number))[0] for number in range(300)]
    sides = sum(span.low < 64 for span in runs), sum(span.high > 128 for span in runs)
    for wider in sides:
        assert stats.binomtest(wider, 300, 0.05, "greater").pvalue > FLAKE_RATE
    # The test would see a line that is far too high: steps of whole noise have 3.1% at least, and none 6e-9.
    assert sum(sides)
    assert all(span.low <= 64 and span.high >= 128 for span in runs)


@pytest.mark.false_alarm(1e-6)  # as the product has it that a bin of nobody looks certainly filled
def test_few_users_have_a_guess_and_it_is_said() -> None:
    """No bin is sure, but 250 users in adjacent bins stand out from noise of deviation 7."""
    counts = count_magnitudes(seeded_rng(0).normal(600, 100, 250))
    for number in range(20):
        span, sure = find_range(counts, 0.2, key(number))
        assert span.high >= 1024 or span.low <= 256
    span, sure = find_range(np.zeros(BINS, np.int64), 0.2, key(0))
    assert not sure
    assert span.low < span.high
