"""From the answers of a heatmap's sub-queries to its posterior, and to the map that is published."""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from sfumato.schemas.tree import Tree
from sfumato.transforms.heatmap.methods.trees import last_answer, total_of
from sfumato.transforms.heatmap.posterior.infer import Posterior, infer
from sfumato.transforms.heatmap.posterior.levels import FullTree
from sfumato.transforms.heatmap.posterior.measurements import Measured, measure
from sfumato.transforms.heatmap.state import Estimate, HeatmapState

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
    measured = []
    for answer in state.answers:
        total = total_of(answer)
        # What the shards that answered are of all: the others' users have to be guessed from theirs.
        share = (answer.spent.shards - answer.spent.shards_lost) / state.cohort.shards
        measured.append(Measured(total.tree, total.counts, total.stddev**2, 1 / share - 1))
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
    owner = _owner(full, last.tree)
    entries = len(last.tree.entries)
    return Estimate(
        last.tree,
        _added(owner, counts, entries),
        np.sqrt(_added(owner, variance, entries)),
        last.by_category,
        last.category_stddev,
        posterior.slope,
    )


def _owner(full: FullTree, tree: Tree) -> NDArray[np.int64]:
    """The entry of a tree that covers each leaf of a full tree with all its nodes: int64[leaves]."""
    first = [
        codes[leaf] << np.uint64(2 * (full.depth - level))
        for level, (codes, leaf) in enumerate(zip(full.codes, full.leaves, strict=True))
    ]
    return tree.index.owners(np.concatenate(first))


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
