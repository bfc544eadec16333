"""The Gaussian filter of paper 001, by which two densities are blurred before they are compared."""

from __future__ import annotations

import math

import numpy as np
import scipy
from numpy.typing import NDArray

from sfumato.schemas.errors import RequestError

# Weights beyond so many deviations are below 1e-31 of the largest. They count as 0, which is faster.
_REACH = 12.0


def gaussian_heatmap(shares: NDArray[np.float64], sigma: float) -> NDArray[np.float64]:
    """H(x, y) = sum over cells (x', y') of exp(-((x - x')^2 + (y - y')^2) / (2 sigma^2)) / Z(x', y') p(x', y').

    Z makes each source's weights add up to 1 over the grid, so mass is kept at the borders too. Weights and Z are
    products of one factor for each axis, so the filter is two matrix products.

    Args:
        shares: p, a density float64[side, side].
        sigma: the filter's standard deviation, in sides of the region; 0 returns the density.

    Raises:
        RequestError: sigma is negative or not finite.

    Source: paper 001, Section 2.3.
    """
    if not (math.isfinite(sigma) and sigma >= 0):
        raise RequestError(f"sigma: must be a finite number >= 0 (in units of the region's side), got {sigma}")
    side = len(shares)
    if _REACH * sigma * side < 1:
        return shares.copy()
    steps = np.arange(side) / (sigma * side)
    away = np.where(steps <= _REACH, np.exp(-(np.minimum(steps, _REACH) ** 2) / 2), 0)
    weights = scipy.linalg.toeplitz(away)
    weights /= weights.sum(axis=0)
    heatmap: NDArray[np.float64] = weights @ shares @ weights.T
    return heatmap
