"""Statistics as functions of quantities' means (paper 002, Section 3.4), each with an interval. Pure.

A new statistic is a `StatisticKind`, in a file of its own, and a line of STATISTICS in `derived_statistics`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from sfumato.schemas.moments import FixedPoint, ValueRange

Variance = Literal["centred", "raw"]
Parts = tuple[NDArray[np.float64], NDArray[np.float64], NDArray[np.float64], NDArray[np.float64]]
"""Value, low and high ends of its interval, clients: float64[G] each, of G groups."""
_LN2 = math.log(2)


@dataclass(frozen=True, eq=False)
class Means:
    """The mean of one quantity in G groups: float64[G] each.

    Attributes:
        value: the estimate.
        variance: of value, by sampling and noise.
        low: lower end of an interval.
        high: upper end of the interval.
        clients: estimated clients that reported on the quantity.
    """

    value: NDArray[np.float64]
    variance: NDArray[np.float64]
    low: NDArray[np.float64]
    high: NDArray[np.float64]
    clients: NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class StatisticContext:
    """Inputs of a statistic other than its quantities' means.

    Attributes:
        variance: how variances are estimated.
        centre: the centre of the quantity `square`.
        users: float64[G], all users of each group.
        users_variance: variance of `users`, where it is noisy.
        z: standard deviations on each side of a normal interval.
    """

    variance: Variance
    centre: float
    users: NDArray[np.float64]
    users_variance: NDArray[np.float64] | float
    z: float


@dataclass(frozen=True)
class StatisticKind:
    """A statistic that can be requested by name.

    Attributes:
        name: its name in `--statistics`.
        quantities: kinds of the quantities whose means it needs, from its power (0 without one) and from how variances
            are estimated. See `quantities.Quantity`.
        evaluate: its value and interval, from the quantities' means in that order.
        value_range: the smallest and the largest value that it can have, from the form of the values and its power.
        powers: the powers K that its name takes, as in `moment:3`.
    """

    name: str
    quantities: Callable[[int, Variance], tuple[str, ...]]
    evaluate: Callable[[Sequence[Means], StatisticContext], Parts]
    value_range: Callable[[FixedPoint | ValueRange, int], tuple[float, float]]
    powers: range = range(0)


def of_mean(means: Sequence[Means], context: StatisticContext) -> Parts:
    """The mean of the first quantity."""
    return means[0].value, means[0].low, means[0].high, means[0].clients


def of_variance(means: Sequence[Means], context: StatisticContext) -> Parts:
    """The variance, from the means of `value` and of `square` or `power:2`."""
    return variance_about(means[0], means[1], context.centre if context.variance == "centred" else None, context.z)


def _of_geometric_mean(means: Sequence[Means], context: StatisticContext) -> Parts:
    with np.errstate(over="ignore"):  # `evaluate` clips to the range
        return np.exp2(means[0].value), np.exp2(means[0].low), np.exp2(means[0].high), means[0].clients


def _of_log_product(means: Sequence[Means], context: StatisticContext) -> Parts:
    log_mean, users, z = means[0], context.users, context.z
    value = users * _LN2 * log_mean.value
    noise = (
        z
        * _LN2
        * np.sqrt(context.users_variance * (log_mean.value**2 + ((log_mean.high - log_mean.low) / (2 * z)) ** 2))
    )
    below, above = (_LN2 * np.abs(users * (end - log_mean.value)) for end in (log_mean.low, log_mean.high))
    return value, value - np.hypot(below, noise), value + np.hypot(above, noise), log_mean.clients


def variance_quantities(power: int, variance: Variance) -> tuple[str, ...]:
    """The quantities of a variance."""
    return ("value", "square") if variance == "centred" else ("value", "power:2")


def _moment_range(form: FixedPoint | ValueRange, power: int) -> tuple[float, float]:
    ends = (form.low**power, form.high**power)
    return (0.0 if form.low < 0 < form.high and power % 2 == 0 else min(ends)), max(ends)


def variance_about(mean: Means, square: Means, centre: float | None, z: float) -> Parts:
    """Lemma 3.5's two ways, corrected for the bias of the estimated mean.

    About a centre c: E[(x - c)^2] - (mean - c)^2. The estimate of the last term is too large by the mean's variance.
    But c is everybody's estimated mean. So a group's share of everybody is in both and cancels twice: for everybody the
    estimate of the last term is 0, too small by the variance. About 0: E[x^2] - E[x]^2, where the last is too large.
    """
    about = 0.0 if centre is None else centre
    away = mean.value - about
    own_share = 0.0 if centre is None else np.clip(mean.clients / max(float(mean.clients.sum()), 1.0), 0, 1)
    value = square.value - away**2 + (1 - 2 * own_share) * mean.variance
    # The square of the mean's error has variance 2 v^2. Beyond random error, what unseen bits may add counts in full.
    random_error = z * np.sqrt(mean.variance)
    second = z * np.sqrt(2) * mean.variance
    below, above = np.maximum(mean.value - mean.low, random_error), np.maximum(mean.high - mean.value, random_error)
    beyond = np.maximum(np.maximum(below, above) - random_error, 0) ** 2
    rise, fall = np.where(away > 0, below, above), np.where(away > 0, above, below)  # errors of the mean that raise it
    low = value - np.hypot(np.hypot(square.value - square.low, 2 * away * fall), second) - beyond
    high = value + np.hypot(np.hypot(square.high - square.value, 2 * away * rise), second) + own_share * beyond
    return value, low, high, square.clients


MEAN = StatisticKind("mean", lambda power, variance: ("value",), of_mean, lambda form, power: (form.low, form.high))
VARIANCE = StatisticKind(
    "variance", variance_quantities, of_variance, lambda form, power: (0.0, ((form.high - form.low) / 2) ** 2)
)
MOMENT = StatisticKind(
    "moment", lambda power, variance: (f"power:{power}",), of_mean, _moment_range, powers=range(2, 9)
)
GEOMETRIC_MEAN = StatisticKind(
    "geometric_mean", lambda power, variance: ("log2",), _of_geometric_mean, lambda form, power: (form.step, form.high)
)
LOG_PRODUCT = StatisticKind(
    "log_product",
    lambda power, variance: ("log2",),
    _of_log_product,
    lambda form, power: (-np.inf, np.inf),  # the number of users is noisy, too
)
