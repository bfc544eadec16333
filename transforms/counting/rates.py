"""Rates: the share of a cell's users in a category, with 95% intervals for sampling and noise. Pure post-processing.

Model. The users of a cell are a sample. Each of them is in the category with probability p, the rate, and the interval
is for p. Of M users X are in the category. The release has n = X + noise and, for all other categories together,
r = M - X + noise. One category's noise has variance V, so r's noise has (k - 1) V with k categories.

Test. For every M,

    D(p) = (1 - p) n - p r = n - p (n + r)

has mean 0 and variance M p q + V (q^2 + (k - 1) p^2), with q = 1 - p. The interval holds all p that a test of D does
not reject (Wilson 1927, Fieller 1954). It is [0, 1] where n and r hold no information. It is too wide where users of a
cell differ in p, or spread their weight over cells (contribution all): there M p q is an upper bound.

M is estimated by (p n + q r / (k - 1)) / (p^2 + q^2 / (k - 1)): least squares at the rate p, with noise uncorrelated to
D's. The estimate is kept at or above its own standard deviation, because a cell may have no users.

Critical values of an interval:

- Near 0 and 1. A test with equal tails would cover a rate of 0 with 97.5%, since 0 cannot be missed from below. Feldman
  and Cousins (1998, Physical Review D 57, 3873) order outcomes by their likelihood relative to the most likely rate in
  [0, 1]. This moves the 5% to one tail, from 1.96 to 1.645 deviations at the end itself. The distance of p M from 0, in
  deviations of D, decides how much.
- Skewness. A sum of few Laplace variates has heavy tails, and few users of a rare category are skewed. The
  Cornish-Fisher expansion corrects for the third and fourth cumulants of D.
- Continuity. Counts are integers, so coverage oscillates by some 2% where the deviation is below about two users. D is
  taken 0.15 users nearer to 0. By summation over the lattice, a rate of 0, which many cells may share, is then covered
  with 93% to 97% under the noise of one shard at every epsilon from 0.2 to 1. The usual half a user would be too much.

Simultaneous intervals. The interval above is pointwise: it does not hold for a cell that was chosen because its rate is
extreme. A second interval is given for cells whose rate is above the region's average at a level that holds for all
cells and categories at once: with 95%, none of them has a rate at or below the average. The error of the average takes
0.5%; the rest is divided among cells, categories and both ends (Bonferroni). Tails that far out are not normal, so the
test is Chernoff's bound with the cumulant generating function K of D at p, for discrete Laplace noise and sampled
users: P(D >= d) <= exp(-max_s (s d - K(s))). There M is taken two deviations higher.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import lru_cache

import numpy as np
import pyarrow as pa
import scipy
from numpy.typing import NDArray

from sfumato.schemas.known_digits import NORMAL_Z
from sfumato.schemas.release import rate_columns
from sfumato.transforms.counting.state import Estimate
from sfumato.transforms.statistics.bisection import bisect_each
from sfumato.transforms.statistics.shrinkage import shrink

LEVEL = 0.95
# Quantiles of the normal distribution as SciPy has them, which takes 0.1 s to load: at (1 + LEVEL) / 2 and LEVEL.
_ONE_SIDED = 1.6448536269514722
_EXPANDED = 3.0  # deviations up to which the Cornish-Fisher polynomials are trusted; beyond, their shift is constant
_CONTINUITY = 0.15  # users, see the module
_NEAREST = 1e-9  # deviations from an end at which a rate counts as that end
_BISECTIONS = 24
_MIN_USERS_SNR = 3.0  # users of a cell with a shrunk rate, in deviations of the noise in all categories together
_AVERAGE_ERROR = 0.005  # probability that the average is above its upper bound
_AVERAGE_Z = 2.5758293035489004  # the normal distribution's quantile at 1 - _AVERAGE_ERROR
_STEPS = 60  # of a golden-section search and of a bisection
_COLLAPSE_FACTOR = 2.0  # a quarter of the users doubles the width of an interval where sampling dominates

Array = NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class Rates:
    """Rates of the entries of a tree, with 95% intervals: float64[len(names), T] each."""

    names: tuple[str, ...]  # the categories, see `published_categories`
    rate: Array  # in [low, high]; NaN where the interval is [0, 1]
    low: Array  # low, high: ends of each cell's pointwise interval, in [0, 1]
    high: Array
    average: Array  # float64[len(names)], of the whole region
    # The rate after shrinkage towards the average; NaN where users are not clearly above zero. Within the simultaneous
    # interval, if there is one.
    shrunk: Array
    # simultaneous_low, simultaneous_high: ends of the simultaneous interval; NaN where it does not exclude the average
    # from below.
    simultaneous_low: Array
    simultaneous_high: Array


def estimate_rates(
    estimate: Estimate, categories: Sequence[str], tail_sums: int, sampling_weight: float = 1.0
) -> Rates | None:
    """Returns the rates of an estimate; None without auxiliary data.

    Args:
        estimate: of users by category.
        categories: names, in the order of `estimate.by_category`.
        tail_sums: number of Laplace variables whose sum has the tails of a count's noise.
        sampling_weight: users represented by each counted user: all shards over live shards.
    """
    if estimate.by_category is None or estimate.category_stddev is None:
        return None
    users, covers_area = estimate.by_category, estimate.tree.areas > 0
    return rates_of_counts(users, estimate.category_stddev, covers_area, categories, tail_sums, sampling_weight)


def rates_of_counts(
    by_category: Array,
    stddev: Array,
    covers_area: NDArray[np.bool_],
    categories: Sequence[str],
    tail_sums: int,
    sampling_weight: float,
) -> Rates:
    """Returns the rates of T cells or zones that have no users in common.

    Args:
        by_category: float64[k, T], noisy users.
        stddev: float64[T], of the noise in each of them, independent between categories.
        covers_area: bool[T]; the others have no part in the average.
        categories: k names.
        tail_sums, sampling_weight: see `estimate_rates`.
    """
    published = published_categories(categories)
    total, variance = by_category.sum(axis=0), stddev**2
    columns = []
    for category in published:
        counts = by_category[category]
        test = _RateTest(
            counts, total - counts, variance, float(len(categories) - 1), float(tail_sums), sampling_weight
        )
        columns.append((*test.intervals(), *_simultaneous(test, covers_area, len(published))))
    rate, low, high, average, *simultaneous = (np.stack(column) for column in zip(*columns, strict=True))
    return Rates(tuple(categories[category] for category in published), rate, low, high, average, *simultaneous)


def _simultaneous(
    test: _RateTest, covers_area: NDArray[np.bool_], categories: int
) -> tuple[Array, Array, Array, Array]:
    """Returns the average, and for each cell the shrunk rate and the ends of its simultaneous interval; see `Rates`.

    covers_area: bool[T], whether a cell covers any area; categories: number of those with published rates.
    """
    unknown = np.full(len(test.counts), np.nan)
    users, noise = test.counts + test.rest, test.variance * (1 + test.others)
    all_users = float(users[covers_area].sum())
    if all_users <= 0:
        return np.array(0.5), unknown, unknown, unknown
    average = float(np.clip(test.counts[covers_area].sum() / all_users, 0, 1))
    error = math.sqrt(
        test.sampling_weight * all_users * average * (1 - average)
        + float(test.variance[covers_area].sum()) * ((1 - average) ** 2 + test.others * average**2)
    )
    has_users = covers_area & (users > _MIN_USERS_SNR * np.sqrt(noise))
    shrunk = unknown.copy()
    if has_users.any():
        variance = test.select(has_users).variance_at(np.array(average)) / users[has_users] ** 2
        shrunk[has_users] = np.clip(shrink(test.counts[has_users] / users[has_users], variance, average)[0], 0, 1)
    upper = min(average + _AVERAGE_Z * error / all_users, 1.0)
    bound = math.log(2 * covers_area.sum() * categories / (1 - LEVEL - _AVERAGE_ERROR))
    above = has_users & (test.counts > upper * users)
    above[above] = test.select(above).exponent(np.full(above.sum(), upper), 1.0) > bound
    low, high = unknown.copy(), unknown.copy()
    if above.any():
        selected, rate = test.select(above), np.minimum(test.counts / np.where(above, users, 1), 1)[above]

        def end(outside: float, side: float) -> Array:
            """Returns the rate between the observed one and a rejected one at which the exponent passes the bound."""
            passes = bisect_each(
                lambda p: ~(selected.exponent(p, side) > bound), rate, np.full_like(rate, outside), _STEPS
            )
            return passes[0]

        low[above], high[above] = end(upper, 1.0), end(1.0, -1.0)
        shrunk[above] = np.clip(shrunk[above], low[above], high[above])
    return np.array(average), shrunk, low, high


def published_categories(categories: Sequence[str]) -> list[int]:
    """Returns the categories with published rates: all; of two only the second, or `true`, as both add up to 1."""
    if len(categories) != 2:
        return list(range(len(categories)))
    return [list(categories).index("true") if set(categories) == {"false", "true"} else 1]


def rate_intervals(
    counts: Array, rest: Array, stddev: Array, others: int = 1, tail_sums: int = 1, sampling_weight: float = 1.0
) -> tuple[Array, Array, Array]:
    """Returns the rate and the lower and upper end of its pointwise 95% interval for each cell: float64[T] each.

    Args:
        counts: float64[T], noisy users of the category.
        rest: float64[T], noisy users of all others together.
        stddev: float64[T], of the noise in one category's count.
        others: number of other categories.
        tail_sums, sampling_weight: see `estimate_rates`.
    """
    return _RateTest(counts, rest, stddev**2, float(others), float(tail_sums), sampling_weight).intervals()


@dataclass(frozen=True, eq=False)
class _RateTest:
    """The test of D(p) for T cells. The arguments of `rate_intervals`, with the noise's variance; p is float64[T]."""

    counts: Array
    rest: Array
    variance: Array
    others: float
    tail_sums: float
    sampling_weight: float

    def select(self, cells: NDArray[np.bool_]) -> _RateTest:
        """Returns the test of some of the cells: bool[T]."""
        return replace(self, counts=self.counts[cells], rest=self.rest[cells], variance=self.variance[cells])

    def intervals(self) -> tuple[Array, Array, Array]:
        """Returns the rate and the lower and upper end of its pointwise 95% interval: float64[T] each."""
        users, rest = np.maximum(self.counts, 0), np.maximum(self.rest, 0)
        # The rate where D is 0, or the nearer end, is never rejected. So each end of the interval lies between it and
        # a rejected end of [0, 1].
        known = users + rest > 0
        rate = np.where(known, users / np.where(known, users + rest, 1), 0.5)
        low, high = self._end(np.zeros_like(rate), rate), self._end(np.ones_like(rate), rate)
        return np.where((low == 0) & (high == 1), np.nan, rate), low, high

    def _end(self, outermost: Array, inside: Array) -> Array:
        """Returns the end of the interval between accepted rates and 0 or 1."""
        end, cells = outermost.copy(), ~self._accepts(outermost)
        end[cells] = bisect_each(self.select(cells)._accepts, inside[cells], outermost[cells], _BISECTIONS)[0]
        return end

    def users_at(self, p: Array, deviations: float = 0.0) -> Array:
        """Returns M by least squares at the rate p, plus some deviations of its error; see the module."""
        squares = p * p + (1 - p) ** 2 / self.others
        deviation = np.sqrt(self.variance / squares)
        users = (p * self.counts + (1 - p) * self.rest / self.others) / squares
        return np.asarray(np.maximum(users, deviation) + deviations * deviation)

    def variance_at(self, p: Array) -> Array:
        """Returns the variance of D(p)."""
        q = 1 - p
        sampling = self.sampling_weight * self.users_at(p) * p * q
        return np.asarray(sampling + self.variance * (q * q + self.others * p * p))

    def exponent(self, p: Array, side: float) -> Array:
        """Returns -log of Chernoff's bound on the probability of D(p) this far above (side 1) or below (-1) 0, or 0."""
        users, q = self.users_at(p, 2.0), 1 - p
        distance = side * (q * self.counts - p * self.rest)
        step = self.sampling_weight  # counts are multiples of it
        scale = self.variance / (2 * self.tail_sums * step * step)  # a / (1 - a)^2 of discrete Laplace noise
        # The noise has moments up to the s at which 4 scale sinh^2(s c / 2) is 1.
        max_s = 2 * np.arcsinh(0.5 / np.sqrt(np.maximum(scale, 1e-300))) / (step * np.maximum(p, q))
        max_s = np.minimum(max_s, 50.0 / step) * (1 - 1e-9)

        def gain(s: Array) -> Array:
            moment = q * np.exp(-side * s * step * p) + p * np.exp(side * s * step * q)
            cumulants = users / step * np.log(moment)
            for weight, categories in ((q, 1.0), (p, self.others)):
                cumulants -= categories * self.tail_sums * np.log1p(-4 * scale * np.sinh(s * weight * step / 2) ** 2)
            return np.asarray(s * distance - cumulants)

        low, high, golden = np.zeros_like(max_s), max_s, (math.sqrt(5) - 1) / 2
        for _ in range(_STEPS):  # golden-section search: the gain is concave
            left, right = high - golden * (high - low), low + golden * (high - low)
            better = gain(left) > gain(right)
            low, high = np.where(better, low, left), np.where(better, right, high)
        return np.where(distance > 0, np.maximum(gain((low + high) / 2), 0), 0)

    def _accepts(self, p: Array) -> NDArray[np.bool_]:
        """Returns whether the pointwise interval holds p: bool[T]."""
        q, others = 1 - p, self.others
        p2, q2 = p * p, q * q
        users = self.users_at(p)
        sampling = self.sampling_weight * users * p * q
        variance = np.maximum(sampling + self.variance * (q2 + others * p2), 1e-12)
        deviation = np.sqrt(variance)
        skewness = self.sampling_weight * sampling * (q - p) / (variance * deviation)
        noise = 3 * self.variance**2 / self.tail_sums * (q2 * q2 + others * p2 * p2)  # Laplace's excess kurtosis is 3
        excess = (self.sampling_weight**2 * sampling * (1 - 6 * p * q) + noise) / variance**2
        inward, outward = _critical_values(p * users / deviation)
        from_one, beyond_one = _critical_values(q * users / deviation)
        above = np.where(beyond_one > NORMAL_Z, beyond_one, inward)
        below = np.where(outward > NORMAL_Z, outward, from_one)
        distance = (q * self.counts - p * self.rest) / deviation
        margin = _CONTINUITY * self.sampling_weight / deviation
        high, low = (
            _cornish_fisher(above, skewness, excess) + margin,
            _cornish_fisher(-below, skewness, excess) - margin,
        )
        return np.asarray((low <= distance) & (distance <= high))


def _cornish_fisher(z: Array, skewness: Array, excess: Array) -> Array:
    """Returns the quantile, in deviations, at which a normal distribution has z (Cornish and Fisher 1937)."""
    s = np.clip(z, -_EXPANDED, _EXPANDED)
    s2 = s * s
    shift = skewness * (s2 - 1) / 6 + s * (excess * (s2 - 3) / 24 - skewness**2 * (2 * s2 - 5) / 36)
    return np.asarray(z + shift)


def _critical_values(distance: Array) -> tuple[Array, Array]:
    """Returns the accepted deviations inward and outward, float64[T] each. distance: from 0 or 1, in deviations."""
    near = np.clip(distance, _NEAREST, NORMAL_Z)
    h = np.interp(near, *_inward_table())
    # Both limits have the same likelihood ratio: h^2 = near^2 - 2 near x, with x beyond the end.
    return h, np.where(near < NORMAL_Z, (near**2 + h**2) / (2 * near), NORMAL_Z)


@lru_cache(maxsize=1)
def _inward_table() -> tuple[Array, Array]:
    """Returns distances from 0 or 1, and accepted deviations inward for 95% (Feldman, Cousins): float64[400] each."""
    near = np.linspace(_NEAREST, NORMAL_Z, 400)

    def misses(h: Array) -> NDArray[np.bool_]:
        return np.asarray(scipy.special.ndtr(h) - scipy.special.ndtr(-(near**2 + h**2) / (2 * near)) < LEVEL)

    low, high = bisect_each(misses, np.full_like(near, _ONE_SIDED), np.full_like(near, NORMAL_Z), 50)
    return near, (low + high) / 2


def split_by_interval(
    estimate: Estimate, next_stddev: float, width: float, tail_sums: int, threshold: float
) -> tuple[NDArray[np.uint64], NDArray[np.uint64]]:
    """Returns the nodes to split and to collapse so that rates keep intervals of a given width, for `Tree.refine`.

    A node is split if its children, each with a quarter of its users in every category, would have intervals of at most
    `width` in the next sub-query. It is collapsed if its own interval would be wider than twice `width`. So a child
    with half its expected share of the users still stays. Nodes above `threshold` are never collapsed.

    Args:
        estimate: of users by category.
        next_stddev: standard deviation, in users, of the noise in one category's count in the next sub-query.
        width: high - low of the widest interval of all categories, in (0, 1).
        tail_sums: see `estimate_rates`.
        threshold: users.

    Raises:
        ValueError: the estimate has no users by category.
    """
    if estimate.by_category is None:
        raise ValueError("estimate: has no users by category, so there are no rates")
    counts = estimate.by_category
    split = _widest_intervals(counts / 4, next_stddev, tail_sums) <= width
    is_wide = _widest_intervals(counts, next_stddev, tail_sums) > _COLLAPSE_FACTOR * width
    nodes = estimate.tree.entries
    return nodes[split], nodes[is_wide & ~split & (counts.sum(axis=0) <= threshold)]


def _widest_intervals(counts: Array, stddev: float, tail_sums: int) -> Array:
    """Returns the width of each node's widest interval: float64[categories, T] -> float64[T]."""
    total, noise, others = counts.sum(axis=0), np.full(counts.shape[1], stddev), len(counts) - 1
    widest = np.zeros(counts.shape[1])
    for category in counts[: others if others == 1 else None]:  # of two categories both have the same width
        _, low, high = rate_intervals(category, total - category, noise, others, tail_sums)
        widest = np.maximum(widest, high - low)
    return widest


def auxiliary_columns(by_category: NDArray[np.float64], categories: Sequence[str], rates: Rates) -> dict[str, pa.Array]:
    """Returns rates with their intervals, and counts by category float64[k, T], of T cells or zones."""
    columns = {}
    kinds = (rates.rate, rates.low, rates.high, rates.shrunk, rates.simultaneous_low, rates.simultaneous_high)
    for category, name in enumerate(rates.names):
        for column, values in zip(rate_columns(name, rates.names), kinds, strict=True):
            columns[column] = pa.array(values[category], mask=np.isnan(values[category]))
    for name, counts in zip(categories, by_category, strict=True):
        columns[f"count_{name}"] = pa.array(counts)
    return columns
