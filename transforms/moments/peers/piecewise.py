"""The piecewise mechanism (Wang et al. 2019, Algorithm 2): outputs near the value are likelier than others."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.random import Generator
from numpy.typing import NDArray

from sfumato.transforms.moments.peers.base import check_values
from sfumato.transforms.privacy.budget import check_epsilon


@dataclass(frozen=True)
class Piecewise:
    """For t = 2 x / high - 1 a client sends a number of -C..C whose density is high around t: pure epsilon.

    Raises RequestError unless epsilon is a finite number > 0.
    """

    epsilon: float

    def __post_init__(self) -> None:
        check_epsilon("epsilon", self.epsilon)

    @property
    def name(self) -> str:
        """What the tables call it."""
        return "piecewise"

    def estimate_mean(self, values: NDArray[np.float64], high: float, generator: Generator) -> float:
        """The mean of the reports, moved back to 0..high.

        Variance given the values float64[n]: (high / 2)^2 / n times the mean of t^2 / (e^(epsilon/2) - 1) +
        (e^(epsilon/2) + 3) / (3 (e^(epsilon/2) - 1)^2); at worst, |t| = 1, 4 e^(epsilon/2) / (3 (e^(epsilon/2) - 1)^2).
        Raises RequestError as `MeanPeer` says.
        """
        centred = 2 * check_values(values, high) - 1
        return (float(np.mean(piecewise(centred, self.epsilon, generator))) + 1) / 2 * high


def reach(epsilon: float) -> float:
    """C = (e^(epsilon/2) + 1) / (e^(epsilon/2) - 1): outputs lie in -C..C."""
    return 1 / math.tanh(epsilon / 4)


def piecewise(centred: NDArray[np.float64], epsilon: float, generator: Generator) -> NDArray[np.float64]:
    """Outputs float64[n] of the mechanism for inputs float64[n] in -1..1.

    With probability e^(epsilon/2) / (e^(epsilon/2) + 1) uniform in l..l + C - 1, where l = (C + 1) t / 2 - (C - 1) / 2;
    else uniform in what that leaves of -C..C, which has length C + 1.
    """
    end = reach(epsilon)
    left = (end + 1) / 2 * centred - (end - 1) / 2
    near = generator.random(len(centred)) < 1 / (1 + math.exp(-epsilon / 2))
    place = generator.random(len(centred))
    outside = place * (end + 1) - end  # the window cut out and the rest moved together
    outside += np.where(outside >= left, end - 1, 0.0)
    return np.where(near, left + place * (end - 1), outside)
