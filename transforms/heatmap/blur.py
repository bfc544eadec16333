"""A density as a Gaussian heatmap (paper 001, Section 2.3). Pure; it only post-processes, so it costs no budget."""

from __future__ import annotations

import math

import numpy as np
import scipy
from numpy.typing import NDArray

from sfumato.schemas.errors import RequestError

# Weights beyond so many deviations, below 1e-31 of the largest, are 0: tinier ones slow the product and change nothing.
REACH = 12.0


def gaussian_heatmap(density: NDArray[np.float64], sigma: float) -> NDArray[np.float64]:
    """H(x, y) = sum over cells (x', y') of exp(-((x - x')^2 + (y - y')^2) / (2 sigma^2)) / Z(x', y') p(x', y').

    density: float64[side, side]. sigma: the filter's standard deviation in units of the region's side; 0 returns the
    density. Z makes each source's weights sum to 1 over the grid, so mass is kept, at the borders too. Weights and Z
    are products of one factor an axis, so the filter is two matrix products. Raises RequestError for a bad sigma.
    """
    if not (math.isfinite(sigma) and sigma >= 0):
        raise RequestError(f"sigma: must be a finite number >= 0 (in units of the region's side), got {sigma}")
    side = len(density)
    if REACH * sigma * side < 1:
        return density.copy()
    steps = np.arange(side) / (sigma * side)
    away = np.where(steps <= REACH, np.exp(-(np.minimum(steps, REACH) ** 2) / 2), 0)
    weights = scipy.linalg.toeplitz(away)
    weights /= weights.sum(axis=0)
    heatmap: NDArray[np.float64] = weights @ density @ weights.T
    return heatmap
