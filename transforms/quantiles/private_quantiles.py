"""Quantiles of a number by a trusted curator: the plan of a budget, and what is published from exact counts. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np

from sfumato.schemas.charts import Curve, Quantile, RangeAnswer
from sfumato.schemas.errors import RequestError
from sfumato.transforms.histogram.curve import banded, check_shares, quantile, unknown_curve
from sfumato.transforms.histogram.sampling_round import check_count
from sfumato.transforms.privacy.admission import AdmissionRule, NoisyUserCounts
from sfumato.transforms.privacy.budget import check_epsilon
from sfumato.transforms.privacy.keys import RunKey
from sfumato.transforms.privacy.noise import MIN_NOISE_EPSILON
from sfumato.transforms.quantiles.draw_plan import DrawPlan, plan_draws
from sfumato.transforms.quantiles.exponential_draw import STEP_BITS, SpreadUsers, draw_border
from sfumato.transforms.quantiles.noisy_hierarchy import MAX_BITS, HierarchyNoise, fit_hierarchy, measure_hierarchy

METHODS = ("exponential", "hierarchical")
_ADMISSION_SHARE = 0.01  # of epsilon, for the noisy counts of users that admit a run
_CURVE_BITS = 11  # of a published curve
_TYPICAL_USERS = 1_000_000  # where the number of users is unknown, for the choice of a method


@dataclass(frozen=True)
class CuratorPlan:
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
        lowest = self.mechanism_epsilon / (len(self.levels) or len(self.draws(_TYPICAL_USERS).epsilons))
        if min(self.admission_rule.epsilon, lowest) < MIN_NOISE_EPSILON:
            raise RequestError(f"epsilon: {self.epsilon:g} is too small for the admission of a run; raise it")

    @property
    def admission_rule(self) -> AdmissionRule:
        """The rule for the noisy counts of all users that admit a run, with their cost."""
        return AdmissionRule(
            epsilon=_ADMISSION_SHARE * self.epsilon, max_bad_fraction=self.max_bad_fraction, population=self.population
        )

    @property
    def mechanism_epsilon(self) -> float:
        """The epsilon of all draws, or of all levels of the hierarchy."""
        return self.epsilon - self.admission_rule.epsilon

    def draws(self, users: float) -> DrawPlan:
        """The draws of the exponential method. users: their public or noisy number; see `plan_draws`."""
        return plan_draws(sorted(set(self.shares)), self.mechanism_epsilon, users)

    @cached_property
    def hierarchy(self) -> HierarchyNoise:
        """The noise of the hierarchical method."""
        return HierarchyNoise(self.bits, self.levels, self.mechanism_epsilon)

    def rank_stddev(self) -> float:
        """Expected root mean square error of the quantiles' ranks, in users, from public figures alone."""
        if self.method == "exponential":
            plan = self.draws(self.population or _TYPICAL_USERS)
            errors = [plan.stddevs[number] for number in plan.quantiles]
        else:
            errors = [self.hierarchy.rank_stddev(share) for share in self.shares]
        return float(np.sqrt(np.mean(np.square(errors))))


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


def private_distribution(
    users: SpreadUsers,
    plan: CuratorPlan,
    key: RunKey,
    extent: tuple[float, float],
    ranges: Sequence[tuple[float, float]],
    admission: NoisyUserCounts,
) -> PrivateDistribution:
    """Draws what a release publishes, once.

    Args:
        users: exact numbers of users by bin, one record each.
        plan: of the budget.
        key: of the run.
        extent: (low, high), the range of values.
        ranges: to answer, by the hierarchical method.
        admission: the noisy counts of users.
    """
    if plan.method == "exponential":
        found = _exponential(users, plan, key, extent, max(admission.users, 1.0))
    else:
        found = _hierarchical(users, plan, key, extent, ranges)
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
    users: SpreadUsers, plan: CuratorPlan, key: RunKey, extent: tuple[float, float], about: float
) -> PrivateDistribution:
    """Quantiles by the exponential mechanism. about: the noisy number of users."""
    low, high = extent
    if about <= 1:
        return PrivateDistribution(0.0, unknown_curve(low, high), ())
    draws = plan.draws(about)
    borders = draw_borders(users, draws, key)

    def value(border: int) -> float:
        return low + (high - low) * (border / users.steps)

    found = {}
    for share, number, (first, last) in zip(draws.shares, draws.quantiles, draws.ends, strict=True):
        # Where in its bin a value lies is not known: an interval ends at borders of bins.
        start = 0 if first is None else borders[first] >> STEP_BITS << STEP_BITS
        stop = users.steps if last is None else -(-borders[last] >> STEP_BITS) << STEP_BITS
        found[share] = Quantile(share, value(borders[number]), value(start), value(stop))
    order = np.lexsort(([draw.share for draw in draws.draws], borders))
    shares = np.maximum.accumulate([draws.draws[number].share for number in order])
    margin = np.array([draws.margin(number) for number in order]) / about
    columns = (shares, np.clip(shares - margin, 0, 1), np.clip(shares + margin, 0, 1))
    values = [low, *(value(borders[number]) for number in order), high]
    curve = banded(np.array(values), *(np.concatenate(([0.0], column, [1.0])) for column in columns))
    return PrivateDistribution(about, curve, tuple(found[share] for share in plan.shares))


def _hierarchical(
    users: SpreadUsers,
    plan: CuratorPlan,
    key: RunKey,
    extent: tuple[float, float],
    ranges: Sequence[tuple[float, float]],
) -> PrivateDistribution:
    """Quantiles and ranges from a hierarchy of noisy counts."""
    hierarchy = fit_hierarchy(measure_hierarchy(users, plan.hierarchy, key), plan.hierarchy, *extent)
    if not hierarchy.users:
        return PrivateDistribution(0.0, unknown_curve(*extent), ())
    finest = hierarchy.curve(plan.bits)
    quantiles = tuple(quantile(finest, share) for share in plan.shares)
    answers = tuple(hierarchy.answer(low, high) for low, high in ranges)
    return PrivateDistribution(hierarchy.users, hierarchy.curve(min(plan.bits, _CURVE_BITS)), quantiles, answers)
