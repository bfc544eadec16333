"""The adaptive method's default algorithm: a coarse grid first, then trees that follow from the posterior.

A tree is refined by several levels at once, where the expected gain is larger than the cost (`posterior.next_tree`).
All results are used. Two sub-queries are enough for most maps.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np
import scipy

from sfumato.schemas.errors import RequestError
from sfumato.schemas.guarantee import Trust
from sfumato.schemas.tree import Tree
from sfumato.transforms.counting.estimator import move_to_tree, posterior_of, prior_posterior, sampling_of
from sfumato.transforms.counting.rates import split_by_interval
from sfumato.transforms.counting.state import ALL_REMAINING, CountState, Query
from sfumato.transforms.secagg.encodings import TreeEncoding
from sfumato.transforms.statistics.posterior.full_tree import FullTree, children_of
from sfumato.transforms.statistics.posterior.next_tree import next_tree

if TYPE_CHECKING:
    from sfumato.transforms.counting.methods.adaptive import Adaptive

MIN_ENTRIES = 16  # that any tree may have: two levels are always split
LEVELS = 6  # the most levels by which a sub-query refines the tree of the one before
_FIRST_SHARE = 0.2  # of the remaining budget, for every sub-query but the last, where all shards are queried
_FIRST_FRACTION = 0.1  # of the shards, for every sub-query but the last, where each has shards of its own
_FIRST_SLOT_SHARE = 0.1  # of the remaining budget, for every sub-query without slots but the last of them
_SLOTLESS_SHARE = 0.3  # for the last of them; the sub-query by slot spends the rest
_SLOT_SPLIT_SNR = 32.0  # users of a node that is split, in deviations of one slot's noise times the root of the slots
_MIN_SHARDS = 2
_MAX_LOSS_PROBABILITY = 1e-6  # that all shards of the first sub-query are lost
_MAX_PENALTY_SCALE = 1e40  # the tree is then the smallest that `next_tree` gives
# Chosen on synthetic maps of seven kinds (docs/results/accuracy.md). A blur weight of 1 is derived.
_SPLIT_PENALTY = 2.0  # minimum gain of a split beyond its blur, in noise variances, see `next_tree`
_MIN_CELL_SNR = 2.0  # users in a cell of the first grid, on average, in standard deviations of its noise
# The share by which the expected squared error may grow for fewer entries, but not for a warm start, whose trees are
# small.
_ERROR_GROWTH, _LEAN_ERROR_GROWTH = 0.005, 0.1
_WARM_START_PENALTY = 0.25  # times the split penalty: the earlier map shows which splits are worth it


@dataclass(frozen=True)
class FewQueries:
    """Plans a few sub-queries from public figures and earlier results, by the options of the method adaptive."""

    options: Adaptive

    @property
    def max_queries(self) -> int | None:
        """The number of sub-queries; None chooses it by the depth."""
        return 2 if self.options.schedule == "two_query" else None

    def most_sub_queries(self, depth: int) -> int:
        """Returns the most sub-queries on a grid of this depth: those after a first grid of level 2."""
        return self.max_queries or 1 + max(1, math.ceil((depth - 2) / LEVELS))

    def next_query(self, state: CountState, depth: int) -> Query | None:
        """Returns the next sub-query; None when the run is complete."""
        done = len(state.results)
        if state.prior is not None:
            return None if done else Query(TreeEncoding(self._next_tree(state, 1.0), state.categories), ALL_REMAINING)
        if state.slots > 1:
            return self._next_by_slot(state, depth)
        begun = replace(state, results=())  # the plan depends only on figures that are public before the first result
        disjoint = self.uses_disjoint_shards(begun)
        fractions = self.shard_fractions(begun, depth, disjoint)
        if done >= len(fractions):
            return None
        if not done:
            tree = Tree.uniform(depth, self._first_level(begun, depth, disjoint))
        else:
            tree = self._next_tree(state, 1 - sum(fractions[:done]) if disjoint else 1.0)
        encoding = TreeEncoding(tree, state.categories)
        is_last = done + 1 == len(fractions) or (done > 0 and encoding == state.results[-1].encoding)
        if disjoint:
            begin = round(sum(fractions[:done]), 9)
            return Query(encoding, ALL_REMAINING, (begin, 1.0 if is_last else begin + fractions[done]))
        return Query(encoding, ALL_REMAINING if is_last else _FIRST_SHARE * state.budget.remaining)

    def _next_by_slot(self, state: CountState, depth: int) -> Query | None:
        """Returns the next sub-query of a map with slots. Only the last counts slots separately, see `_slot_tree`."""
        results = state.results
        if state.slot_result is not None:
            return None
        begun = replace(state, results=(), slots=1)
        queries = len(self.shard_fractions(begun, depth, False))
        done, remaining = len(results), state.budget.remaining
        if done:
            tree = self._next_tree(state, 1.0) if done < queries else results[-1].tree
            if done == queries or tree == results[-1].tree:
                slot_noise = math.sqrt(noise_variance(state, remaining))
                return Query(
                    TreeEncoding(_slot_tree(state, slot_noise, self.options.max_entries), state.slots), ALL_REMAINING
                )
        else:
            tree = Tree.uniform(depth, self._first_level(begun, depth, False))
        share = _FIRST_SLOT_SHARE if done + 1 < queries else _SLOTLESS_SHARE
        return Query(TreeEncoding(tree, state.slots, summed=True), share * remaining)

    def uses_disjoint_shards(self, state: CountState) -> bool:
        """Returns whether each user takes part in one sub-query with the whole budget, by public figures only.

        Let n be the shards, f the share of them that is queried first, and s^2(e) the noise variance of one shard. With
        disjoint shards the last sub-query has the variance n s^2(eps) / (1 - f) + f / (1 - f) T for a cell of T users.
        With shared ones it has n s^2(0.8 eps). `auto` takes the smaller one for the cells that matter, those of T = 2
        standard deviations of the noise. Shards are shared too where the noisy user count plans a single shard, and in
        the paper's model where all of the first sub-query's few shards might be lost: their sizes are Poisson numbers.

        Raises:
            RequestError: disjoint shards are required, and a public population makes a single shard.
        """
        shards = state.shard_plan.shards
        if self.options.shards == "disjoint" and shards < _MIN_SHARDS and state.population.source == "public":
            raise RequestError("shards: there is one, which cannot be divided; use shared, or a smaller shard_size")
        if shards < _MIN_SHARDS or state.is_one_batch:
            return False
        if self.options.shards != "auto":
            return self.options.shards == "disjoint"
        first = _first_fraction(shards)
        if _all_lost_probability(state, round(first * shards)) > _MAX_LOSS_PROBABILITY:
            return False
        total = state.initial_budget.remaining
        shared = noise_variance(state, (1 - _FIRST_SHARE) * total)
        disjoint = noise_variance(state, total, 1 - first) + first / (1 - first) * 2 * math.sqrt(shared)
        return disjoint < shared

    def shard_fractions(self, state: CountState, depth: int, disjoint: bool) -> list[float]:
        """Returns each sub-query's fraction of the shards: 1 each with shared shards; otherwise they add up to 1."""
        queries = self.max_queries or 1 + max(
            1, math.ceil((depth - self._first_level(state, depth, disjoint)) / LEVELS)
        )
        shards = state.shard_plan.shards
        if not disjoint:
            return [1.0] * queries
        queries = min(queries, shards)
        first = _first_fraction(shards)
        return [first] * (queries - 1) + [1 - first * (queries - 1)]

    def _first_level(self, state: CountState, depth: int, disjoint: bool) -> int:
        total = state.initial_budget.remaining
        if disjoint:
            variance = noise_variance(state, total, _first_fraction(state.shard_plan.shards))
        else:
            variance = noise_variance(state, _FIRST_SHARE * total)
        level = first_grid_level(state.shard_plan.users, math.sqrt(variance), _MIN_CELL_SNR, depth)
        return min(level, int(math.log(self.options.max_entries / state.categories, 4)))

    def _next_tree(self, state: CountState, fraction: float) -> Tree:
        """Returns the next tree, by the results so far or a prior. Penalties grow until `max_entries` entries suffice.

        fraction: of the shards, those that are still to be queried.
        """
        variance = noise_variance(state, state.next_query_budget.remaining, fraction)
        if (width := self.options.rate_width) is not None and state.results:
            return self._next_tree_by_interval(width, state, variance)
        prior = None if state.results else state.prior
        posterior = posterior_of(state) if prior is None else prior_posterior(prior, state.shard_plan.users)
        variance /= 1.0 if prior is None else prior.memory
        split_penalty = _SPLIT_PENALTY * (1 if prior is None else _WARM_START_PENALTY)
        # A curator counts several shards' users, and no client sends entries.
        sends_nothing = state.trust == Trust.CENTRAL and state.shard_plan.shards > 1
        growth = 0.0 if sends_nothing else _ERROR_GROWTH
        if self.options.schedule == "lean":
            growth = _LEAN_ERROR_GROWTH
        scale = 1.0
        while True:
            tree = next_tree(
                posterior,
                noise=variance,
                sampling=sampling_of(state),
                blur_weight=scale * self.options.blur_weight,
                split_penalty=scale * split_penalty,
                levels=LEVELS,
                remeasure=prior is not None,
                max_nodes=2 * self.options.max_entries,
                tolerance=growth if prior is None else 0.0,
            )
            excess = len(tree.entries) * state.categories / self.options.max_entries
            if excess <= 1 or scale > _MAX_PENALTY_SCALE:
                return tree
            scale *= min(max(excess**2, 1.25), 16.0)  # entries fall with about the root of the penalties

    def _next_tree_by_interval(self, width: float, state: CountState, variance: float) -> Tree:
        """Returns the last tree, with nodes collapsed and split by the intervals of their rates.

        See `rates.split_by_interval`. A new node is assumed to have a quarter of its parent's users in each category.
        """
        stddev, sums = math.sqrt(variance / state.categories), state.tail_sums
        known = state.results[-1].to_estimate()
        while True:  # each pass collapses one level
            _, collapse = split_by_interval(known, stddev, width, sums, math.inf)
            tree = known.tree.refine(collapse[:0], collapse)
            if tree == known.tree:
                break
            known = move_to_tree(known, tree)
        for _ in range(LEVELS):
            split, _ = split_by_interval(known, stddev, width, sums, math.inf)
            tree = known.tree.refine(split, split[:0])
            if tree == known.tree or len(tree.entries) * state.categories > self.options.max_entries:
                break
            known = move_to_tree(known, tree)
        return known.tree


def noise_variance(state: CountState, cost: float, fraction: float = 1.0) -> float:
    """Returns the noise variance of an entry over all categories, in a sub-query of a fraction of the shards."""
    return state.categories * state.noise_stddev(min(cost, state.budget.total)) ** 2 / fraction


def first_grid_level(users: float, stddev: float, min_cell_snr: float, depth: int) -> int:
    """Returns the level, at least 2, on which cells of evenly spread users have `min_cell_snr` deviations of noise."""
    cells = max(users / (min_cell_snr * max(stddev, 1e-9)), 1.0)
    return min(depth, max(2, math.floor(math.log(cells, 4) + 0.5)))


def _first_fraction(shards: int) -> float:
    """Returns the fraction of the shards that each sub-query but the last has, with disjoint shards."""
    return max(1, round(_FIRST_FRACTION * shards)) / shards


def _all_lost_probability(state: CountState, shards: int) -> float:
    """Returns the probability that `shards` shards all have too few survivors without dropout; 0 for planned ones."""
    shard_plan = state.shard_plan
    if shard_plan.planned_clients is not None:
        return 0.0
    return float(scipy.special.pdtr(shard_plan.required_survivors - 1, shard_plan.users / shard_plan.shards)) ** shards


def _slot_tree(state: CountState, stddev: float, max_entries: int) -> Tree:
    """Returns the full tree by slot, as fine as profiles over the slots can be seen by the posterior of all slots.

    It has nodes of the earlier sub-queries' trees only, so a cell of the map is never coarser than its node here.
    stddev: of the noise of one slot's count, in users; max_entries: of the vector, over all slots.
    """
    posterior = posterior_of(state)
    full, threshold = posterior.full, _SLOT_SPLIT_SNR * stddev * state.slots**0.5
    while True:
        codes = [full.codes[0]]
        for level in range(len(full.codes) - 1):
            place = np.searchsorted(full.codes[level], codes[level])
            split = ~full.leaves[level][place] & (posterior.users[level][place] > threshold)
            if not split.any():
                break
            codes.append(children_of(codes[level][split]))
        tree = FullTree(full.depth, tuple(codes)).tree
        if len(tree.entries) * state.slots <= max_entries:
            return tree
        threshold *= 1.25
