"""Honest extremes of many noisy estimates: empirical-Bayes shrinkage and simultaneous intervals. Pure.

The largest of many noisy estimates is large because of its noise. Shrinkage takes the expected part of that noise away.
A simultaneous interval covers all true values together, so it also holds for the one that was chosen.
"""

from __future__ import annotations

import math

import numpy as np
import scipy
from numpy.typing import NDArray

_GRID, _REFINEMENTS = 41, 3
_LOWEST, _HIGHEST = 1e-4, 4.0  # ends of the grid: in median variances, and in largest squared distances from the centre

Array = NDArray[np.float64]


def shrink(estimates: Array, variances: Array, centre: float | None = None) -> tuple[Array, Array]:
    """Moves each estimate towards the centre by its share of noise.

    The model is normal: true values deviate from the centre with variance t, and an estimate from its true value with
    its own variance v. t has the largest marginal likelihood. The posterior mean keeps t / (t + v) of an estimate's
    distance from the centre. An estimate without information has no influence on t.

    Args:
        estimates: float64[n], unbiased; NaN where nothing is known.
        variances: float64[n], > 0, of the estimates' errors; infinite where nothing is known.
        centre: the value to shrink towards; None for the mean, weighted by 1 / (t + v).

    Returns:
        The posterior means and variances, float64[n] each. Where nothing is known they are those of the prior. Without
        any known estimate means are the given centre, or NaN, and variances are NaN.

    Raises:
        ValueError: the arrays differ in shape, or a variance is not above 0.

    Source: Efron and Morris (1973), Stein's estimation rule and its competitors; marginal maximum likelihood for t.

    >>> means, _ = shrink(np.array([-10.0, 0.0, 10.0]), np.full(3, 25.0))
    >>> means.round(1)
    array([-7.5,  0. ,  7.5])
    """
    estimates, variances = np.asarray(estimates, dtype=np.float64), np.asarray(variances, dtype=np.float64)
    if estimates.shape != variances.shape:
        raise ValueError(f"variances: must have the estimates' shape {estimates.shape}, got {variances.shape}")
    if not (variances > 0).all():
        raise ValueError("variances: must be above 0")
    known = np.isfinite(estimates) & np.isfinite(variances)
    if not known.any():
        return np.full(estimates.shape, math.nan if centre is None else centre), np.full(estimates.shape, math.nan)
    x, v = estimates[known], variances[known]
    t = _prior_variance(x, v, centre)
    mean, mean_variance = _prior_mean(x, v, t, centre)
    kept = np.zeros(estimates.shape)
    kept[known] = t / (t + v)
    means = np.full(estimates.shape, float(mean))
    means[known] += kept[known] * (x - mean)
    posterior = np.full(estimates.shape, t)
    posterior[known] = kept[known] * v
    return means, posterior + (1 - kept) ** 2 * mean_variance


def simultaneous_z(number: int) -> float:
    """Returns the half-width, in standard deviations, with which `number` normal 95% intervals all hold together.

    Valid for normal errors of any correlation, by Sidak's inequality.

    Args:
        number: of intervals that could have been shown, at least 1.

    Raises:
        ValueError: number is below 1.

    Source: Sidak (1967), Rectangular confidence regions for the means of multivariate normal distributions.

    >>> round(simultaneous_z(1), 2), round(simultaneous_z(10_000), 2)
    (1.96, 4.56)
    """
    if number < 1:
        raise ValueError(f"number: must be at least 1, got {number}")
    return float(-scipy.special.ndtri(-math.expm1(math.log(0.95) / number) / 2))


def _prior_mean(x: Array, v: Array, t: float, centre: float | None) -> tuple[float, float]:
    """Returns the prior's mean and the variance of its error; a given centre has none."""
    if centre is not None:
        return centre, 0.0
    weights = 1 / (t + v)
    return float((weights * x).sum() / weights.sum()), float(1 / weights.sum())


def _prior_variance(x: Array, v: Array, centre: float | None) -> float:
    """Returns the t >= 0 of largest marginal likelihood: the best of 0 and of a logarithmic grid that is refined."""

    def loss(t: float) -> float:
        total = t + v
        mean, mean_variance = _prior_mean(x, v, t, centre)
        restricted = 0.0 if centre is not None else math.log(mean_variance)  # REML: the mean was estimated too
        return float((np.log(total) + (x - mean) ** 2 / total).sum()) - restricted

    mean, _ = _prior_mean(x, v, 0.0, centre)
    highest = max(_HIGHEST * float(((x - mean) ** 2).max()), 1e-300)
    low, high = math.log(min(_LOWEST * float(np.median(v)), highest)), math.log(highest)
    best, least = 0.0, loss(0.0)
    for _ in range(_REFINEMENTS):
        grid = np.linspace(low, high, _GRID)
        losses = [loss(math.exp(log_t)) for log_t in grid]
        index = int(np.argmin(losses))
        if losses[index] < least:
            best, least = math.exp(grid[index]), losses[index]
        step = grid[1] - grid[0]
        low, high = grid[index] - step, grid[index] + step
    return best
