"""The posterior of a heatmap's results, the published map, and its rasters: from noisy counts to densities. Pure.

Densities follow paper 000, Section 6.1: small counts stay, negative ones count as 0, and a node's users are spread over
its area without its children. All of it is post-processing and costs no budget.
"""

from __future__ import annotations

import functools
from dataclasses import replace
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from sfumato.schemas.region import by_row
from sfumato.schemas.tree import Tree, node_levels
from sfumato.transforms.counting.state import CountState, Estimate, NoisyCounts
from sfumato.transforms.statistics.posterior.full_tree import FullTree, NodeMeasurements, TreeMeasurement, measure
from sfumato.transforms.statistics.posterior.inference import Posterior, infer
from sfumato.transforms.statistics.posterior.unbiased import UnbiasedCounts

Floats = NDArray[np.float64]

Estimator = Literal["bayes", "last"]
MAX_PAINTED_DEPTH = 11  # of a picture
_SLOPING_LEVELS = 2  # below an entry; deeper levels are split evenly, because nothing says how to slope them
MAX_RASTER_DEPTH = 12  # 4096 x 4096 float64 is 128 MiB; finer trees are summed into such cells


def decode(state: CountState, estimator: Estimator) -> Estimate:
    """Returns the map of all results, with a prior learned from them (bayes), or of the last result only (last)."""
    return state.results[-1].to_estimate() if estimator == "last" else estimate_of(posterior_of(state), state)


def sampling_of(state: CountState) -> float:
    """Returns 1 - sampling rate: the variance that a node has for each of its users because they are a sample.

    A rotating cohort is a sample of all users, and the users who take part may be a sample of it.
    """
    return 1 - state.shard_plan.sampling_rate / state.rotation


def posterior_of(state: CountState) -> Posterior:
    """Returns the posterior of the nodes of all queried trees, from all results and the shares of the prior map."""
    measured = [measurement_of(result, state) for result in state.results]
    full = FullTree.from_trees(*(one.tree for one in measured))
    guide = None
    if state.prior is not None:
        before = prior_posterior(state.prior, state.shard_plan.users)
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


def unbiased_counts(estimate: Estimate, state: CountState) -> UnbiasedCounts:
    """Returns the users of an estimate's cells without shrinkage.

    They are from the last result, and from earlier ones where cells are finer than it measured.

    With slots the last result is that of the last sub-query of all slots together, whose noise is less. Cells finer
    than the last tree's entries are not unbiased, see `unbiased`. estimate: by the estimator `bayes`.
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
        measurement = measurement_of(result, state)
        found = measure(full, [replace(measurement, sampling=measurement.sampling + sampling)], expected)
        if result is last:
            own = found
            continue
        for level, cells in enumerate(missing):
            own.weighted[level][cells] = found.weighted[level][cells]
            own.weights[level][cells] = found.weights[level][cells]
    users, stddev = (one / state.rotation for one in state.all_users_estimate())
    return UnbiasedCounts.from_measurements(full, own, users, stddev**2)


def measurement_of(result: NoisyCounts, state: CountState) -> TreeMeasurement:
    """Returns a result's users and their noise."""
    total = result.to_estimate()
    # The share of the shards that are in the result. The users of the others are estimated from theirs.
    share = result.shards_answered / state.shard_plan.shards
    return TreeMeasurement(total.tree, total.counts, total.stddev**2, 1 / share - 1)


def prior_posterior(prior: Estimate, users: float) -> Posterior:
    """Returns the posterior of an earlier map, scaled to this many users."""
    full = FullTree.from_trees(prior.tree)
    counts = np.maximum(prior.counts, 0)
    total = counts.sum()
    scale = users / total if total > 0 else 0.0
    least = max(users * 1e-9, 1e-12)
    variance = np.maximum((prior.stddev * scale) ** 2, least)
    return infer(full, measure(full, [TreeMeasurement(prior.tree, counts * scale, variance)]), users, 0.0)


def estimate_of(posterior: Posterior, state: CountState) -> Estimate:
    """Returns the map: the leaves of all queried trees. With categories, the entries of the last tree."""
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


def _summed(entry: NDArray[np.int64], values: Floats, entries: int) -> Floats:
    """Returns values added up by entry: float64[entries]."""
    return np.bincount(entry, values, entries).astype(np.float64)


def move_to_tree(estimate: Estimate, tree: Tree) -> Estimate:
    """Returns an estimate on another tree. Each entry's users, by category too, are spread evenly over its area."""
    before, after = estimate.tree.index, tree.index
    borders = np.union1d(before.boundaries, after.boundaries)[:-1]
    area = np.diff(borders, append=np.uint64(4**tree.depth)).astype(np.float64)
    old, new = before.owners(borders), after.owners(borders)
    share = area / np.maximum(estimate.tree.areas, 1)[old]
    entries = len(tree.entries)

    def moved(values: Floats) -> Floats:
        return _summed(new, values[old] * share, entries)

    by_category = None if estimate.by_category is None else np.stack([moved(one) for one in estimate.by_category])
    return Estimate(tree, moved(estimate.counts), np.sqrt(moved(estimate.stddev**2)), by_category)


def density(tree: Tree, counts: Floats, depth: int | None = None) -> Floats:
    """Returns the density float64[2^d, 2^d] of counts float64[T], one for each entry. It adds up to 1.

    Row 0 is in the north. An entry is a node without the area of its children. d is `depth`, at most the tree's; by
    default it is the tree's, at most 12. Negative counts count as 0. Without positive counts the density is uniform.
    """
    depth = min(tree.depth, MAX_RASTER_DEPTH) if depth is None else depth
    index, shift = tree.index, np.uint64(2 * (tree.depth - depth))
    per_cell = np.maximum(counts, 0) / np.maximum(tree.areas, 1)
    if depth == tree.depth:
        mass = np.repeat(per_cell[index.owner], np.diff(index.boundaries).astype(np.int64))
    else:
        cells = np.arange((1 << (2 * depth)) + 1, dtype=np.uint64) << shift
        # Borders contain the tree's boundaries where nodes are as fine as cells, so each piece has one owner.
        borders = np.union1d(cells, index.boundaries)
        pieces = np.diff(np.searchsorted(borders, index.boundaries))
        mass = np.repeat(per_cell[index.owner], pieces) * np.diff(borders).astype(np.float64)
        mass = np.add.reduceat(mass, np.searchsorted(borders, cells[:-1]))
    total = mass.sum()
    mass = mass / total if total > 0 else np.full(len(mass), 1 / len(mass))
    return by_row(mass)


def estimate_density(estimate: Estimate, depth: int | None = None) -> Floats:
    """Returns the density float64[2^d, 2^d] of an estimate, as `density` gives it, with slopes inside cells.

    Nothing was measured inside a cell. But where counts grow from cell to cell, they most likely also grow inside a
    cell. The strength of slopes was learned on the measured levels above. Every cell keeps its total.
    """
    tree = estimate.tree
    depth = min(tree.depth, MAX_RASTER_DEPTH) if depth is None else depth
    flat = density(tree, estimate.counts, depth)
    if not estimate.slope:
        return flat
    pyramid, levels = [flat], [painted(tree, np.minimum(node_levels(tree.entries), depth).astype(np.float64), depth)]
    for _ in range(depth):
        north_west, south_west, north_east, south_east = _quarters(pyramid[-1])
        pyramid.append((north_west + north_east) + (south_west + south_east))
        levels.append(functools.reduce(np.maximum, _quarters(levels[-1])))
    shown = pyramid[-1]
    for level in range(depth):
        entry = levels[depth - level]
        measured = pyramid[depth - level - 1]
        sloping = (entry <= level) & (level - entry < _SLOPING_LEVELS)
        children = np.repeat(np.repeat(shown / 4, 2, axis=0), 2, axis=1)
        if sloping.any():
            children += _slope(shown * estimate.slope, np.where(sloping, shown / 4, 0))
        shown = np.where(np.repeat(np.repeat(entry > level, 2, axis=0), 2, axis=1), measured, np.maximum(children, 0))
    return np.asarray(shown / shown.sum())


def _slope(values: Floats, limit: Floats) -> Floats:
    """Returns how much each cell's four children differ from a quarter of the cell: float64[2 n, 2 n].

    Differences are clipped to [-limit, limit] and add up to 0 in every cell.
    """
    padded = np.pad(values, 1, mode="edge")
    # A neighbour beyond the border counts as the cell's own value, as in `FullTree.gradient`.
    east = (padded[1:-1, 2:] - padded[1:-1, :-2]) / 32
    south = (padded[2:, 1:-1] - padded[:-2, 1:-1]) / 32
    children = np.stack([[-east - south, east - south], [-east + south, east + south]])  # [row, column, ...]
    children = np.clip(children, -limit, limit)
    children -= children.mean(axis=(0, 1))
    side = len(values)
    return np.asarray(children.transpose(2, 0, 3, 1).reshape(2 * side, 2 * side))


def _quarters(cells: Floats) -> list[Floats]:
    """Returns the four cells of each block of 2 x 2, float64[n, n] each of float64[2 n, 2 n]; row 0 is in the north."""
    return [cells[row::2, column::2] for column in (0, 1) for row in (0, 1)]


def painted(tree: Tree, values: Floats, depth: int | None = None) -> Floats:
    """Returns the value of each cell's entry, float64[2^d, 2^d], row 0 in the north.

    values: float64[T], one for each entry. depth: d; None takes the tree's deepest level, at most 11. Where entries are
    finer, a cell shows the entry at its corner.
    """
    depth = min(tree.level, MAX_PAINTED_DEPTH) if depth is None else depth
    step = np.uint64(1 << (2 * (tree.depth - depth)))
    first = (tree.index.boundaries + step - np.uint64(1)) // step  # the first cell whose corner lies in each interval
    return by_row(np.repeat(values[tree.index.owner], np.diff(first).astype(np.int64)))
