"""Intervals of zones' users: a zone is exactly the sum of its parts, see `statistics/tree_least_squares.py`. Pure."""

from __future__ import annotations

import math

import numpy as np
import scipy
from numpy.typing import NDArray

Array = NDArray[np.float64]
LEVEL = 0.95
_Z = float(scipy.special.ndtri((1 + LEVEL) / 2))
_LEAST_LEVEL = 0.945  # of an interval of integers, which cannot hold 95.0%
_LATTICE = 8  # sums of so many discrete Laplace variables have intervals of their own, which are exact


def margins(variance: Array, kurtosis: Array) -> Array:
    """Half the width of a 95% interval around an estimate: float64 of the input's shape.

    Cornish and Fisher's quantile with the fourth cumulant; errors are symmetric.
    """
    return np.asarray((_Z + (_Z**3 - 3 * _Z) / 24 * kurtosis) * np.sqrt(variance))


def laplace_kurtosis(epsilon: float) -> float:
    """Excess kurtosis of a discrete Laplace variable: 3 for a small epsilon, more for a large one."""
    decay = math.exp(-epsilon)
    return (1 + 4 * decay + decay**2) / (2 * decay)


def lattice_margins(epsilon: float, sums: NDArray[np.int64]) -> tuple[Array, Array]:
    """How far 95% intervals of integer counts reach below and above them, where few Laplace variables were added up.

    A symmetric interval of integers holds one discrete Laplace variable with 92.7% or 97.3% at epsilon 1. One that is
    longer by one at one side holds it with 95.0%. This is the shortest with at least 94.5%; of two, the one that
    reaches further below.

    Args:
        epsilon: of each variable.
        sums: int64[n], number of variables in the noise of each count.

    Returns:
        float64[n] each; NaN for more than 8 variables, where `margins` are as good.
    """
    below, above = np.full(len(sums), np.nan), np.full(len(sums), np.nan)
    decay = math.exp(-epsilon)
    reach = math.ceil(8 + 40 / epsilon)  # beyond it lies e^-40 of the mass
    one = decay ** np.abs(np.arange(-reach, reach + 1)) * (1 - decay) / (1 + decay)
    mass = one
    for number in range(1, _LATTICE + 1):
        chosen = sums == number
        if chosen.any():
            tail = np.cumsum(mass[::-1])[::-1][len(mass) // 2 :]  # P(Z >= 0), P(Z >= 1), ...
            least = int(np.argmax(2 * tail[1:] <= 1 - _LEAST_LEVEL))  # of a symmetric interval
            is_enough = least > 0 and tail[least] + tail[least + 1] <= 1 - _LEAST_LEVEL
            below[chosen], above[chosen] = least, least - is_enough
        mass = np.convolve(mass, one)
    return below, above
