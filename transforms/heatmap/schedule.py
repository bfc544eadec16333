"""A heatmap as a state machine, whatever its method: pure, one step a sub-query.

state = start(...); while state.query: totals = <sum over shards>; state = advance(state, totals, ...)
"""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np

from sfumato.schemas.errors import RefusedError, RequestError
from sfumato.schemas.guarantee import Population, SubQuery
from sfumato.transforms.heatmap.gamma import COUNT_SHARE, most_counted
from sfumato.transforms.heatmap.parameters import HeatmapParameters
from sfumato.transforms.heatmap.state import Answer, Estimate, HeatmapState, Question
from sfumato.transforms.locations.shards import Cohort
from sfumato.transforms.privacy.admission import Admission
from sfumato.transforms.privacy.budget import Budget
from sfumato.transforms.privacy.keys import RunKey
from sfumato.transforms.privacy.mechanism import discrete_laplace_stddev
from sfumato.transforms.privacy.noise import MIN_NOISE_EPSILON
from sfumato.transforms.secagg.encodings import Encoding
from sfumato.transforms.secagg.modulus import MAX_MODULUS, Window, choose_window, least_window
from sfumato.transforms.secagg.shards import ShardQuery, ShardTotals, add_central_noise

_LEAST_SHARE = 1e-5  # of the budget, for one sub-query: noise that wide says nothing, wider is no cheaper


def admitted(admission: Admission, parameters: HeatmapParameters) -> tuple[Population, Budget]:
    """The number of users that a run plans with, public or noisy, and what is left of its budget."""
    noisy = max(1.0, admission.users)
    population = Population(noisy, "noisy", admission.epsilon, admission.noise_stddev, admission.users)
    if parameters.population is not None:  # known from elsewhere, and checked against the noisy count
        population = replace(population, users=float(parameters.population), source="public")
    return population, Budget(parameters.epsilon).charge(admission.epsilon)


def start(admission: Admission, parameters: HeatmapParameters, prior: Estimate | None = None) -> HeatmapState:
    """The cohort's plan and the first sub-query of a run that was admitted."""
    population, budget = admitted(admission, parameters)
    return plan(population, budget, parameters, prior)


def plan(
    population: Population, budget: Budget, parameters: HeatmapParameters, prior: Estimate | None = None
) -> HeatmapState:
    """The cohort's plan and the first sub-query for a known population and what is left of the budget.

    prior: the map of an earlier release on a grid of the same depth, where the method can start from one.
    """
    cohort = Cohort.plan(
        population.users, parameters.users, parameters.shard_size, parameters.dropout, parameters.participation
    )
    noisy_sums = 1 if parameters.noise == "central" else cohort.shards
    state = HeatmapState(
        population,
        cohort,
        budget,
        parameters.distribution_gamma or 1,
        noisy_sums,
        categories=parameters.categories,
        rounding=parameters.rounding,
        prior=prior,
    )
    return _ask(state, parameters)


def receive(state: HeatmapState, totals: ShardTotals, parameters: HeatmapParameters, key: RunKey) -> HeatmapState:
    """`advance` with what the shards' sums add up to: with central noise that is exact, and the noise is added here."""
    if parameters.noise == "central" and state.query is not None:
        totals = add_central_noise(totals, state.query, key)
    return advance(state, totals, parameters)


def advance(state: HeatmapState, totals: ShardTotals, parameters: HeatmapParameters) -> HeatmapState:
    """Records the answer of the current sub-query and decides on the next one.

    Raises RefusedError if every shard was lost. A planned shard is lost by simulated dropout alone.
    """
    query, cohort = state.query, state.cohort
    if query is None:
        return state
    central = parameters.noise == "central"  # no shard is lost, and which have users at all must not show
    asked = cohort.shards if query.asked is None else query.asked[1] - query.asked[0]
    live = asked if central else totals.live
    if live == 0:
        raise RefusedError(
            f"too few users: none of {asked} shards had the required {cohort.required_survivors} survivors; "
            "use a smaller shard_size, a larger dropout, or more data"
            if cohort.planned_clients is None
            else f"simulated_dropout: it took all of {asked} planned shards; use less of it, or a larger dropout"
        )
    scale = cohort.shards / live  # the live shards speak for the lost ones, and for those that were not asked
    noise_stddev = state.noise_stddev(query.epsilon, query.encoding.sensitivity, query.encoding.length)
    if not central:
        noise_stddev *= math.sqrt(scale)  # scale * sqrt(live) = sqrt(scale) * sqrt(shards)
    if query.planned_clients is None and not central:  # survivors above the required number add noise
        expected = cohort.users / cohort.shards * (1 - parameters.simulated_dropout)
        noise_stddev *= math.sqrt(max(expected / query.required_survivors, 1.0))
    length = query.encoding.length
    spent = SubQuery(
        index=query.index,
        epsilon=query.epsilon,
        vector_length=length,
        noise_stddev=noise_stddev,
        shards=asked,
        shards_lost=asked - live,
        modulus=query.window.modulus,
        bits_per_client=length * query.window.bits,
    )
    answer = Answer(query.encoding, totals.sums.astype(np.float64) * (scale / state.unit), spent, query.asked)
    budget = state.charged(query.epsilon, query.asked is not None)
    return _ask(replace(state, budget=budget, answers=(*state.answers, answer), query=None), parameters)


def check_plan(parameters: HeatmapParameters, prior: Estimate | None = None) -> None:
    """Raises RequestError where the first sub-query cannot be asked: the modulus is too small, or gamma too large.

    A given modulus is checked for the most users that a public population allows for.
    """
    given = parameters.modulus is not None and parameters.noise != "central"
    if given and parameters.population is None and not parameters.allow_overflow:
        raise RequestError(
            "modulus: whether it holds the sums must be known before users are counted; give --population as well, or "
            "leave it to auto"
        )
    epsilon = parameters.admission().epsilon
    users = float(parameters.population or parameters.users or 2 * parameters.shard_size)  # shards that can be divided
    most = most_counted(users, epsilon, parameters.overflow_probability)
    population = Population(users, "public", epsilon, discrete_laplace_stddev(epsilon), most)
    plan(population, Budget(parameters.epsilon).charge(epsilon), parameters, prior)


def _ask(state: HeatmapState, parameters: HeatmapParameters) -> HeatmapState:
    """The state with the method's next question as its query, if there is one and it can be paid."""
    question = parameters.method.encode(state, parameters.depth) if state.purse.remaining > 0 else None
    return state if question is None else replace(state, query=_query(state, question, parameters))


def _query(state: HeatmapState, question: Question, parameters: HeatmapParameters) -> ShardQuery:
    cohort, encoding, budget = state.cohort, question.encoding, state.purse
    asked, available = _shards_of(question, state), budget.remaining
    if asked is not None and parameters.noise == "central":
        raise ValueError("part: central noise is that of one sum, of all shards, and not of a part of them")
    rounds = parameters.method.rounds(parameters.depth)
    least_noise = MIN_NOISE_EPSILON * state.sensitivity(encoding.length, encoding.sensitivity)
    least_epsilon = _LEAST_SHARE * budget.total + least_noise
    if not state.answers and rounds * least_epsilon > available:
        raise RequestError(
            f"gamma: {state.unit} is too large for {rounds} sub-queries at epsilon {budget.total:g}: noise is drawn "
            f"down to an epsilon of {MIN_NOISE_EPSILON:g} gamma; give a smaller gamma or a larger epsilon"
        )
    if available < least_noise:  # the vector has become so long
        raise RequestError(
            f"rounding: {state.rounding} rounding of {encoding.length:,} entries has a sensitivity for which no noise "
            f"is drawn at the remaining epsilon of {available:.3g}; use systematic rounding, or a larger epsilon"
        )
    if cohort.users * state.unit >= MAX_MODULUS:
        raise RequestError(f"gamma: {state.unit} is too large, the users' sums would exceed 2^62; give a smaller one")
    epsilon = budget.affordable(min(max(question.epsilon, least_epsilon), available))
    if asked is not None or available - epsilon < least_epsilon:
        epsilon = available  # what would be left could not buy another answer; in parts nobody is asked again
    window = window_for(encoding, epsilon, state, parameters.overflow_probability / rounds)
    if parameters.noise != "central":
        window = choose_window(window, parameters.modulus, parameters.allow_overflow)
    return ShardQuery(
        len(state.answers) + 1,
        encoding,
        epsilon,
        window,
        cohort.required_survivors,
        state.unit,
        state.rounding,
        asked,
        cohort.planned_clients,
    )


def _shards_of(question: Question, state: HeatmapState) -> tuple[int, int] | None:
    """The shards that a question is for, none of which has been asked before. Raises ValueError where one has."""
    before = [answer.shards for answer in state.answers]
    if question.part is None:
        if any(one is not None for one in before):
            raise ValueError("part: sub-queries of parts of the shards cannot be followed by one of all of them")
        return None
    first, last = (round(share * state.cohort.shards) for share in question.part)
    done = 0 if not before else state.cohort.shards if before[-1] is None else before[-1][1]
    if not done <= first < last <= state.cohort.shards:
        raise ValueError(f"part: {question.part} has no shard, or some that have been asked already")
    return first, last


def window_for(encoding: Encoding, epsilon: float, state: HeatmapState, probability: float) -> Window:
    """The least window in which any sum of a sub-query wraps around with at most this chance.

    A share of the chance is for more users than the private count allows for.
    """
    cohort = state.cohort
    users = state.most_users(COUNT_SHARE * probability) * cohort.sampling_rate
    return least_window(
        expected_size=users / cohort.shards,
        required_survivors=None if cohort.planned_clients is not None else cohort.required_survivors,
        epsilon=epsilon,
        sensitivity=state.sensitivity(encoding.length, encoding.sensitivity),
        contribution=state.unit,
        entries=encoding.length,
        shards=cohort.shards,
        probability=(1 - COUNT_SHARE) * probability,
    )
