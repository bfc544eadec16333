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

from sfumato.schemas.moments import FixedPoint

Variance = Literal["centred", "raw"]
Parts = tuple[NDArray[np.float64], NDArray[np.float64], NDArray[np.float64], NDArray[np.float64]]
"""Value, low and high ends of its interval, clients: float64[G] each, of G groups."""
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
class Given:
    """What a statistic may use beside its quantities' means.

    Attributes:
        variance: how variances are estimated.
        centre: the value about which the quantity `square` is.
        users: float64[G], all users of each group.
        users_variance: variance of `users`, where it is noisy.
        z: standard deviations on each side of an interval of a normal law.
    """

    variance: Variance
    centre: float
    users: NDArray[np.float64]
    users_variance: NDArray[np.float64] | float
    z: float


@dataclass(frozen=True)
class StatisticKind:
    """A statistic that users can ask for by name.

    Attributes:
        name: its name in `--statistics`.
        quantities: kinds of the quantities whose means it needs, from its power (0 without one) and from how variances
            are estimated. See `quantities.Quantity`.
        evaluate: its value and interval, from the quantities' means in that order.
        possible: the smallest and the largest value that it can have, from the form of the values and its power.
        powers: the powers K that its name takes, as in `moment:3`.
    """

    name: str
    quantities: Callable[[int, Variance], tuple[str, ...]]
    evaluate: Callable[[Sequence[Means], Given], Parts]
    possible: Callable[[FixedPoint, int], tuple[float, float]]
    powers: range = range(0)


def of_mean(found: Sequence[Means], given: Given) -> Parts:
    """The mean of the first quantity."""
    return found[0].value, found[0].low, found[0].high, found[0].clients


def of_variance(found: Sequence[Means], given: Given) -> Parts:
    """The variance, from the means of `value` and of `square` or `power:2`."""
    return variance_about(found[0], found[1], given.centre if given.variance == "centred" else None, given.z)


def _of_geometric_mean(found: Sequence[Means], given: Given) -> Parts:
    with np.errstate(over="ignore"):  # beyond the range, and moved to its end
        return np.exp2(found[0].value), np.exp2(found[0].low), np.exp2(found[0].high), found[0].clients


def _of_log_product(found: Sequence[Means], given: Given) -> Parts:
    one, users, z = found[0], given.users, given.z
    value = users * _LN2 * one.value
    noise = z * _LN2 * np.sqrt(given.users_variance * (one.value**2 + ((one.high - one.low) / (2 * z)) ** 2))
    below, above = (_LN2 * np.abs(users * (end - one.value)) for end in (one.low, one.high))
    return value, value - np.hypot(below, noise), value + np.hypot(above, noise), one.clients


def variance_quantities(power: int, variance: Variance) -> tuple[str, ...]:
    """The quantities of a variance."""
    return ("value", "square") if variance == "centred" else ("value", "power:2")


def _possible_moment(form: FixedPoint, power: int) -> tuple[float, float]:
    ends = (form.low**power, form.high**power)
    return (0.0 if form.low < 0 < form.high and power % 2 == 0 else min(ends)), max(ends)


def variance_about(mean: Means, square: Means, centre: float | None, z: float) -> Parts:
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


MEAN = StatisticKind("mean", lambda power, variance: ("value",), of_mean, lambda form, power: (form.low, form.high))
VARIANCE = StatisticKind(
    "variance", variance_quantities, of_variance, lambda form, power: (0.0, ((form.high - form.low) / 2) ** 2)
)
MOMENT = StatisticKind(
    "moment", lambda power, variance: (f"power:{power}",), of_mean, _possible_moment, powers=range(2, 9)
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
