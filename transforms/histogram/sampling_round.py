"""One sample-and-threshold round: its parameters, its published histogram, and its estimates (paper 004, Section 3).

A round samples each user with one public probability. It publishes the items with enough sampled users; everything
that follows from these counts is post-processing. Pure.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import scipy
from numpy.typing import NDArray

from sfumato.schemas.errors import RequestError
from sfumato.transforms.statistics.bisection import bisect_integers

RATE_GRID = 2**32  # sampling rates are multiples of 1 / RATE_GRID
HIDDEN_CONFIDENCE = 0.99  # of the largest count that an absent item may have


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
    """The parameters of a round.

    The sampler compares a uniform 32-bit integer with `rate_steps`, so the accountant's rate is exactly the sampler's.

    Attributes:
        rate_steps: the sampling rate in units of 2**-32, 1..2**32 - 1.
        threshold: the fewest sampled users of a published item, >= 1.

    Raises:
        RequestError: a value is out of range.
    """

    rate_steps: int
    threshold: int

    def __post_init__(self) -> None:
        for name in ("rate_steps", "threshold"):  # NumPy's integers become Python's, which JSON can hold
            object.__setattr__(self, name, check_count(name, getattr(self, name)))
        if self.rate_steps >= RATE_GRID:
            raise RequestError(f"rate_steps: must be below 2**32, got {self.rate_steps}; a rate of 1 hides nobody")

    @classmethod
    def from_rate(cls, rate: float, threshold: int) -> Sampling:
        """The sampling with the rate rounded down to a multiple of 2**-32, which can only improve the guarantee.

        Raises RequestError unless 2**-32 <= rate < 1.
        """
        steps = math.floor(check_rate(rate) * RATE_GRID)
        if steps < 1:
            raise RequestError(f"rate: must be at least 2**-32, the sampler's resolution, got {rate}")
        return cls(steps, threshold)

    @property
    def rate(self) -> float:
        """The sampling rate p (exact: a multiple of 2**-32)."""
        return self.rate_steps / RATE_GRID


@dataclass(frozen=True, eq=False)
class Histogram:
    """The published counts of a round (paper 004, Section 3).

    Attributes:
        level: length of the items' prefixes; 0 for whole items.
        sampling: parameters of the round.
        items: uint64[m] ascending, item codes.
        sampled: int64[m], sampled users with each item, all at least the threshold.
        texts: the texts of the codes, m of them; None if codes are numbers.
    """

    level: int
    sampling: Sampling
    items: NDArray[np.uint64]
    sampled: NDArray[np.int64]
    texts: tuple[str, ...] | None = None

    def __len__(self) -> int:
        return len(self.items)

    @cached_property
    def counts(self) -> NDArray[np.float64]:
        """Estimated users, float64[m]: sampled / p."""
        return estimates(self.sampling, self.sampled)[0]

    @cached_property
    def stddev(self) -> NDArray[np.float64]:
        """Standard deviations of the estimates, float64[m], in users: sqrt(sampled (1 - p)) / p."""
        return estimates(self.sampling, self.sampled)[1]

    def only(self, kept: NDArray[np.bool_] | NDArray[np.int64]) -> Histogram:
        """The same histogram with the kept items only, in the given order."""
        texts = None if self.texts is None else tuple(np.array(self.texts, dtype=object)[kept].tolist())
        return Histogram(self.level, self.sampling, self.items[kept], self.sampled[kept], texts)


def estimates(sampling: Sampling, sampled: NDArray[np.int64]) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Estimates of true counts from published counts X.

    Args:
        sampling: parameters of the round.
        sampled: int64[n], X in sampled users.

    Returns:
        X / p and its standard deviation sqrt(X (1 - p)) / p, float64[n] each, in users. The latter is that of
        Bin(c, p) / p, sqrt(c (1 - p) / p), with X / p in place of the true count c.
    """
    counts = np.asarray(sampled, np.float64)
    return counts / sampling.rate, np.sqrt(counts * (1 - sampling.rate)) / sampling.rate


def hidden_count(sampling: Sampling, rounds: int = 1) -> int:
    """The largest true count, in users, that an absent item may have at 99% confidence.

    This is the largest c such that an item of c users is absent with a probability of at least 1%. An item is absent if
    its sampled count is below the threshold in at least one of `rounds` independent samples.

    Raises RequestError unless rounds >= 1.
    """
    check_count("rounds", rounds)
    present_probability = HIDDEN_CONFIDENCE ** (1 / rounds)  # in each round, at most

    def is_often_absent(count: int) -> bool:
        # P[Bin(c, p) >= tau] = I_p(tau, c - tau + 1)
        present = scipy.special.betainc(sampling.threshold, count - sampling.threshold + 1, sampling.rate)
        return bool(present <= present_probability)

    low, high = sampling.threshold - 1, 2 * sampling.threshold
    while is_often_absent(high):
        low, high = high, 2 * high
    return bisect_integers(is_often_absent, low, high)
