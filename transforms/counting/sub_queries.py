"""The sub-queries of a run, as a state machine: from a method's query to the shards', and from their sums on. Pure.

    state = start_run(counted, parameters)
    while state.query:
        totals = <sums of state.query over the shards>
        state = advance_run(state, totals, parameters, key)

A method chooses what to query next (`Query`). This module decides what the query costs within the budget, the modulus
of its secure sums, and its shards (`ShardQuery`). `transform` makes Beam stages of the loop.
"""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np

from sfumato.schemas.errors import RefusedError, RequestError
from sfumato.schemas.guarantee import Population
from sfumato.transforms.counting.parameters import MORE_USERS_SHARE, CountParameters, max_counted
from sfumato.transforms.counting.state import CountState, Estimate, NoisyCounts, Query
from sfumato.transforms.privacy.admission import NoisyUserCounts
from sfumato.transforms.privacy.budget import Budget
from sfumato.transforms.privacy.keys import RunKey
from sfumato.transforms.secagg.encodings import Encoding
from sfumato.transforms.secagg.modulus import MAX_MODULUS, Window, choose_window, min_window
from sfumato.transforms.secagg.shard_sums import ShardQuery, ShardTotals, add_central_noise

_MIN_SHARE = 1e-5  # smallest share of the budget for one sub-query: with less, its result would be nothing but noise


def population_and_budget(counted: NoisyUserCounts, parameters: CountParameters) -> tuple[Population, Budget]:
    """Returns the number of users to plan for, public or noisy, and the budget that the noisy user count leaves."""
    users = max(1.0, counted.users)
    population = Population(users, "noisy", counted.cost, counted.noise_stddev, counted.users)
    if parameters.population is not None:  # `check_admission` has compared it with the noisy count
        population = replace(population, users=float(parameters.population), source="public")
    return population, parameters.budget.charge(counted.cost)


def start_run(counted: NoisyUserCounts, parameters: CountParameters, prior: Estimate | None = None) -> CountState:
    """Returns the state with the first sub-query of an admitted run. Raises the errors of `first_state`."""
    population, budget = population_and_budget(counted, parameters)
    return first_state(population, budget, parameters, prior)


def first_state(
    population: Population, budget: Budget, parameters: CountParameters, prior: Estimate | None = None
) -> CountState:
    """Returns the state with the planned shards and the first sub-query.

    Args:
        population: the users to plan for.
        budget: the release's, with the noisy user count charged.
        parameters: of the heatmap.
        prior: the map of an earlier release of the same depth to start from.

    Raises:
        RequestError: the sub-query cannot be run with these parameters.
    """
    shard_plan = parameters.plan_shards(population.users)
    state = CountState(
        population,
        shard_plan,
        budget,
        parameters.distribution_gamma or parameters.records_per_user,
        parameters.noisy_sums(shard_plan),
        categories=parameters.categories,
        rounding=parameters.rounding,
        prior=prior,
        noise=parameters.noise_of(shard_plan),
        slots=parameters.slots,
        records_per_user=parameters.records_per_user,
        rotation=parameters.rotation,
        trust=parameters.trust,
    )
    return _with_next_query(state, parameters)


def advance_run(state: CountState, totals: ShardTotals, parameters: CountParameters, key: RunKey) -> CountState:
    """Returns the state after the current sub-query, see `advance`. Without shards it adds central noise.

    totals: sums over the live shards. Each shard's sum has noise already; without shards, with trust central or split,
    the sums are exact until the noise is added here.
    """
    if parameters.is_one_batch and state.query is not None:
        totals = add_central_noise(totals, state.query, key)
    return advance(state, totals, parameters)


def advance(state: CountState, totals: ShardTotals, parameters: CountParameters) -> CountState:
    """Returns the state with the result of the current sub-query and with the next one, if any.

    Args:
        state: with the current sub-query; without one it is returned as it is.
        totals: its noisy sums over the live shards.
        parameters: of the heatmap.

    Raises:
        RefusedError: every shard was lost. A planned shard is lost by simulated dropout only.
        RequestError: the next sub-query cannot be run.
    """
    query, shard_plan = state.query, state.shard_plan
    if query is None:
        return state
    is_one_batch = parameters.is_one_batch  # all shards count as live: how many have users is private
    first, end = query.shard_range or (0, shard_plan.shards)
    queried = end - first
    live = queried if is_one_batch else totals.live
    if live == 0:
        raise RefusedError(
            f"too few users: none of {queried} shards had the required {shard_plan.required_survivors} survivors; "
            "use a smaller shard_size, a larger dropout, or more data"
            if shard_plan.planned_clients is None
            else f"simulated_dropout: all of {queried} planned shards were lost; use less of it, or a larger dropout"
        )
    scale = shard_plan.shards / live  # the live shards represent those that were lost or not queried
    noise_stddev = state.noise_stddev(query.cost, query.encoding.entries_per_location, query.encoding.length)
    if not is_one_batch:
        noise_stddev *= math.sqrt(scale)  # scale * sqrt(live) = sqrt(scale) * sqrt(shards)
    if query.planned_clients is None and not is_one_batch:  # survivors above the required number add noise too
        expected = shard_plan.users / shard_plan.shards * (1 - parameters.simulated_dropout)
        noise_stddev *= math.sqrt(max(expected / query.noise.required, 1.0))
    counts = totals.sums.astype(np.float64) * (scale / state.unit)
    result = NoisyCounts(query, counts, noise_stddev, queried, queried - live)
    budget = state.charged(query.cost, query.shard_range is not None)
    return _with_next_query(replace(state, budget=budget, results=(*state.results, result), query=None), parameters)


def check_first_query(parameters: CountParameters, prior: Estimate | None = None) -> None:
    """Checks that the first sub-query can be run, before any data is read.

    A given modulus is checked for the largest count that a public population allows.

    Raises:
        RequestError: the modulus is too small, or gamma is too large.
    """
    given = parameters.modulus is not None and not parameters.is_one_batch
    if given and parameters.population is None and not parameters.allow_overflow:
        raise RequestError(
            "modulus: whether it holds the sums must be known before users are counted; give --population as well, or "
            "use auto"
        )
    cost = parameters.admission().cost
    # Without a number: two shards, the least that shard_fractions can split.
    users = float(parameters.population or parameters.users or 2 * parameters.shard_size)
    most = max_counted(users, parameters.noise_kind.laplace_epsilon(cost), parameters.overflow_probability)
    population = Population(users, "public", cost, parameters.noise_kind.stddev(cost), most)
    first_state(population, parameters.budget.charge(cost), parameters, prior)


def _with_next_query(state: CountState, parameters: CountParameters) -> CountState:
    """Returns the state with the method's next query, if there is one and any budget remains."""
    has_budget = state.next_query_budget.remaining > 0
    query = parameters.method.next_query(state, parameters.depth) if has_budget else None
    return state if query is None else replace(state, query=_shard_query(state, query, parameters))


def _shard_query(state: CountState, query: Query, parameters: CountParameters) -> ShardQuery:
    """Returns the query with its cost, modulus and shards decided. Raises RequestError where it cannot be run."""
    shard_plan, encoding, budget = state.shard_plan, query.encoding, state.next_query_budget
    shard_range, available = _shard_range(query, state), budget.remaining
    if shard_range is not None and parameters.is_one_batch:
        raise ValueError("shard_fractions: central noise is added to one sum of all shards, not to parts of them")
    max_sub_queries, unit = parameters.most_sub_queries(), state.noise.kind.UNIT
    min_noise_cost = state.noise.kind.min_cost(state.sensitivity(encoding.length, encoding.entries_per_location))
    min_cost = _MIN_SHARE * budget.total + min_noise_cost
    if not state.results and max_sub_queries * min_cost > available:
        raise RequestError(
            f"gamma: {state.gamma} is too large for {max_sub_queries} sub-queries at {unit} {budget.total:g}: "
            f"noise is drawn down to {unit} {min_noise_cost:.3g}; give a smaller gamma or a larger epsilon"
        )
    if available < min_noise_cost:  # a long vector, with independent rounding
        raise RequestError(
            f"rounding: {state.rounding} rounding of {encoding.length:,} entries has a sensitivity for which no noise "
            f"is drawn at the remaining {unit} of {available:.3g}; use systematic rounding, or a larger "
            "epsilon"
        )
    if shard_plan.users * state.gamma >= MAX_MODULUS:
        raise RequestError(f"gamma: {state.gamma} is too large, the users' sums would exceed 2^62; give a smaller one")
    cost = budget.affordable(min(max(query.cost, min_cost), available))
    if shard_range is not None or available - cost < min_cost:
        cost = available  # the rest is too small for another sub-query, or these users take part in this one only
    window = window_for(encoding, cost, state, parameters.overflow_probability / max_sub_queries)
    if not parameters.is_one_batch:
        window = choose_window(window, parameters.modulus, parameters.allow_overflow)
    return ShardQuery(
        len(state.results) + 1,
        encoding,
        cost,
        window,
        state.noise,
        state.gamma,
        state.rounding,
        shard_range,
        shard_plan.planned_clients,
        parameters.servers,
    )


def _shard_range(query: Query, state: CountState) -> tuple[int, int] | None:
    """Returns a query's shards, as first and end; None for all. Raises ValueError where one was queried before."""
    before = [result.shard_range for result in state.results]
    if query.shard_fractions is None:
        if any(one is not None for one in before):
            raise ValueError("shard_fractions: a sub-query of all shards cannot follow one of a part of them")
        return None
    first, end = (round(fraction * state.shard_plan.shards) for fraction in query.shard_fractions)
    done = 0 if not before else state.shard_plan.shards if before[-1] is None else before[-1][1]
    if not done <= first < end <= state.shard_plan.shards:
        raise ValueError(f"shard_fractions: {query.shard_fractions} has no shard, or some that were queried before")
    return first, end


def window_for(encoding: Encoding, cost: float, state: CountState, probability: float) -> Window:
    """Returns the smallest window in which any sum of a sub-query wraps around with at most this probability.

    A share of the probability covers more users than the noisy user count suggests.
    """
    shard_plan = state.shard_plan
    users = state.max_users(MORE_USERS_SHARE * probability) * shard_plan.sampling_rate
    return min_window(
        expected_size=users / shard_plan.shards,
        noise=state.noise,
        cost=cost,
        sensitivity=state.sensitivity(encoding.length, encoding.entries_per_location),
        gamma=state.gamma,
        entries=encoding.length,
        shards=shard_plan.shards,
        probability=(1 - MORE_USERS_SHARE) * probability,
        is_planned=shard_plan.planned_clients is not None,
    )
