"""From the answers of a heatmap's sub-queries to its posterior, and to the map that is published."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from sfumato.schemas.tree import Tree
from sfumato.transforms.heatmap.methods.trees import last_answer, total_of
from sfumato.transforms.heatmap.posterior.infer import Posterior, infer
from sfumato.transforms.heatmap.posterior.levels import FullTree
from sfumato.transforms.heatmap.posterior.measurements import Measured, Own, measure
from sfumato.transforms.heatmap.posterior.unbiased import UnbiasedCounts
from sfumato.transforms.heatmap.state import Answer, Estimate, HeatmapState

ESTIMATORS = ("bayes", "last")
ESTIMATOR_HELP = (
    "bayes: all answers, shrunk by what they show themselves; last: the last answer alone; default: bayes for "
    "adaptive, last for flat"
)


def decode(state: HeatmapState, estimator: str) -> Estimate:
    """The map that an estimator makes of the answers."""
    return last_answer(state) if estimator == "last" else estimate_of(combine(state), state)


def sampling_of(state: HeatmapState) -> float:
    """By how much of its users a node's variance grows because the cohort is a sample of everybody: 1 - rate."""
    return 1 - state.cohort.sampling_rate


def combine(state: HeatmapState) -> Posterior:
    """The posterior of the nodes of all trees that were asked for, from all answers and the prior's shares."""
    measured = [_measured(answer, state) for answer in state.answers]
    full = FullTree.of(*(one.tree for one in measured))
    guide = None
    if state.prior is not None:
        before = from_prior(state.prior, state.cohort.users)
        guide = [before.full.values_at(level, codes, before.users) for level, codes in enumerate(full.codes)]
    # As a total what all noisy figures say together: sums of shrunk counts would be too large, as none is negative.
    users, sampling = max(state.users_estimate()[0], 1e-6), sampling_of(state)
    if not any(one.sampling for one in measured):
        return infer(full, measure(full, measured), users, sampling, None, guide)
    noise = measure(full, measured)
    expected = [np.full(len(codes), max(users, 1.0) / 4.0**level) for level, codes in enumerate(full.codes)]
    for _ in range(2):  # the variance of a sample wants to know of how many users it is
        posterior = infer(full, measure(full, measured, expected), users, sampling, noise, guide)
        expected = [np.maximum(one, 0.5) for one in posterior.users]
    return posterior


def unbiased_counts(estimate: Estimate, state: HeatmapState) -> UnbiasedCounts:
    """Unbiased users of an estimate's cells: the last answer's, and earlier ones' where cells are finer.

    estimate: what `decode` made of the state with the estimator bayes.
    """
    full, sampling = FullTree.of(estimate.tree), sampling_of(state)
    owner = full.owners(estimate.tree)
    share = 4.0 ** (full.depth - _leaf_levels(full)) / np.maximum(estimate.tree.areas, 1)[owner]
    expected = full.sums(full.by_level(np.maximum(estimate.counts[owner] * share, 0.5)))
    own = Own.nothing(full)
    for answer in reversed(state.answers):
        missing = [leaf & (weight == 0) for leaf, weight in zip(full.leaves, own.weights, strict=True)]
        if answer is not state.answers[-1] and not any(one.any() for one in missing):
            break
        one = _measured(answer, state)
        found = measure(full, [replace(one, sampling=one.sampling + sampling)], expected)
        if answer is state.answers[-1]:
            own = found
            continue
        for level, cells in enumerate(missing):
            own.weighted[level][cells] = found.weighted[level][cells]
            own.weights[level][cells] = found.weights[level][cells]
    users, stddev = state.users_estimate()
    return UnbiasedCounts.of(full, own, users, stddev**2)


def _measured(answer: Answer, state: HeatmapState) -> Measured:
    """An answer's users and their noise."""
    total = total_of(answer)
    # What the shards that answered are of all: the others' users have to be guessed from theirs.
    share = (answer.spent.shards - answer.spent.shards_lost) / state.cohort.shards
    return Measured(total.tree, total.counts, total.stddev**2, 1 / share - 1)


def from_prior(prior: Estimate, users: float) -> Posterior:
    """The posterior that an earlier map amounts to, for so many users."""
    full = FullTree.of(prior.tree)
    counts = np.maximum(prior.counts, 0)
    total = counts.sum()
    scale = users / total if total > 0 else 0.0
    least = max(users * 1e-9, 1e-12)
    variance = np.maximum((prior.stddev * scale) ** 2, least)
    return infer(full, measure(full, [Measured(prior.tree, counts * scale, variance)]), users, 0.0)


def estimate_of(posterior: Posterior, state: HeatmapState) -> Estimate:
    """The map: the leaves of all trees that were asked for. With categories, the entries of the last answer's tree."""
    full = posterior.full
    counts, variance = full.of_leaves(posterior.users), full.of_leaves(posterior.variance)
    if state.categories == 1:
        return Estimate(full.tree, counts, np.sqrt(variance), slope=posterior.slope)
    last = last_answer(state)
    owner = full.owners(last.tree)
    entries = len(last.tree.entries)
    return Estimate(
        last.tree,
        _added(owner, counts, entries),
        np.sqrt(_added(owner, variance, entries)),
        last.by_category,
        last.category_stddev,
        posterior.slope,
    )


def _leaf_levels(full: FullTree) -> NDArray[np.int64]:
    """The level of each leaf, in the order of the full tree's entries."""
    return np.repeat(np.arange(len(full.leaves)), [int(leaf.sum()) for leaf in full.leaves])


def _added(entry: NDArray[np.int64], values: NDArray[np.float64], entries: int) -> NDArray[np.float64]:
    return np.bincount(entry, values, entries).astype(np.float64)


def on_tree(estimate: Estimate, tree: Tree) -> Estimate:
    """An estimate's users, by category too, on another tree: those of each place spread evenly over its entry."""
    before, after = estimate.tree.index, tree.index
    borders = np.union1d(before.boundaries, after.boundaries)[:-1]
    area = np.diff(borders, append=np.uint64(4**tree.depth)).astype(np.float64)
    old, new = before.owners(borders), after.owners(borders)
    share = area / np.maximum(estimate.tree.areas, 1)[old]
    entries = len(tree.entries)

    def moved(values: NDArray[np.float64]) -> NDArray[np.float64]:
        return _added(new, values[old] * share, entries)

    by_category = None if estimate.by_category is None else np.stack([moved(one) for one in estimate.by_category])
    return Estimate(tree, moved(estimate.counts), np.sqrt(moved(estimate.stddev**2)), by_category)


def noise_variance(state: HeatmapState, epsilon: float, share: float = 1.0) -> float:
    """Of an entry's users, over all categories, in a sub-query of a share of the shards at this epsilon."""
    return state.categories * state.noise_stddev(min(epsilon, state.budget.total)) ** 2 / share


def standard_level(users: float, stddev: float, least_users: float, depth: int) -> int:
    """The level of a grid on which evenly spread users are `least_users` deviations of the noise, at least 2."""
    cells = max(users / (least_users * max(stddev, 1e-9)), 1.0)
    return min(depth, max(2, math.floor(math.log(cells, 4) + 0.5)))
