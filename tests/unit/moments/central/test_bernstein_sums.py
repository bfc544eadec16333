"""Exact sums of Bernstein polynomials: what a user adds, against fractions and SciPy's binomial distribution."""

from __future__ import annotations

from fractions import Fraction
from math import comb

import numpy as np
import pytest
from scipy import stats

from sfumato.schemas.moments import ValueRange
from sfumato.transforms.moments.central.bernstein_sums import ExactSums, bernstein, coefficients, sum_values
from tests.rejections import rejects
from tests.seeds import seeded_rng

SPAN = ValueRange(-3.0, 5.0)


@pytest.mark.parametrize("degree", range(9))
def test_the_polynomials_are_the_binomial_distribution(degree: int) -> None:
    t = np.linspace(0, 1, 37)
    found = bernstein(t, degree)
    expected = stats.binom.pmf(np.arange(degree + 1)[:, None], degree, t)
    assert found.shape == (degree + 1, 37)
    assert np.allclose(found, expected, rtol=1e-12, atol=1e-15)
    assert (found >= 0).all()


@pytest.mark.parametrize("degree", range(1, 9))
@pytest.mark.parametrize(("low", "high"), [(-3, 5), (0, 1), (2, 7), (-9, -4)])
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


@pytest.mark.parametrize("degree", [0, 1, 2, 5, 8])
def test_every_user_adds_exactly_the_scale_whatever_the_value(degree: int) -> None:
    rng = seeded_rng(degree)
    values = np.concatenate([rng.normal(0, 4, 300), [-1e308, 1e308, -3.0, 5.0, np.nextafter(5.0, 0), 5e-324]])
    for scale in (1, 1000, 1 << 20):
        for value, uniform in zip(values, rng.random(len(values)), strict=True):
            one = sum_values([np.array([value])], np.array([uniform]), None, 1, [SPAN], [degree], scale)
            assert one.slots.sum() == scale
            assert (one.slots >= 0).all()
            assert one.outside.tolist() == [value < -3, value > 5]


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


@pytest.mark.parametrize(
    ("low", "high"), [(1.0, 1.0), (2.0, 1.0), (float("nan"), 1.0), (0.0, float("inf")), (-1e308, 1e308)]
)
def test_a_range_is_finite_and_not_empty(low: float, high: float) -> None:
    with rejects("range"):
        ValueRange(low, high)
