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
from decimal import Decimal

from sfumato.schemas.ledger import Charge, Limit, Period

# Below this a delta is lost among the rounding errors of the convolutions behind a loss distribution.
_LEAST_DELTA = Decimal("1e-12")
_SLACK = 1 + 1e-9  # what floating point may have lost of a composed delta


@dataclass(frozen=True)
class Overrun:
    """A window whose charges, together with a new one, exceed a limit. spent: before the new charge."""

    limit: Limit
    window: Period
    spent: Decimal


def overrun(charges: Sequence[Charge], new: Charge, limits: Sequence[Limit]) -> Overrun | None:
    """The first limit that the new charge would exceed beside those of its dataset; None where it fits."""
    same = [charge for charge in charges if charge.dataset == new.dataset]
    for limit in limits:
        for window in _windows(same, new.period, limit.days):
            within = [charge for charge in same if _meets(charge.period, window)]
            if not fits([*within, new], limit):
                return Overrun(limit, window, _total(within))
    return None


def fits(charges: Sequence[Charge], limit: Limit) -> bool:
    """Whether charges on the same data stay within a limit: by adding up, or where that is too much by composition.

    Adding up holds even if each charge was chosen in the light of what earlier releases showed. Composition by privacy
    loss distributions (the best that is known of an (epsilon, delta) mechanism: randomised response with a chance delta
    of telling all; Kairouz, Oh and Viswanath, ICML 2015) holds for amounts that were not; it needs a delta to spend.
    """
    epsilon, delta = _total(charges), sum((charge.delta for charge in charges), Decimal(0))
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


def spent_in_window(charges: Sequence[Charge], dataset: str, last: date, days: int) -> Decimal:
    """Epsilons, added up, of a dataset's charges for the so many days that end on a day."""
    window = Period(last - timedelta(days=days - 1), last)
    return _total([one for one in charges if one.dataset == dataset and _meets(one.period, window)])


def most_spent(charges: Sequence[Charge], dataset: str, days: int) -> tuple[Period, Decimal] | None:
    """The window of so many days in which most epsilon is spent, and how much; None where nothing is.

    It may be moved on until it begins on the last day of a charge without losing any, so those are looked at.
    """
    same = [one for one in charges if one.dataset == dataset]
    starts = sorted({one.period.last for one in same})
    found = [Period(start, start + timedelta(days=days - 1)) for start in starts]
    spent = [(window, _total([one for one in same if _meets(one.period, window)])) for window in found]
    return max(spent, key=lambda one: one[1], default=None)


def _total(charges: Sequence[Charge]) -> Decimal:
    return sum((charge.epsilon for charge in charges), Decimal(0))


def _meets(period: Period, window: Period) -> bool:
    return period.first <= window.last and window.first <= period.last


def _windows(charges: Sequence[Charge], period: Period, days: int) -> list[Period]:
    """Windows that meet the period, among them for every possible set of charges one that meets them all.

    A window that begins on day s meets a charge if s is from `first - days + 1` to `last`; as s grows, a charge joins
    only at the beginning of that range, so the windows that begin there, or where the period's own range does, suffice.
    """
    before = timedelta(days=days - 1)
    starts = {one.period.first - before for one in charges} | {period.first - before}
    return [Period(s, s + before) for s in sorted(starts) if period.first - before <= s <= period.last]
