"""Keeps the extreme of many noisy estimates honest: shrinkage towards the centre, intervals for all at once. Pure.

The largest of many noisy estimates is large because of its noise. Shrinkage by empirical Bayes takes the expected part
of that noise away. A simultaneous interval covers all true values together, so that it holds for a chosen one too.
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray
from scipy.special import ndtri

_GRID, _REFINEMENTS = 41, 3
_LEAST, _MOST = 1e-4, 4.0  # times the median variance, and times the largest squared distance from the centre


def shrink(
    estimates: NDArray[np.float64], variances: NDArray[np.float64], centre: float | None = None
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Empirical-Bayes estimates: each estimate moves towards the centre by its share of noise.

    The model is normal: a true value deviates from the centre with the variance t, and its estimate from it with its
    own variance v. The marginal likelihood of all estimates chooses t, so that an estimate without information (v is
    infinite, or the estimate NaN) neither adds to t nor takes from it. The posterior mean keeps t / (t + v) of an
    estimate's distance from the centre.

    Args:
        estimates: float64[n], unbiased. NaN where nothing is known.
        variances: float64[n], > 0, of the estimates' errors; infinite where nothing is known.
        centre: the value to shrink towards; None for the mean, weighted by 1 / (t + v).

    Returns:
        The posterior means and the posterior variances, float64[n] each. Where nothing is known they are those of the
        prior. All are NaN without any estimate, unless a centre is given.

    Raises:
        ValueError: the arrays differ in shape, or a variance is not above 0.

    Source: Efron and Morris (1973), Stein's estimation rule and its competitors; marginal maximum likelihood for t.
    """
    estimates, variances = np.asarray(estimates, dtype=np.float64), np.asarray(variances, dtype=np.float64)
    if estimates.shape != variances.shape:
        raise ValueError(f"variances: must have the estimates' shape {estimates.shape}, got {variances.shape}")
    if not (variances > 0).all():
        raise ValueError("variances: must be above 0")
    known = np.isfinite(estimates) & np.isfinite(variances)
    if not known.any():
        middle = math.nan if centre is None else centre
        return np.full(estimates.shape, middle), np.full(estimates.shape, math.nan)
    x, v = estimates[known], variances[known]
    between = _between(x, v, centre)
    middle, doubt = _centre(x, v, between, centre)
    share = np.zeros(estimates.shape)
    share[known] = between / (between + v)
    means = np.full(estimates.shape, float(middle))
    means[known] += share[known] * (x - middle)
    posterior = np.full(estimates.shape, between)
    posterior[known] = share[known] * v
    return means, posterior + (1 - share) ** 2 * doubt


def simultaneous_z(number: int, level: float = 0.95) -> float:
    """How many standard deviations on each side make `number` normal intervals hold all together at a level.

    Sidak's inequality makes this valid for normal errors of any correlation.

    Args:
        number: how many intervals, at least 1: all that could have been shown, not only those that are.
        level: the probability that none of them misses, in (0, 1).

    Raises:
        ValueError: number or level is out of range.

    Source: Sidak (1967), Rectangular confidence regions for the means of multivariate normal distributions.
    """
    if number < 1 or not 0 < level < 1:
        raise ValueError(f"number: must be at least 1, and level in (0, 1), got {number} and {level}")
    return float(-ndtri(-math.expm1(math.log(level) / number) / 2))


def _centre(
    x: NDArray[np.float64], v: NDArray[np.float64], between: float, centre: float | None
) -> tuple[float, float]:
    """The value to shrink towards and the variance of its error."""
    if centre is not None:
        return centre, 0.0
    weights = 1 / (between + v)
    return float((weights * x).sum() / weights.sum()), float(1 / weights.sum())


def _between(x: NDArray[np.float64], v: NDArray[np.float64], centre: float | None) -> float:
    """The variance t >= 0 of largest marginal likelihood, on a logarithmic grid that is refined."""

    def loss(between: float) -> float:
        total = between + v
        middle, doubt = _centre(x, v, between, centre)
        restricted = 0.0 if centre is not None else math.log(doubt)  # REML: the mean was estimated too
        return float((np.log(total) + (x - middle) ** 2 / total).sum()) - restricted

    middle, _ = _centre(x, v, 0.0, centre)
    most = max(_MOST * float(((x - middle) ** 2).max()), 1e-300)
    low, high = math.log(min(_LEAST * float(np.median(v)), most)), math.log(most)
    best, least = 0.0, loss(0.0)
    for _ in range(_REFINEMENTS):
        grid = np.linspace(low, high, _GRID)
        losses = [loss(math.exp(one)) for one in grid]
        place = int(np.argmin(losses))
        if losses[place] < least:
            best, least = math.exp(grid[place]), losses[place]
        step = grid[1] - grid[0]
        low, high = grid[place] - step, grid[place] + step
    return best
