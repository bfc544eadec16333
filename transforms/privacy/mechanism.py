"""Formulas of the discrete Laplace mechanism (paper 000, Equations 4, 5 and 8). `noise.py` samples it."""

from __future__ import annotations

import math


def discrete_laplace_stddev(epsilon: float, sensitivity: int = 1) -> float:
    """Returns the standard deviation sqrt(2 beta) / (1 - beta), beta = exp(-epsilon / sensitivity) (Eq. 5).

    Written as 1 / (sqrt(2) sinh(epsilon / (2 sensitivity))), which loses no digits for small epsilon.
    Returns 0 where the noise is too small for a float.
    """
    half = epsilon / (2 * sensitivity)
    return 1 / (math.sqrt(2) * math.sinh(half)) if half < 700 else 0.0


def epsilon_for_stddev(stddev: float, sensitivity: int = 1) -> float:
    """Returns the epsilon whose discrete Laplace noise has this standard deviation (Eq. 8, the inverse of Eq. 5).

    The printed form -ln((s^2 + 1 - sqrt(2 s^2 + 1)) / s^2) equals 2 asinh(1 / (s sqrt(2))).
    """
    return 2 * sensitivity * math.asinh(1 / (stddev * math.sqrt(2)))
