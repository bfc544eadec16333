"""The accounts of users: which charges count for whom, and that no user's account is forgotten."""

from __future__ import annotations

import itertools
from dataclasses import replace
from datetime import date, timedelta
from decimal import Decimal
from typing import Any

from numpy.random import default_rng

from sfumato.schemas.ledger import Charge, Period
from sfumato.schemas.rotation import Rotation
from sfumato.transforms.privacy.ledger.windows import MovingWindow, charges_of_users, exact_sum, same_cohorts
from tests.unit.privacy.ledger.helpers import charge

ORIGIN = date(2026, 1, 1)
NOVEMBER = Period(date(2026, 11, 1), date(2026, 11, 30))


def asked(name: str, which: int, cohort: int, cohorts: int, **amounts: Any) -> Charge:
    return replace(charge(name), rotation=Rotation(cohort, cohorts, f"{which:032x}"), **amounts)


def names(accounts: list[list[Charge]]) -> list[list[str]]:
    return sorted(sorted(one.release_id for one in account) for account in accounts)


def moved(charges: list[Charge], composed: bool, window: Period = NOVEMBER) -> list[list[Charge]]:
    found = MovingWindow(charges, composed)
    found.move_to(window)
    return found.accounts()


def test_amounts_are_added_up_without_rounding() -> None:
    assert exact_sum([Decimal("1e-100"), Decimal(10**6)]) == Decimal("1000000." + 99 * "0" + "1")
    assert exact_sum([]) == 0


def test_charges_of_a_user() -> None:
    every, two, other = charge("all"), asked("two", 0, 2, 3), asked("other", 1, 1, 2)
    charges = [every, two, other]
    partition = f"{0:032x}"
    assert charges_of_users(charges, {partition: 2}) == charges
    assert charges_of_users(charges, {partition: 1}) == [every, other]
    assert charges_of_users(charges, {}) == charges
    assert charges_of_users(charges, {partition: 1, f"{1:032x}": 2}) == [every]


def test_one_number_of_cohorts_in_a_partition() -> None:
    charges = [charge("all"), asked("two", 0, 2, 3)]
    assert same_cohorts(charges, charge("new"))
    assert same_cohorts(charges, asked("new", 0, 3, 3))
    assert same_cohorts(charges, asked("new", 1, 3, 4))
    assert not same_cohorts(charges, asked("new", 0, 3, 4))


def test_a_window_without_charges_has_the_empty_account() -> None:
    assert MovingWindow([], True).accounts() == [[]]
    before = Period(date(2020, 1, 1), date(2020, 1, 30))
    assert moved([charge("all"), asked("two", 0, 2, 3)], False, before) == [[]]


def test_equal_cohorts_have_one_account_and_dearer_ones_hide_cheaper_ones() -> None:
    nights = [asked(f"n{cohort}", 0, cohort, 30) for cohort in range(1, 31)]
    assert len(moved(nights, True)) == 1
    dear = asked("dear", 0, 31, 31, epsilon=Decimal(2))
    assert names(moved([*nights, replace(dear, rotation=nights[8].rotation)], True)) == [["dear", "n9"]]
    assert names(moved([*nights, charge("all")], False)) == [["all", "n1"]]


def test_cohorts_that_no_order_compares_all_have_an_account() -> None:
    """By composition two charges of 0.5 may cost more than one of 0.9, or less. Their sum is more."""
    many = [asked("a", 0, 1, 2, epsilon=Decimal("0.5")), asked("b", 0, 1, 2, epsilon=Decimal("0.5"))]
    one = asked("c", 0, 2, 2, epsilon=Decimal("0.9"))
    assert names(moved([*many, one], True)) == [["a", "b"], ["c"]]
    assert names(moved([*many, one], False)) == [["a", "b"]]
    # By sums, a larger delta is not made up for by a smaller epsilon.
    delta = replace(one, delta=Decimal("1e-9"))
    assert names(moved([*many, delta], False)) == [["a", "b"], ["c"]]
    # Gaussian noise is compared by the sum of its rhos.
    gaussian = [asked(f"g{cohort}", 1, cohort, 2, delta=Decimal("1e-9"), rho=Decimal(cohort)) for cohort in (1, 2)]
    assert names(moved(gaussian, True)) == [["g2"]]


def test_partitions_combine() -> None:
    pairs = list(itertools.product((0, 1), (1, 2)))
    charges = [asked(f"{which}{cohort}", which, cohort, 2, epsilon=Decimal(cohort)) for which, cohort in pairs]
    assert names(moved(charges, True)) == [["02", "12"]]


def test_a_window_that_moves_has_the_accounts_of_one_that_was_made_there() -> None:
    rng = default_rng(7)
    for _ in range(50):
        charges = []
        for number in range(20):
            first = ORIGIN + timedelta(days=int(rng.integers(0, 30)))
            period = Period(first, first + timedelta(days=int(rng.integers(0, 4))))
            which = int(rng.integers(0, 3))
            one = asked(f"r{number}", which, 1 + first.toordinal() % 3, 3, epsilon=Decimal(int(rng.integers(1, 4))))
            charges.append(replace(one, period=period, rotation=None if which == 2 else one.rotation))
        moving = MovingWindow(charges, True)
        for start in sorted(rng.integers(-5, 35, 10).tolist()):
            window = Period(ORIGIN + timedelta(days=start), ORIGIN + timedelta(days=start + 6))
            moving.move_to(window)
            within = [one for one in charges if one.period.overlaps(window)]
            assert names(moving.accounts()) == names(moved(within, True, window))


def test_one_account_bounds_more_combinations_than_are_compared() -> None:
    """Three partitions of five cohorts that no order compares: 125 users, and one account that costs more than each."""
    charges = []
    for which, cohort in itertools.product(range(3), range(1, 6)):
        for number in range(cohort):
            amount = Decimal(1000 // cohort - 10 * cohort + which) / 1000
            more = {"delta": Decimal("1e-7"), "rho": amount / 2} if which == 2 else {}
            charges.append(asked(f"{which}-{cohort}-{number}", which, cohort, 5, epsilon=amount, **more))
    (bound,) = moved(charges, True)
    for user in itertools.product(range(1, 6), repeat=3):
        own = charges_of_users(charges, {f"{which:032x}": cohort for which, cohort in enumerate(user)})
        for has_rho in (False, True):
            mine, its = ([one for one in account if (one.rho is not None) == has_rho] for account in (own, bound))
            assert len(mine) <= len(its)
            # Rank by rank the bound's amounts are at least as large, so it composes to at least as much.
            for name in ("epsilon", "delta", "rho") if has_rho else ("epsilon", "delta"):
                ranks = (sorted((getattr(one, name) for one in charged), reverse=True) for charged in (mine, its))
                assert all(small <= large for small, large in zip(*ranks, strict=False))
