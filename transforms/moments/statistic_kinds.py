"""Statistics as functions of quantities' means (paper 002, Section 3.4), each with an interval. Pure.

A new statistic is a `StatisticKind`, and its name in STATISTICS.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from sfumato.schemas.errors import RequestError
from sfumato.schemas.known_digits import NORMAL_Z
from sfumato.schemas.moments import EVERYBODY, PAIRS, SUMS, FixedPoint, MomentEstimate, Statistic, ValueRange
from sfumato.transforms.statistics.shrinkage import shrink

Array = NDArray[np.float64]

Variance = Literal["centred", "raw"]
Parts = tuple[Array, Array, Array, Array]
"""Value, low and high ends of its interval, clients: float64[G] each, of G groups."""
Forms = Sequence[FixedPoint | ValueRange]
"""Of the values of one column, or of two."""
_LN2 = math.log(2)
_RELATIVE_ZERO = 1e-9  # a variance whose interval reaches below this share of it may be 0


@dataclass(frozen=True, eq=False)
class Means:
    """The mean of one quantity, up to its base, in G groups: float64[G] each."""

    value: Array  # the estimate
    variance: Array  # of value, by sampling and noise
    low: Array  # lower end of an interval that also contains what unseen bits may add
    high: Array  # upper end of that interval
    clients: Array = field(default_factory=lambda: np.zeros(0))  # estimated clients that reported on it


@dataclass(frozen=True, eq=False)
class Result:
    """A statistic in G groups: value, stddev, low, high, clients float64[G]; see MomentEstimate."""

    value: Array
    stddev: Array
    low: Array
    high: Array
    clients: Array

    @classmethod
    def clipped(cls, parts: Parts, ends: tuple[float, float], z: float) -> Result:
        """Returns the result, clipped to the ends of its range. z: standard deviations on each side of the interval.

        The standard deviation is that of the interval before, which noise may lead beyond the range, so never 0.
        """
        value, low, high = (np.clip(column, *ends) for column in parts[:3])
        with np.errstate(invalid="ignore"):  # both of its ends may be infinite: then nothing is known
            width = np.fmin(parts[2] - parts[1], ends[1] - ends[0])
        return cls(value, width / (2 * z), low, high, parts[3])

    def rows(self, statistic: Statistic, names: Sequence[str]) -> Iterator[MomentEstimate]:
        """Yields an estimate for each group. names: of the groups."""
        columns = (self.value, self.stddev, self.low, self.high, self.clients)
        for name, *row in zip(names, *(column.tolist() for column in columns), strict=True):
            yield MomentEstimate(name, statistic.name, *row)


@dataclass(frozen=True, eq=False)
class StatisticContext:
    """Inputs of a statistic other than its quantities' means."""

    variance: Variance  # how variances are estimated: about the centre, or raw
    users: Array  # float64[G], all users of each group
    users_variance: Array | float = 0.0  # variance of `users`, where it is noisy
    centre: float = 0.0  # the centre of the quantities `square` and `product`
    second_centre: float = 0.0  # the centre of the second column in `second_square` and `product`
    z: float = NORMAL_Z  # standard deviations on each side of a normal interval, of the means and of the result


@dataclass(frozen=True)
class StatisticKind:
    """A statistic that can be requested by name.

    Attributes:
        name: its name in `--statistics`.
        quantities: kinds of the quantities whose means it needs, from its power (0 without one) and from how variances
            are estimated. See `quantities.Quantity`.
        evaluate: its value and interval, from the quantities' means in that order.
        value_range: the smallest and the largest value that it can have, from the forms of the values, of one column or
            of two, and its power.
        powers: the powers K that its name takes, as in `moment:3`.
    """

    name: str
    quantities: Callable[[int, Variance], tuple[str, ...]]
    evaluate: Callable[[Sequence[Means], StatisticContext], Parts]
    value_range: Callable[[Forms, int], tuple[float, float]]
    powers: range = range(0)


def check_statistics(statistics: Sequence[Statistic], has_second: bool) -> None:
    """Raises RequestError unless each is named once, and a second column is there where one is of two, only there."""
    names = [statistic.name for statistic in statistics]
    if not names or len(set(names)) < len(names):
        raise RequestError(f"statistics: name one or more, each once, got {','.join(names)!r}")
    of_pairs = [name for name in names if name in PAIRS]
    if of_pairs and not has_second:
        raise RequestError(f"second_column: {of_pairs[0]} needs two columns; name the other with --second_column NAME")
    if has_second and not of_pairs:
        raise RequestError(
            "second_column: no statistic uses it; add covariance or correlation to --statistics, or leave it out"
        )


def of_mean(means: Sequence[Means], context: StatisticContext) -> Parts:
    """Returns the mean of the first quantity."""
    return means[0].value, means[0].low, means[0].high, means[0].clients


def of_variance(means: Sequence[Means], context: StatisticContext) -> Parts:
    """Returns the variance, from the means of `value` and of `square` or `power:2`."""
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
    """Returns the quantities of a variance."""
    return ("value", "square") if variance == "centred" else ("value", "power:2")


def _moment_range(forms: Forms, power: int) -> tuple[float, float]:
    low, high = forms[0].low, forms[0].high
    ends = (low**power, high**power)
    return (0.0 if low < 0 < high and power % 2 == 0 else min(ends)), max(ends)


def _largest_covariance(forms: Forms) -> float:
    """Returns the product of half the ranges, or of half of one range twice (Popoviciu's inequality)."""
    return math.prod((form.high - form.low) / 2 for form in (forms[0], forms[-1]))


def variance_about(mean: Means, square: Means, centre: float | None, z: float) -> Parts:
    """Returns Lemma 3.5's two ways, corrected for the bias of the estimated mean.

    About a centre c: E[(x - c)^2] - (mean - c)^2. The estimate of the last term is too large by the mean's variance.
    But c is the estimated mean of all users. So a group's share of all users is in both and cancels twice: for all
    users the estimate of the last term is 0, too small by the variance. About 0: E[x^2] - E[x]^2, where the last is too
    large.
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


def _of_covariance(means: Sequence[Means], context: StatisticContext) -> Parts:
    mean, second, product, *_ = means
    return covariance_about(mean, second, product, context.centre, context.second_centre, context.z)


def covariance_about(
    mean: Means, second: Means, product: Means, centre: float, second_centre: float, z: float
) -> Parts:
    """Returns E[(x - c)(y - d)] - (mean of x - c)(mean of y - d), as Lemma 3.5 has it for a variance.

    Both means are estimated from different users. So their errors are independent, and the product of the errors is 0
    on average: nothing has to be corrected.
    """
    away, second_away = mean.value - centre, second.value - second_centre
    random, second_random = z * np.sqrt(mean.variance), z * np.sqrt(second.variance)
    error, second_error = (
        np.maximum(np.maximum(one.value - one.low, one.high - one.value), least)
        for one, least in ((mean, random), (second, second_random))
    )
    # The product of the errors: as random errors, and in full what unseen bits may add beyond them.
    both = random * second_random / z
    beyond = error * second_error - random * second_random
    value = product.value - away * second_away
    below, above = (
        np.sqrt(one**2 + (away * second_error) ** 2 + (second_away * error) ** 2 + both**2) + beyond
        for one in (product.value - product.low, product.high - product.value)
    )
    return value, value - below, value + above, product.clients


def _of_correlation(means: Sequence[Means], context: StatisticContext) -> Parts:
    """Returns the covariance over the root of both variances, with an interval from theirs.

    The errors are those of different users, so they add up in squares (Zou and Donner 2008, Construction of confidence
    limits about effect measures). Where a variance may be 0, nothing is known.
    """
    mean, second, _, square, second_square = means
    covariance, low, high, clients = _of_covariance(means, context)
    spread, narrow, wide = np.ones_like(covariance), np.zeros_like(covariance), np.zeros_like(covariance)
    is_known = np.ones(covariance.shape, bool)
    for one, squares, centre in ((mean, square, context.centre), (second, second_square, context.second_centre)):
        variance, least, most, _ = variance_about(one, squares, centre, context.z)
        known = np.maximum(variance, np.maximum(_RELATIVE_ZERO * most, 1e-100))  # above 0, and its square is a number
        spread = spread * np.sqrt(known)
        is_known &= least > _RELATIVE_ZERO * known
        narrow = narrow + np.log(np.clip(least / known, _RELATIVE_ZERO, 1)) ** 2
        wide = wide + np.log(np.maximum(most / known, 1)) ** 2
    value = np.clip(covariance / spread, -1, 1)
    # By how much the divisor's error raises and lowers the absolute value, as a share of it.
    rise, fall = np.expm1(np.sqrt(narrow) / 2), -np.expm1(-np.sqrt(wide) / 2)
    up, down = np.where(value > 0, rise, fall), np.where(value > 0, fall, rise)
    above, below = ((end - covariance) / spread for end in (high, low))
    highest = value + np.sqrt(above**2 + (value * up) ** 2 + (above * rise) ** 2)
    lowest = value - np.sqrt(below**2 + (value * down) ** 2 + (below * rise) ** 2)
    return value, np.where(is_known, lowest, -1.0), np.where(is_known, highest, 1.0), clients


MEAN = StatisticKind(
    "mean", lambda power, variance: ("value",), of_mean, lambda forms, power: (forms[0].low, forms[0].high)
)
VARIANCE = StatisticKind(
    "variance", variance_quantities, of_variance, lambda forms, power: (0.0, _largest_covariance(forms[:1]))
)
MOMENT = StatisticKind(
    "moment", lambda power, variance: (f"power:{power}",), of_mean, _moment_range, powers=range(2, 9)
)
GEOMETRIC_MEAN = StatisticKind(
    "geometric_mean",
    lambda power, variance: ("log2",),
    _of_geometric_mean,
    lambda forms, power: (forms[0].step, forms[0].high),
)
LOG_PRODUCT = StatisticKind(
    "log_product",
    lambda power, variance: ("log2",),
    _of_log_product,
    lambda forms, power: (-np.inf, np.inf),  # the number of users is noisy, too
)
COVARIANCE = StatisticKind(
    "covariance",
    lambda power, variance: ("value", "second_value", "product"),
    _of_covariance,
    lambda forms, power: (-_largest_covariance(forms), _largest_covariance(forms)),
)
CORRELATION = StatisticKind(
    "correlation",
    lambda power, variance: (*COVARIANCE.quantities(power, variance), "square", "second_square"),
    _of_correlation,
    lambda forms, power: (-1.0, 1.0),
)


STATISTICS: dict[str, StatisticKind] = {
    kind.name: kind for kind in (MEAN, VARIANCE, MOMENT, GEOMETRIC_MEAN, LOG_PRODUCT, COVARIANCE, CORRELATION)
}


def find_kind(statistic: Statistic) -> StatisticKind:
    """Returns the kind of a statistic. Raises RequestError, with the known names, for an unknown name or power."""
    base_name, colon, power = statistic.name.partition(":")
    found = STATISTICS.get(base_name)
    if found is not None and (power in map(str, found.powers) if found.powers else not colon):
        return found
    known = [
        f"{name}:K (K from {kind.powers[0]} to {kind.powers[-1]})" if kind.powers else name
        for name, kind in STATISTICS.items()
    ]
    raise RequestError(f"statistics: must be {', '.join(known[:-1])} or {known[-1]}, got {statistic.name!r}")


def quantities_of(statistic: Statistic, variance: Variance) -> tuple[str, ...]:
    """Returns the kinds of the quantities whose means a statistic needs.

    Raises RequestError for an unknown statistic.
    """
    return find_kind(statistic).quantities(statistic.power, variance)


def evaluate(statistic: Statistic, means: Mapping[str, Means], context: StatisticContext, forms: Forms) -> Result:
    """Computes a statistic from the means of quantities, clipped to the range that values of these forms allow."""
    needed = [means[kind] for kind in quantities_of(statistic, context.variance)]
    return Result.clipped(find_kind(statistic).evaluate(needed, context), value_range(statistic, forms), context.z)


def value_range(statistic: Statistic, forms: Forms) -> tuple[float, float]:
    """Returns the smallest and the largest value of a statistic, for values in the forms' ranges."""
    return find_kind(statistic).value_range(forms, statistic.power)


def shrunk(estimates: Sequence[MomentEstimate], forms: Forms) -> list[MomentEstimate]:
    """Returns the same estimates in the same order, those of groups shrunk towards those of all users according to
    their noise.

    The largest of many noisy numbers is mostly large because of noise. A page may sort and colour the shrunk ones. SUMS
    stay unchanged.
    """
    found = list(estimates)
    for name in dict.fromkeys(one.statistic for one in estimates):
        places = [i for i, one in enumerate(estimates) if one.statistic == name and one.group != EVERYBODY]
        if name in SUMS or not places:
            continue
        everybody = next(one for one in estimates if one.statistic == name and one.group == EVERYBODY)
        rows = [estimates[i] for i in places]
        stddev = np.maximum([one.stddev for one in rows], 1e-9 * max(abs(everybody.value), forms[0].step))
        value, variance = shrink(np.array([one.value for one in rows]), stddev**2, everybody.value)
        ends = value_range(Statistic(name), forms)
        low, high = (np.clip(value + sign * NORMAL_Z * np.sqrt(variance), *ends) for sign in (-1, 1))
        columns = zip(places, value.tolist(), np.sqrt(variance).tolist(), low.tolist(), high.tolist(), strict=True)
        for i, centre, deviation, least, most in columns:
            found[i] = replace(found[i], value=centre, stddev=deviation, low=least, high=most)
    return found
