"""A few sub-queries whose answers are all used: a coarse grid first, then trees that its posterior calls for.

The adaptive method's schedules beside the paper's: each tree is refined over several levels at once, by what the
posterior expects to learn (see `posterior.growth`), so that two sub-queries do for most maps.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import scipy

from sfumato.schemas.errors import RequestError
from sfumato.schemas.tree import Tree
from sfumato.transforms.heatmap.methods.combine import (
    combine,
    from_prior,
    noise_variance,
    on_tree,
    sampling_of,
    standard_level,
)
from sfumato.transforms.heatmap.methods.trees import total_of
from sfumato.transforms.heatmap.posterior.growth import next_tree
from sfumato.transforms.heatmap.rates import split_by_interval
from sfumato.transforms.heatmap.state import EVERYTHING, HeatmapState, Question
from sfumato.transforms.secagg.encodings import TreeEncoding

# By which a sub-query refines the one before: its gains that far down are foreseen from the first's posterior.
LEVELS = 6
_FIRST_SHARE = 0.2  # of the remaining epsilon, for every sub-query but the last
_FIRST_PART = 0.1  # of the shards, likewise
LEAST_ENTRIES = 16  # of any tree: two levels are always split
_LEAST_SHARDS = 2
_RISK = 1e-6
_DEAREST = 1e40  # the tree is then the least that `next_tree` gives
_WARM_TOLL = 0.25  # of the toll, where the earlier map has found already what is worth splitting


@dataclass(frozen=True)
class Plan:
    """price, toll: of a split (see `next_tree`). reach: a first grid's cell holds so many deviations of its noise.

    max_entries: of a sub-query, at least LEAST_ENTRIES a category. queries: how many at most, None by the depth.
    cohorts: auto, shared or disjoint. interval_width: of rates, by which nodes are split, None where their counts
    decide.
    """

    price: float
    toll: float
    reach: float
    max_entries: int
    queries: int | None
    cohorts: str
    interval_width: float | None = None


def most_queries(plan: Plan, depth: int) -> int:
    """The most sub-queries that `ask` asks on a grid of this depth: those after a first grid of level 2."""
    return plan.queries or 1 + max(1, math.ceil((depth - 2) / LEVELS))


def ask(plan: Plan, state: HeatmapState, depth: int) -> Question | None:
    """What to ask next; None when all is asked."""
    done = len(state.answers)
    if state.prior is not None:
        return None if done else Question(_encoding(_grow(plan, state, 1.0), state), EVERYTHING)
    begun = replace(state, answers=())  # what was public before the first answer decides how many, and of whom
    parts = choose_parts(plan, begun)
    shares = _shares(plan, begun, depth, parts)
    if done >= len(shares):
        return None
    if not done:
        tree = Tree.uniform(depth, _first_level(plan, begun, depth, parts))
    else:
        tree = _grow(plan, state, 1 - sum(shares[:done]) if parts else 1.0)
    final = done + 1 == len(shares) or (done > 0 and _encoding(tree, state) == state.answers[-1].encoding)
    if parts:
        begin = round(sum(shares[:done]), 9)
        return Question(_encoding(tree, state), EVERYTHING, (begin, 1.0 if final else begin + shares[done]))
    return Question(_encoding(tree, state), EVERYTHING if final else _FIRST_SHARE * state.budget.remaining)


def choose_parts(plan: Plan, state: HeatmapState) -> bool:
    """Whether each user answers one sub-query with the whole epsilon (disjoint cohorts), from public figures alone.

    In parts the last sub-query has variance n s^2(eps) / (1 - f) + f / (1 - f) T for a cell of T users, n shards, a
    share f of them asked first; together it has n s^2(0.8 eps). Parts it is where that is less for the cells that
    matter, those of T = 2 deviations of the noise. Together it is also where a private count plans a single shard, and
    in the paper's model where the first part's few shards might all be lost: shards' sizes are Poisson numbers.
    """
    shards = state.cohort.shards
    if plan.cohorts == "disjoint" and shards < _LEAST_SHARDS and state.population.source == "public":
        raise RequestError("cohorts: there is one shard, which cannot be divided; use shared, or a smaller shard_size")
    if shards < _LEAST_SHARDS or state.central:
        return False
    if plan.cohorts != "auto":
        return plan.cohorts == "disjoint"
    first = _first_part(shards)
    if _all_lost(state, round(first * shards)) > _RISK:
        return False
    total = state.at_first.remaining
    together = noise_variance(state, (1 - _FIRST_SHARE) * total)
    apart = noise_variance(state, total, 1 - first) + first / (1 - first) * 2 * math.sqrt(together)
    return apart < together


def _first_part(shards: int) -> float:
    """The share of the shards that each sub-query but the last is for, in parts."""
    return max(1, round(_FIRST_PART * shards)) / shards


def _all_lost(state: HeatmapState, shards: int) -> float:
    """The chance that so many shards all have too few survivors, if no client vanishes. 0 for planned shards."""
    cohort = state.cohort
    if cohort.planned_clients is not None:
        return 0.0
    return float(scipy.special.pdtr(cohort.required_survivors - 1, cohort.users / cohort.shards)) ** shards


def _shares(plan: Plan, state: HeatmapState, depth: int, parts: bool) -> list[float]:
    """What share of the shards each sub-query is for in parts; together, as many entries as there are sub-queries."""
    queries = plan.queries or 1 + max(1, math.ceil((depth - _first_level(plan, state, depth, parts)) / LEVELS))
    shards = state.cohort.shards
    if not parts:
        return [1.0] * queries
    queries = min(queries, shards)
    first = _first_part(shards)
    return [first] * (queries - 1) + [1 - first * (queries - 1)]


def _first_level(plan: Plan, state: HeatmapState, depth: int, parts: bool) -> int:
    total = state.at_first.remaining
    shards = state.cohort.shards
    if parts:
        variance = noise_variance(state, total, _first_part(shards))
    else:
        variance = noise_variance(state, _FIRST_SHARE * total)
    level = standard_level(state.cohort.users, math.sqrt(variance), plan.reach, depth)
    return min(level, int(math.log(plan.max_entries / state.categories, 4)))


def _grow(plan: Plan, state: HeatmapState, share: float) -> Tree:
    """The next tree, at a price at which it has no more than `max_entries` entries.

    share: of the shards that are asked from here on.
    """
    variance = noise_variance(state, state.purse.remaining, share)
    if plan.interval_width is not None and state.answers:
        return _grow_by_interval(plan.interval_width, plan.max_entries, state, variance)
    afresh = state.prior is not None and not state.answers
    posterior = from_prior(state.prior, state.cohort.users) if state.prior and afresh else combine(state)
    dearer = 1.0
    while True:
        price, toll = dearer * plan.price, dearer * plan.toll * (_WARM_TOLL if afresh else 1)
        tree = next_tree(posterior, variance, sampling_of(state), price, toll, LEVELS, afresh, 2 * plan.max_entries)
        excess = len(tree.entries) * state.categories / plan.max_entries
        if excess <= 1 or dearer > _DEAREST:
            return tree
        dearer *= min(max(excess**2, 1.25), 16.0)  # entries fall with about the root of the price


def _grow_by_interval(width: float, max_entries: int, state: HeatmapState, variance: float) -> Tree:
    """The last tree with nodes collapsed whose rates are blurred, and split as far as all children's are sharp.

    Nodes of the new levels are taken to have a quarter of their parent's users of each category.
    """
    stddev, sums = math.sqrt(variance / state.categories), state.noisy_sums
    known = total_of(state.answers[-1])
    while True:  # each round is a level nearer to the root
        _, collapse = split_by_interval(known, stddev, width, sums, math.inf)
        tree = known.tree.refine(collapse[:0], collapse)
        if tree == known.tree:
            break
        known = on_tree(known, tree)
    for _ in range(LEVELS):
        split, _ = split_by_interval(known, stddev, width, sums, math.inf)
        tree = known.tree.refine(split, split[:0])
        if tree == known.tree or len(tree.entries) * state.categories > max_entries:
            break
        known = on_tree(known, tree)
    return known.tree


def _encoding(tree: Tree, state: HeatmapState) -> TreeEncoding:
    return TreeEncoding(tree, state.categories)
