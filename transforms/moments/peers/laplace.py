"""Laplace noise on each value: the simplest mechanism for local differential privacy (Dwork 2006)."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.random import Generator
from numpy.typing import NDArray

from sfumato.transforms.moments.peers.base import check_values
from sfumato.transforms.privacy.budget import check_epsilon


@dataclass(frozen=True)
class LaplaceNoise:
    """Each client sends her value plus Laplace noise of scale high / epsilon: pure epsilon, one value replaced.

    Raises RequestError unless epsilon is a finite number > 0.
    """

    epsilon: float

    def __post_init__(self) -> None:
        check_epsilon("epsilon", self.epsilon)

    @property
    def name(self) -> str:
        """What the tables call it."""
        return "Laplace"

    def estimate_mean(self, values: NDArray[np.float64], high: float, generator: Generator) -> float:
        """The mean of the reports. Variance given the values float64[n]: 2 high^2 / (n epsilon^2).

        Raises RequestError as `MeanPeer` says.
        """
        shares = check_values(values, high)
        return float(np.mean(shares + generator.laplace(0.0, 1 / self.epsilon, len(shares)))) * high
