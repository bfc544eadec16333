"""Quantiles of a number by a trusted curator: what is published, from exact counts of users. Pure.

The exponential method draws borders, see exponential_draw.py. The hierarchical one counts all users by bins of one
width at every level of a tree and adds discrete Laplace noise once (Hay, Rastogi, Miklau and Suciu, PVLDB 2010). A user
is in one bin of each level, so L levels cost epsilon / L each under adding or removing one user. The weighted least
squares estimate agrees on all levels, see `statistics/tree_least_squares.py`.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace

import numpy as np
import scipy
from numpy.typing import NDArray

from sfumato.schemas.charts import Curve, Quantile, RangeAnswer
from sfumato.schemas.known_digits import Z
from sfumato.transforms.histogram.item_encoding import NumberBins, NumberItems
from sfumato.transforms.observability.text_tables import TYPICAL_USERS
from sfumato.transforms.privacy.admission import NoisyUserCounts
from sfumato.transforms.privacy.discrete_laplace import discrete_laplace
from sfumato.transforms.privacy.keys import RunKey
from sfumato.transforms.quantiles.curve import banded, quantile, unknown_curve
from sfumato.transforms.quantiles.exponential_draw import STEP_BITS, DrawPlan, SpreadUsers, draw_border, margin
from sfumato.transforms.quantiles.plan import HierarchyNoise, QuantilesPlan
from sfumato.transforms.statistics.tree_least_squares import NoisyLevel, fit_counts

Array = NDArray[np.float64]

_CURVE_BITS = 11  # of a published curve


@dataclass(frozen=True, eq=False)
class NoisyHierarchy:
    """A distribution over a range, uniform within each bin."""

    noise: HierarchyNoise  # of its counts
    below: Array  # float64[2^bits + 1], estimated users below each border, ascending from 0
    scale: NumberBins

    @property
    def users(self) -> float:
        """Returns the estimated users in the whole range."""
        return float(self.below[-1])

    def curve(self, bits: int) -> Curve:
        """Returns the distribution function at the borders of 2^bits bins, with its 95% band.

        It needs users above 0.
        """
        last = 1 << self.noise.bits
        at = np.arange(0, last + 1, last >> bits)
        share, place, end = self.below[at] / self.users, at.astype(float), np.full(len(at), float(last))
        covariance = self.noise.covariance
        variance = covariance(place, place) - 2 * share * covariance(place, end) + share**2 * covariance(end, end)
        margin = Z * np.sqrt(np.maximum(variance, 0)) / self.users
        return banded(self.scale.at(at), share, share - margin, share + margin)

    def answer(self, low: float, high: float) -> RangeAnswer:
        """Returns the estimated users with values in [low, high); parts of a bin count in proportion.

        The interval holds all of the users of a bin that an end cuts, because they may have one value. The bins of a
        release are not cut: its ranges' ends are edges of the scale.
        """
        last = 1 << self.noise.bits
        ends = self.scale.place(np.array([low, high]))
        before, after = np.interp(ends, np.arange(last + 1), self.below)
        covariance = self.noise.covariance(ends[[0, 1, 0]], ends[[0, 1, 1]])
        stddev = float(np.sqrt(max(covariance[0] + covariance[1] - 2 * covariance[2], 0.0)))
        users, margin = float(after - before), Z * stddev
        inner = self.below[np.floor(ends[1]).astype(int)] - self.below[np.ceil(ends[0]).astype(int)]
        outer = self.below[np.ceil(ends[1]).astype(int)] - self.below[np.floor(ends[0]).astype(int)]
        least, most = max(float(inner) - margin, 0.0), float(outer) + margin
        return RangeAnswer(low, high, users, stddev, least, most)


def measure_hierarchy(users: SpreadUsers, noise: HierarchyNoise, key: RunKey) -> list[NDArray[np.int64]]:
    """Returns the noisy counts of every level, int64[2^level] each. Each party draws a level's noise once."""
    leaves = np.zeros(1 << noise.bits, np.int64)
    leaves[users.bins] = users.counts
    noisy = []
    for level in noise.levels:
        streams = np.array([level + (party << 32) for party in range(noise.draws)], dtype=np.uint64)
        drawn = discrete_laplace(key, "quantile hierarchy", streams, 1 << level, noise.level_epsilon).sum(axis=0)
        noisy.append(leaves.reshape(1 << level, -1).sum(axis=1) + drawn)
    return noisy


def fit_hierarchy(noisy: Sequence[NDArray[np.int64]], noise: HierarchyNoise, scale: NumberBins) -> NoisyHierarchy:
    """Returns the least squares estimate from the noisy counts of `measure_hierarchy`, made to ascend from 0."""
    levels = [NoisyLevel(counts[None].astype(np.float64), noise.own_variance) for counts in reversed(noisy)]
    pairs = itertools.pairwise(reversed(noise.levels))
    parents = [np.arange(1 << finer) >> (finer - coarser) for finer, coarser in pairs]
    (nodes,) = fit_counts(levels, parents)[0]
    cumulative = np.append(0.0, np.cumsum(nodes))
    ascending = scipy.optimize.isotonic_regression(cumulative).x
    total = max(float(cumulative[-1]), 0.0)
    return NoisyHierarchy(noise, np.append(np.append(0.0, np.clip(ascending[1:-1], 0, total)), total), scale)


@dataclass(frozen=True)
class Values:
    """The values that the bins represent."""

    low: float  # lower end of the bins
    high: float  # upper end of the bins
    end: float  # the largest value to publish, at most `high`
    whole: bool = False  # whether each bin is one whole number
    edges: tuple[float, ...] = ()  # of the bins of the hierarchical method, see NumberBins

    def at(self, share: float) -> float:
        """Returns the value at a share of the range."""
        return min(self.low + (self.high - self.low) * share, self.end)


@dataclass(frozen=True, eq=False)
class PrivateDistribution:
    """The published part of a distribution.

    users: estimated users with a value. curve: the exponential method knows it only at some points. quantiles: one for
    each share; none if there seem to be no users. ranges: none by the exponential method.
    """

    users: float
    curve: Curve
    quantiles: tuple[Quantile, ...]
    ranges: tuple[RangeAnswer, ...] = ()
    admission: NoisyUserCounts | None = None


def whole_numbers(items: NumberItems) -> NumberItems:
    """Returns the same numbers in bins of one whole number each, if the bins suffice for the range.

    Whole numbers leave most of finer bins empty, and the exponential mechanism is drawn to long empty stretches. The
    range then has a power of two of whole numbers: a value drawn above the requested range is published as the end of
    the requested range.
    """
    low, high = math.ceil(items.low), math.floor(items.high)
    bits = max((high - low).bit_length(), 1)
    return replace(items, low=float(low), high=float(low + (1 << bits)), bits=bits) if bits <= items.bits else items


def private_distribution(
    users: SpreadUsers,
    plan: QuantilesPlan,
    key: RunKey,
    values: Values,
    ranges: Sequence[tuple[float, float]] = (),
    admission: NoisyUserCounts | None = None,
) -> PrivateDistribution:
    """Draws what a release publishes, once. ranges: to answer, by the hierarchical method."""
    key = key.narrowed({"quantiles": asdict(plan), "values": asdict(values)})
    if plan.method == "exponential":
        about = float(plan.population or TYPICAL_USERS) if admission is None else admission.users
        found = _exponential(users, plan, key, values, about)
    else:
        found = _hierarchical(users, plan, key, values, ranges)
    return replace(found, admission=admission)


def draw_borders(users: SpreadUsers, plan: DrawPlan, key: RunKey) -> list[int]:
    """Returns the borders of all draws of a plan, in its order."""
    subkey = key.subkey("exponential quantiles")
    borders: list[int] = []
    for number, draw in enumerate(plan.draws):
        first = 0 if draw.low is None else borders[draw.low]
        last = users.steps if draw.high is None else borders[draw.high]
        epsilon = plan.epsilons[draw.level]
        borders.append(draw_border(users, first, last, draw.relative, epsilon, subkey, number))
    return borders


def _exponential(
    users: SpreadUsers, plan: QuantilesPlan, key: RunKey, values: Values, about: float
) -> PrivateDistribution:
    """Quantiles by the exponential mechanism. about: the number of users, public or noisy."""
    if about <= 1:
        return PrivateDistribution(0.0, unknown_curve(values.low, values.end), ())
    draws = plan.draws(about)
    borders = draw_borders(users, draws, key)
    found = {}
    for share, number, (first, last) in zip(draws.shares, draws.quantiles, draws.ends, strict=True):
        # Where in its bin a value lies is not known: an interval ends at borders of bins.
        low = 0 if first is None else borders[first] >> STEP_BITS << STEP_BITS
        high = users.steps if last is None else -(-borders[last] >> STEP_BITS) << STEP_BITS
        middle = borders[number]
        if values.whole:
            middle, high = (one >> STEP_BITS << STEP_BITS for one in (middle, borders[last] if last else high))
        found[share] = Quantile(share, *(values.at(one / users.steps) for one in (middle, low, high)))
    order = np.lexsort(([draw.share for draw in draws.draws], borders))
    shares = np.maximum.accumulate([draws.draws[number].share for number in order])
    margins = np.array([margin(draws.stddevs[number], draws.bits) for number in order]) / about
    columns = (shares, np.clip(shares - margins, 0, 1), np.clip(shares + margins, 0, 1))
    known = [values.low, *(values.at(borders[number] / users.steps) for number in order), values.end]
    curve = banded(np.array(known), *(np.concatenate(([0.0], column, [1.0])) for column in columns))
    return PrivateDistribution(about, curve, tuple(found[share] for share in plan.shares))


def _hierarchical(
    users: SpreadUsers, plan: QuantilesPlan, key: RunKey, values: Values, ranges: Sequence[tuple[float, float]]
) -> PrivateDistribution:
    """Quantiles and ranges from a hierarchy of noisy counts."""
    noisy = measure_hierarchy(users, plan.hierarchy, key)
    scale = NumberBins(values.low, values.high, plan.bits, values.edges)
    hierarchy = fit_hierarchy(noisy, plan.hierarchy, scale)
    if not hierarchy.users:
        return PrivateDistribution(0.0, unknown_curve(values.low, values.high), ())
    finest = hierarchy.curve(plan.bits)
    quantiles = tuple(quantile(finest, share) for share in plan.shares)
    answers = tuple(hierarchy.answer(low, high) for low, high in ranges)
    return PrivateDistribution(hierarchy.users, hierarchy.curve(min(plan.bits, _CURVE_BITS)), quantiles, answers)
