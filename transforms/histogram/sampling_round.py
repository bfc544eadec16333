"""The two numbers of a sample-and-threshold round, and what its published counts tell (paper 004, Section 3)."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy import special

from sfumato.schemas.errors import RequestError
from sfumato.transforms.bisection import bisect_integers

GRID = 2**32


def check_count(name: str, value: int) -> int:
    """Returns the value. Raises RequestError unless it is an integer >= 1 (NaN, True and 2.0 are not)."""
    if isinstance(value, bool) or not isinstance(value, int | np.integer) or not value >= 1:
        raise RequestError(f"{name}: must be an integer >= 1, got {value}")
    return int(value)


def check_rate(rate: float) -> float:
    """Returns the rate. Raises RequestError unless 0 < rate < 1 (NaN is not)."""
    if isinstance(rate, bool) or not 0 < rate < 1:
        raise RequestError(f"rate: must be a number between 0 and 1, got {rate}; give the share of users to sample")
    return float(rate)


@dataclass(frozen=True)
class Sampling:
    """Each user is sampled with probability words / 2**32; sampled counts of at least `threshold` are published.

    The sampler compares a uniform 32-bit word with `words`, so the rate accounted for is exactly the one used.
    Raises RequestError for a rate of 0 or 1 or more, or a threshold below 1.
    """

    words: int
    threshold: int

    def __post_init__(self) -> None:
        for name in ("words", "threshold"):  # NumPy's integers become Python's, which JSON knows
            object.__setattr__(self, name, check_count(name, getattr(self, name)))
        if self.words >= GRID:
            raise RequestError(f"words: must be below 2**32, got {self.words}; a sample of everybody hides nobody")

    @classmethod
    def of(cls, rate: float, threshold: int) -> Sampling:
        """The sampling of the largest rate on the grid that is at most `rate`: the guarantee can only get better.

        Raises RequestError unless 2**-32 <= rate < 1.
        """
        words = math.floor(check_rate(rate) * GRID)
        if words < 1:
            raise RequestError(f"rate: must be at least 2**-32, the grid that the sampler draws on, got {rate}")
        return cls(words, threshold)

    @property
    def rate(self) -> float:
        """The sampling rate p (exact: a multiple of 2**-32)."""
        return self.words / GRID


def estimates(sampling: Sampling, sampled: NDArray[np.int64]) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """True counts estimated from published counts X: (X / p, their standard deviations sqrt(X (1 - p)) / p).

    sampled: int64[n], in sampled users; both results float64[n], in users. The standard deviation estimates that of
    Bin(c, p) / p, sqrt(c (1 - p) / p), with X / p in place of the true count c.
    """
    counts = np.asarray(sampled, np.float64)
    return counts / sampling.rate, np.sqrt(counts * (1 - sampling.rate)) / sampling.rate


def hidden_count(sampling: Sampling, confidence: float = 0.99, rounds: int = 1) -> int:
    """The largest true count (users) that an absent item may have at this confidence.

    That is the largest c such that an item of c users is absent with probability >= 1 - confidence, where absent means
    a sampled count below the threshold in at least one of `rounds` independent samples. Raises RequestError unless
    0 < confidence < 1 and rounds >= 1.
    """
    if isinstance(confidence, bool) or not 0 < confidence < 1:
        raise RequestError(f"confidence: must be a number between 0 and 1, got {confidence}")
    check_count("rounds", rounds)
    # Absent in some round with 1 - P[present]^rounds >= 1 - confidence, and P[Bin(c, p) >= tau] = I_p(tau, c - tau +
    # 1).
    often = confidence ** (1 / rounds)
    low, high = sampling.threshold - 1, 2 * sampling.threshold
    while special.betainc(sampling.threshold, high - sampling.threshold + 1, sampling.rate) <= often:
        low, high = high, 2 * high

    def is_often_absent(c: int) -> bool:
        return bool(special.betainc(sampling.threshold, c - sampling.threshold + 1, sampling.rate) <= often)

    return bisect_integers(is_often_absent, low, high)
