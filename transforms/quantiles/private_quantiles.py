"""Quantiles of a number by a trusted curator: the plan of a budget, and what is published from exact counts. Pure.

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
from functools import cached_property

import numpy as np
import scipy
from numpy.typing import NDArray

from sfumato.schemas.charts import Curve, Quantile, RangeAnswer
from sfumato.schemas.errors import RequestError
from sfumato.transforms.histogram.curve import DEVIATIONS, banded, check_shares, quantile, unknown_curve
from sfumato.transforms.histogram.item_encoding import NumberBins, NumberItems
from sfumato.transforms.histogram.sampling_round import check_count
from sfumato.transforms.observability.text_tables import TYPICAL_USERS
from sfumato.transforms.privacy.admission import ADMISSION_SHARE, AdmissionRule, NoisyUserCounts
from sfumato.transforms.privacy.budget import check_epsilon
from sfumato.transforms.privacy.keys import RunKey
from sfumato.transforms.privacy.mechanism import discrete_laplace_stddev
from sfumato.transforms.privacy.noise import MIN_NOISE_EPSILON, discrete_laplace
from sfumato.transforms.quantiles.exponential_draw import (
    STEP_BITS,
    DrawPlan,
    SpreadUsers,
    draw_border,
    margin,
    plan_draws,
)
from sfumato.transforms.statistics.tree_least_squares import NoisyLevel, fit_counts, upward_variances

Array = NDArray[np.float64]

_PLACES = 1009  # a prime: they are at all distances from the borders of coarse bins
MAX_BITS = 20  # the tree holds every bin
METHODS = ("exponential", "hierarchical")
_CURVE_BITS = 11  # of a published curve


@dataclass(frozen=True)
class HierarchyNoise:
    """The noise of a hierarchy, from public figures only.

    Attributes:
        bits: the finest level has 2^bits bins.
        levels: bits of each level, ascending; the last is `bits`.
        epsilon: of all levels together.
    """

    bits: int
    levels: tuple[int, ...]
    epsilon: float

    @property
    def level_epsilon(self) -> float:
        """The epsilon of each level."""
        return self.epsilon / len(self.levels)

    @property
    def _fan_outs(self) -> list[int]:
        return [1 << (low - high) for high, low in itertools.pairwise((0, *self.levels))]

    @property
    def variances(self) -> list[float]:
        """Of the upward estimate of a node of each level, in users^2."""
        return upward_variances([self.own_variance] * len(self.levels), self._fan_outs[:0:-1])[::-1]

    @property
    def own_variance(self) -> float:
        """Of each noisy count, in users^2."""
        return discrete_laplace_stddev(self.level_epsilon) ** 2

    def covariance(self, low: Array, high: Array) -> Array:
        """Of the estimated users below two values, in users^2.

        The total has the variance of all nodes of the first level. A node's total is independent of how its children
        divide it, so each node above both values adds a term of its own.

        low: float64[n], values in finest bins, 0..2^bits. high: float64[n], values of at least `low`.
        """
        size = float(1 << self.bits)
        found = low * high / size**2 * self._fan_outs[0] * self.variances[0]
        for fan_out, variance in zip(self._fan_outs, self.variances, strict=True):
            if size == 1 << self.bits:
                (inside, above), same = (low / size, high / size), np.ones(np.shape(low), bool)
            else:
                (inside, above), same = (low / size % 1, high / size % 1), low // size == high // size
            (child, part), (child_above, part_above) = np.divmod(inside * fan_out, 1), np.divmod(above * fan_out, 1)
            both = child + np.where(child == child_above, part * part_above, part)
            found = found + np.where(same, variance * (both - fan_out * inside * above), 0.0)
            size /= fan_out
        return found

    def rank_stddev(self, share: float) -> float:
        """Root mean square error of a quantile's rank, in users, over places of the quantile all over the range."""
        place = np.linspace(0, 1 << self.bits, _PLACES, endpoint=False)
        end = np.full(_PLACES, float(1 << self.bits))
        variance = (
            self.covariance(place, place)
            - 2 * share * self.covariance(place, end)
            + share**2 * self.covariance(end, end)
        )
        return float(np.sqrt(variance.mean()))


@dataclass(frozen=True, eq=False)
class NoisyHierarchy:
    """A distribution over a range, uniform within each bin.

    Attributes:
        noise: of its counts.
        below: float64[2^bits + 1], estimated users below each border, ascending from 0.
        scale: the bins.
    """

    noise: HierarchyNoise
    below: Array
    scale: NumberBins

    @property
    def users(self) -> float:
        """Estimated users in the whole range."""
        return float(self.below[-1])

    def curve(self, bits: int) -> Curve:
        """The distribution function at the borders of 2^bits bins, with its 95% band. It needs users above 0."""
        last = 1 << self.noise.bits
        at = np.arange(0, last + 1, last >> bits)
        share, place, end = self.below[at] / self.users, at.astype(float), np.full(len(at), float(last))
        covariance = self.noise.covariance
        variance = covariance(place, place) - 2 * share * covariance(place, end) + share**2 * covariance(end, end)
        margin = DEVIATIONS * np.sqrt(np.maximum(variance, 0)) / self.users
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
        users, margin = float(after - before), DEVIATIONS * stddev
        inner = self.below[np.floor(ends[1]).astype(int)] - self.below[np.ceil(ends[0]).astype(int)]
        outer = self.below[np.ceil(ends[1]).astype(int)] - self.below[np.floor(ends[0]).astype(int)]
        least, most = max(float(inner) - margin, 0.0), float(outer) + margin
        return RangeAnswer(low, high, users, stddev, least, most)


def measure_hierarchy(users: SpreadUsers, noise: HierarchyNoise, key: RunKey) -> list[NDArray[np.int64]]:
    """The noisy counts of every level, int64[2^level] each. Each level draws its noise once."""
    leaves = np.zeros(1 << noise.bits, np.int64)
    leaves[users.bins] = users.counts
    noisy = []
    for level in noise.levels:
        stream = np.array([level], dtype=np.uint64)
        drawn = discrete_laplace(key, "quantile hierarchy", stream, 1 << level, noise.level_epsilon)[0]
        noisy.append(leaves.reshape(1 << level, -1).sum(axis=1) + drawn)
    return noisy


def fit_hierarchy(noisy: Sequence[NDArray[np.int64]], noise: HierarchyNoise, scale: NumberBins) -> NoisyHierarchy:
    """The least squares estimate from the noisy counts of `measure_hierarchy`, made to ascend from 0."""
    levels = [NoisyLevel(counts[None].astype(np.float64), noise.own_variance) for counts in reversed(noisy)]
    pairs = itertools.pairwise(reversed(noise.levels))
    parents = [np.arange(1 << finer) >> (finer - coarser) for finer, coarser in pairs]
    (nodes,) = fit_counts(levels, parents)[0]
    cumulative = np.append(0.0, np.cumsum(nodes))
    ascending = scipy.optimize.isotonic_regression(cumulative).x
    total = max(float(cumulative[-1]), 0.0)
    return NoisyHierarchy(noise, np.append(np.append(0.0, np.clip(ascending[1:-1], 0, total)), total), scale)


@dataclass(frozen=True)
class QuantilesPlan:
    """The budget of quantiles with a trusted curator. The guarantee is pure: delta is 0.

    Attributes:
        epsilon: budget of the whole release, > 0. A share pays for the admission.
        shares: of users below the quantiles, each strictly between 0 and 1.
        bits: the range has 2^bits bins.
        method: one of METHODS.
        levels: bits of each level of the hierarchy, ascending; empty for the exponential method.
        population: number of users in the logs, publicly known. A run on other logs is refused. None: unknown.
        max_bad_fraction: the largest share of users without a usable record, 0..1.

    Raises:
        RequestError: a value is out of range.
    """

    epsilon: float
    shares: tuple[float, ...]
    bits: int
    method: str
    levels: tuple[int, ...] = ()
    population: int | None = None
    max_bad_fraction: float = 0.1

    def __post_init__(self) -> None:
        check_epsilon("epsilon", self.epsilon)
        check_shares(self.shares)
        if self.method not in METHODS:
            raise RequestError(f"method: must be one of {', '.join(METHODS)}, got {self.method!r}")
        if self.method == "hierarchical" and not (self.levels and self.bits <= MAX_BITS):
            raise RequestError(f"bits: the hierarchy of a curator needs a level, and {MAX_BITS} bits at most")
        if self.population is not None:
            check_count("population", self.population)
        if self.admission_rule.epsilon < MIN_NOISE_EPSILON:
            raise RequestError(f"epsilon: {self.epsilon:g} is too small for the admission of a run; raise it")

    @property
    def rounds(self) -> int:
        """The number of rounds: all is drawn from one count of the users by bin."""
        return 1

    @property
    def delta(self) -> float:
        """Of the whole release."""
        return 0.0

    @property
    def admission_rule(self) -> AdmissionRule:
        """The rule for the noisy counts of all users that admit a run, with their cost."""
        return AdmissionRule(
            epsilon=ADMISSION_SHARE * self.epsilon, max_bad_fraction=self.max_bad_fraction, population=self.population
        )

    @property
    def mechanism_epsilon(self) -> float:
        """The epsilon of all draws, or of all levels of the hierarchy."""
        return self.epsilon - self.admission_rule.epsilon

    def draws(self, users: float) -> DrawPlan:
        """The draws of the exponential method. users: their public or noisy number; see `plan_draws`."""
        return plan_draws(sorted(set(self.shares)), self.mechanism_epsilon, users, self.bits)

    @cached_property
    def hierarchy(self) -> HierarchyNoise:
        """The noise of the hierarchical method."""
        return HierarchyNoise(self.bits, self.levels, self.mechanism_epsilon)

    def rank_stddev(self) -> float:
        """Expected root mean square error of the quantiles' ranks, in users, from public figures only."""
        if self.method == "exponential":
            plan = self.draws(self.population or TYPICAL_USERS)
            errors = [plan.stddevs[number] for number in plan.quantiles]
        else:
            errors = [self.hierarchy.rank_stddev(share) for share in self.shares]
        return float(np.sqrt(np.mean(np.square(errors))))


@dataclass(frozen=True)
class Values:
    """What the bins stand for.

    Attributes:
        low: lower end of the bins.
        high: upper end of the bins.
        end: the largest value to publish, at most `high`.
        whole: whether each bin is one whole number.
        edges: of the bins of the hierarchical method, see NumberBins.
    """

    low: float
    high: float
    end: float
    whole: bool = False
    edges: tuple[float, ...] = ()

    def at(self, share: float) -> float:
        """The value at a share of the range."""
        return min(self.low + (self.high - self.low) * share, self.end)


@dataclass(frozen=True, eq=False)
class PrivateDistribution:
    """What a release publishes of a distribution.

    Attributes:
        users: estimated users with a value.
        curve: the distribution function; the exponential method knows it only at some points.
        quantiles: one for each share; none if there seem to be no users.
        ranges: the answers to ranges; none by the exponential method.
        admission: the noisy counts of users that admitted the run; None without one.
    """

    users: float
    curve: Curve
    quantiles: tuple[Quantile, ...]
    ranges: tuple[RangeAnswer, ...] = ()
    admission: NoisyUserCounts | None = None


def whole_numbers(items: NumberItems) -> NumberItems:
    """The same numbers in bins of one whole number each, where as many bins are enough for the range.

    Whole numbers leave most of finer bins empty, and the exponential mechanism is drawn to long empty stretches. The
    range then ends at a power of two: what is drawn above the requested one is published as its end.
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
    """Draws what a release publishes, once.

    Args:
        users: exact numbers of users by bin, one record each.
        values: of the bins.
        ranges: to answer, by the hierarchical method.
        admission: the noisy counts of users; None without one.
    """
    key = key.narrowed({"quantiles": asdict(plan), "values": asdict(values)})
    if plan.method == "exponential":
        about = float(plan.population or TYPICAL_USERS) if admission is None else admission.users
        found = _exponential(users, plan, key, values, about)
    else:
        found = _hierarchical(users, plan, key, values, ranges)
    return replace(found, admission=admission)


def draw_borders(users: SpreadUsers, plan: DrawPlan, key: RunKey) -> list[int]:
    """The borders of all draws of a plan, in its order."""
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
