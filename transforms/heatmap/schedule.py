"""The adaptive hierarchical histogram as a state machine (paper 000, Algorithm 2): pure, one step a sub-query.

state = start(...); while state.query: totals = <sum over shards>; state = advance(state, totals, ...)
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from sfumato.schemas.errors import DataError
from sfumato.schemas.guarantee import Population, SubQuery
from sfumato.schemas.tree import Tree
from sfumato.transforms.heatmap.parameters import HeatmapParameters
from sfumato.transforms.locations.shards import Cohort
from sfumato.transforms.privacy.budget import Budget
from sfumato.transforms.privacy.keys import RunKey
from sfumato.transforms.privacy.mechanism import (
    discrete_laplace_stddev,
    epsilon_for_stddev,
    polya_difference_stddev,
)
from sfumato.transforms.privacy.noise import discrete_laplace
from sfumato.transforms.secagg.modulus import choose_window, least_window
from sfumato.transforms.secagg.shards import ShardQuery, ShardTotals

_LEAST_SHARE = 1e-5  # of the budget, for one sub-query: noise that wide says nothing, wider is no cheaper
_COLLAPSE_SHARE = 0.25  # a node at a quarter of the splitting threshold is collapsed (Algorithm 2, line 24)


@dataclass(frozen=True)
class Answer:
    """A sub-query's noisy counts: float64[T], in users, for the entries of its tree."""

    tree: Tree
    counts: NDArray[np.float64]
    spent: SubQuery


@dataclass(frozen=True)
class HeatmapState:
    """What the server knows between sub-queries; nothing in it is raw. query is None when all is done."""

    population: Population
    cohort: Cohort
    budget: Budget
    query: ShardQuery | None
    answers: tuple[Answer, ...] = ()


def count_population(users: int, parameters: HeatmapParameters, key: RunKey) -> tuple[Population, Budget]:
    """The public number of users, or the true one with discrete Laplace noise paid from the budget."""
    budget = Budget(parameters.epsilon)
    if parameters.population is not None:
        return Population(float(parameters.population), "public"), budget
    epsilon = budget.affordable(parameters.epsilon * parameters.population_share)
    noise = discrete_laplace(key, "population", np.zeros(1, dtype=np.uint64), 1, epsilon)
    noisy = max(1.0, float(users + int(noise[0, 0])))
    return Population(noisy, "noisy", epsilon, discrete_laplace_stddev(epsilon)), budget.charge(epsilon)


def start(users: int, parameters: HeatmapParameters, key: RunKey) -> HeatmapState:
    """The cohort's plan and the first sub-query. users: true number of distinct users, which only noise leaves."""
    population, budget = count_population(users, parameters, key)
    cohort = Cohort.plan(population.users, parameters.users, parameters.shard_size, parameters.dropout)
    tree = Tree.uniform(parameters.depth, parameters.start_level)
    state = HeatmapState(population, cohort, budget, None)
    return replace(state, query=_next_query(state, tree, parameters, final=False))


def advance(state: HeatmapState, totals: ShardTotals, parameters: HeatmapParameters) -> HeatmapState:
    """Records the answer of the current sub-query and decides on the next one. Raises DataError if no shard lived."""
    query, cohort = state.query, state.cohort
    if query is None:
        return state
    if totals.live == 0:
        raise DataError(
            f"too few users: none of {cohort.shards} shards had the required {cohort.required_survivors} survivors; "
            "nothing is published (use a smaller shard_size, a larger dropout, or more data)"
        )
    scale = cohort.shards / totals.live  # the live shards speak for the lost ones
    shape = cohort.users / cohort.shards * (1 - parameters.simulated_dropout) / query.required_survivors
    noise_stddev = scale * math.sqrt(totals.live) * polya_difference_stddev(max(shape, 1.0), query.epsilon)
    length = len(query.tree.entries)
    spent = SubQuery(
        index=query.index,
        epsilon=query.epsilon,
        vector_length=length,
        noise_stddev=noise_stddev,
        shards=cohort.shards,
        shards_lost=cohort.shards - totals.live,
        modulus=query.window.modulus,
        bits_per_client=length * query.window.bits,
    )
    answer = Answer(query.tree, totals.sums.astype(np.float64) * scale, spent)
    state = replace(state, budget=state.budget.charge(query.epsilon), answers=(*state.answers, answer), query=None)
    if state.budget.remaining <= 0:
        return state
    tree = update_tree(query.tree, answer.counts, remaining_stddev(state), parameters.split_threshold)
    # A tree that has been asked before will not get finer: the rest of the budget buys its counts.
    converged = any(tree == earlier.tree for earlier in state.answers)
    return replace(state, query=_next_query(state, tree, parameters, final=converged))


def check_modulus(parameters: HeatmapParameters) -> None:
    """Raises RequestError where a given modulus is too small for the first and noisiest sub-query.

    Only where the cohort's size is public, or stated; otherwise the first sub-query checks it.
    """
    users = parameters.population or parameters.users
    if parameters.modulus is None or users is None:
        return
    population = Population(float(users), "public")
    cohort = Cohort.plan(population.users, parameters.users, parameters.shard_size, parameters.dropout)
    state = HeatmapState(population, cohort, Budget(parameters.epsilon), None)
    _next_query(state, Tree.uniform(parameters.depth, parameters.start_level), parameters, final=False)


def remaining_stddev(state: HeatmapState) -> float:
    """Standard deviation of an aggregated count if all that remains were spent at once (Eq. 5 over all shards)."""
    return math.sqrt(state.cohort.shards) * discrete_laplace_stddev(state.budget.remaining)


def target_epsilon(users: float, length: int, shards: int, calibration: float) -> float:
    """The epsilon at which the aggregated noise is c U / T (Eqs. 7 and 8).

    Errata: c U / T is two standard deviations (only so do the paper's vector length 340 and last epsilon 0.76 come
    out), and the printed factor sqrt(ceil(S / U)) should divide the target by sqrt(ceil(U / S)).
    """
    aggregated = calibration * users / length / 2
    return epsilon_for_stddev(aggregated / math.sqrt(shards))


def update_tree(tree: Tree, counts: NDArray[np.float64], stddev: float, threshold: float) -> Tree:
    """Splits what exceeds `threshold` standard deviations, collapses what is below a quarter of that (Eq. 6)."""
    split = tree.entries[counts > threshold * stddev]
    collapse = tree.entries[counts <= _COLLAPSE_SHARE * threshold * stddev]
    return tree.refine(split, collapse)


def _next_query(state: HeatmapState, tree: Tree, parameters: HeatmapParameters, *, final: bool) -> ShardQuery:
    cohort, budget = state.cohort, state.budget
    index, length = len(state.answers) + 1, len(tree.entries)
    target = target_epsilon(cohort.users, length, cohort.shards, parameters.calibration)
    target = max(target, _LEAST_SHARE * budget.total)
    final = final or index == parameters.max_sub_queries
    enough = parameters.expansion * target <= budget.remaining  # Eq. 9
    epsilon = budget.affordable(target) if enough and not final else budget.remaining
    least = least_window(
        expected_size=cohort.users / cohort.shards,
        required_survivors=cohort.required_survivors,
        epsilon=epsilon,
        sensitivity=1,
        contribution=1,
        entries=length,
        shards=cohort.shards,
        chance=parameters.overflow_chance / parameters.max_sub_queries,
    )
    window = choose_window(least, parameters.modulus, parameters.allow_overflow)
    return ShardQuery(index, tree, epsilon, window, cohort.required_survivors)
