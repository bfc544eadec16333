"""Coins against 60-digit arithmetic, the formulas of Section 3.3, and the responses' frequencies."""

from __future__ import annotations

import math
from fractions import Fraction

import mpmath
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from sfumato.transforms.moments.local.tally import RandomisedResponse
from tests.rejections import rejects
from tests.seeds import seeded_rng
from tests.statistics import FLAKE_RATE

EPSILONS = [1e-6, 0.01, 0.1, 0.5, 1.0, math.log(3), 2.0, 4.0, 10.0, 30.0, 44.0]
SUBKEY = b"response tests" * 2 + b"four"
WORDS = seeded_rng(0).integers(0, 2**64, 100_000, dtype=np.uint64)  # of clients


def precise(epsilon: float) -> mpmath.mpf:
    return mpmath.mpf(Fraction(epsilon).numerator) / Fraction(epsilon).denominator


@pytest.mark.parametrize("epsilon", EPSILONS)
@pytest.mark.parametrize("reports", [1, 2, 3, 7, 52])
def test_the_threshold_is_the_probability_rounded_down(epsilon: float, reports: int) -> None:
    response = RandomisedResponse(epsilon, reports)
    with mpmath.workdps(60):
        odds = mpmath.exp(precise(epsilon) / reports)
        assert response.threshold == min(int(mpmath.floor(odds / (1 + odds) * 2**64)), 2**64 - 1)


@given(st.floats(1e-15, 1e300), st.integers(1, 52))
def test_all_reports_together_never_tell_more_than_epsilon(epsilon: float, reports: int) -> None:
    """The loss of each is ln(p / (1 - p)) at most, whatever the two values; those of different bits add up."""
    response = RandomisedResponse(epsilon, reports)
    assert 2**63 < response.threshold < 2**64
    with mpmath.workdps(60):
        p = mpmath.mpf(response.threshold) / 2**64
        loss = reports * mpmath.log(p / (1 - p))
        assert loss <= precise(epsilon)
        # And hardly less: one step of the threshold more would be too much.
        one_more = min(response.threshold + 1, 2**64 - 1)
        above = mpmath.mpf(one_more) / 2**64
        assert one_more == response.threshold or reports * mpmath.log(above / (1 - above)) > precise(epsilon)


@pytest.mark.parametrize(
    ("epsilon", "reports"), [(0.0, 1), (-1.0, 1), (math.nan, 1), (math.inf, 1), (1e-19, 1), (5e-324, 1), (1e-17, 1000)]
)
def test_epsilons_that_cannot_be_are_refused(epsilon: float, reports: int) -> None:
    with rejects("epsilon"):
        RandomisedResponse(epsilon, reports)


@pytest.mark.parametrize("epsilon", EPSILONS)
@pytest.mark.parametrize("reports", [1, 3])
def test_shares_and_variances_are_those_of_the_paper(epsilon: float, reports: int) -> None:
    """Of a bit response with probability q = p m + (1 - p) (1 - m), the share is m again, and q (1 - q) / (2 p - 1)^2
    is m (1 - m) + e^e / (e^e - 1)^2 (Section 3.3)."""
    response, each = RandomisedResponse(epsilon, reports), epsilon / reports
    means = np.linspace(0, 1, 11)
    expected = means * response.truth_probability + (1 - means) * (1 - response.truth_probability)
    growth = math.exp(each)
    # Rounding: of p - 1/2, 2^-53 of 1/2 in e / 4; and below e^-e for large e.
    slack = 2.0**-50 / math.tanh(each / 2) ** 2
    assert response.unbiased_share(expected) == pytest.approx(means, abs=slack)
    wanted = means * (1 - means) + growth / math.expm1(each) ** 2
    assert response.variance(expected) == pytest.approx(wanted, rel=slack, abs=slack)
    assert response.gain == pytest.approx(math.tanh(each / 2), rel=2.0**-50, abs=2.0**-60)


@pytest.mark.parametrize("epsilon", [0.3, 1.0, 4.0])
@pytest.mark.parametrize("bit", [False, True])
def test_true_bits_are_told_as_often_as_they_should(epsilon: float, bit: bool) -> None:
    n = 100_000
    response = RandomisedResponse(epsilon)
    truths = int((response.respond(np.full(n, bit), SUBKEY, 0, WORDS[:n]) == bit).sum())
    truth = math.exp(epsilon) / (1 + math.exp(epsilon))
    assert stats.binomtest(truths, n, truth).pvalue > FLAKE_RATE
    for wrong in (0.7 * epsilon, 1.3 * epsilon):
        probability = math.exp(wrong) / (1 + math.exp(wrong))
        assert stats.binomtest(truths, n, probability).pvalue < FLAKE_RATE


def test_lies_are_a_function_of_the_key_the_stream_and_the_client_alone() -> None:
    response = RandomisedResponse(1.0, 2)
    ones, zeros = np.ones(1001, bool), np.zeros(1001, bool)
    lies = response.respond(zeros, SUBKEY, 3, WORDS[:1001])
    assert np.array_equal(response.respond(zeros, SUBKEY, 3, WORDS[:1001]), lies)
    assert np.array_equal(~response.respond(ones, SUBKEY, 3, WORDS[:1001]), lies)  # not of the bit
    assert np.array_equal(response.respond(zeros[:500], SUBKEY, 3, WORDS[:500]), lies[:500])  # nor of who else is there
    assert not np.array_equal(response.respond(zeros, SUBKEY, 4, WORDS[:1001]), lies)
    assert not np.array_equal(response.respond(zeros, SUBKEY[::-1], 3, WORDS[:1001]), lies)
    assert response.respond(zeros[:0], SUBKEY, 3, WORDS[:0]).shape == (0,)


def test_lies_of_neighbours_and_of_streams_are_independent() -> None:
    """Pairs of lies fill the four cells as the product of their probabilities does."""
    n, response = 100_000, RandomisedResponse(1.0)
    first, second = (response.respond(np.zeros(n, bool), SUBKEY, stream, WORDS[:n]).astype(int) for stream in (0, 1))
    lie = 1 - response.truth_probability
    expected = n * np.outer([1 - lie, lie], [1 - lie, lie]).ravel()
    for left, right in ((first, second), (first[:-1], first[1:]), (first[:-2], first[2:])):
        seen = np.bincount(2 * left + right, minlength=4)
        assert stats.chisquare(seen, expected * seen.sum() / n).pvalue > FLAKE_RATE


def test_without_epsilon_bits_are_told_as_they_are() -> None:
    response = RandomisedResponse(None, 3)
    bits = np.array([True, False, True])
    assert np.array_equal(response.respond(bits, SUBKEY, 0, WORDS[:3]), bits)
    assert (response.truth_probability, response.gain) == (1.0, 1.0)
    shares = np.array([0.0, 0.25, 1.0])
    assert np.array_equal(response.unbiased_share(shares), shares)
    assert np.array_equal(response.variance(shares), shares * (1 - shares))
