"""k-median of a map: k centres with the least mean distance of the users from the nearest of them.

Paper 001 (Section 1.1) says that a map of small earth mover's distance gives good centres, but prints no figures.
Distances are those of its ground metric: |dx| + |dy|, in sides of the square.
"""

from __future__ import annotations

import numpy as np
from numpy.random import Generator
from numpy.typing import NDArray

_STARTS, _STEPS = 5, 30


def k_median(mass: NDArray[np.float64], k: int, generator: Generator) -> NDArray[np.float64]:
    """k centres float64[k, 2], (x, y) in 0..1, of the least cost that was found for a map float64[side, side].

    Lloyd's iteration: each cell goes to its nearest centre, and each centre to the weighted median of its cells, in x
    and in y by itself, which is optimal for this distance. The best of five starts, drawn as in k-means++.
    """
    side = len(mass)
    row, column = np.nonzero(mass > 0)
    weight = mass[row, column] / mass.sum()
    points = (np.stack([column, row], axis=1) + 0.5) / side
    best, least = points[:1], np.inf
    for _ in range(_STARTS):
        centres = _seeds(points, weight, k, generator)
        for _ in range(_STEPS):
            nearest = _distances(points, centres).argmin(axis=1)
            moved = centres.copy()
            for axis, cells in enumerate((column, row)):
                held = np.bincount(nearest * side + cells, weight, k * side).reshape(k, side).cumsum(axis=1)
                middle = (held >= held[:, -1:] / 2).argmax(axis=1)
                moved[:, axis] = np.where(held[:, -1] > 0, (middle + 0.5) / side, centres[:, axis])
            if np.array_equal(moved, centres):
                break
            centres = moved
        if (cost := median_cost(mass, centres)) < least:
            best, least = centres, cost
    return best


def median_cost(mass: NDArray[np.float64], centres: NDArray[np.float64]) -> float:
    """The mean distance of a map's users from the nearest centre, in sides."""
    row, column = np.nonzero(mass > 0)
    points = (np.stack([column, row], axis=1) + 0.5) / len(mass)
    weight = mass[row, column]
    return float(_distances(points, centres).min(axis=1) @ weight / weight.sum())


def _seeds(
    points: NDArray[np.float64], weight: NDArray[np.float64], k: int, generator: Generator
) -> NDArray[np.float64]:
    """Centres to start from: points, drawn in proportion to their weight times the distance from those drawn before."""
    chosen = [points[generator.choice(len(points), p=weight / weight.sum())]]
    for _ in range(k - 1):
        far = weight * _distances(points, np.array(chosen)).min(axis=1)
        far = far if far.sum() > 0 else weight
        chosen.append(points[generator.choice(len(points), p=far / far.sum())])
    return np.array(chosen)


def _distances(points: NDArray[np.float64], centres: NDArray[np.float64]) -> NDArray[np.float64]:
    """|dx| + |dy| of every point from every centre: float64[n, k]."""
    return np.abs(points[:, None, 0] - centres[:, 0]) + np.abs(points[:, None, 1] - centres[:, 1])
