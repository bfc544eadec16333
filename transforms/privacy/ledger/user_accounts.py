"""The accounts of users: which charges count for whom, and the accounts that cost the most. Pure.

A charge with a rotation counts for the users of one cohort of one partition, and any other charge for all users. A user
has one cohort in each partition. Partitions are independent, so every combination of their cohorts has users.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from decimal import Context, Decimal, localcontext
from itertools import product, zip_longest
from typing import NamedTuple

from sfumato.schemas.ledger import Charge, Period

_MAX_ACCOUNTS = 64  # that are compared one by one
_EXACT = Context(prec=250)  # amounts have 28 digits and are at least 1e-100, so sums are not rounded


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
        """Whether these charges cost at most as much as the other ones, whatever else a user is charged with."""
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
    """Returns the charges that may count for a user of these cohorts.

    Args:
        charges: of any users.
        cohorts: the users' cohort, by partition. In partitions that are not named, any cohort may be theirs.
    """
    return [
        one
        for one in charges
        if one.rotation is None or cohorts.get(one.rotation.partition, one.rotation.cohort) == one.rotation.cohort
    ]


class MovingWindow:
    """The charges of a window that moves to later days, by the users for whom they count.

    Args:
        charges: of one dataset, as they count towards one limit.
        composed: whether charges are composed by more than the sums of epsilons and deltas.
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
        """The charges of the users for whom a charge counts, by number, to be changed: their cost is computed anew."""
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
        """The charges of each cohort of a partition, without cohorts that cost at most as much as another one."""
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
    """Charges that together cost at least as much as those of any cohort: the largest of each, the next largest, ..."""
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
