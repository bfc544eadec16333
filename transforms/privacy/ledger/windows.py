"""Budgets by sliding window: what a user's data of any so many days in a row have cost, and whether more fits.

Windows are of the data's days and not of the day on which a release is made: a user's records of any 365 days in a row
are what a limit of 365 days protects, however late or in which order their days are released. A charge for a period
counts in every window that shares a day with it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import date, timedelta
from decimal import Context, Decimal, localcontext

from sfumato.schemas.ledger import ADD_OR_REMOVE, REPLACE, ZERO_OUT, Charge, Limit, Period

# Below this a delta is lost among the rounding errors of the convolutions behind a loss distribution.
_LEAST_DELTA = Decimal("1e-12")
_SLACK = 1 + 1e-9  # what floating point may have lost of a composed delta
_EXACT = Context(prec=250)  # amounts have 28 digits and are 1e-100 at least, so no sum of them is rounded
# How many steps of the first adjacency make one of the second. Where there is none, nothing is known.
_STEPS = {(ADD_OR_REMOVE, ZERO_OUT): 1, (ADD_OR_REMOVE, REPLACE): 2, (ZERO_OUT, REPLACE): 2}
_MOST_DELTA = 1 - Decimal("1e-28")


@dataclass(frozen=True)
class Overrun:
    """A window whose charges, together with a new one, exceed a limit. spent: before the new charge."""

    limit: Limit
    window: Period
    spent: Decimal


def overrun(charges: Sequence[Charge], new: Charge, limits: Sequence[Limit]) -> Overrun | None:
    """The first limit that the new charge would exceed beside those of its dataset; None where it fits."""
    for limit in limits:
        counted = converted(new, limit.adjacency)
        if counted is None:
            continue
        same = _counted(charges, new.dataset, limit.adjacency)
        for window in _windows(same, new.period, limit.days):
            within = [charge for charge in same if charge.period.meets(window)]
            if not fits([*within, counted], limit):
                return Overrun(limit, window, _total(within))
    return None


def converted(charge: Charge, adjacency: str) -> Charge | None:
    """The charge as it counts towards a limit of an adjacency; None where it bounds nothing of it.

    What tells apart logs with and without a user tells no more of logs from which the user's records are taken out
    while the number of users is public (zero-out). To replace a user takes two steps, out and in: at (epsilon, delta)
    each they are (2 epsilon, (1 + e^epsilon) delta). The other way there is no bound, since replace and zero-out
    say nothing of the number of users.
    """
    if charge.adjacency == adjacency:
        return charge
    steps = _STEPS.get((charge.adjacency, adjacency))
    if steps is None:
        return None
    delta = charge.delta
    if steps == 2 and delta:
        # A larger delta than 1 protects nothing, nor does the largest below it.
        delta = _MOST_DELTA if charge.epsilon > 1000 else min(delta * (1 + charge.epsilon.exp()), _MOST_DELTA)
    return replace(charge, epsilon=steps * charge.epsilon, delta=delta, adjacency=adjacency)


def bounded(charge: Charge, limits: Sequence[Limit]) -> bool:
    """Whether any of the limits bounds the charge."""
    return any(converted(charge, limit.adjacency) is not None for limit in limits)


def _counted(charges: Sequence[Charge], dataset: str, adjacency: str) -> list[Charge]:
    same = [converted(charge, adjacency) for charge in charges if charge.dataset == dataset]
    return [charge for charge in same if charge is not None]


def fits(charges: Sequence[Charge], limit: Limit) -> bool:
    """Whether charges on the same data stay within a limit: by adding up, or where that is too much by composition.

    Adding up holds even if each charge was chosen in the light of what earlier releases showed. Composition by privacy
    loss distributions (the best that is known of an (epsilon, delta) mechanism: randomised response with a chance delta
    of telling all; Kairouz, Oh and Viswanath, ICML 2015) holds for amounts that were not; it needs a delta to spend.
    """
    epsilon, delta = _total(charges), _sum([charge.delta for charge in charges])
    if epsilon <= limit.epsilon and delta <= limit.delta:
        return True
    if limit.delta < _LEAST_DELTA or delta > limit.delta:
        return False
    if max(charge.epsilon for charge in charges) > limit.epsilon:
        return False
    return composed_delta(charges, float(limit.epsilon)) * _SLACK <= float(limit.delta)


def composed_delta(charges: Sequence[Charge], epsilon: float) -> float:
    """The delta at this epsilon of all charges together, rounded up, by dp-accounting."""
    from dp_accounting.pld import common, privacy_loss_distribution

    kinds = Counter((float(charge.epsilon), float(charge.delta)) for charge in charges)
    # Losses are rounded up to a grid; this one costs a thousandth of the smallest release's own.
    interval = max(min(*(kind[0] / 1000 for kind in kinds), 1e-3), 1e-5)
    composed = privacy_loss_distribution.identity(value_discretization_interval=interval)
    for (one_epsilon, one_delta), number in kinds.items():
        one = privacy_loss_distribution.from_privacy_parameters(
            common.DifferentialPrivacyParameters(one_epsilon, one_delta), value_discretization_interval=interval
        )
        composed = composed.compose(one.self_compose(number))
    return float(composed.get_delta_for_epsilon(epsilon))


def next_fit(charges: Sequence[Charge], new: Charge, limits: Sequence[Limit]) -> date | None:
    """The first later day from which data of a period as long would fit; None where they never will."""
    same = [charge for charge in charges if charge.dataset == new.dataset]
    free = {charge.period.last + timedelta(days=limit.days) for charge in same for limit in limits}
    for first in sorted(one for one in free if one > new.period.first):
        if overrun(same, replace(new, period=new.period.starting(first)), limits) is None:
            return first
    return None


def spent_in_window(charges: Sequence[Charge], dataset: str, last: date, limit: Limit) -> Decimal:
    """Epsilons that count towards a dataset's limit, added up, in its window that ends on a day."""
    window = Period(last - timedelta(days=limit.days - 1), last)
    return _total([one for one in _counted(charges, dataset, limit.adjacency) if one.period.meets(window)])


def most_spent(charges: Sequence[Charge], dataset: str, limit: Limit) -> tuple[Period, Decimal] | None:
    """The window of a limit in which most epsilon is spent, and how much; None where nothing is.

    It may be moved on until it begins on the last day of a charge without losing any, so those are looked at.
    """
    same = _counted(charges, dataset, limit.adjacency)
    starts = sorted({one.period.last for one in same})
    found = [Period(start, start + timedelta(days=limit.days - 1)) for start in starts]
    spent = [(window, _total([one for one in same if one.period.meets(window)])) for window in found]
    return max(spent, key=lambda one: one[1], default=None)


def _total(charges: Sequence[Charge]) -> Decimal:
    return _sum([charge.epsilon for charge in charges])


def _sum(amounts: Sequence[Decimal]) -> Decimal:
    with localcontext(_EXACT):
        return sum(amounts, Decimal(0))


def _windows(charges: Sequence[Charge], period: Period, days: int) -> list[Period]:
    """Windows that meet the period, among them for every possible set of charges one that meets them all.

    A window that begins on day s meets a charge if s is from `first - days + 1` to `last`; as s grows, a charge joins
    only at the beginning of that range, so the windows that begin there, or where the period's own range does, suffice.
    """
    before = timedelta(days=days - 1)
    starts = {one.period.first - before for one in charges} | {period.first - before}
    return [Period(s, s + before) for s in sorted(starts) if period.first - before <= s <= period.last]
