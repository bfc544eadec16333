"""Sliding windows, compositions and accounts of users against brute force, and against what is known of them."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import replace
from datetime import date, timedelta
from decimal import Decimal
from typing import Any

import mpmath
import pytest
from dp_accounting.pld import privacy_loss_distribution
from hypothesis import given
from hypothesis import strategies as st

from sfumato.schemas.guarantee import REPLACE
from sfumato.schemas.ledger import Charge, Limit, Period, format_amount
from sfumato.schemas.rotation import Rotation
from sfumato.transforms.privacy.ledger.windows import (
    MovingWindow,
    charges_of_users,
    check_rho,
    composed_delta,
    convert_adjacency,
    daily_epsilon,
    exact_sum,
    find_overrun,
    first_fit,
    fits,
    max_spent,
    spent_epsilon,
    spent_in_window,
)
from sfumato.transforms.privacy.mechanism import gaussian_delta, gaussian_rho, rho_for_delta
from tests.rejections import rejects
from tests.seeds import seeded_rng
from tests.unit.privacy.ledger.helpers import charge

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


def test_amounts_are_added_up_without_rounding() -> None:
    """As people write numbers, not as binary fractions round them: 0.1 ten times is 1, and no more fits."""
    assert exact_sum([Decimal("1e-100"), Decimal(10**6)]) == Decimal("1000000." + 99 * "0" + "1")
    ten = [charge(f"r{number}", epsilon="0.1") for number in range(10)]
    assert fits(ten, Limit.parse("1/30d"))
    assert not fits([*ten, charge("more", epsilon="1e-12")], Limit.parse("1/30d"))


def test_deltas_add_up_too() -> None:
    limit = Limit.parse("10:1e-6/30d")
    assert fits([charge("a", delta="5e-7"), charge("b", delta="5e-7")], limit)
    assert not fits([charge("a", delta="5e-7"), charge("b", delta="6e-7")], limit)
    assert not fits([charge("a", epsilon="0.1", delta="1e-9")], Limit.parse("10/30d"))


def randomised_responses_delta(kinds: Sequence[tuple[float, int]], target: float) -> float:
    """The exact delta of randomised responses ((epsilon, number), ...) at a target epsilon, summed over outcomes."""
    total = 0.0
    for flips in itertools.product(*(range(number + 1) for _, number in kinds)):
        one = other = 1.0
        ways = 1
        for (epsilon, number), flipped in zip(kinds, flips, strict=True):
            p = math.exp(epsilon) / (1 + math.exp(epsilon))
            one *= p ** (number - flipped) * (1 - p) ** flipped
            other *= (1 - p) ** (number - flipped) * p**flipped
            ways *= math.comb(number, flipped)
        total += ways * max(0.0, one - math.exp(target) * other)
    return total


@pytest.mark.parametrize(
    ("kinds", "target"), [([(0.1, 100)], 4.0), ([(0.5, 20)], 6.0), ([(1.0, 12)], 9.0), ([(0.1, 30), (0.7, 8)], 5.0)]
)
def test_composed_delta_is_the_exact_one_rounded_up(kinds: list[tuple[float, int]], target: float) -> None:
    """Of k-fold randomised response (Kairouz et al.), also of releases of different cost."""
    exact = randomised_responses_delta(kinds, target)
    charged = [charge("r", epsilon=str(epsilon)) for epsilon, number in kinds for _ in range(number)]
    assert exact <= composed_delta(charged, target) <= 1.2 * exact


def test_a_delta_buys_more_releases_than_adding_up() -> None:
    many = [charge(f"r{number}", epsilon="0.1") for number in range(120)]  # adds up to 12
    assert fits(many, Limit.parse("10:1e-6/365d"))
    assert not fits(many, Limit.parse("10/365d"))
    assert randomised_responses_delta([(0.1, 500)], 10.0) > 1e-6
    assert not fits([charge(f"r{number}", epsilon="0.1") for number in range(500)], Limit.parse("10:1e-6/365d"))


@given(st.lists(charges, min_size=1, max_size=8), st.integers(1, 12))
def test_the_fullest_window(standing: list[Charge], days: int) -> None:
    limit = Limit.parse(f"1/{days}d")
    everywhere = [spent_in_window(standing, "taxis", ORIGIN + timedelta(days=end), limit) for end in range(-5, 60)]
    found = max_spent(standing, "taxis", limit)
    assert found is not None
    assert found[1] == max(everywhere)
    assert spent_in_window(standing, "taxis", found[0].last, limit) == found[1]


# --- charges with a rho ---


def gaussian(release_id: str, epsilon: str, delta: str, period: str = "2026-11-20", factor: float = 1.0) -> Charge:
    """A charge of Gaussian noise. factor: by which its rho is misstated."""
    rho = Decimal(repr(factor * rho_for_delta(float(epsilon), float(delta))))
    return replace(charge(release_id, period, epsilon, delta), rho=rho)


def exact_delta(rho: float, others: list[tuple[float, int]], epsilon: float) -> float:
    """The delta of a normal distribution and randomised responses: ((epsilon, number), ...). By enumeration."""
    with mpmath.workdps(40):
        mu, found = mpmath.sqrt(2 * mpmath.mpf(rho)), mpmath.mpf(0)
        choices = [range(number + 1) for _, number in others]
        for flips in itertools.product(*choices):
            loss, probability = mpmath.mpf(0), mpmath.mpf(1)
            for (each, number), flipped in zip(others, flips, strict=True):
                loss += (number - 2 * flipped) * mpmath.mpf(each)
                kept = 1 / (1 + mpmath.exp(-mpmath.mpf(each)))
                probability *= math.comb(number, flipped) * kept ** (number - flipped) * (1 - kept) ** flipped
            rest = epsilon - loss
            found += probability * (
                mpmath.ncdf(mu / 2 - rest / mu) - mpmath.exp(rest) * mpmath.ncdf(-mu / 2 - rest / mu)
            )
        return float(found)


@pytest.mark.parametrize(
    ("rho", "others", "target"),
    [
        (0.02, [(0.1, 20)], 1.0),
        (0.5, [(0.05, 3), (0.4, 4)], 3.0),
        (0.001, [(0.01, 30)], 0.3),
        (1.0, [(1.0, 2)], 6.0),
    ],
)
def test_composed_delta_of_mixed_charges_is_rounded_up(
    rho: float, others: list[tuple[float, int]], target: float
) -> None:
    mixed = [replace(charge("g", delta="1e-6"), rho=Decimal(str(rho / 2)))] * 2
    mixed += [charge("l", epsilon=str(each)) for each, number in others for _ in range(number)]
    exact = exact_delta(rho, others, target)
    assert exact <= composed_delta(mixed, target) <= 1.05 * exact + 1e-12


@pytest.mark.parametrize(
    ("sigma", "nights", "target", "most"), [(10.34, 365, 10.0, 1.02), (3.0, 30, 6.0, 1.1), (2.0, 1, 2.0, 1.3)]
)
def test_composed_delta_of_rhos_is_not_below_dp_accountings(
    sigma: float, nights: int, target: float, most: float
) -> None:
    """The library composes the discrete Gaussian mechanism itself, with its optimistic grid below the truth.

    most: rho is above 1 / (2 sigma^2) by 1 / (12 sigma^2) of it, and delta by more.
    """
    rho = Decimal(repr(gaussian_rho(sigma)))
    found = composed_delta([replace(charge("g", delta="1e-6"), rho=rho)] * nights, target)
    low, high = (
        privacy_loss_distribution.from_discrete_gaussian_mechanism(
            sigma, pessimistic_estimate=pessimistic, value_discretization_interval=1e-4
        )
        .self_compose(nights)
        .get_delta_for_epsilon(target)
        for pessimistic in (False, True)
    )
    assert low <= found <= most * high


def test_nights_of_gaussian_noise_fit_as_their_rhos_add_up() -> None:
    limit = Limit.parse("10:1e-6/365d")
    epsilon = f"{daily_epsilon(limit, 1e-6) * (1 - 1e-6):.7f}"
    nights = [gaussian(f"r{number}", epsilon, "1e-6", at(number)) for number in range(365)]
    assert find_overrun(nights[:-1], nights[-1], [limit]) is None
    over = find_overrun(nights, gaussian("more", "0.01", "1e-6", at(180)), [limit])
    assert over is not None
    assert 9.99 < over.spent <= 10.0001
    assert find_overrun(nights, gaussian("later", epsilon, "1e-6", at(365)), [limit]) is None
    assert spent_epsilon(nights, limit) == over.spent
    assert spent_epsilon(nights, Limit.parse("10/365d")) == sum(one.epsilon for one in nights)  # no delta, no rho


@pytest.mark.parametrize("text", ["10:1e-6/365d", "1:1e-9/7d", "3:1e-4/30d"])
def test_a_day_of_each_noise_fits_exactly_as_often_as_it_should(text: str) -> None:
    limit = Limit.parse(text)
    for delta in (0.0, float(limit.delta)):
        most = daily_epsilon(limit, delta)
        for factor, fitting in ((0.999, True), (1.01, False)):
            if delta:
                one = gaussian("one", f"{factor * most:.9f}", format_amount(limit.delta))
            else:
                one = charge("one", epsilon=f"{factor * most:.9f}")
            assert fits([one] * limit.days, limit) is fitting
    assert daily_epsilon(Limit.parse("10/365d"), 0.0) == 10 / 365
    assert daily_epsilon(Limit.parse("10/365d"), 1e-6) == 0  # without a delta nothing of it fits


@pytest.mark.parametrize("text", ["1/30d", "10:1e-6/365d", "1:1e-9/7d", "3:1e-4/30d", "1:0.5/30d"])
@pytest.mark.parametrize("cohorts", [1, 3, 7, 30, 366])
def test_a_cohort_a_day_fits_exactly_as_often_as_it_should(text: str, cohorts: int) -> None:
    """With c cohorts a user is asked on ceil(n / c) of n days, and each day may cost as much more."""
    limit = Limit.parse(text)
    for delta in (0.0, *([float(limit.delta)] if 0 < limit.delta < Decimal("0.1") else [])):
        most = daily_epsilon(limit, delta, cohorts)
        assert most == daily_epsilon(replace(limit, days=-(-limit.days // cohorts)), delta)
        for factor, fitting in ((0.999, True), (1.01, False)):
            epsilon = f"{factor * most:.9f}"
            one = gaussian("one", epsilon, format_amount(limit.delta)) if delta else charge("one", epsilon=epsilon)
            days = [ORIGIN + timedelta(days=number) for number in range(limit.days)]
            rotations = [replace(Rotation.of_night(day, cohorts), partition="a" * 32) for day in days]
            both = zip(days, rotations, strict=True)
            nights = [replace(one, period=Period(day, day), rotation=cohort) for day, cohort in both]
            # The last night on which the cohort that is asked most often is asked.
            last = max(number for number in range(limit.days) if number % cohorts == 0)
            beside = [*nights[:last], *nights[last + 1 :]]
            assert (find_overrun(beside, nights[last], [limit]) is None) is fitting
    if not limit.delta:
        assert daily_epsilon(Limit.parse("1/30d"), 0.0, 30) == 1
        assert daily_epsilon(Limit.parse("1/30d"), 0.0, 29) == 0.5


@pytest.mark.parametrize("factor", [0.5, 0.999, 1.001, 2.0])
def test_a_rho_must_be_that_of_epsilon_and_delta(factor: float) -> None:
    check_rho(gaussian("one", "0.4", "1e-6"))
    check_rho(charge("one"))
    with rejects("rho"):
        check_rho(gaussian("one", "0.4", "1e-6", factor=factor))


@pytest.mark.parametrize(("epsilon", "delta"), [("0.4", "1e-6"), ("2", "1e-4"), ("0.01", "1e-3")])
def test_replacing_a_user_costs_four_times_the_rho(epsilon: str, delta: str) -> None:
    one = gaussian("one", epsilon, delta)
    two = convert_adjacency(one, REPLACE)
    assert two is not None
    assert one.rho is not None
    assert two.rho == 4 * one.rho
    assert gaussian_delta(float(two.rho), float(two.epsilon)) <= two.delta


# --- accounts of users: which charges count for whom, and that none is forgotten ---


NOVEMBER = Period(date(2026, 11, 1), date(2026, 11, 30))


def cohort_charge(name: str, which: int, cohort: int, cohorts: int, **amounts: Any) -> Charge:
    return replace(charge(name), rotation=Rotation(cohort, cohorts, f"{which:032x}"), **amounts)


def names(accounts: list[list[Charge]]) -> list[list[str]]:
    return sorted(sorted(one.release_id for one in account) for account in accounts)


def moved(charges: list[Charge], composed: bool, window: Period = NOVEMBER) -> list[list[Charge]]:
    found = MovingWindow(charges, composed)
    found.move_to(window)
    return found.accounts()


def test_charges_of_a_user() -> None:
    every, two, other = charge("all"), cohort_charge("two", 0, 2, 3), cohort_charge("other", 1, 1, 2)
    charges = [every, two, other]
    partition = f"{0:032x}"
    assert charges_of_users(charges, {partition: 2}) == charges
    assert charges_of_users(charges, {partition: 1}) == [every, other]
    assert charges_of_users(charges, {}) == charges
    assert charges_of_users(charges, {partition: 1, f"{1:032x}": 2}) == [every]


def test_cohorts_that_no_order_compares_all_have_an_account() -> None:
    """By composition two charges of 0.5 may cost more than one of 0.9, or less. Their sum is more."""
    many = [cohort_charge("a", 0, 1, 2, epsilon=Decimal("0.5")), cohort_charge("b", 0, 1, 2, epsilon=Decimal("0.5"))]
    one = cohort_charge("c", 0, 2, 2, epsilon=Decimal("0.9"))
    assert names(moved([*many, one], True)) == [["a", "b"], ["c"]]
    assert names(moved([*many, one], False)) == [["a", "b"]]
    # By sums, a larger delta is not made up for by a smaller epsilon.
    delta = replace(one, delta=Decimal("1e-9"))
    assert names(moved([*many, delta], False)) == [["a", "b"], ["c"]]
    # Gaussian noise is compared by the sum of its rhos.
    gaussian = [
        cohort_charge(f"g{cohort}", 1, cohort, 2, delta=Decimal("1e-9"), rho=Decimal(cohort)) for cohort in (1, 2)
    ]
    assert names(moved(gaussian, True)) == [["g2"]]


def test_a_moved_window_has_the_accounts_of_one_made_there() -> None:
    rng = seeded_rng(7)
    for _ in range(50):
        charges = []
        for number in range(20):
            first = ORIGIN + timedelta(days=int(rng.integers(0, 30)))
            period = Period(first, first + timedelta(days=int(rng.integers(0, 4))))
            which = int(rng.integers(0, 3))
            one = cohort_charge(
                f"r{number}", which, 1 + first.toordinal() % 3, 3, epsilon=Decimal(int(rng.integers(1, 4)))
            )
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
            charges.append(cohort_charge(f"{which}-{cohort}-{number}", which, cohort, 5, epsilon=amount, **more))
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
