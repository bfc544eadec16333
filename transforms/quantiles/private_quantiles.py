"""Quantiles of a number by a trusted curator: the plan of a budget, and what is published from exact counts. Pure."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from functools import cached_property

import numpy as np

from sfumato.schemas.charts import Curve, Quantile, RangeAnswer
from sfumato.schemas.errors import RequestError
from sfumato.transforms.histogram.curve import banded, check_shares, quantile, unknown_curve
from sfumato.transforms.histogram.item_encoding import NumberItems
from sfumato.transforms.histogram.number_bins import NumberBins
from sfumato.transforms.histogram.sampling_round import check_count
from sfumato.transforms.privacy.admission import ADMISSION_SHARE, AdmissionRule, NoisyUserCounts
from sfumato.transforms.privacy.budget import check_epsilon
from sfumato.transforms.privacy.keys import RunKey
from sfumato.transforms.privacy.noise import MIN_NOISE_EPSILON
from sfumato.transforms.quantiles.exponential_draw import STEP_BITS, DrawPlan, SpreadUsers, draw_border, plan_draws
from sfumato.transforms.quantiles.noisy_hierarchy import MAX_BITS, HierarchyNoise, fit_hierarchy, measure_hierarchy
from sfumato.transforms.text_tables import TYPICAL_USERS

METHODS = ("exponential", "hierarchical")
_CURVE_BITS = 11  # of a published curve


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
        """Expected root mean square error of the quantiles' ranks, in users, from public figures alone."""
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
        curve: the distribution function; known at some points alone by the exponential method.
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
        plan: of the budget.
        key: of the run.
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
    margin = np.array([draws.margin(number) for number in order]) / about
    columns = (shares, np.clip(shares - margin, 0, 1), np.clip(shares + margin, 0, 1))
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
