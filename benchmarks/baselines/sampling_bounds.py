"""The bounds of the sample-and-threshold paper (paper 004, Section 3.1), beside the exact guarantee.

The jobs use the exact guarantee only (`transforms/histogram/accountant.py`).
"""

from __future__ import annotations

import math

from sfumato.schemas.errors import RequestError
from sfumato.transforms.bisection import bisect_integers
from sfumato.transforms.histogram.accountant import check_delta
from sfumato.transforms.histogram.accountant import delta as round_delta
from sfumato.transforms.histogram.sampling_round import check_count, check_rate
from sfumato.transforms.privacy.budget import check_epsilon

_MAX_THRESHOLD = 2**16


def theorem_delta(epsilon: float, rate: float, threshold: int) -> float:
    """The paper's Theorem 1: delta <= exp(-tau KL(q || p) / q) if e^-epsilon <= 1 - p. Otherwise it has no bound: 1."""
    check_epsilon("epsilon", epsilon)
    check_rate(rate)
    check_count("threshold", threshold)
    if rate > -math.expm1(-epsilon):
        return 1.0
    q = rate - math.expm1(-epsilon) * (1 - rate)
    return math.exp(-threshold * (math.log(q / rate) - epsilon * (1 - q) / q))


def corollary_rate(epsilon: float, alpha: float = 1 / 6) -> float:
    """The paper's corollary: sampling rate p = alpha (1 - e^-epsilon)."""
    check_epsilon("epsilon", epsilon)
    _corollary_exponent(alpha)
    return alpha * -math.expm1(-epsilon)


def corollary_threshold(epsilon: float, delta: float, alpha: float = 1 / 6) -> int:
    """The paper's corollary: threshold tau = ceil(ln(1 / delta) / C_alpha), which does not depend on epsilon."""
    check_epsilon("epsilon", epsilon)
    return math.ceil(-math.log(check_delta(delta)) / _corollary_exponent(alpha))


def _corollary_exponent(alpha: float) -> float:
    """C_alpha = ln(1 / alpha) - 1 / (1 + alpha). Raises RequestError unless it is positive."""
    exponent = -math.log(alpha) - 1 / (1 + alpha) if 0 < alpha < 1 else 0.0
    if not exponent > 0:
        raise RequestError(f"alpha: must be a number > 0 and so small that ln(1/alpha) > 1/(1 + alpha), got {alpha}")
    return exponent


def min_threshold(epsilon: float, delta: float, rate: float) -> int:
    """The smallest threshold with which one round at this sampling rate is (epsilon, delta)-private.

    Raises RequestError for bad parameters, or if the threshold lies above 2**16.
    """
    check_epsilon("epsilon", epsilon)
    check_delta(delta)
    low, high = 0, 1
    while round_delta(epsilon, rate, high) > delta:
        low, high = high, 2 * high
        if high > _MAX_THRESHOLD:
            raise RequestError(f"rate: {rate} would need a threshold above 2**16; lower it, or raise epsilon or delta")
    return bisect_integers(lambda threshold: round_delta(epsilon, rate, threshold) <= delta, high, low)
