"""The choice of rotating cohorts: closed forms, brute force over all numbers, and a simulation of counts."""

from __future__ import annotations

import itertools
import math
import re
from typing import Any

import numpy as np
import pytest
import yaml
from numpy.random import default_rng
from scipy.stats import norm

from sfumato.schemas.errors import RequestError
from sfumato.schemas.ledger import Charge, Limit, Period, parse_amount, parse_day
from sfumato.transforms.heatmap.parameters import HeatmapParameters
from sfumato.transforms.heatmap.request import HeatmapRequest
from sfumato.transforms.heatmap.rotation_plan import RotationChoice, floor_amount, make_rotation_plan, rotation_table
from sfumato.transforms.privacy.ledger.windows import fits
from sfumato.transforms.privacy.mechanism import discrete_laplace_stddev, rho_for_delta

FLAKE_RATE = 1e-9


def parameters(**given: Any) -> HeatmapParameters:
    return HeatmapParameters(**({"users": 300_000, "population_share": 0.01} | given))


# ---------------------------------------------------------------- closed forms


@pytest.mark.parametrize("cohorts", [1, 2, 3, 4, 7, 10, 29, 30])
def test_noise_in_shards_is_that_of_a_cohorts_shards(cohorts: int) -> None:
    choice = make_rotation_plan(parameters(users=9_000_000, epsilon=0.5), 30).choice(cohorts)
    asked = math.ceil(30 / cohorts)
    shards = round(9_000_000 / cohorts / 10_000)
    assert (choice.times_asked, choice.shards) == (asked, shards)
    assert math.isclose(choice.epsilon, 0.5 / asked)
    one = discrete_laplace_stddev(0.99 * 0.5 / asked)
    assert math.isclose(choice.noise_stddev, cohorts * math.sqrt(shards) * one, rel_tol=1e-9)


def test_with_pure_epsilon_in_shards_noise_falls_as_the_square_root_of_the_cohorts() -> None:
    """N^2 = 2 (U / S) n^2 / (c epsilon^2), at a small epsilon, where the noise is as good as continuous."""
    plan = make_rotation_plan(parameters(users=54_600_000, epsilon=0.1), 30)
    for cohorts in (1, 2, 3, 5, 6, 10, 15, 30):  # divisors of the nights and of the shards
        expected = math.sqrt(2 * 5460 * 30**2 / cohorts) / (0.99 * 0.1)
        assert math.isclose(plan.choice(cohorts).noise_stddev, expected, rel_tol=1e-3)
    assert plan.best.cohorts == 30


def test_with_a_curator_the_noise_is_the_same_for_all_divisors_and_one_cohort_is_best() -> None:
    plan = make_rotation_plan(parameters(trust="central", epsilon=0.1), 30)
    noise = [plan.choice(cohorts).noise_stddev for cohorts in (1, 2, 3, 5, 6, 10, 15, 30)]
    assert np.allclose(noise, math.sqrt(2) * 30 / (0.99 * 0.1), rtol=1e-3)
    assert plan.best.cohorts == plan.best_of_one_night.cohorts == 1
    assert all(choice.shards is None for choice in plan.choices)


def test_gaussian_noise_in_shards_is_the_same_for_all_divisors_and_with_a_curator_it_rises() -> None:
    given = {"epsilon": 1.0, "delta": 1e-6, "noise": "gaussian"}
    divisors = (1, 2, 3, 5, 6, 10, 15, 30)
    rho = 0.99 * rho_for_delta(1.0, 1e-6)
    shards = make_rotation_plan(parameters(users=54_600_000, **given), 30)
    expected = math.sqrt(5460 * 30 / (2 * rho))
    assert np.allclose([shards.choice(one).noise_stddev for one in divisors], expected, rtol=5e-3)
    central = make_rotation_plan(parameters(trust="central", **given), 30)
    expected = [math.sqrt(one * 30 / (2 * rho)) for one in divisors]
    assert np.allclose([central.choice(one).noise_stddev for one in divisors], expected, rtol=5e-3)
    assert shards.best.cohorts == central.best.cohorts == 1


def test_of_two_distributions_of_noise_each_number_of_cohorts_has_the_smaller_one() -> None:
    plan = make_rotation_plan(parameters(epsilon=1.0, delta=1e-6), 30)
    by_cohorts = {choice.cohorts: choice for choice in plan.choices}
    assert (by_cohorts[1].noise, by_cohorts[30].noise) == ("gaussian", "laplace")
    assert (by_cohorts[1].delta, by_cohorts[30].delta) == (1e-6, 0.0)
    for name in ("laplace", "gaussian"):
        delta = 1e-6 if name == "gaussian" else 0.0
        for choice in make_rotation_plan(parameters(epsilon=1.0, delta=delta, noise=name), 30).choices:
            assert by_cohorts[choice.cohorts].noise_stddev <= choice.noise_stddev * (1 + 1e-9)


def test_a_cohort_smaller_than_a_shard_is_one_shard() -> None:
    plan = make_rotation_plan(parameters(users=50_000), 30)
    assert [choice.shards for choice in plan.choices] == [5, 3, 2, 2, 1, 1, 1, 1, 1, 1]
    # The noise of one sum for all is nearly the same from then on, and sampling alone rises.
    assert plan.best.cohorts < 30


@pytest.mark.parametrize(("delta", "noise"), [(0.0, "auto"), (1e-6, "gaussian"), (1e-6, "auto")])
def test_a_user_who_is_asked_whenever_possible_stays_within_the_limit(delta: float, noise: Any) -> None:
    plan = make_rotation_plan(parameters(epsilon=2.0, delta=delta, noise=noise), 31)
    limit = Limit.from_numbers(2, delta, 31)
    for choice in plan.choices:
        epsilon = floor_amount(choice.epsilon)
        day = Period(parse_day("period", "2026-11-20"), parse_day("period", "2026-11-20"))
        rho = None
        if choice.noise == "gaussian":
            rho = parse_amount("rho", rho_for_delta(float(epsilon), choice.delta))
        charge = Charge(
            release_id="a", job="heatmap", dataset="d", period=day, request="", binding="",
            epsilon=parse_amount("e", epsilon), delta=parse_amount("d", choice.delta), rho=rho,
        )  # fmt: skip
        asked = math.ceil(31 / choice.cohorts)
        assert fits([charge] * asked, limit)
        assert not fits([charge] * (asked + max(1, asked // 50)), limit)  # next to nothing is left over


# ---------------------------------------------------------------- the choice


@pytest.mark.parametrize("nights", [1, 2, 7, 30, 31, 365])
def test_the_choices_have_every_divisor_and_no_number_that_another_one_beats(nights: int) -> None:
    plan = make_rotation_plan(parameters(trust="central", epsilon=8.0), nights)
    numbers = [choice.cohorts for choice in plan.choices]
    assert {one for one in range(1, nights + 1) if nights % one == 0} <= set(numbers)
    assert numbers == sorted(set(numbers))
    by_asked = {choice.times_asked: choice for choice in plan.choices}
    for cohorts in range(1, nights + 1):  # brute force over all numbers
        rotated = by_asked[math.ceil(nights / cohorts)]
        assert rotated.cohorts <= cohorts
        for added in (1, plan.added_nights):
            assert rotated.min_visible_users(added) <= plan.choice(cohorts).min_visible_users(added) * (1 + 1e-12)


@pytest.mark.parametrize("cohorts", [1, 4, 30])
@pytest.mark.parametrize("nights", [1, 30])
def test_the_smallest_visible_cell_has_two_deviations_of_its_own_error(cohorts: int, nights: int) -> None:
    choice = RotationChoice(cohorts, 1, 1.0, 0.0, "laplace", 3, 40.0)
    users = choice.min_visible_users(nights)
    assert math.isclose(users, 2 * choice.stddev(users, nights))
    assert math.isclose(choice.stddev(100, nights) ** 2, (40**2 + (cohorts - 1) * 100) / nights)


@pytest.mark.parametrize("users", [20_000, 300_000, 5_000_000])
@pytest.mark.parametrize("trust", ["secagg", "central"])
def test_the_best_has_the_least_squared_error_of_a_typical_cell(users: int, trust: Any) -> None:
    plan = make_rotation_plan(parameters(users=users, trust=trust), 30)
    errors = [choice.stddev(plan.typical_users, 30) for choice in plan.choices]
    assert plan.choices[int(np.argmin(errors))] == plan.best
    assert math.isclose(plan.excess(plan.best.cohorts), 1)
    assert min(plan.excess(cohorts) for cohorts in range(1, 31)) >= 1 - 1e-12
    nearby = RotationChoice.min_visible_users(plan.best_of_one_night)
    assert nearby == min(choice.min_visible_users() for choice in plan.choices)


def test_places_change_so_that_a_month_of_nights_adds_up_at_most() -> None:
    assert [make_rotation_plan(parameters(), nights).added_nights for nights in (1, 7, 30, 31, 365)] == [
        1,
        7,
        30,
        30,
        30,
    ]


def test_advice_is_for_numbers_that_are_far_from_the_best() -> None:
    plan = make_rotation_plan(parameters(), 30)
    assert plan.advice(30) is None
    assert plan.advice(29) is None or plan.excess(29) >= 1.5
    told = plan.advice(1)
    assert told is not None
    assert "rotation: 1 has" in told
    assert "rotation: 30" in told


# ---------------------------------------------------------------- a simulation


def simulated_squared_error(
    choice: RotationChoice, cells: int, users: int, shard_size: int, repeats: int, seed: int
) -> tuple[float, float]:
    """The mean squared error of a cell's count of one night, and the standard error of that mean.

    Every user has a cohort and a shard of it, drawn one by one, and the shards' sums have noise of their own.
    """
    rng = default_rng(seed)
    people = cells * users
    shards = choice.shards or 1
    p = 1 - math.exp(-0.99 * choice.epsilon)
    errors = []
    for _ in range(repeats):
        asked = rng.integers(choice.cohorts, size=people) == 0
        cell = np.repeat(np.arange(cells), users)[asked]
        shard = rng.integers(shards, size=len(cell))
        sums = np.bincount(shard * cells + cell, minlength=shards * cells).reshape(shards, cells)
        noisy = sums + rng.geometric(p, sums.shape) - rng.geometric(p, sums.shape)
        errors.append(choice.cohorts * noisy.sum(axis=0) - users)
    squared = np.square(np.asarray(errors, float)).ravel()
    assert people / choice.cohorts / shards <= 1.05 * shard_size
    return float(squared.mean()), float(squared.std() / math.sqrt(len(squared)))


@pytest.mark.parametrize("users", [20, 300])
def test_a_simulation_of_counts_has_the_stated_errors_and_the_same_order(users: int) -> None:
    cells, shard_size, nights = 40, 100, 6
    plan = make_rotation_plan(parameters(users=cells * users, shard_size=shard_size, epsilon=2.0), nights)
    found = {}
    for number, choice in enumerate(plan.choices):
        mean, error = simulated_squared_error(choice, cells, users, shard_size, 150, 20261122 + number)
        stated = choice.stddev(users) ** 2
        # The mean of 6,000 squares is near enough to normal at five of its standard errors, widened by their skewness.
        assert abs(mean - stated) < 1.3 * norm.isf(FLAKE_RATE / 2) * error
        found[choice.cohorts] = (mean, error, stated)
    by_truth = sorted(found, key=lambda one: found[one][2])
    for better, worse in itertools.pairwise(by_truth):
        margin = 6 * math.hypot(found[better][1], found[worse][1])
        if found[worse][2] - found[better][2] > 2 * margin:  # those that so many repetitions tell apart
            assert found[better][0] < found[worse][0]
    assert found[by_truth[-1]][2] > 1.5 * found[by_truth[0]][2]


# ---------------------------------------------------------------- the text, and bad input


def test_the_table_marks_the_best_and_says_what_to_configure() -> None:
    text = rotation_table(make_rotation_plan(parameters(), 30))
    (row,) = [line for line in text.splitlines() if line.endswith("| best |")]
    assert row.split("|")[1].strip() == "30"
    assert "`rotation: 30` and `options: {epsilon: 1}`" in " ".join(text.split())
    both = rotation_table(make_rotation_plan(parameters(delta=1e-6, noise="gaussian"), 30))
    (advice,) = re.findall(r"`options: ({.*?})`", " ".join(both.split()))
    options = yaml.safe_load(advice)
    request = HeatmapRequest.of({"input": "logs", "output": "out", "region": "3,1,4,2", **options})
    assert (request.epsilon, request.delta, request.parameters.count_noise.NAME) == (0.1619, 1e-6, "gaussian")


@pytest.mark.parametrize(
    ("epsilon", "text"), [(1 / 3, "0.3333"), (2 / 3, "0.6666"), (1.0, "1"), (0.00012349, "0.0001234"), (30.0, "30")]
)
def test_an_epsilon_in_text_is_never_rounded_up(epsilon: float, text: str) -> None:
    assert floor_amount(epsilon) == text


def test_nights_of_which_one_would_have_no_epsilon_are_left_out() -> None:
    plan = make_rotation_plan(parameters(epsilon=1e-3), 30)
    assert [choice.cohorts for choice in plan.choices] == [3, 4, 5, 6, 8, 10, 15, 30]
    with pytest.raises(RequestError, match="epsilon"):
        plan.choice(1)


@pytest.mark.parametrize("nights", [0, 367])
def test_nights_out_of_range_are_refused(nights: int) -> None:
    with pytest.raises(RequestError, match="nights"):
        make_rotation_plan(parameters(), nights)


def test_participation_that_is_not_protected_and_a_missing_number_of_users_are_refused() -> None:
    with pytest.raises(RequestError, match="participation"):
        make_rotation_plan(parameters(participation="paper"), 30)
    with pytest.raises(RequestError, match="slots"):
        make_rotation_plan(parameters(slots=24), 30)
    with pytest.raises(ValueError, match="users"):
        make_rotation_plan(HeatmapParameters(), 30)
