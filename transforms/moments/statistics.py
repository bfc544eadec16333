"""Statistics as functions of quantities' means (paper 002, Section 3.4), each with a 95% interval. Pure."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from sfumato.schemas.moments import FixedPoint, Statistic
from sfumato.transforms.moments.estimate import Z_95

Variance = Literal["centred", "raw"]
_LN2 = math.log(2)


@dataclass(frozen=True, eq=False)
class Means:
    """The mean of one quantity in G groups: value, variance (of the estimator), clients (who answered) float64[G]."""

    value: NDArray[np.float64]
    variance: NDArray[np.float64]
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
) -> Result:
    """A statistic from its quantities' means, within what values of this form can have.

    centre: what `square` is about. users: float64[G], all of each group; users_variance: of that, where it is noisy.
    """
    found = _evaluated(statistic, variance, means, centre, users, users_variance)
    least, most = _possible(statistic, form)
    inside = {name: np.clip(getattr(found, name), least, most) for name in ("value", "low", "high")}
    return replace(found, **inside)


def _possible(statistic: Statistic, form: FixedPoint) -> tuple[float, float]:
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


def _evaluated(
    statistic: Statistic,
    variance: Variance,
    means: Mapping[str, Means],
    centre: float,
    users: NDArray[np.float64],
    users_variance: NDArray[np.float64] | float,
) -> Result:
    found = [means[kind] for kind in kinds_of(statistic, variance)]
    one = found[0]
    if statistic.name == "variance":
        return _variance(found[0], found[1], centre if variance == "centred" else None)
    if statistic.name == "geometric_mean":
        return _through(one, np.exp2)
    if statistic.name == "log_product":
        value = users * _LN2 * one.value
        stddev = _LN2 * np.sqrt(users**2 * one.variance + users_variance * (one.value**2 + one.variance))
        return _interval(value, stddev, one.clients)
    return _interval(one.value, np.sqrt(one.variance), one.clients)


def _variance(mean: Means, square: Means, centre: float | None) -> Result:
    """Lemma 3.5's two ways, without the bias that the estimated mean brings.

    About a centre c: E[(x - c)^2] - (mean - c)^2, and the estimate of the last is too large by the mean's variance; but
    c is everybody's estimated mean, so that a group's own part of everybody is in both, and that much cancels twice: of
    everybody's the estimate is 0, too small by the variance. About 0, E[x^2] - E[x]^2, too large.
    """
    about = 0.0 if centre is None else centre
    away = mean.value - about
    own = 0.0 if centre is None else np.clip(mean.clients / max(float(mean.clients.sum()), 1.0), 0, 1)
    value = square.value - away**2 + (1 - 2 * own) * mean.variance
    # The delta method for the square of the mean's error, to second order.
    spread = square.variance + 4 * away**2 * mean.variance + 2 * mean.variance**2
    return _interval(value, np.sqrt(spread), square.clients)


def _through(one: Means, function: Callable[[NDArray[np.float64]], NDArray[np.float64]]) -> Result:
    """A rising function of a mean: the ends of its interval are those of the mean's."""
    inner = _interval(one.value, np.sqrt(one.variance), one.clients)
    with np.errstate(over="ignore"):  # beyond the range, and moved to its end
        value, low, high = (function(part) for part in (inner.value, inner.low, inner.high))
        return Result(value, value * _LN2 * inner.stddev, low, high, inner.clients)


def _interval(value: NDArray[np.float64], stddev: NDArray[np.float64], clients: NDArray[np.float64]) -> Result:
    return Result(value, stddev, value - Z_95 * stddev, value + Z_95 * stddev, clients)
