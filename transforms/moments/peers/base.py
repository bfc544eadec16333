"""What the mechanisms of the comparison share: one interface, its checks, and randomised response on a sign."""

from __future__ import annotations

import math
from typing import Protocol

import numpy as np
from numpy.random import Generator
from numpy.typing import NDArray

from sfumato.schemas.errors import RequestError
from sfumato.transforms.privacy.budget import check_epsilon


class MeanPeer(Protocol):
    """A mechanism by which every client sends one report of her value, protected by herself.

    Local differential privacy: whoever sees the report learns little of the value. Adjacency: one client's value is
    replaced by any other in 0..high.
    """

    @property
    def name(self) -> str:
        """What the tables call it."""

    def estimate_mean(self, values: NDArray[np.float64], high: float, generator: Generator) -> float:
        """The mean estimated from the reports of clients with values float64[n] in 0..high.

        Raises RequestError for values outside 0..high or without a number, and for a bound that is no number > 0.
        """


def check_values(values: NDArray[np.float64], high: float) -> NDArray[np.float64]:
    """Returns the values as shares of the bound, float64[n] in 0..1. Raises RequestError unless all lie there."""
    if not (math.isfinite(high) and high > 0):
        raise RequestError(f"high: must be a finite number > 0, got {high}")
    if not len(values):
        raise RequestError("values: there are none; give at least one client's value")
    if not bool(np.all((values >= 0) & (values <= high))):
        raise RequestError(f"values: must be numbers in 0..{high:g}; clamp them, or give a larger bound")
    return values / high


def check_optional_epsilon(epsilon: float | None) -> None:
    """Raises RequestError unless epsilon is a finite number > 0, or None: no randomised response."""
    if epsilon is not None:
        check_epsilon("epsilon", epsilon)


def respond(bits: NDArray[np.bool_], epsilon: float | None, generator: Generator) -> NDArray[np.bool_]:
    """Randomised response: each bit of bool[n] truthfully with probability e^epsilon / (1 + e^epsilon), else turned.

    Pure epsilon for each bit (Warner 1965; paper 002, Section 3.3). With None the bits themselves.
    """
    if epsilon is None:
        return bits
    return bits ^ (generator.random(len(bits)) >= 1 / (1 + math.exp(-epsilon)))


def unbiased_share(reports: NDArray[np.bool_], epsilon: float | None) -> float:
    """The share of true bits behind the reports bool[n], without bias: 1/2 + (share - 1/2) / tanh(epsilon / 2).

    Given the bits, a report's variance after this is e^epsilon / (e^epsilon - 1)^2 (paper 002, Section 3.3).
    """
    share = float(np.count_nonzero(reports)) / len(reports)
    return share if epsilon is None else 0.5 + (share - 0.5) / math.tanh(epsilon / 2)
