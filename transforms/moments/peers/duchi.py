"""Randomised rounding to one bit, and randomised response on it (Duchi, Jordan and Wainwright 2018)."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.random import Generator
from numpy.typing import NDArray

from sfumato.transforms.moments.peers.base import check_optional_epsilon, check_values, respond, unbiased_share


@dataclass(frozen=True)
class RandomisedRounding:
    """A client with value x sends the bit that is set with probability x / high, through randomised response.

    Pure epsilon, one value replaced; with None the rounding alone, which hides little. For t = 2 x / high - 1 this is
    Duchi et al.'s mechanism for one dimension: +c with probability 1/2 + t / (2 c), else -c, where
    c = (e^epsilon + 1) / (e^epsilon - 1). Raises RequestError unless epsilon is None or a finite number > 0.
    """

    epsilon: float | None = None

    def __post_init__(self) -> None:
        check_optional_epsilon(self.epsilon)

    @property
    def name(self) -> str:
        """What the tables call it."""
        return "rounding"

    def estimate_mean(self, values: NDArray[np.float64], high: float, generator: Generator) -> float:
        """The share of set bits without the response's bias, times high.

        Variance given the values float64[n]: (high / 2)^2 (c^2 - mean of t^2) / n, c = 1 without privacy.
        Raises RequestError as `MeanPeer` says.
        """
        shares = check_values(values, high)
        bits = generator.random(len(shares)) < shares
        return unbiased_share(respond(bits, self.epsilon, generator), self.epsilon) * high
