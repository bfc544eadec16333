"""The posterior of a heatmap's results, and the published map. Pure."""

from __future__ import annotations

from dataclasses import replace
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from sfumato.schemas.tree import Tree
from sfumato.transforms.heatmap.posterior.full_tree import FullTree, NodeMeasurements, TreeMeasurement, measure
from sfumato.transforms.heatmap.posterior.inference import Posterior, infer
from sfumato.transforms.heatmap.posterior.unbiased import UnbiasedCounts
from sfumato.transforms.heatmap.state import Estimate, HeatmapState, NoisyCounts

Estimator = Literal["bayes", "last"]


def decode(state: HeatmapState, estimator: Estimator) -> Estimate:
    """Returns the map of all results, with a prior learned from them (bayes), or of the last result only (last)."""
    return state.results[-1].to_estimate() if estimator == "last" else estimate_of(posterior_of(state), state)


def sampling_of(state: HeatmapState) -> float:
    """1 - sampling rate: the variance that a node has for each of its users because they are a sample.

    A rotating cohort is a sample of all users, and the run's cohort may be a sample of it.
    """
    return 1 - state.cohort.sampling_rate / state.rotation


def posterior_of(state: HeatmapState) -> Posterior:
    """The posterior of the nodes of all queried trees, from all results and from the shares of the prior map."""
    measured = [measurement_of(result, state) for result in state.results]
    full = FullTree.from_trees(*(one.tree for one in measured))
    guide = None
    if state.prior is not None:
        before = prior_posterior(state.prior, state.cohort.users)
        guide = [before.full.values_at(level, codes, before.users) for level, codes in enumerate(full.codes)]
    # The total comes from all noisy figures, because a sum of clipped counts is biased upwards.
    users, sampling = max(state.users_estimate()[0], 1e-6), sampling_of(state)
    noise = measure(full, measured)
    if not any(one.sampling for one in measured):
        return infer(full, noise, users, sampling, None, guide)
    expected = [np.full(len(codes), max(users, 1.0) / 4.0**level) for level, codes in enumerate(full.codes)]
    for _ in range(2):  # a sample's variance depends on the users, and so on the first pass
        posterior = infer(full, measure(full, measured, expected), users, sampling, noise, guide)
        expected = [np.maximum(one, 0.5) for one in posterior.users]
    return posterior


def unbiased_counts(estimate: Estimate, state: HeatmapState) -> UnbiasedCounts:
    """Users of an estimate's cells without shrinkage: from the last result, from earlier ones where cells are finer.

    With slots the last result is that of the last sub-query of all slots together, whose noise is less.

    Cells finer than the last tree's entries are not unbiased, see `unbiased`.

    estimate: what `decode` made of the state with the estimator `bayes`.
    """
    full, sampling = FullTree.from_trees(estimate.tree), sampling_of(state)
    owner = full.owners(estimate.tree)
    share = 4.0 ** (full.depth - full.leaf_levels) / np.maximum(estimate.tree.areas, 1)[owner]
    expected = full.sums(full.by_level(np.maximum(estimate.counts[owner] * share, 0.5)))
    own = NodeMeasurements.empty(full)
    last = state.map_results[-1]
    for result in reversed(state.map_results):
        missing = [leaf & (weight == 0) for leaf, weight in zip(full.leaves, own.weights, strict=True)]
        if result is not last and not any(one.any() for one in missing):
            break
        one = measurement_of(result, state)
        found = measure(full, [replace(one, sampling=one.sampling + sampling)], expected)
        if result is last:
            own = found
            continue
        for level, cells in enumerate(missing):
            own.weighted[level][cells] = found.weighted[level][cells]
            own.weights[level][cells] = found.weights[level][cells]
    users, stddev = (one / state.rotation for one in state.all_users_estimate())
    return UnbiasedCounts.from_measurements(full, own, users, stddev**2)


def measurement_of(result: NoisyCounts, state: HeatmapState) -> TreeMeasurement:
    """A result's users and their noise."""
    total = result.to_estimate()
    # The share of the shards that are in the result. The users of the others are estimated from theirs.
    share = (result.spent.shards - result.spent.shards_lost) / state.cohort.shards
    return TreeMeasurement(total.tree, total.counts, total.stddev**2, 1 / share - 1)


def prior_posterior(prior: Estimate, users: float) -> Posterior:
    """The posterior of an earlier map, scaled to so many users."""
    full = FullTree.from_trees(prior.tree)
    counts = np.maximum(prior.counts, 0)
    total = counts.sum()
    scale = users / total if total > 0 else 0.0
    least = max(users * 1e-9, 1e-12)
    variance = np.maximum((prior.stddev * scale) ** 2, least)
    return infer(full, measure(full, [TreeMeasurement(prior.tree, counts * scale, variance)]), users, 0.0)


def estimate_of(posterior: Posterior, state: HeatmapState) -> Estimate:
    """The map: the leaves of all queried trees. With categories, the entries of the last tree."""
    full = posterior.full
    counts, variance = full.leaf_values(posterior.users), full.leaf_values(posterior.variance)
    if state.categories == 1:
        return Estimate(full.tree, counts, np.sqrt(variance), slope=posterior.slope)
    last = state.results[-1].to_estimate()
    owner = full.owners(last.tree)
    entries = len(last.tree.entries)
    return replace(
        last,
        counts=_summed(owner, counts, entries),
        stddev=np.sqrt(_summed(owner, variance, entries)),
        slope=posterior.slope,
    )


def _summed(entry: NDArray[np.int64], values: NDArray[np.float64], entries: int) -> NDArray[np.float64]:
    """Values added up by entry: float64[entries]."""
    return np.bincount(entry, values, entries).astype(np.float64)


def move_to_tree(estimate: Estimate, tree: Tree) -> Estimate:
    """An estimate on another tree: the users of each entry, by category too, are spread evenly over its area."""
    before, after = estimate.tree.index, tree.index
    borders = np.union1d(before.boundaries, after.boundaries)[:-1]
    area = np.diff(borders, append=np.uint64(4**tree.depth)).astype(np.float64)
    old, new = before.owners(borders), after.owners(borders)
    share = area / np.maximum(estimate.tree.areas, 1)[old]
    entries = len(tree.entries)

    def moved(values: NDArray[np.float64]) -> NDArray[np.float64]:
        return _summed(new, values[old] * share, entries)

    by_category = None if estimate.by_category is None else np.stack([moved(one) for one in estimate.by_category])
    return Estimate(tree, moved(estimate.counts), np.sqrt(moved(estimate.stddev**2)), by_category)
