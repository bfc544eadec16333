"""Attacks 5 and 18 of the table: 11 to 30% of default runs of 1,000 to 3,000 users were charged and published nothing.

Exact computation: the probability that a run of N users fails after the charge, and that any sum wraps around. And runs
in memory under many keys.
"""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from scipy import stats

from benchmarks.evaluation.in_memory import Rows
from sfumato.schemas.guarantee import Population
from sfumato.schemas.region import Grid, Places, Region
from sfumato.transforms.counting.parameters import MORE_USERS_SHARE, CountParameters
from sfumato.transforms.counting.state import CountState
from sfumato.transforms.counting.sub_queries import advance_run, first_state, start_run, window_for
from sfumato.transforms.heatmap.release import add_up_to
from sfumato.transforms.heatmap.request import heatmap_parameters
from sfumato.transforms.privacy.admission import (
    FALSE_REFUSAL_PROBABILITY,
    NoisyUserCounts,
    check_admission,
)
from sfumato.transforms.privacy.budget import Budget
from sfumato.transforms.privacy.keys import FixedSecret, RunKey
from sfumato.transforms.privacy.mechanism import discrete_laplace_stddev, noise_quantile
from sfumato.transforms.secagg.modulus import Window
from sfumato.transforms.secagg.shard_sums import NOTHING, ShardTotals, sum_shards
from tests.admitted import start
from tests.seeds import seeded_rng

SIZES = [50, 1000, 10_000, 1_000_000]
GRID = Grid(Region(-74.04, 40.68, -73.88, 40.80), 6)


def tail(epsilon: float, above: Any, sensitivity: int = 1) -> Any:
    """P[Z > above] of discrete Laplace noise, exact (Eq. 4), for a number or an array."""
    rate = epsilon / sensitivity
    return np.exp(-rate * (np.floor(above) + 1)) / (1 + math.exp(-rate))


def wraps(users: int, state: CountState, window: Window) -> float:
    """The probability that any entry of any shard wraps: exact tails of a shard's size and of the noise.

    A union bound over shards and entries. The tail of the noise is convex, so that of all ways in which a shard's users
    may be spread over its entries the worst has all of them at the same ones.
    """
    query, shard_plan = state.query, state.shard_plan
    assert query is not None
    size = stats.binom(users, min(shard_plan.sampling_rate, 1) / shard_plan.shards)
    sizes = np.arange(int(size.mean() + 12 * size.std() + 60) + 1)
    room = window.modulus - window.low - 1  # the largest value that is read as it is
    full, empty = query.encoding.entries_per_location, query.encoding.length - query.encoding.entries_per_location
    high = tail(query.cost, np.maximum(room - sizes * state.gamma, -1), query.sensitivity)
    none = tail(query.cost, room, query.sensitivity)
    over = float((size.pmf(sizes) * np.minimum(full * high + empty * none, 1)).sum() + size.sf(sizes[-1]))
    return float(shard_plan.shards * (over + query.encoding.length * tail(query.cost, window.low, query.sensitivity)))


def wrong(users: int, noise: int, parameters: CountParameters) -> float:
    """The probability of a wrong count in a run whose noisy user count came out with this noise."""
    epsilon = parameters.admission().cost
    counted = users + noise
    population = Population(max(1.0, counted), "noisy", epsilon, discrete_laplace_stddev(epsilon), float(counted))
    state = first_state(population, Budget(parameters.epsilon).charge(epsilon), parameters)
    rounds = parameters.method.most_sub_queries(parameters.depth)
    total = 0.0
    while state.query is not None:
        query = state.query
        least = window_for(query.encoding, query.cost, state, parameters.overflow_probability / rounds)
        assert query.window.modulus >= least.modulus
        total += wraps(users, state, least)
        first, last = query.shard_range or (0, state.shard_plan.shards)
        share = users * (last - first) / state.shard_plan.shards
        sums = np.round(query.encoding.shares * share * state.gamma).astype(np.int64)
        state = advance_run(
            state, ShardTotals(sums, last - first), parameters, RunKey.derive(FixedSecret(b"x" * 32), {})
        )
    return total


@pytest.mark.parametrize(
    ("users", "epsilon"), [*((users, 1.0) for users in SIZES), (200, 0.1), (100_000, 0.1), (200, 3.0), (100_000, 3.0)]
)
def test_no_count_is_wrong_but_with_a_billionth(users: int, epsilon: float) -> None:
    parameters = CountParameters(epsilon=epsilon)
    counting, rounds = parameters.admission().cost, parameters.method.most_sub_queries(parameters.depth)
    assert parameters.overflow_probability == 1e-9
    margin = noise_quantile(counting, MORE_USERS_SHARE * 0.9e-9 / rounds)
    beyond = tail(counting, margin)  # that the count allows for fewer users than there are
    scale = int(discrete_laplace_stddev(counting))
    given = max(wrong(users, noise, parameters) for noise in (-margin, -scale, scale))
    assert rounds * beyond + given <= 1e-9


@pytest.mark.parametrize(
    ("method", "contribution"), [("adaptive", "all"), ("flat", "all"), ("emd", "one"), ("count_min", "all")]
)
def test_nor_in_any_other_method(baselines: None, method: str, contribution: str) -> None:
    parameters = heatmap_parameters(method, {"contribution": contribution, "depth": 6})
    margin = noise_quantile(
        parameters.admission().cost, MORE_USERS_SHARE * 0.9e-9 / parameters.method.most_sub_queries(6)
    )
    assert max(wrong(2000, noise, parameters) for noise in (-margin, -300, 0)) <= 1e-9


@pytest.mark.false_alarm(4e-9)
def test_a_probability_that_can_be_seen_is_kept() -> None:
    """1,000 users at epsilon 0.1, the count's noise of scale 1,000: by simulation of 4,000 counts, sizes and noises.

    Without room for the count's noise nearly half of the windows would be too small.
    """
    rng, trials, users, probability = seeded_rng(7), 4000, 1000, 0.05
    parameters = heatmap_parameters(
        "flat", {"epsilon": 0.1, "level": 1, "overflow_probability": probability, "depth": 6}
    )
    epsilon = parameters.admission().cost
    failed = without = 0
    for noise in (rng.geometric(-math.expm1(-epsilon), trials) - rng.geometric(-math.expm1(-epsilon), trials)).tolist():
        counted = float(users + noise)
        population = Population(max(1.0, counted), "noisy", epsilon, discrete_laplace_stddev(epsilon), counted)
        state = first_state(population, Budget(0.1).charge(epsilon), parameters)
        query, shard_plan = state.query, state.shard_plan
        assert query is not None
        window = window_for(query.encoding, query.cost, state, probability)
        sizes = rng.multinomial(users, np.full(shard_plan.shards, 1 / shard_plan.shards))
        p = -math.expm1(-query.cost)
        drawn = rng.geometric(p, (shard_plan.shards, 4)) - rng.geometric(p, (shard_plan.shards, 4))
        drawn[:, 0] += sizes  # all users in one cell, the largest entry there can be
        failed += bool((drawn >= window.modulus - window.low).any() or (drawn < -window.low).any())
        known = replace(state, population=replace(population, counted=None))  # as if the count had no noise
        small = window_for(query.encoding, query.cost, known, probability)
        without += bool((drawn >= small.modulus - small.low).any() or (drawn < -small.low).any())
    assert failed <= probability * trials + 6 * math.sqrt(probability * trials)
    assert without > 0.35 * trials


def test_a_clean_run_is_refused_with_less_than_a_millionth() -> None:
    """A public population that is right, no user without a usable record, any number of users.

    check_admission refuses where |Z1| exceeds the margin, or where (1 - limit) Z2 - limit (users + Z1) does: a mean of
    Z2 and -Z1 with weights that add up to 1, so that one of them does. Four tails in all. Nothing later can refuse:
    every planned shard answers.
    """
    for epsilon in (0.1, 1.0, 3.0):
        rule = CountParameters(epsilon=epsilon, population=1000).admission()
        margin = noise_quantile(rule.cost, FALSE_REFUSAL_PROBABILITY)
        assert 4 * tail(rule.cost, margin) <= 1e-6


def test_a_count_below_nobody_refuses_nothing() -> None:
    """50 users at epsilon 1: the count is negative in 3 of 10 runs."""
    for epsilon in (0.1, 1.0):
        rule = CountParameters(epsilon=epsilon).admission()
        noise = noise_quantile(rule.cost, 1e-9)
        for users in (50.0 - noise, -1.0, 0.0):
            admission = NoisyUserCounts(users, 0.0, rule.cost, discrete_laplace_stddev(rule.cost))
            check_admission(admission, rule)
            assert start_run(admission, CountParameters(epsilon=epsilon)).query is not None


def run_of(users: int, epsilon: float, number: int, **values: object) -> CountState:
    """A run with all defaults but a coarser grid, whose number of users is counted privately."""
    key = RunKey.derive(FixedSecret(b"luck" * 8), {"number": number, "users": users, "epsilon": epsilon})
    parameters = heatmap_parameters("adaptive", {"depth": GRID.depth, "epsilon": epsilon, **values})
    rng, low = seeded_rng(number), np.uint64(2 * GRID.depth)
    hashes = np.sort(rng.integers(0, 1 << 64, users, dtype=np.uint64)) >> low << low
    rows = Rows(Places(GRID.depth), hashes, (rng.normal(2000, 200, users) % 4**GRID.depth).astype(np.uint64))
    state = start(users, parameters, key)
    groups = rows.shard_groups(state.shard_plan)
    while state.query is not None:
        totals = sum((sum_shards(group, state.query, key) for group in groups), start=NOTHING)
        state = advance_run(state, totals, parameters, key)
    return state


@pytest.mark.false_alarm(3e-9)
@pytest.mark.parametrize(("users", "epsilon"), [(0, 0.1), (50, 1.0), (1000, 0.1), (1000, 1.0), (10_000, 1.0)])
def test_every_run_publishes_cells_that_add_up(users: int, epsilon: float) -> None:
    """8 keys each. The number of users is stated with an error that covers it: within 16 deviations.

    Laplace noise, whose tail is the heaviest here, is farther away with a probability below e^-22 in one of 8 runs.
    """
    parameters = heatmap_parameters("adaptive", {"depth": GRID.depth, "epsilon": epsilon})
    for number in range(8):
        state = run_of(users, epsilon, number)
        assert all(answer.shards_lost == 0 for answer in state.results)
        stated, stddev = state.users_estimate()
        assert stddev < state.population.noise_stddev
        assert abs(stated - users) < 16 * stddev
        counts = add_up_to(parameters.method.decode(state, GRID.depth), stated).counts
        assert math.isclose(float(counts.sum()), stated, rel_tol=1e-9, abs_tol=1e-5)
