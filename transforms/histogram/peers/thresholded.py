"""Sample and threshold behind the interface of the comparison, with whatever parameters (paper 004, Section 3)."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.random import Generator
from numpy.typing import NDArray

from sfumato.transforms.histogram.peers.base import sample_counts
from sfumato.transforms.histogram.sampling import Sampling, estimates


@dataclass(frozen=True)
class ThresholdedSample:
    """Sampled counts of at least the threshold, scaled by 1 / rate; what is not published is estimated as 0."""

    name: str
    sampling: Sampling

    @property
    def rate(self) -> float:
        """Probability with which a client is sampled."""
        return self.sampling.rate

    def estimate(self, counts: NDArray[np.int64], generator: Generator) -> NDArray[np.float64]:
        """Estimated counts float64[B]. Variance of a bucket of x users far above the threshold: x (1 - rate) / rate."""
        sampled = sample_counts(counts, self.rate, generator)
        return estimates(self.sampling, np.where(sampled >= self.sampling.threshold, sampled, 0))[0]
