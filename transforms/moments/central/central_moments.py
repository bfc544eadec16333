"""Counts, sums, means, variances and moments by a trusted curator: the released sums, and the estimates. Pure."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
from numpy.typing import NDArray

from sfumato.schemas.known_digits import laplace_z
from sfumato.schemas.moments import EVERYBODY, MomentEstimate, Statistic, ValueRange
from sfumato.transforms.moments.central.bernstein_sums import Array, ExactSums, coefficients, find_range, tensor
from sfumato.transforms.moments.central.plan import CentralMomentsPlan
from sfumato.transforms.moments.statistic_kinds import Result, value_range
from sfumato.transforms.privacy.discrete_laplace import discrete_laplace
from sfumato.transforms.privacy.keys import RunKey


@dataclass(frozen=True, eq=False)
class CentralSums:
    """The released sums of a run: the range, then the sums. Every number but the plan's is noisy or follows from noise.

    slots: float64[G, S], the sums by group and slot (see bernstein_sums.py), in users. outside: float64[2 C], users
    below and above the range of each column. Both are empty before the sums.
    """

    plan: CentralMomentsPlan
    spans: tuple[ValueRange, ...]  # of each column; any where no value is used
    span_is_sure: bool = True  # whether the ranges are based on bins that are certainly not empty, or were given
    slots: Array = field(default_factory=lambda: np.empty((0, 0)))
    outside: Array = field(default_factory=lambda: np.empty(0))

    def release(self, exact: ExactSums, key: RunKey) -> CentralSums:
        """Adds noise to exact sums over this range, drawn once. A user changes them by `plan.scale` and by 1 in all."""
        plan, rows = self.plan, np.arange(len(exact.slots), dtype=np.uint64)
        used = key.narrowed({"span": [end.hex() for span in self.spans for end in (span.low, span.high)]})
        noise = discrete_laplace(used, "sums", rows, exact.slots.shape[1], plan.shares["sums"], plan.scale)
        outside = np.empty(0)
        if plan.degree:
            columns = len(self.spans)
            noisy = discrete_laplace(used, "outside", rows[:1], 2 * columns, plan.shares["outside"], columns)
            outside = exact.outside + noisy[0]
        return replace(self, slots=(exact.slots + noise) / plan.scale, outside=outside)

    @property
    def clients(self) -> Array:
        """Returns the estimated users by row of the sums: float64[G]."""
        return np.asarray(self.slots.sum(axis=1))

    def estimates(
        self, names: Sequence[str] = (EVERYBODY,), groups: NDArray[np.int64] | None = None, level: float = 0.95
    ) -> Iterator[MomentEstimate]:
        """Yields every statistic, of all users or by group.

        names: of the groups. groups: int64[G], the published group of each row of the sums; None for all users.
        """
        published = np.zeros(len(self.slots), np.int64) if groups is None else groups
        slots = np.zeros((len(names), self.slots.shape[1]))
        np.add.at(slots, published, self.slots)
        # Every row has its own noise.
        noise = self.plan.noise_stddev * np.sqrt(np.bincount(published, minlength=len(names)))
        z = laplace_z(level)
        means = _Means(slots, noise, z)
        for statistic in self.plan.statistics:
            parts = *self._evaluate(statistic, means), means.users
            yield from Result.clipped(parts, self.value_range(statistic), z).rows(statistic, names)

    def _evaluate(self, statistic: Statistic, means: _Means) -> tuple[Array, Array, Array]:
        columns = [_Column(span, number, self.plan.degrees) for number, span in enumerate(self.spans)]
        if statistic.name == "count":
            return means.total(np.ones(self.plan.slots))
        if statistic.name == "sum":
            return means.total(columns[0].power(1))
        if statistic.name == "variance":
            return means.variance(columns[0])
        if statistic.name == "covariance":
            return means.covariance(*columns)
        if statistic.name == "correlation":
            return means.correlation(*columns)
        return means.mean(columns[0].power(max(statistic.power, 1)))

    def value_range(self, statistic: Statistic) -> tuple[float, float]:
        """Returns the smallest and the largest value of a statistic."""
        if statistic.name in ("count", "sum"):
            return (0.0 if statistic.name == "count" else -math.inf), math.inf
        return value_range(statistic, self.spans)


def choose_range(plan: CentralMomentsPlan, magnitudes: NDArray[np.int64] | None, key: RunKey) -> CentralSums:
    """Returns the state before the sums: with the range that was given, or that noisy counts by magnitude choose.

    magnitudes: int64[C, BINS], exact, of each column; None where no range is to be found.
    """
    if not plan.finds_range:
        return CentralSums(plan, tuple(span or ValueRange(0.0, 1.0) for span in plan.spans))
    assert magnitudes is not None
    epsilon = plan.shares["range"] / plan.spans.count(None)
    found = [
        (span, True)
        if span is not None
        else find_range(counts, epsilon, key.narrowed({"column": number}) if number else key)
        for number, (span, counts) in enumerate(zip(plan.spans, magnitudes, strict=True))
    ]
    return CentralSums(plan, tuple(span for span, _ in found), all(is_sure for _, is_sure in found))


@dataclass(frozen=True)
class _Column:
    """The polynomials in a column, 0 or 1, as coefficients of all slots: float64[S]. degrees: in each column."""

    span: ValueRange
    number: int
    degrees: tuple[int, ...]

    def alone(self, power: int, about: float = 0.0) -> Array:
        """Returns (x - about)^power, as coefficients of the column's own polynomials."""
        return coefficients(power, self.degrees[self.number], self.span.low - about, self.span.high - about)

    def power(self, power: int, about: float = 0.0) -> Array:
        """Returns (x - about)^power."""
        others = [np.ones(degree + 1) for degree in self.degrees]
        others[self.number] = self.alone(power, about)
        return others[0] if len(others) == 1 else tensor(others[0], others[1])


@dataclass(frozen=True, eq=False)
class _Means:
    """Sums and means of polynomials from released slots, with intervals of z standard deviations on each side.

    slots: float64[G, S], in users. noise: float64[G], standard deviation of the noise on each slot.
    """

    slots: Array
    noise: Array
    z: float

    @property
    def users(self) -> Array:
        """Returns the estimated users: float64[G]."""
        return np.asarray(self.slots.sum(axis=1))

    def total(self, polynomial: Array) -> tuple[Array, Array, Array]:
        """Returns the sum of a polynomial over users, with its interval: float64[G] each.

        polynomial: its coefficients.
        """
        value, margin = self.slots @ polynomial, self.z * self.noise * math.hypot(*polynomial.tolist())
        return value, value - margin, value + margin

    def mean(self, polynomial: Array) -> tuple[Array, Array, Array]:
        """Returns the mean of a polynomial over users, with its interval: float64[..., G] each.

        The interval is Fieller's (1954): all means m for which the sum of the polynomial minus m lies within the noise
        of 0. Where the number of users lies within the noise of 0 nothing is known, and the interval is infinite. There
        the estimate moves towards the middle of the coefficients.

        polynomial: float64[S], or float64[G, S] where each group has its own.
        """
        middle = (polynomial.max(axis=-1) + polynomial.min(axis=-1)) / 2
        about = polynomial - np.expand_dims(middle, -1)  # small numbers, for accuracy
        size = np.maximum(np.abs(about).max(axis=-1), np.finfo(float).tiny)
        about = about / np.expand_dims(size, -1)  # in -1..1, so that squares are neither infinite nor 0
        users, spread = self.users, (self.z * self.noise) ** 2
        total, ones = (self.slots * about).sum(axis=1), np.float64(polynomial.shape[-1])
        value = total / np.maximum(users, np.sqrt(spread * ones))
        a = users**2 - spread * ones
        b = total * users - spread * about.sum(axis=-1)
        c = total**2 - spread * (about**2).sum(axis=-1)
        known = (a > 0) & (users > 0)
        root = np.sqrt(np.maximum(b**2 - a * c, 0))
        divisor = np.where(known, a, 1.0)
        low, high = np.where(known, (b - root) / divisor, -np.inf), np.where(known, (b + root) / divisor, np.inf)
        return middle + size * value, middle + size * low, middle + size * high

    def variance(self, column: _Column) -> tuple[Array, Array, Array]:
        """Returns the variance with its interval: float64[G] each.

        The estimate is that of E[x^2] - c^2 with a noisy mean c. On average c^2 is too large by the variance of c, so
        that is added. E[(x - c)^2] exceeds the variance by (mean - c)^2, so the lower end subtracts the largest such
        square.
        """
        mean, error = self.centre(column)
        squares = np.stack([column.power(2, c) for c in mean.tolist()])
        value, below, above = self.mean(squares)
        return value + (error / self.z) ** 2, below - error**2, above

    def centre(self, column: _Column) -> tuple[Array, Array]:
        """Returns a column's mean within its range, and how far its interval reaches: float64[G] each."""
        low, high = column.span.low, column.span.high
        mean, least, most = (np.clip(one, low, high) for one in self.mean(column.power(1)))
        return mean, np.maximum(mean - least, most - mean)

    def covariance(self, first: _Column, second: _Column) -> tuple[Array, Array, Array]:
        """Returns the covariance with its interval: float64[G] each.

        It is the mean of (x - c)(y - d) with noisy means c and d, up to the product of their errors, which the interval
        adds in full.
        """
        (mean, error), (other, other_error) = self.centre(first), self.centre(second)
        centres = zip(mean.tolist(), other.tolist(), strict=True)
        products = np.stack([tensor(first.alone(1, c), second.alone(1, d)) for c, d in centres])
        value, below, above = self.mean(products)
        return value, below - error * other_error, above + error * other_error

    def correlation(self, first: _Column, second: _Column) -> tuple[Array, Array, Array]:
        """Returns the correlation with its interval: float64[G] each.

        Let u and v be the values in estimated standard deviations from their estimated means, and r the estimate. To
        first order its error is that of the mean of uv - r (u^2 + v^2) / 2, a polynomial of the slots. Terms of second
        order widen the interval. Where a variance may be 0, nothing is known.
        """
        mean, stddev, error, factor, known = zip(*map(self._standardised, (first, second)), strict=True)
        with np.errstate(over="ignore"):  # noise may lead a deviation to almost 0; its value is not known then
            value = np.clip(self.covariance(first, second)[0] / (stddev[0] * stddev[1]), -1, 1)
        centres = [one.tolist() for one in mean]
        units = [np.where(is_known, one, 1.0).tolist() for one, is_known in zip(stddev, known, strict=True)]
        polynomials = []
        for row, r in enumerate(value.tolist()):
            (u, u_squared), (v, v_squared) = (
                [column.alone(power, centre[row]) / unit[row] ** power for power in (1, 2)]
                for column, centre, unit in zip((first, second), centres, units, strict=True)
            )
            squares = tensor(u_squared, np.ones_like(v)) + tensor(np.ones_like(u), v_squared)
            polynomials.append(tensor(u, v) - r / 2 * squares)
        middle, below, above = self.mean(np.stack(polynomials))
        beyond, wider = error[0] * error[1], factor[0] * factor[1]
        low, high = value - wider * (middle - below) - beyond, value + wider * (above - middle) + beyond
        both = known[0] & known[1]
        return value, np.where(both, low, -np.inf), np.where(both, high, np.inf)

    def _standardised(self, column: _Column) -> tuple[Array, Array, Array, Array, NDArray[np.bool_]]:
        """Returns a column's estimated mean and standard deviation, and what is known of them, by group: [G] each.

        Returns:
            The mean; the standard deviation, any above 0 where the variance may be 0; how far the interval of the mean
            reaches, in standard deviations; the standard deviation over the smallest in its interval; whether the
            variance is above 0 in its interval.
        """
        (mean, error), (variance, least, _) = self.centre(column), self.variance(column)
        known = least > 0
        stddev = np.sqrt(np.where(known, variance, np.maximum(variance, np.finfo(float).tiny)))
        factor = np.where(known, stddev / np.sqrt(np.where(known, least, 1.0)), 1.0)
        return mean, stddev, np.where(known, error / stddev, 0.0), factor, known
