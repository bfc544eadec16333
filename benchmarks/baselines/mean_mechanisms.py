"""Local mechanisms for a mean: each client protects one value and sends one report.

The privacy model is local differential privacy under replacement: one client's value changes to any other in 0..high.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.random import Generator
from numpy.typing import NDArray

from sfumato.schemas.errors import RequestError
from sfumato.transforms.privacy.budget import check_epsilon


class MeanMechanism(Protocol):
    """Estimates a mean from one protected report of each client."""

    @property
    def name(self) -> str:
        """The name in the tables."""

    def estimate_mean(self, values: NDArray[np.float64], high: float, generator: Generator) -> float:
        """Estimates the mean of float64[n] values in 0..high from their reports.

        Raises:
            RequestError: a value is not a number in 0..high, or high is not a finite number > 0.
        """


@dataclass(frozen=True)
class LaplaceNoise:
    """Each client sends the value plus Laplace noise of scale high / epsilon (Dwork 2006): pure epsilon.

    Raises RequestError unless epsilon is a finite number > 0.
    """

    epsilon: float

    def __post_init__(self) -> None:
        check_epsilon(self.epsilon)

    @property
    def name(self) -> str:
        """See MeanMechanism.name."""
        return "Laplace"

    def estimate_mean(self, values: NDArray[np.float64], high: float, generator: Generator) -> float:
        """The mean of the reports. Variance given the values: 2 high^2 / (n epsilon^2)."""
        shares = check_values(values, high)
        return float(np.mean(shares + generator.laplace(0.0, 1 / self.epsilon, len(shares)))) * high


@dataclass(frozen=True)
class RandomisedRounding:
    """Rounds a value to one bit and sends it through randomised response (Duchi, Jordan and Wainwright 2018).

    The bit of value x is set with probability x / high. The report is pure epsilon; without epsilon there is only the
    rounding, which hides little. For t = 2 x / high - 1 this is the paper's mechanism in one dimension: +c with
    probability 1/2 + t / (2 c), else -c, where c = (e^epsilon + 1) / (e^epsilon - 1).

    Raises RequestError unless epsilon is None or a finite number > 0.
    """

    epsilon: float | None = None

    def __post_init__(self) -> None:
        _check_optional_epsilon(self.epsilon)

    @property
    def name(self) -> str:
        """See MeanMechanism.name."""
        return "rounding"

    def estimate_mean(self, values: NDArray[np.float64], high: float, generator: Generator) -> float:
        """The unbiased share of set bits, times high.

        Variance given the values: (high / 2)^2 (c^2 - mean of t^2) / n, with c = 1 without privacy.
        """
        shares = check_values(values, high)
        bits = generator.random(len(shares)) < shares
        return unbiased_share(respond(bits, self.epsilon, generator), self.epsilon) * high


@dataclass(frozen=True)
class SubtractiveDithering:
    """Subtractive dithering, with randomised response on its bit (Ben-Basat, Mitzenmacher and Vargaftik 2020).

    Client and server share h, uniform in -1/2..1/2. The client sends whether u + h >= 1/2, where u = value / high, and
    the server takes b - h. Rounding u + h to the nearer of 0 and 1 has an error that is uniform in -1/2..1/2 for every
    u, so b - h has mean u and variance 1/12. h is independent of the value, so randomised response on the bit makes
    the report pure epsilon. Without epsilon, a bit and an extreme h reveal the value.

    Raises RequestError unless epsilon is None or a finite number > 0.
    """

    epsilon: float | None = None

    def __post_init__(self) -> None:
        _check_optional_epsilon(self.epsilon)

    @property
    def name(self) -> str:
        """See MeanMechanism.name."""
        return "dithering"

    def estimate_mean(self, values: NDArray[np.float64], high: float, generator: Generator) -> float:
        """The unbiased mean of b - h, times high.

        Variance given the values: high^2 (1/12 + e^epsilon / (e^epsilon - 1)^2) / n, the second term only with
        privacy.
        """
        shares = check_values(values, high)
        shared = generator.random(len(shares)) - 0.5
        bits = shares + shared >= 0.5
        share = unbiased_share(respond(bits, self.epsilon, generator), self.epsilon)
        return (share - float(np.mean(shared))) * high


@dataclass(frozen=True)
class Piecewise:
    """The piecewise mechanism (Wang et al. 2019, Algorithm 2): a report in -C..C, with more density near the value.

    The value enters as t = 2 x / high - 1; the report is pure epsilon. Raises RequestError unless epsilon is a finite
    number > 0.
    """

    epsilon: float

    def __post_init__(self) -> None:
        check_epsilon(self.epsilon)

    @property
    def name(self) -> str:
        """See MeanMechanism.name."""
        return "piecewise"

    def estimate_mean(self, values: NDArray[np.float64], high: float, generator: Generator) -> float:
        """The mean of the reports, mapped back to 0..high.

        Variance given the values: (high / 2)^2 / n times the mean of t^2 / (e^(epsilon/2) - 1) +
        (e^(epsilon/2) + 3) / (3 (e^(epsilon/2) - 1)^2); at worst, |t| = 1, 4 e^(epsilon/2) / (3 (e^(epsilon/2) - 1)^2).
        """
        centred = 2 * check_values(values, high) - 1
        return (float(np.mean(piecewise(centred, self.epsilon, generator))) + 1) / 2 * high


def max_report(epsilon: float) -> float:
    """C = (e^(epsilon/2) + 1) / (e^(epsilon/2) - 1): the piecewise mechanism's reports lie in -C..C."""
    return 1 / math.tanh(epsilon / 4)


def piecewise(centred: NDArray[np.float64], epsilon: float, generator: Generator) -> NDArray[np.float64]:
    """Reports float64[n] of the piecewise mechanism for inputs float64[n] in -1..1.

    With probability e^(epsilon/2) / (e^(epsilon/2) + 1) a report is uniform in l..l + C - 1, where
    l = (C + 1) t / 2 - (C - 1) / 2. Otherwise it is uniform in the rest of -C..C, which has length C + 1.
    """
    end = max_report(epsilon)
    left = (end + 1) / 2 * centred - (end - 1) / 2
    near = generator.random(len(centred)) < 1 / (1 + math.exp(-epsilon / 2))
    place = generator.random(len(centred))
    outside = place * (end + 1) - end  # the rest of -C..C with the window cut out
    outside += np.where(outside >= left, end - 1, 0.0)
    return np.where(near, left + place * (end - 1), outside)


def check_values(values: NDArray[np.float64], high: float) -> NDArray[np.float64]:
    """Returns the values as shares of high, float64[n] in 0..1. Raises RequestError unless all lie in 0..high."""
    if not (math.isfinite(high) and high > 0):
        raise RequestError(f"high: must be a finite number > 0, got {high}")
    if not len(values):
        raise RequestError("values: there are none; give at least one client's value")
    if not bool(np.all((values >= 0) & (values <= high))):
        raise RequestError(f"values: must be numbers in 0..{high:g}; clamp them, or give a larger bound")
    return values / high


def _check_optional_epsilon(epsilon: float | None) -> None:
    if epsilon is not None:
        check_epsilon(epsilon)


def respond(bits: NDArray[np.bool_], epsilon: float | None, generator: Generator) -> NDArray[np.bool_]:
    """Randomised response on bool[n]: each bit is kept with probability e^epsilon / (1 + e^epsilon), else flipped.

    Pure epsilon for each bit (Warner 1965; paper 002, Section 3.3). Without epsilon, the bits themselves.
    """
    if epsilon is None:
        return bits
    return bits ^ (generator.random(len(bits)) >= 1 / (1 + math.exp(-epsilon)))


def unbiased_share(reports: NDArray[np.bool_], epsilon: float | None) -> float:
    """Unbiased estimate of the share of true bits behind the reports bool[n]: 1/2 + (share - 1/2) / tanh(epsilon / 2).

    Given the bits, the variance of one report is e^epsilon / (e^epsilon - 1)^2 (paper 002, Section 3.3).
    """
    share = float(np.count_nonzero(reports)) / len(reports)
    return share if epsilon is None else 0.5 + (share - 0.5) / math.tanh(epsilon / 2)
