"""Central differential privacy: Laplace noise on the sampled counts (Dwork 2006), drawn by PyDP."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.random import Generator
from numpy.typing import NDArray

from sfumato.transforms.histogram.peers.base import amplified_epsilon, check_rate, sample_counts
from sfumato.transforms.privacy.budget import check_epsilon


@dataclass(frozen=True)
class CentralLaplace:
    """Laplace(1 / epsilon) noise on each of the B sampled counts, which are then scaled by 1 / rate.

    Pure epsilon; adjacency: one user more or less, who changes one count by one. As in paper 004 the sampled clients
    get epsilon and sampling earns nothing; with `amplified` the noise is what epsilon for the population allows, the
    sample being secret. PyDP draws from the operating system, so the noise does not repeat with the generator.
    """

    rate: float
    epsilon: float
    amplified: bool = False

    def __post_init__(self) -> None:
        check_rate(self.rate)
        check_epsilon("epsilon", self.epsilon)

    @property
    def name(self) -> str:
        """What the tables call it."""
        return "central Laplace, amplified" if self.amplified else "central Laplace"

    @property
    def noise_scale(self) -> float:
        """Scale of the Laplace noise on a sampled count, in sampled clients."""
        return 1 / (amplified_epsilon(self.epsilon, self.rate) if self.amplified else self.epsilon)

    def estimate(self, counts: NDArray[np.int64], generator: Generator) -> NDArray[np.float64]:
        """Estimated counts float64[B]. Variance per bucket: x (1 - rate) / rate + 2 (noise_scale / rate)^2."""
        from pydp.algorithms.numerical_mechanisms import LaplaceMechanism  # a peer, no dependency of the package

        add_noise = LaplaceMechanism(1 / self.noise_scale, 1.0).add_noise
        sampled = sample_counts(counts, self.rate, generator).astype(np.float64)
        return np.array([add_noise(value) for value in sampled.tolist()]) / self.rate
