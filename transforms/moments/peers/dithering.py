"""Subtractive dithering, and randomised response on its bit (Ben-Basat, Mitzenmacher and Vargaftik 2020)."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.random import Generator
from numpy.typing import NDArray

from sfumato.transforms.moments.peers.base import check_optional_epsilon, check_values, respond, unbiased_share


@dataclass(frozen=True)
class SubtractiveDithering:
    """Client and server share h, uniform in -1/2..1/2; the client sends whether u + h >= 1/2, where u = value / high.

    The server takes b - h. Rounding u + h, which lies in -1/2..3/2, to the nearer of 0 and 1 errs by a number that is
    uniform in -1/2..1/2 whatever u is, so b - h has mean u and variance 1/12. h tells nothing of the value, so
    randomised response on the bit makes the report purely epsilon-private (one value replaced); with None a bit and an
    extreme h give the value away. Raises RequestError unless epsilon is None or a finite number > 0.
    """

    epsilon: float | None = None

    def __post_init__(self) -> None:
        check_optional_epsilon(self.epsilon)

    @property
    def name(self) -> str:
        """What the tables call it."""
        return "dithering"

    def estimate_mean(self, values: NDArray[np.float64], high: float, generator: Generator) -> float:
        """The mean of b - h without the response's bias, times high.

        Variance given the values float64[n]: high^2 (1/12 + e^epsilon / (e^epsilon - 1)^2) / n, the second term only
        with privacy. Raises RequestError as `MeanPeer` says.
        """
        shares = check_values(values, high)
        shared = generator.random(len(shares)) - 0.5
        bits = shares + shared >= 0.5
        share = unbiased_share(respond(bits, self.epsilon, generator), self.epsilon)
        return (share - float(np.mean(shared))) * high
