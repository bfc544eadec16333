"""Warner's randomised response on single bits, by integers (paper 002, Section 3.3). Pure."""

from __future__ import annotations

from dataclasses import dataclass
from decimal import Decimal, localcontext
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from sfumato.schemas.errors import RequestError
from sfumato.transforms.privacy.budget import check_epsilon
from sfumato.transforms.privacy.keys import random_bits

_WORDS = 1 << 64


@dataclass(frozen=True)
class RandomisedResponse:
    """The true bit with chance e^e / (1 + e^e), else its complement, where e = epsilon / reports.

    epsilon: of all `reports` bits of a client together; None: always the true bit. The chance is rounded down to a
    multiple of 2^-64, so that no report tells more than it may. Raises RequestError unless epsilon is a finite number,
    large enough for the chance to be above a half.
    """

    epsilon: float | None
    reports: int = 1

    def __post_init__(self) -> None:
        if self.epsilon is not None:
            check_epsilon("epsilon", self.epsilon)
            if self.threshold <= _WORDS // 2:
                raise RequestError(f"epsilon: {self.epsilon} is too small for a report to say anything")

    @cached_property
    def threshold(self) -> int:
        """The bit is told as it is if a uniform 64-bit word is below this."""
        if self.epsilon is None:
            return _WORDS
        with localcontext() as context:
            context.prec = 50
            odds = min(Decimal(self.epsilon) / self.reports, Decimal(100)).exp()  # beyond, 64 bits tell nothing apart
            return min(int(odds / (1 + odds) * _WORDS), _WORDS - 1)  # below 1 also where 50 digits do not tell it

    @property
    def truth(self) -> float:
        """The chance that the true bit is told."""
        return self.threshold / _WORDS

    @property
    def gain(self) -> float:
        """2 p - 1: by how much a true 1 raises the expected report over a true 0."""
        return (2 * self.threshold - _WORDS) / _WORDS

    def respond(
        self, bits: NDArray[np.bool_], subkey: bytes, stream: int, clients: NDArray[np.uint64]
    ) -> NDArray[np.bool_]:
        """What clients tell of their bits: bool[n]. A coin depends on the key, the stream and the client alone.

        Args:
            bits: bool[n], the true ones.
            subkey: of the round.
            stream: which of a client's reports it is.
            clients: uint64[n], a word of each client's own.
        """
        if self.epsilon is None:
            return bits
        words = random_bits(subkey, np.full_like(clients, stream), clients)[:, 0]
        return np.asarray(bits ^ (words >= np.uint64(self.threshold)))

    def share(self, told: NDArray[np.float64]) -> NDArray[np.float64]:
        """Shares of true 1s, unbiased, from shares of 1s that were told: (r - (1 - p)) / (2 p - 1)."""
        return np.asarray((told - (1 - self.truth)) / self.gain)

    def variance(self, told: NDArray[np.float64]) -> NDArray[np.float64]:
        """The variance of one report's unbiased bit, given the expected share of 1s that are told: q (1 - q) / gain^2.

        With q = p m + (1 - p) (1 - m) this is m (1 - m) + e^epsilon / (e^epsilon - 1)^2.
        """
        return np.asarray(told * (1 - told) / self.gain**2)
