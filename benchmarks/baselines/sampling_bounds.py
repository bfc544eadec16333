"""The bounds of the sample-and-threshold paper (paper 004, Section 3.1), beside the exact guarantee.

The jobs use the exact guarantee (`transforms/histogram/accountant.py`), and the paper's corollary with
`--parameters paper` (`transforms/histogram/plan.py`).
"""

from __future__ import annotations

import math

from sfumato.schemas.errors import RequestError
from sfumato.transforms.histogram.accountant import check_delta
from sfumato.transforms.histogram.accountant import delta as round_delta
from sfumato.transforms.histogram.sampling_round import check_count, check_rate
from sfumato.transforms.privacy.budget import check_epsilon
from sfumato.transforms.statistics.bisection import bisect_integers

_MAX_THRESHOLD = 2**16


def theorem_delta(epsilon: float, rate: float, threshold: int) -> float:
    """The paper's Theorem 1: delta <= exp(-tau KL(q || p) / q) if e^-epsilon <= 1 - p. Otherwise it has no bound: 1."""
    check_epsilon(epsilon)
    check_rate(rate)
    check_count("threshold", threshold)
    if rate > -math.expm1(-epsilon):
        return 1.0
    q = rate - math.expm1(-epsilon) * (1 - rate)
    return math.exp(-threshold * (math.log(q / rate) - epsilon * (1 - q) / q))


def omission_bound(users: int, rate: float, threshold: int) -> float:
    """Section 3.3: an item of this many users is omitted with probability <= exp(-(w - tau)^2 / (2 w)), w = p users.

    The lemma's proof bounds P[X <= tau]; an item with X = tau is published. Without a bound where w <= tau: 1.
    """
    expected = check_count("users", users) * check_rate(rate)
    if expected <= check_count("threshold", threshold):
        return 1.0
    return math.exp(-((expected - threshold) ** 2) / (2 * expected))


def frequency_bound(users: int, rate: float, error: float) -> float:
    """Section 3.3: an item's estimate is further off than this share of it with probability <= 2 exp(-error^2 w / 3).

    The paper solves this for w with ln(1 / (2 beta)) where ln(2 / beta) is right: its probability is 4 times too low.
    """
    return min(1.0, 2 * math.exp(-(error**2) * check_count("users", users) * check_rate(rate) / 3))


def min_threshold(epsilon: float, delta: float, rate: float) -> int:
    """The smallest threshold with which one round at this sampling rate is (epsilon, delta)-private.

    Raises RequestError for bad parameters, or if the threshold lies above 2**16.
    """
    check_epsilon(epsilon)
    check_delta(delta)
    low, high = 0, 1
    while round_delta(epsilon, rate, high) > delta:
        low, high = high, 2 * high
        if high > _MAX_THRESHOLD:
            raise RequestError(f"rate: {rate} would need a threshold above 2**16; lower it, or raise epsilon or delta")
    return bisect_integers(lambda threshold: round_delta(epsilon, rate, threshold) <= delta, high, low)
