"""Rates: the share of a cell's users that belong to a category, with 95% intervals of sampling and noise. Pure.

Users of a cell are taken for a sample of those who might have been there, each of category c with chance p, the rate;
what an interval covers is p, not the share of the very users that were counted. Of M such users X belong to c. What is
released is n = X + noise and, of all other categories together, r = M - X + noise. Each category's noise has variance
V, so that r's has (k - 1) V. Whatever M is,

    D(p) = (1 - p) n - p r  =  n - p (n + r)

has mean 0 and, with q = 1 - p, the variance M p q + V (q^2 + (k - 1) p^2). The interval is what a test of D does not
reject (Wilson's and Fieller's way): its ends are values of p, and it is [0, 1] where n and r say nothing. Where users
of a cell differ in p the variance of X is smaller, and the interval too wide; so it is where a user's weight is spread
over cells (contribution all): M p q is then an upper bound.

M is known from what D leaves over: (p n + q r / (k - 1)) / (p^2 + q^2 / (k - 1)), least squares at the rate p, whose
noise is uncorrelated with D's. It counts as at least its own deviation, which a cell without users may have.

Critical values. (1) Near 0 and 1 a test with equal tails would waste one: a rate of 0 cannot be missed from below, so
that 97.5% would be covered, and counts below 0 would give no interval at all. Feldman and Cousins (1998, Physical
Review D 57, 3873) order outcomes by their likelihood under the nearest rate in [0, 1], which shifts the 5% from one
tail to the other, to 1.645 in place of 1.96 at the end itself. How far p M is from 0, in deviations of D, says how
much. (2) Few noisy sums have the heavy tails of Laplace's distribution, and few users of a rare category are skewed:
the Cornish-Fisher expansion corrects for the third and fourth cumulants of D.

Counts are whole numbers. Where noise and sampling together deviate by less than two users or so, the coverage of a
single M and p goes up and down by some 2% around 95%, as that of every interval does. D counts as 0.15 of a user nearer
to 0 than it is: then a rate of 0, which many cells may share, is covered between 93% and 97% of the time under the
noise of one shard at every epsilon from 0.2 to 1 (by summation over the lattice); half a user, as is usual, would be
too much.

The list of high rates. An interval for one cell (pointwise) says nothing of a cell that was chosen because its rate is
extreme among thousands. So a cell is listed only where its interval excludes the average with a level that holds for
all cells and categories at once (simultaneous): with probability 95% no listed cell has a rate that is not above the
average. Of the 5%, half a per cent is for the average's own error. The rest is shared out evenly between the
cells, the categories and both ends (Bonferroni). Tails that far out are not normal, so the test is Chernoff's bound:
with the cumulant generating function K of D at the rate p, which sums of discrete Laplace variates and of users have,
P(D >= d) <= exp(-max_s (s d - K(s))). The users of a cell count as two deviations more than estimated. What is shown of
a listed cell is its rate after shrinkage towards the average (`selection.shrink`), kept inside that interval.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
import scipy
from numpy.typing import NDArray

from sfumato.transforms.bisection import bisect_each
from sfumato.transforms.heatmap.state import Estimate
from sfumato.transforms.shrinkage import shrink

LEVEL = 0.95
_TWO_SIDED, _ONE_SIDED = float(scipy.special.ndtri((1 + LEVEL) / 2)), float(scipy.special.ndtri(LEVEL))
_EXPANDED = 3.0  # deviations to which Cornish and Fisher's polynomials are trusted; beyond, their shift stays
_CONTINUITY = 0.15  # users, see above
_NEAREST = 1e-9  # deviations from an end at which a rate counts as that end
_BISECTIONS = 24
CLEAR = 3.0  # deviations of the noise in all categories together that a cell's users must be above 0
_OF_AVERAGE = 0.005  # of the list's 5%: the average is higher than its upper end
_AVERAGE_Z = float(scipy.special.ndtri(1 - _OF_AVERAGE))
_STEPS = 60  # of a golden section and of a bisection
_COLLAPSED = 2.0  # times the width: what a quarter of the users does to an interval where sampling rules

Array = NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class Rates:
    """Rates of the entries of a tree, with 95% intervals: float64[len(names), T] each, 0 <= low <= rate <= high <= 1.

    names: the categories whose rates they are: of two the second, or `true`; of more, all of them. rate is NaN where
    the interval is [0, 1], that is where nothing is known. low and high hold for each cell by itself.

    average: float64[len(names)], of the whole region. shrunk: NaN where the cell's users are not clearly above zero.
    listed_low, listed_high: ends of intervals that hold for all cells at once, NaN where the cell is not listed, as its
    interval does not exclude the average from below.
    """

    names: tuple[str, ...]
    rate: Array
    low: Array
    high: Array
    average: Array
    shrunk: Array
    listed_low: Array
    listed_high: Array


def rates_of(estimate: Estimate, categories: Sequence[str], noisy_sums: int, stands_for: float = 1.0) -> Rates | None:
    """The rates of an estimate with auxiliary data; None without.

    Args:
        estimate: of users by category.
        categories: names, in the order of `estimate.by_category`.
        noisy_sums: sums with noise of their own that were added up: the shards that answered, or one.
        stands_for: users for whom one that was counted speaks: shards over those that answered.
    """
    if estimate.by_category is None or estimate.category_stddev is None:
        return None
    shown = shown_rates(categories)
    total, others = estimate.by_category.sum(axis=0), len(categories) - 1
    there = estimate.tree.areas > 0
    parts = []
    for category in shown:
        counts = estimate.by_category[category]
        test = _Test(counts, total - counts, estimate.category_stddev**2, float(others), noisy_sums, stands_for)
        parts.append((*test.interval(), *_listed(test, there, len(shown))))
    rate, low, high, average, *listed = (np.stack(part) for part in zip(*parts, strict=True))
    return Rates(tuple(categories[category] for category in shown), rate, low, high, average, *listed)


def _listed(test: _Test, there: NDArray[np.bool_], categories: int) -> tuple[Array, Array, Array, Array]:
    """The average, and for each cell the shrunk rate and the ends of its simultaneous interval; see `Rates`.

    there: bool[T], whether a cell covers anything. categories: whose rates are told, each with a list of its own.
    """
    unknown = np.full(len(test.counts), np.nan)
    users, noise = test.counts + test.rest, test.variance * (1 + test.others)
    everybody = float(users[there].sum())
    if everybody <= 0:
        return np.array(0.5), unknown, unknown, unknown
    average = float(np.clip(test.counts[there].sum() / everybody, 0, 1))
    error = math.sqrt(
        test.stands_for * everybody * average * (1 - average)
        + float(test.variance[there].sum()) * ((1 - average) ** 2 + test.others * average**2)
    )
    clear = there & (users > CLEAR * np.sqrt(noise))
    shrunk = unknown.copy()
    if clear.any():
        variance = test.of(clear).variance_at(np.array(average)) / users[clear] ** 2
        shrunk[clear] = np.clip(shrink(test.counts[clear] / users[clear], variance, average)[0], 0, 1)
    upper = min(average + _AVERAGE_Z * error / everybody, 1.0)
    bound = math.log(2 * there.sum() * categories / (1 - LEVEL - _OF_AVERAGE))
    found = clear & (test.counts > upper * users)
    found[found] = test.of(found).exponent(np.full(found.sum(), upper), 1.0) > bound
    low, high = unknown.copy(), unknown.copy()
    if found.any():
        chosen, rate = test.of(found), np.minimum(test.counts / np.where(found, users, 1), 1)[found]
        low[found] = chosen.simultaneous(rate, np.full_like(rate, upper), 1.0, bound)
        high[found] = chosen.simultaneous(rate, np.ones_like(rate), -1.0, bound)
        shrunk[found] = np.clip(shrunk[found], low[found], high[found])
    return np.array(average), shrunk, low, high


def shown_rates(categories: Sequence[str]) -> list[int]:
    """Of which categories the rates are told: of two the second, or `true`, since the other's follow; else of all."""
    if len(categories) != 2:
        return list(range(len(categories)))
    return [list(categories).index("true") if set(categories) == {"false", "true"} else 1]


def interval(
    counts: Array, rest: Array, stddev: Array, others: int = 1, noisy_sums: int = 1, stands_for: float = 1.0
) -> tuple[Array, Array, Array]:
    """Rate, lower and upper end of its 95% interval for each cell: float64[T] each.

    Args:
        counts: float64[T], noisy users of the category.
        rest: float64[T], noisy users of all others together.
        stddev: float64[T], of the noise in one category's count.
        others: how many other categories there are.
        noisy_sums: see `rates_of`, as for stands_for.
    """
    return _Test(counts, rest, stddev**2, float(others), noisy_sums, stands_for).interval()


@dataclass(frozen=True, eq=False)
class _Test:
    """Which rates a cell's counts do not reject; float64[T] each, see the module."""

    counts: Array
    rest: Array
    variance: Array
    others: float
    noisy_sums: int
    stands_for: float

    def of(self, cells: NDArray[np.bool_]) -> _Test:
        """The test of some of the cells."""
        counts, rest, variance = (one[cells] for one in (self.counts, self.rest, self.variance))
        return _Test(counts, rest, variance, self.others, self.noisy_sums, self.stands_for)

    def interval(self) -> tuple[Array, Array, Array]:
        """Rate, lower and upper end of its 95% interval for each cell by itself: float64[T] each."""
        users, some = np.maximum(self.counts, 0), np.maximum(self.rest, 0)
        # The rate where D is 0, or the nearer end. It is never rejected: at an end, D may be on the outer side as far
        # as it likes. So either end of the interval lies between it and a rejected end of [0, 1].
        known = users + some > 0
        rate = np.where(known, users / np.where(known, users + some, 1), 0.5)
        low = self.edge(np.zeros_like(rate), rate)
        high = self.edge(np.ones_like(rate), rate)
        return np.where((low == 0) & (high == 1), np.nan, rate), low, high

    def users_at(self, p: Array, deviations: float = 0.0) -> Array:
        """The cell's users by least squares at a rate p, and some deviations more: at least one deviation."""
        left = p * p + (1 - p) ** 2 / self.others
        deviation = np.sqrt(self.variance / left)
        users = (p * self.counts + (1 - p) * self.rest / self.others) / left
        return np.asarray(np.maximum(users, deviation) + deviations * deviation)

    def variance_at(self, p: Array) -> Array:
        """The variance of D at a rate p."""
        q = 1 - p
        return np.asarray(self.stands_for * self.users_at(p) * p * q + self.variance * (q * q + self.others * p * p))

    def exponent(self, p: Array, side: float) -> Array:
        """-log of Chernoff's bound of the probability of a D as far up (side 1) or down (-1) at the rate p: float64[T].

        0 where D is not on that side.
        """
        users, q = self.users_at(p, 2.0), 1 - p
        distance = side * (q * self.counts - p * self.rest)
        step = self.stands_for  # users whom a count speaks for: what sampling and noise are multiples of
        scale = self.variance / (2 * self.noisy_sums * step * step)  # a / (1 - a)^2 of discrete Laplace noise
        # The noise has moments up to the s at which 4 scale sinh^2(s c / 2) is 1.
        most = 2 * np.arcsinh(0.5 / np.sqrt(np.maximum(scale, 1e-300))) / (step * np.maximum(p, q))
        most = np.minimum(most, 50.0 / step) * (1 - 1e-9)

        def gain(s: Array) -> Array:
            drawn = q * np.exp(-side * s * step * p) + p * np.exp(side * s * step * q)
            cumulants = users / step * np.log(drawn)
            for weight, many in ((q, 1.0), (p, self.others)):
                cumulants -= many * self.noisy_sums * np.log1p(-4 * scale * np.sinh(s * weight * step / 2) ** 2)
            return np.asarray(s * distance - cumulants)

        low, high, golden = np.zeros_like(most), most, (math.sqrt(5) - 1) / 2
        for _ in range(_STEPS):  # golden section: the gain is concave
            left, right = high - golden * (high - low), low + golden * (high - low)
            better = gain(left) > gain(right)
            low, high = np.where(better, low, left), np.where(better, right, high)
        return np.where(distance > 0, np.maximum(gain((low + high) / 2), 0), 0)

    def simultaneous(self, inside: Array, outside: Array, side: float, bound: float) -> Array:
        """The end of the interval between a rate that D bears out and one further out, where exponents pass a bound."""
        return bisect_each(lambda p: ~(self.exponent(p, side) > bound), inside, outside, _STEPS)[0]

    def accepts(self, p: Array) -> NDArray[np.bool_]:
        """Whether each cell's rate may be p: float64[T] -> bool[T]."""
        q, others = 1 - p, self.others
        p2, q2 = p * p, q * q
        users = self.users_at(p)
        sampling = self.stands_for * users * p * q
        variance = np.maximum(sampling + self.variance * (q2 + others * p2), 1e-12)
        deviation = np.sqrt(variance)
        skewness = self.stands_for * sampling * (q - p) / (variance * deviation)
        noise = 3 * self.variance**2 / self.noisy_sums * (q2 * q2 + others * p2 * p2)  # Laplace's excess kurtosis is 3
        excess = (self.stands_for**2 * sampling * (1 - 6 * p * q) + noise) / variance**2
        inward, outward = _critical(p * users / deviation)
        from_one, beyond_one = _critical(q * users / deviation)
        above = np.where(beyond_one > _TWO_SIDED, beyond_one, inward)
        below = np.where(outward > _TWO_SIDED, outward, from_one)
        distance = (q * self.counts - p * self.rest) / deviation
        margin = _CONTINUITY * self.stands_for / deviation
        high, low = _expand(above, skewness, excess) + margin, _expand(-below, skewness, excess) - margin
        return np.asarray((low <= distance) & (distance <= high))

    def edge(self, end: Array, inside: Array) -> Array:
        """The interval's end towards 0 or 1, `end`, seen from rates that are not rejected: float64[T]."""
        edge, cells = end.copy(), ~self.accepts(end)
        test, outside, inside = self.of(cells), end[cells], inside[cells]
        edge[cells] = bisect_each(test.accepts, inside, outside, _BISECTIONS)[0]
        return edge


def _expand(z: Array, skewness: Array, excess: Array) -> Array:
    """The quantile, in deviations, that a normal distribution has at z (Cornish and Fisher 1937)."""
    s = np.clip(z, -_EXPANDED, _EXPANDED)
    s2 = s * s
    shift = skewness * (s2 - 1) / 6 + s * (excess * (s2 - 3) / 24 - skewness**2 * (2 * s2 - 5) / 36)
    return np.asarray(z + shift)


def _critical(distance: Array) -> tuple[Array, Array]:
    """How far inward and outward is accepted at a distance from an end, all in deviations: float64[T] each."""
    near = np.clip(distance, _NEAREST, _TWO_SIDED)
    places, inward = _inward()
    h = np.interp(near, places, inward)
    # Both borders of what is accepted have the same likelihood ratio: h^2 = near^2 - 2 near x, x beyond the end.
    return h, np.where(near < _TWO_SIDED, (near**2 + h**2) / (2 * near), _TWO_SIDED)


@lru_cache(maxsize=1)
def _inward() -> tuple[Array, Array]:
    """Distances from an end and the deviations inward that make up 95% (Feldman and Cousins), by bisection."""
    near = np.linspace(_NEAREST, _TWO_SIDED, 400)

    def misses(h: Array) -> NDArray[np.bool_]:
        return np.asarray(scipy.special.ndtr(h) - scipy.special.ndtr(-(near**2 + h**2) / (2 * near)) < LEVEL)

    low, high = bisect_each(misses, np.full_like(near, _ONE_SIDED), np.full_like(near, _TWO_SIDED), 50)
    return near, (low + high) / 2


def split_by_interval(
    estimate: Estimate, next_stddev: float, width: float, noisy_sums: int, threshold: float
) -> tuple[NDArray[np.uint64], NDArray[np.uint64]]:
    """The nodes to split and those to collapse, by their rates' intervals: uint64 each, as Tree.refine takes them.

    A node is split where its children, with a quarter of its users each and as many of each category, would have
    intervals no wider than `width` in the next sub-query. It is collapsed where its own would be wider than twice that,
    unless it has more users than the count rule's threshold: then the map needs it. A child of a node that was only
    just split thus stays even with half its share of the users, or less.

    Args:
        estimate: of users by category. Raises ValueError where it has none.
        next_stddev: of the noise in one category's count in the next sub-query.
        width: of a whole interval, high - low, the widest of all categories.
        noisy_sums: see `rates_of`.
        threshold: users, above which a node is not collapsed.
    """
    if estimate.by_category is None:
        raise ValueError("estimate: intervals are of rates, and it has no users by category")
    counts = estimate.by_category
    split = _widths(counts / 4, next_stddev, noisy_sums) <= width
    wide = _widths(counts, next_stddev, noisy_sums) > _COLLAPSED * width
    nodes = estimate.tree.entries
    return nodes[split], nodes[wide & ~split & (counts.sum(axis=0) <= threshold)]


def _widths(counts: Array, stddev: float, noisy_sums: int) -> Array:
    """The width of each node's widest interval: float64[categories, T] -> float64[T]."""
    total, noise, others = counts.sum(axis=0), np.full(counts.shape[1], stddev), len(counts) - 1
    widest = np.zeros(counts.shape[1])
    for one in counts[: others if others == 1 else None]:  # of two categories one's interval mirrors the other's
        _, low, high = interval(one, total - one, noise, others, noisy_sums)
        widest = np.maximum(widest, high - low)
    return widest
