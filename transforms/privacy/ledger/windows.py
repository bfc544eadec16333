"""Sliding-window budgets: what the data of any N consecutive days have cost, and whether another charge fits.

A window covers days of the data, not the days on which releases are made. A limit of 365 days protects a user's records
of any 365 consecutive days, however late and in whatever order those days are released. A charge for a period counts
in every window that shares a day with the period.

A limit holds for every user. A charge with a rotation counts for the users of one cohort of one partition, and any
other charge for all users. A user has one cohort in each partition. Partitions are independent, so every combination of
their cohorts has users. Each window is judged by the accounts of the users who may have spent the most in it.
"""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import date, timedelta
from decimal import Context, Decimal, localcontext
from functools import lru_cache
from itertools import product, zip_longest
from typing import NamedTuple

from sfumato.schemas.errors import RequestError
from sfumato.schemas.guarantee import ADD_OR_REMOVE, REPLACE, ZERO_OUT
from sfumato.schemas.ledger import Charge, Limit, Period, format_amount, rounded_up
from sfumato.transforms.privacy.mechanism import epsilon_for_delta, gaussian_delta, rho_for_delta
from sfumato.transforms.statistics.bisection import bisect

# Smaller deltas disappear in the rounding errors of the convolutions behind a privacy loss distribution.
_MIN_DELTA = Decimal("1e-12")
_SLACK = 1 + 1e-9  # bounds the floating-point error of a composed delta
_RHO_TOLERANCE = 1e-4  # epsilon, delta and rho of a charge are rounded numbers
# Steps of the first adjacency that make one step of the second. For other pairs no bound is known.
_STEPS = {(ADD_OR_REMOVE, ZERO_OUT): 1, (ADD_OR_REMOVE, REPLACE): 2, (ZERO_OUT, REPLACE): 2}
_MAX_DELTA = 1 - Decimal("1e-28")
_MAX_ACCOUNTS = 64  # that are compared one by one
_EXACT = Context(prec=250)  # amounts have 28 digits and are at least 1e-100, so sums are not rounded


@dataclass(frozen=True)
class Overrun:
    """The first window in which a new charge exceeds a limit.

    spent: `spent_epsilon` in it before the charge, by the users of the charge who spent the most.
    """

    limit: Limit
    window: Period
    spent: Decimal


def find_overrun(charges: Sequence[Charge], new: Charge, limits: Sequence[Limit]) -> Overrun | None:
    """Returns the first limit that the new charge exceeds together with its dataset's charges; None if it fits.

    The charge fits if it fits the account of every user that it queries. Other accounts do not matter.
    """
    rotation = new.rotation
    active_cohorts = {} if rotation is None else {rotation.partition: rotation.cohort}
    beside = charges_of_users([one for one in charges if one.dataset == new.dataset], active_cohorts)
    for limit in limits:
        counted = convert_adjacency(new, limit.adjacency)
        if counted is None:
            continue
        days = timedelta(days=limit.days - 1)
        near = [one for one in beside if new.period.first <= one.period.last + days]
        near = [one for one in near if one.period.first <= new.period.last + days]
        same = _converted(near, limit.adjacency)
        after, before = MovingWindow([*same, counted], limit.delta > 0), MovingWindow(same, limit.delta > 0)
        for window in _windows(same, new.period, limit.days):
            after.move_to(window)
            if not all(fits(account, limit) for account in after.accounts()):
                before.move_to(window)
                return Overrun(limit, window, _most_spent(before, limit))
    return None


def convert_adjacency(charge: Charge, adjacency: str) -> Charge | None:
    """Returns the charge as it counts towards a limit with another adjacency; None if it has no known bound there.

    An add-or-remove guarantee (epsilon, delta) also holds for zero-out, where the number of users is public. To replace
    a user takes two steps, remove and add, and costs (2 epsilon, (1 + e^epsilon) delta). In the other direction there
    is no bound: replace and zero-out guarantees say nothing about the number of users.
    """
    if charge.adjacency == adjacency:
        return charge
    steps = _STEPS.get((charge.adjacency, adjacency))
    if steps is None:
        return None
    delta = charge.delta
    if steps == 2 and delta:
        # A delta of 1 protects nothing; a charge needs a delta below 1.
        delta = _MAX_DELTA if charge.epsilon > 1000 else min(delta * (1 + charge.epsilon.exp()), _MAX_DELTA)
    rho = None if charge.rho is None else steps**2 * charge.rho
    return replace(charge, epsilon=steps * charge.epsilon, delta=delta, adjacency=adjacency, rho=rho)


def check_rho(charge: Charge) -> None:
    """Raises RequestError unless a charge's rho is that of its epsilon and delta, so that none understates another."""
    if charge.rho is None:
        return
    epsilon, rho = float(charge.epsilon), float(charge.rho)
    low, high = (gaussian_delta(rho * factor, epsilon) for factor in (1 - _RHO_TOLERANCE, 1 + _RHO_TOLERANCE))
    if not low <= charge.delta <= high:
        raise RequestError(
            f"rho: {format_amount(charge.rho)} is not the rho of epsilon {format_amount(charge.epsilon)} and delta "
            f"{format_amount(charge.delta)}"
        )


def is_bounded(charge: Charge, limits: Sequence[Limit]) -> bool:
    """Returns whether any of the limits bounds the charge."""
    return any(_converted([charge], limit.adjacency) for limit in limits)


def _converted(charges: Sequence[Charge], adjacency: str) -> list[Charge]:
    same = [convert_adjacency(charge, adjacency) for charge in charges]
    return [charge for charge in same if charge is not None]


def fits(charges: Sequence[Charge], limit: Limit) -> bool:
    """Returns whether a user's charges stay within a limit, by their sum or else by tighter composition.

    The sum is valid even if each charge was chosen after looking at earlier releases. So is the sum of the rhos, where
    all charges have one. Composition with privacy loss distributions is valid for charges fixed in advance. Both need a
    limit with a delta. A charge without a rho is represented by the worst (epsilon, delta) mechanism: randomised
    response that reveals everything with probability delta (Kairouz, Oh and Viswanath, ICML 2015). With delta 0 that is
    discrete Laplace noise of sensitivity 1.
    """
    added_up = exact_sum(charge.epsilon for charge in charges), exact_sum(charge.delta for charge in charges)
    if added_up[0] <= limit.epsilon and added_up[1] <= limit.delta:
        return True
    others = [charge for charge in charges if charge.rho is None]
    if limit.delta < _MIN_DELTA or exact_sum(charge.delta for charge in others) > limit.delta:
        return False
    if others and max(charge.epsilon for charge in others) > limit.epsilon:
        return False
    return composed_delta(charges, float(limit.epsilon)) * _SLACK <= float(limit.delta)


def spent_epsilon(charges: Sequence[Charge], limit: Limit) -> Decimal:
    """Returns the epsilon of a user's charges together at the limit's delta: an upper bound, with an exception below.

    Epsilons are added up. The charges with a rho count as one, at the delta that the others leave, rounded up to six
    digits. Tighter composition may give less. Where the others' deltas already reach the limit's, there is no bound,
    and the sum of epsilons is returned.
    """
    epsilon, delta = exact_sum(charge.epsilon for charge in charges), exact_sum(charge.delta for charge in charges)
    others = [charge for charge in charges if charge.rho is None]
    left = limit.delta - exact_sum(charge.delta for charge in others)
    if left <= 0 or len(others) == len(charges):
        return epsilon
    together = rounded_up(epsilon_for_delta(_total_rho(charges), float(left)))
    composed = exact_sum([*(charge.epsilon for charge in others), together])
    return min(epsilon, composed) if delta <= limit.delta else composed


def composed_delta(charges: Sequence[Charge], epsilon: float) -> float:
    """Returns the delta of a user's charges together at this epsilon, rounded up.

    Charges with a rho (see `mechanism`) are one Gaussian mechanism, whose rho is their sum. The others are composed
    with it by dp-accounting.
    """
    rho = _total_rho(charges)
    others = Counter((float(charge.epsilon), float(charge.delta)) for charge in charges if charge.rho is None)
    return _composed_delta(rho, tuple(sorted(others.items())), epsilon) if others else gaussian_delta(rho, epsilon)


@lru_cache(maxsize=4096)  # most windows of a check hold equal charges
def _composed_delta(rho: float, others: tuple[tuple[tuple[float, float], int], ...], epsilon: float) -> float:
    """Returns the delta of a normal distribution of this rho and of others: ((epsilon, delta), number of charges)."""
    # Imported here because it loads SciPy, and only limits with a delta need it.
    from dp_accounting.pld import common, privacy_loss_distribution

    # Losses are rounded up to a grid: each charge gains one step at most, a thousandth of the smallest epsilon within
    # 1e-5..1e-3.
    interval = max(min(*(one[0] / 1000 for one, _ in others), 1e-3), 1e-5)
    if rho:
        composed = privacy_loss_distribution.from_gaussian_mechanism(
            1.0, sensitivity=math.sqrt(2 * rho), value_discretization_interval=interval
        )
    else:
        composed = privacy_loss_distribution.identity(value_discretization_interval=interval)
    for (one_epsilon, one_delta), number in others:
        single = privacy_loss_distribution.from_privacy_parameters(
            common.DifferentialPrivacyParameters(one_epsilon, one_delta), value_discretization_interval=interval
        )
        composed = composed.compose(single.self_compose(number))
    return float(composed.get_delta_for_epsilon(epsilon))


def daily_epsilon(limit: Limit, delta: float, cohorts: int = 1) -> float:
    """Returns the largest epsilon at which a release of each day of a limit's window fits, if nothing else is charged.

    delta: of each release, of Gaussian noise; 0 for other noise.
    cohorts: of a rotation, which asks each user on ceil(days / cohorts) days of the window at most; 1 for all users.
    """
    epsilon, most = float(limit.epsilon), float(limit.delta)
    days = -(-limit.days // cohorts)
    added_up = epsilon / days
    if limit.delta < _MIN_DELTA:
        return 0.0 if delta else added_up
    if delta:
        return epsilon_for_delta(rho_for_delta(epsilon, most / _SLACK) / days, delta)

    def fits_together(each: float) -> bool:
        return each <= epsilon and _composed_delta(0.0, (((each, 0.0), days),), epsilon) * _SLACK <= most

    if days == 1:
        return epsilon
    high = 2 * added_up
    while fits_together(high):
        high *= 2
    return bisect(fits_together, high / 2, high, 10)[0]


def first_fit(charges: Sequence[Charge], new: Charge, limits: Sequence[Limit]) -> date | None:
    """Returns the first later day from which data of an equally long period would fit; None if they never fit.

    The data belong to the same cohort, if the charge has one.
    """
    if find_overrun([], new, limits) is not None:
        return None
    same = [charge for charge in charges if charge.dataset == new.dataset]
    free = {charge.period.last + timedelta(days=limit.days) for charge in same for limit in limits}
    for first in sorted(one for one in free if one > new.period.first):
        if find_overrun(same, replace(new, period=new.period.moved_to(first)), limits) is None:
            return first
    return None


def spent_in_window(
    charges: Sequence[Charge], dataset: str, last: date, limit: Limit, cohorts: Mapping[str, int] | None = None
) -> Decimal:
    """Returns `spent_epsilon` of what counts towards a dataset's limit in the window that ends on day `last`.

    cohorts: of a user, by partition; None for the user who has spent the most.
    """
    return spent_by_day(charges, dataset, [last], limit, cohorts)[0]


def spent_by_day(
    charges: Sequence[Charge],
    dataset: str,
    days: Sequence[date],
    limit: Limit,
    cohorts: Mapping[str, int] | None = None,
) -> list[Decimal]:
    """Returns `spent_in_window` for windows that end on each of these days, which are in ascending order."""
    same = charges_of_users([one for one in charges if one.dataset == dataset], cohorts or {})
    moving, found = MovingWindow(_converted(same, limit.adjacency), limit.delta > 0), []
    for last in days:
        moving.move_to(Period(last - timedelta(days=limit.days - 1), last))
        found.append(_most_spent(moving, limit))
    return found


def max_spent(
    charges: Sequence[Charge], dataset: str, limit: Limit, cohorts: Mapping[str, int] | None = None
) -> tuple[Period, Decimal] | None:
    """Returns the window of a limit in which most is spent, and its `spent_in_window`; None without charges.

    Any window can be moved later until it begins on the last day of a charge without losing a charge. So only windows
    that begin on such days are compared.
    """
    same = charges_of_users([one for one in charges if one.dataset == dataset], cohorts or {})
    before = timedelta(days=limit.days - 1)
    ends = sorted({one.period.last + before for one in _converted(same, limit.adjacency)})
    spent = zip(ends, spent_by_day(same, dataset, ends, limit), strict=True)
    last, most = max(spent, key=lambda one: one[1], default=(None, Decimal(0)))
    return None if last is None else (Period(last - before, last), most)


def _most_spent(window: MovingWindow, limit: Limit) -> Decimal:
    """Returns the `spent_epsilon` of the users who have spent the most in a window."""
    return max(spent_epsilon(account, limit) for account in window.accounts())


def _total_rho(charges: Sequence[Charge]) -> float:
    return float(exact_sum(charge.rho for charge in charges if charge.rho is not None))


def _windows(charges: Sequence[Charge], period: Period, days: int) -> list[Period]:
    """Returns windows that overlap the period: enough to contain every possible combination of charges.

    A window that begins on day s overlaps a charge if s lies in `first - days + 1`..`last`. As s grows, a charge joins
    only at the start of its range. So the windows that begin at such starts, and at the period's own, suffice.
    """
    before = timedelta(days=days - 1)
    starts = {one.period.first - before for one in charges} | {period.first - before}
    return [Period(s, s + before) for s in sorted(starts) if period.first - before <= s <= period.last]


class _Total(NamedTuple):
    """What charges cost together: sums over those with a rho, and (epsilon, delta) of each other one, largest first.

    Without composition the sums are over all charges, and `others` is empty.
    """

    epsilon: Decimal
    delta: Decimal
    rho: Decimal
    others: tuple[tuple[Decimal, Decimal], ...]

    @classmethod
    def of(cls, charges: Iterable[Charge], composed: bool) -> _Total:
        charges = list(charges)
        summed = [one for one in charges if one.rho is not None] if composed else charges
        others = [(one.epsilon, one.delta) for one in charges if one.rho is None] if composed else []
        return cls(
            exact_sum(one.epsilon for one in summed),
            exact_sum(one.delta for one in summed),
            exact_sum(one.rho for one in summed if one.rho is not None) if composed else Decimal(0),
            tuple(sorted(others, reverse=True)),
        )

    def costs_at_most(self, other: _Total) -> bool:
        """Returns whether these charges cost at most as much as the others, whatever else a user is charged."""
        return (
            all(mine <= its for mine, its in zip(self[:3], other[:3], strict=True))
            and len(self.others) <= len(other.others)
            and all(e <= f and d <= g for (e, d), (f, g) in zip(self.others, other.others, strict=False))
        )


def exact_sum(amounts: Iterable[Decimal]) -> Decimal:
    """Returns the sum of amounts of charges, not rounded."""
    with localcontext(_EXACT):
        return sum(amounts, Decimal(0))


def same_cohorts(charges: Iterable[Charge], new: Charge) -> bool:
    """Returns whether the new charge's partition has the number of cohorts that it has in all earlier charges."""
    rotation = new.rotation
    return rotation is None or all(
        one.rotation is None or one.rotation.partition != rotation.partition or one.rotation.cohorts == rotation.cohorts
        for one in charges
    )


def charges_of_users(charges: Iterable[Charge], cohorts: Mapping[str, int]) -> list[Charge]:
    """Returns the charges that may count for a user of these cohorts, by partition; in others, of any cohort."""
    return [
        one
        for one in charges
        if one.rotation is None or cohorts.get(one.rotation.partition, one.rotation.cohort) == one.rotation.cohort
    ]


class MovingWindow:
    """The charges of a window that moves to later days, by the users for which they count.

    charges: of one dataset, as they count towards one limit.
    composed: whether they are composed by more than the sums of epsilons and deltas.
    """

    def __init__(self, charges: Sequence[Charge], composed: bool):
        self._composed = composed
        numbered = list(enumerate(charges))
        self._joining = sorted(numbered, key=lambda one: one[1].period.first, reverse=True)
        self._leaving = sorted(numbered, key=lambda one: one[1].period.last, reverse=True)
        self._of_all: dict[int, Charge] = {}
        self._cohorts: dict[str, dict[int, dict[int, Charge]]] = defaultdict(lambda: defaultdict(dict))
        self._totals: dict[tuple[str, int], _Total] = {}
        self._costliest: dict[str, list[list[Charge]]] = {}

    def move_to(self, window: Period) -> None:
        """Moves to a window that begins and ends no earlier than the one before."""
        while self._joining and self._joining[-1][1].period.first <= window.last:
            number, charge = self._joining.pop()
            self._changed(charge)[number] = charge
        while self._leaving and self._leaving[-1][1].period.last < window.first:
            number, charge = self._leaving.pop()
            del self._changed(charge)[number]

    def _changed(self, charge: Charge) -> dict[int, Charge]:
        """Returns the mutable charges, by number, of the users for which a charge counts, and discards their cost."""
        rotation = charge.rotation
        if rotation is None:
            return self._of_all
        self._totals.pop((rotation.partition, rotation.cohort), None)
        self._costliest.pop(rotation.partition, None)
        return self._cohorts[rotation.partition][rotation.cohort]

    def accounts(self) -> list[list[Charge]]:
        """Returns the charges of the users who may have spent the most in the window.

        No other user has spent more than one of these. The accounts are those of real users, unless the costliest
        cohorts of all partitions have more than 64 combinations. Then there is one account, which bounds all of them.
        """
        choices = [self._costliest_cohorts(partition) for partition in self._cohorts]
        if math.prod(map(len, choices)) > _MAX_ACCOUNTS:
            choices = [[list(_upper_bound(cohorts))] for cohorts in choices]
        return [[*self._of_all.values(), *(one for own in cohorts for one in own)] for cohorts in product(*choices)]

    def _costliest_cohorts(self, partition: str) -> list[list[Charge]]:
        """Returns the charges of each cohort of a partition, without cohorts that another cohort dominates."""
        if partition not in self._costliest:
            cohorts = self._cohorts[partition]
            for cohort, charges in cohorts.items():
                if (partition, cohort) not in self._totals:
                    self._totals[partition, cohort] = _Total.of(charges.values(), self._composed)
            by_total = {self._totals[partition, cohort]: cohort for cohort in sorted(cohorts, reverse=True)}
            kept: list[_Total] = []
            for total in sorted(by_total, reverse=True):
                if not any(total.costs_at_most(other) for other in kept):
                    kept = [other for other in kept if not other.costs_at_most(total)] + [total]
            self._costliest[partition] = [list(cohorts[by_total[total]].values()) for total in kept]
        return self._costliest[partition]


def _upper_bound(cohorts: Sequence[Sequence[Charge]]) -> Iterator[Charge]:
    """Yields charges that cost at least as much as those of any cohort: the largest of each, the next, ..."""
    for has_rho in (False, True):
        ranked = [
            sorted(
                (one for one in charges if (one.rho is not None) == has_rho),
                key=lambda one: (one.epsilon, one.delta),
                reverse=True,
            )
            for charges in cohorts
        ]
        for same_rank in zip_longest(*ranked):
            present = [one for one in same_rank if one is not None]
            yield replace(
                present[0],
                epsilon=max(one.epsilon for one in present),
                delta=max(one.delta for one in present),
                rho=max(one.rho for one in present if one.rho is not None) if has_rho else None,
            )
