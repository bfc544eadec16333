"""Warner's randomised response on single bits, in integer arithmetic (paper 002, Section 3.3). Pure."""

from __future__ import annotations

from dataclasses import dataclass
from decimal import Decimal, localcontext
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from sfumato.schemas.errors import RequestError
from sfumato.transforms.privacy.budget import check_epsilon
from sfumato.transforms.privacy.keys import random_bits

_RANGE = 1 << 64  # of the random integers


@dataclass(frozen=True)
class RandomisedResponse:
    """Reports the true bit with probability p = e^e / (1 + e^e), else its complement, where e = epsilon / reports.

    p is rounded down to a multiple of 2^-64, so no report costs more than its epsilon.

    Attributes:
        epsilon: of all `reports` bits of a client together, > 0; None: always the true bit.
        reports: bits that a client reports.

    Raises:
        RequestError: epsilon is not a finite number > 0, or so small that p rounds to 1/2.
    """

    epsilon: float | None
    reports: int = 1

    def __post_init__(self) -> None:
        if self.epsilon is not None:
            check_epsilon("epsilon", self.epsilon)
            if self.threshold <= _RANGE // 2:
                raise RequestError(f"epsilon: {self.epsilon} is too small for a report to say anything")

    @cached_property
    def threshold(self) -> int:
        """The true bit is reported if a uniform 64-bit integer is below this."""
        if self.epsilon is None:
            return _RANGE
        with localcontext() as context:
            context.prec = 50
            odds = min(Decimal(self.epsilon) / self.reports, Decimal(100)).exp()  # above 100, p rounds to 1 - 2^-64
            return min(int(odds / (1 + odds) * _RANGE), _RANGE - 1)  # below 1 also where 50 digits round to it

    @property
    def truth_probability(self) -> float:
        """p, the probability of the true bit."""
        return self.threshold / _RANGE

    @property
    def gain(self) -> float:
        """2 p - 1: by how much a true 1 raises the expected report over a true 0."""
        return (2 * self.threshold - _RANGE) / _RANGE

    def respond(
        self, bits: NDArray[np.bool_], subkey: bytes, stream: int, clients: NDArray[np.uint64]
    ) -> NDArray[np.bool_]:
        """The reported bits: bool[n]. Whether a bit is flipped depends on the key, the stream and the client alone.

        Args:
            bits: bool[n], the true bits.
            subkey: of the round.
            stream: the number of the report among a client's reports.
            clients: uint64[n], random bits that are different for every client.
        """
        if self.epsilon is None:
            return bits
        uniforms = random_bits(subkey, np.full_like(clients, stream), clients)[:, 0]
        return np.asarray(bits ^ (uniforms >= np.uint64(self.threshold)))

    def unbiased_share(self, reported: NDArray[np.float64]) -> NDArray[np.float64]:
        """Unbiased shares of true 1s from shares r of reported 1s: (r - (1 - p)) / (2 p - 1)."""
        return np.asarray((reported - (1 - self.truth_probability)) / self.gain)

    def variance(self, reported: NDArray[np.float64]) -> NDArray[np.float64]:
        """The variance of one report's unbiased bit for expected shares q of reported 1s: q (1 - q) / gain^2.

        With q = p m + (1 - p) (1 - m) this is m (1 - m) + e^epsilon / (e^epsilon - 1)^2.
        """
        return np.asarray(reported * (1 - reported) / self.gain**2)
