"""Sliding windows against brute force over every window, and composition against what is known of it."""

from __future__ import annotations

import math
from datetime import date, timedelta
from decimal import Decimal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sfumato.schemas.ledger import Charge, Limit, Period
from sfumato.transforms.privacy.ledger.windows import (
    composed_delta,
    find_overrun,
    first_fit,
    fits,
    max_spent,
    spent_in_window,
)
from tests.transforms.privacy.ledger.helpers import charge

ORIGIN = date(2026, 1, 1)


def at(first: int, length: int = 1) -> str:
    return f"{ORIGIN + timedelta(days=first)}:{ORIGIN + timedelta(days=first + length - 1)}"


charges = st.builds(
    lambda first, length, tenths: charge(f"r{first}-{length}-{tenths}", at(first, length), f"0.{tenths}"),
    st.integers(0, 30),
    st.integers(1, 5),
    st.integers(1, 9),
)


def by_brute_force(standing: list[Charge], new: Charge, limit: Limit) -> bool:
    """Whether every window of so many days keeps to the limit once the new charge is there."""
    for start in range(-20, 60):
        days = {ORIGIN + timedelta(days=start + number) for number in range(limit.days)}
        within = [one for one in [*standing, new] if days & set(one.period.days())]
        if new in within and sum(one.epsilon for one in within) > limit.epsilon:
            return False
    return True


@given(st.lists(charges, max_size=8), charges, st.integers(1, 12), st.integers(1, 30))
def test_every_window_is_looked_at(standing: list[Charge], new: Charge, days: int, tenths: int) -> None:
    limit = Limit(Decimal(tenths) / 10, Decimal(0), days)
    assert (find_overrun(standing, new, [limit]) is None) == by_brute_force(standing, new, limit)


@given(st.lists(charges, max_size=6), charges, st.integers(1, 8), st.integers(9, 20))
def test_the_day_that_is_named_is_the_first_that_fits(
    standing: list[Charge], new: Charge, days: int, tenths: int
) -> None:
    limit = Limit(Decimal(tenths) / 10, Decimal(0), days)
    if find_overrun(standing, new, [limit]) is None:
        return
    found = first_fit(standing, new, [limit])
    assert found is not None  # a single charge of 0.9 at most always fits some day
    for number in range(1, 60):
        first = new.period.first + timedelta(days=number)
        moved = charge("moved", f"{first}:{first + (new.period.last - new.period.first)}", str(new.epsilon))
        fits_there = by_brute_force(standing, moved, limit)
        assert fits_there == (find_overrun(standing, moved, [limit]) is None)
        if fits_there:
            assert found == first
            return
    raise AssertionError("nothing fits")


def test_what_never_fits_has_no_day() -> None:
    limit = Limit.parse("1/7d")
    assert find_overrun([], charge("r", epsilon="1.1"), [limit]) is not None
    assert first_fit([charge("s")], charge("r", epsilon="1.1"), [limit]) is None


def test_tenths_add_up_to_one() -> None:
    """As people write numbers, not as binary fractions round them: 0.1 ten times is 1, and no more fits."""
    limit = Limit.parse("1/30d")
    ten = [charge(f"r{number}", epsilon="0.1") for number in range(10)]
    assert fits(ten, limit)
    assert not fits([*ten, charge("more", epsilon="1e-12")], limit)


def test_deltas_add_up_too() -> None:
    limit = Limit.parse("10:1e-6/30d")
    assert fits([charge("a", delta="5e-7"), charge("b", delta="5e-7")], limit)
    assert not fits([charge("a", delta="5e-7"), charge("b", delta="6e-7")], limit)
    assert not fits([charge("a", epsilon="0.1", delta="1e-9")], Limit.parse("10/30d"))


def test_other_datasets_do_not_count() -> None:
    limit = Limit.parse("1/1d")
    assert find_overrun([charge("a", dataset="bikes")], charge("b"), [limit]) is None
    assert find_overrun([charge("a")], charge("b"), [limit]) is not None


def randomised_response_delta(epsilon: float, rounds: int, target: float) -> float:
    """The delta of k-fold randomised response at a target epsilon, summed over outcomes: exact (Kairouz et al.)."""
    p = math.exp(epsilon) / (1 + math.exp(epsilon))
    total = 0.0
    for successes in range(rounds + 1):
        log_one = successes * math.log(p) + (rounds - successes) * math.log(1 - p)
        log_other = successes * math.log(1 - p) + (rounds - successes) * math.log(p)
        gap = math.exp(log_one) - math.exp(target + log_other)
        total += math.comb(rounds, successes) * max(0.0, gap)
    return total


@pytest.mark.parametrize(("epsilon", "rounds", "target"), [("0.1", 100, 4.0), ("0.5", 20, 6.0), ("1", 12, 9.0)])
def test_composition_is_the_exact_one_rounded_up(epsilon: str, rounds: int, target: float) -> None:
    exact = randomised_response_delta(float(epsilon), rounds, target)
    found = composed_delta([charge(f"r{number}", epsilon=epsilon) for number in range(rounds)], target)
    assert exact <= found <= 1.2 * exact


def test_releases_of_different_cost_compose() -> None:
    """Two kinds of randomised response, against the sum over the outcomes of both."""
    p, q = (math.exp(e) / (1 + math.exp(e)) for e in (0.1, 0.7))
    exact = 0.0
    for i in range(31):
        for j in range(9):
            one = p**i * (1 - p) ** (30 - i) * q**j * (1 - q) ** (8 - j)
            other = p ** (30 - i) * (1 - p) ** i * q ** (8 - j) * (1 - q) ** j
            exact += math.comb(30, i) * math.comb(8, j) * max(0.0, one - math.exp(5.0) * other)
    mixed = [charge(f"r{n}", epsilon="0.1") for n in range(30)] + [charge(f"s{n}", epsilon="0.7") for n in range(8)]
    assert exact <= composed_delta(mixed, 5.0) <= 1.2 * exact


def test_a_delta_buys_more_releases_than_adding_up() -> None:
    many = [charge(f"r{number}", epsilon="0.1") for number in range(120)]  # adds up to 12
    assert fits(many, Limit.parse("10:1e-6/365d"))
    assert not fits(many, Limit.parse("10/365d"))
    assert randomised_response_delta(0.1, 500, 10.0) > 1e-6
    assert not fits([charge(f"r{number}", epsilon="0.1") for number in range(500)], Limit.parse("10:1e-6/365d"))


def test_one_release_above_the_limit_never_hides_in_the_delta() -> None:
    assert not fits([charge("r", epsilon="1.01")], Limit.parse("1:0.5/1d"))


def test_what_is_spent_in_a_window() -> None:
    standing = [charge("a", at(0)), charge("b", at(3, 2), "0.5"), charge("c", at(9), "0.25")]
    assert spent_in_window(standing, "taxis", ORIGIN + timedelta(days=4), Limit.parse("1/5d")) == Decimal("1.5")
    assert spent_in_window(standing, "taxis", ORIGIN + timedelta(days=4), Limit.parse("1/4d")) == Decimal("0.5")
    assert spent_in_window(standing, "bikes", ORIGIN + timedelta(days=4), Limit.parse("1/5d")) == 0


@given(st.lists(charges, min_size=1, max_size=8), st.integers(1, 12))
def test_the_fullest_window(standing: list[Charge], days: int) -> None:
    limit = Limit.parse(f"1/{days}d")
    everywhere = [spent_in_window(standing, "taxis", ORIGIN + timedelta(days=end), limit) for end in range(-5, 60)]
    found = max_spent(standing, "taxis", limit)
    assert found is not None
    assert found[1] == max(everywhere)
    assert spent_in_window(standing, "taxis", found[0].last, limit) == found[1]


def test_a_period_counts_in_each_window_that_it_touches() -> None:
    limit = Limit.parse("1/1d")
    month = charge("month", "2026-11-01:2026-11-30")
    for inside in ("2026-11-01", "2026-11-15", "2026-11-30"):
        assert find_overrun([month], charge("day", inside, "0.1"), [limit]) is not None
    assert find_overrun([month], charge("day", "2026-12-01"), [limit]) is None
    assert Period.parse("2026-11-01:2026-11-30").length == 30
