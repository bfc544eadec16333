"""What the mechanisms of the comparison share: one interface and the sample of clients (paper 004, Section 5)."""

from __future__ import annotations

import math
from typing import Protocol

import numpy as np
from numpy.random import Generator
from numpy.typing import NDArray

from sfumato.schemas.errors import RequestError


class HistogramPeer(Protocol):
    """A mechanism that samples each client with probability `rate` and estimates everybody's histogram.

    Every one of them treats clients alike, so its law depends on the counts alone and no item per client is needed.
    """

    @property
    def name(self) -> str:
        """What the tables call it."""

    @property
    def rate(self) -> float:
        """Probability with which a client is sampled."""

    def estimate(self, counts: NDArray[np.int64], generator: Generator) -> NDArray[np.float64]:
        """Estimated counts float64[B] of the whole population, given its true counts int64[B]."""


def check_rate(rate: float) -> float:
    """Returns the rate. Raises RequestError unless 0 < rate <= 1 (NaN is not): noise allows asking everybody."""
    if not 0 < rate <= 1:
        raise RequestError(f"rate: must be a probability > 0, got {rate}; give the share of clients to sample")
    return rate


def sample_counts(counts: NDArray[np.int64], rate: float, generator: Generator) -> NDArray[np.int64]:
    """Counts int64[B] of the clients in the sample: each of a bucket's clients independently with probability rate."""
    return generator.binomial(counts, rate).astype(np.int64, copy=False)


def amplified_epsilon(epsilon: float, rate: float) -> float:
    """The epsilon that a mechanism may spend on a secret Poisson sample to be epsilon-private for the population.

    ln(1 + (e^epsilon - 1) / rate), add or remove one user (Li, Qardaji and Su 2012; Balle, Barthe and Gaboardi 2020).
    """
    return math.log1p(math.expm1(epsilon) / rate)
