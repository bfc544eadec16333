"""Statistics as functions of quantities' means (paper 002, Section 3.4), each with a 95% interval. Pure."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray
from scipy.special import ndtri

from sfumato.schemas.moments import FixedPoint, Statistic

Variance = Literal["centred", "raw"]
_LN2 = math.log(2)


@dataclass(frozen=True, eq=False)
class Means:
    """The mean of one quantity in G groups: float64[G] each.

    variance: of the estimator, by chance. low, high: ends of an interval. clients: who answered.
    """

    value: NDArray[np.float64]
    variance: NDArray[np.float64]
    low: NDArray[np.float64]
    high: NDArray[np.float64]
    clients: NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class Result:
    """A statistic in G groups: value, stddev, low, high, clients float64[G]; see MomentEstimate."""

    value: NDArray[np.float64]
    stddev: NDArray[np.float64]
    low: NDArray[np.float64]
    high: NDArray[np.float64]
    clients: NDArray[np.float64]


def kinds_of(statistic: Statistic, variance: Variance) -> tuple[str, ...]:
    """The quantities whose means a statistic needs, by kind."""
    if statistic.name == "mean":
        return ("value",)
    if statistic.name == "variance":
        return ("value", "square") if variance == "centred" else ("value", "power:2")
    return (f"power:{statistic.power}",) if statistic.power else ("log2",)


def evaluate(
    statistic: Statistic,
    variance: Variance,
    means: Mapping[str, Means],
    centre: float,
    users: NDArray[np.float64],
    form: FixedPoint,
    users_variance: NDArray[np.float64] | float = 0.0,
    level: float = 0.95,
) -> Result:
    """A statistic from its quantities' means, within what values of this form can have.

    centre: what `square` is about. users: float64[G], all of each group; users_variance: of that, where it is noisy.
    level: of the means' intervals, and of the result's.
    """
    z = float(-ndtri((1 - level) / 2))
    value, low, high, clients = _evaluated(statistic, variance, means, centre, users, users_variance, z)
    least, most = possible(statistic, form)
    low, value, high = (np.clip(one, least, most) for one in (low, value, high))
    return Result(value, (high - low) / (2 * z), low, high, clients)


def possible(statistic: Statistic, form: FixedPoint) -> tuple[float, float]:
    """The least and the greatest that a statistic can be, of values in the form's range."""
    low, high = form.low, form.high
    if statistic.name == "mean":
        return low, high
    if statistic.name == "variance":
        return 0.0, ((high - low) / 2) ** 2
    if statistic.power:
        ends = (low**statistic.power, high**statistic.power)
        return (0.0 if low < 0 < high and statistic.power % 2 == 0 else min(ends)), max(ends)
    if statistic.name == "geometric_mean":
        return form.step, high
    return -np.inf, np.inf  # the number of users is noisy, too


_Parts = tuple[NDArray[np.float64], NDArray[np.float64], NDArray[np.float64], NDArray[np.float64]]


def _evaluated(
    statistic: Statistic,
    variance: Variance,
    means: Mapping[str, Means],
    centre: float,
    users: NDArray[np.float64],
    users_variance: NDArray[np.float64] | float,
    z: float,
) -> _Parts:
    """Value, low, high, clients. z: standard deviations on each side of an interval of a normal law."""
    found = [means[kind] for kind in kinds_of(statistic, variance)]
    one = found[0]
    if statistic.name == "variance":
        return _variance(found[0], found[1], centre if variance == "centred" else None, z)
    if statistic.name == "geometric_mean":
        with np.errstate(over="ignore"):  # beyond the range, and moved to its end
            return np.exp2(one.value), np.exp2(one.low), np.exp2(one.high), one.clients
    if statistic.name == "log_product":
        value = users * _LN2 * one.value
        noise = z * _LN2 * np.sqrt(users_variance * (one.value**2 + ((one.high - one.low) / (2 * z)) ** 2))
        below, above = (_LN2 * np.abs(users * (end - one.value)) for end in (one.low, one.high))
        return value, value - np.hypot(below, noise), value + np.hypot(above, noise), one.clients
    return one.value, one.low, one.high, one.clients


def _variance(mean: Means, square: Means, centre: float | None, z: float) -> _Parts:
    """Lemma 3.5's two ways, without the bias that the estimated mean brings.

    About a centre c: E[(x - c)^2] - (mean - c)^2, and the estimate of the last is too large by the mean's variance; but
    c is everybody's estimated mean, so that a group's own part of everybody is in both, and that much cancels twice: of
    everybody's the estimate is 0, too small by the variance. About 0, E[x^2] - E[x]^2, too large.
    """
    about = 0.0 if centre is None else centre
    away = mean.value - about
    own = 0.0 if centre is None else np.clip(mean.clients / max(float(mean.clients.sum()), 1.0), 0, 1)
    value = square.value - away**2 + (1 - 2 * own) * mean.variance
    # The square of the mean's error, whose variance is 2 v^2; what is beyond chance, because bits went unseen, in full.
    probability = z * np.sqrt(mean.variance)
    second = z * np.sqrt(2) * mean.variance
    below, above = np.maximum(mean.value - mean.low, probability), np.maximum(mean.high - mean.value, probability)
    beyond = np.maximum(np.maximum(below, above) - probability, 0) ** 2
    rise, fall = np.where(away > 0, below, above), np.where(away > 0, above, below)  # of the mean's, which raise it
    low = value - np.hypot(np.hypot(square.value - square.low, 2 * away * fall), second) - beyond
    high = value + np.hypot(np.hypot(square.high - square.value, 2 * away * rise), second) + own * beyond
    return value, low, high, square.clients
