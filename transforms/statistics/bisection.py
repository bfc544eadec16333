"""Bisection: where a condition changes from true to false between two points. Pure."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray


def bisect(holds: Callable[[float], bool], inside: float, outside: float, steps: int) -> tuple[float, float]:
    """Narrows the bracket around the point where a condition changes.

    Args:
        holds: the condition. It changes once between the ends.
        inside: an end where it holds; below or above `outside`.
        outside: an end where it does not hold.
        steps: how many times the bracket is halved.

    Returns:
        The ends of the narrow bracket: (inside, outside).
    """
    for _ in range(steps):
        middle = (inside + outside) / 2
        inside, outside = (middle, outside) if holds(middle) else (inside, middle)
    return inside, outside


def bisect_each(
    holds: Callable[[NDArray[np.float64]], NDArray[np.bool_]],
    inside: NDArray[np.float64],
    outside: NDArray[np.float64],
    steps: int,
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Returns `bisect` of n brackets at a time: float64[n] -> bool[n] for the condition, float64[n] for the ends."""
    for _ in range(steps):
        middle = (inside + outside) / 2
        held = holds(middle)
        inside, outside = np.where(held, middle, inside), np.where(held, outside, middle)
    return inside, outside


def bisect_integers(holds: Callable[[int], bool], inside: int, outside: int) -> int:
    """Returns the last integer from `inside` towards `outside` at which a condition holds.

    Args:
        holds: the condition. It changes once between the ends.
        inside: an integer at which it holds; below or above `outside`.
        outside: an integer at which it does not hold.

    >>> bisect_integers(lambda n: n * n <= 50, inside=0, outside=100)
    7
    """
    while abs(outside - inside) > 1:
        middle = (inside + outside) // 2
        inside, outside = (middle, outside) if holds(middle) else (inside, middle)
    return inside


def bisect_each_integer(
    holds: Callable[[NDArray[np.int64]], NDArray[np.bool_]],
    inside: NDArray[np.int64],
    outside: NDArray[np.int64],
) -> NDArray[np.int64]:
    """Returns `bisect_integers` of n brackets at once: int64[n] -> bool[n] for the condition, int64[n] for the ends."""
    while (is_open := np.abs(outside - inside) > 1).any():
        middle = (inside + outside) // 2
        held = holds(middle)
        inside, outside = np.where(is_open & held, middle, inside), np.where(is_open & ~held, middle, outside)
    return inside
