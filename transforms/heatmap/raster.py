"""From noisy counts to densities (paper 000, Section 6.1): no zeroing, spread over what children leave over. Pure."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sfumato.schemas.region import interleave
from sfumato.schemas.tree import Tree, node_levels, node_paths
from sfumato.transforms.heatmap.state import Estimate

MAX_PAINTED_DEPTH = 11  # a picture shows no finer
MAX_RASTER_DEPTH = 12  # 4096 x 4096 float64 is 128 MiB; finer trees are summed into such cells


def density(tree: Tree, counts: NDArray[np.float64], depth: int | None = None) -> NDArray[np.float64]:
    """The density float64[2^d, 2^d] that the counts (float64[T], one an entry) describe; it sums to 1.

    Row 0 lies in the north. d is the tree's depth or 12, whichever is less. Negative counts count as 0; where nothing
    is left the density is uniform.
    """
    depth = min(tree.depth, MAX_RASTER_DEPTH) if depth is None else depth
    index, shift = tree.index, np.uint64(2 * (tree.depth - depth))
    per_cell = np.maximum(counts, 0) / np.maximum(tree.areas, 1)
    cells = np.arange((1 << (2 * depth)) + 1, dtype=np.uint64) << shift
    borders = cells if depth == tree.depth else np.union1d(cells, index.boundaries)
    # Borders contain the tree's boundaries where nodes are as fine as cells, so each piece has one owner.
    pieces = np.diff(np.searchsorted(borders, index.boundaries))
    mass = np.repeat(per_cell[index.owner], pieces) * np.diff(borders).astype(np.float64)
    if len(borders) > len(cells):
        mass = np.add.reduceat(mass, np.searchsorted(borders, cells[:-1]))
    total = mass.sum()
    mass = mass / total if total > 0 else np.full(len(mass), 1 / len(mass))
    return by_row(mass)


def painted(tree: Tree, values: NDArray[np.float64], depth: int | None = None) -> NDArray[np.float64]:
    """What each cell's own entry says, float64[2^d, 2^d], row 0 in the north, of values float64[T], one an entry.

    Without depth, d is the tree's deepest level or 11, whichever is less; of what is finer, the entry at a cell's
    corner shows.
    """
    depth = min(tree.level, MAX_PAINTED_DEPTH) if depth is None else depth
    cells = np.arange(1 << (2 * depth), dtype=np.uint64) << np.uint64(2 * (tree.depth - depth))
    return by_row(values[tree.index.owners(cells)])


def coarsen(estimate: Estimate, entries: int) -> Estimate:
    """The estimate on the tree's upper levels alone, as many as keep it at so many entries or fewer.

    What lies deeper is added up at the deepest node that is left, in every category; deviations are those of sums of
    independent noise.
    """
    tree = estimate.tree
    level, upper = tree.level, tree
    while len(upper.entries) > entries:
        level -= 1
        upper = Tree.of(tree.depth, tree.nodes[node_levels(tree.nodes) <= level])
    if upper is tree:
        return estimate
    first = node_paths(tree.entries) << (2 * (tree.depth - node_levels(tree.entries))).astype(np.uint64)
    place = upper.index.owners(first)
    # A node that is left may begin where one of its descendants does; it is its own place.
    kept = node_levels(tree.entries) <= level
    place[kept] = np.searchsorted(upper.entries, tree.entries[kept])

    def added(values: NDArray[np.float64]) -> NDArray[np.float64]:
        return np.bincount(place, values, len(upper.entries)).astype(np.float64)

    coarse = replace(estimate, tree=upper, counts=added(estimate.counts), stddev=np.sqrt(added(estimate.stddev**2)))
    if estimate.by_category is None or estimate.category_stddev is None:
        return coarse
    by_category = np.stack([added(one) for one in estimate.by_category])
    return replace(coarse, by_category=by_category, category_stddev=np.sqrt(added(estimate.category_stddev**2)))


def by_row(sums: NDArray[Any]) -> NDArray[Any]:
    """Values by code, [4^d], as a picture, [2^d, 2^d], row 0 in the north."""
    return np.asarray(sums[_codes_by_row((len(sums).bit_length() - 1) // 2)])


def _codes_by_row(depth: int) -> NDArray[np.uint64]:
    """The code of every cell, uint64[2^depth, 2^depth], rows from the north, columns from the west."""
    axis, zero = np.arange(1 << depth, dtype=np.uint32), np.zeros(1 << depth, dtype=np.uint32)
    return interleave(axis, zero)[None, :] | interleave(zero, axis)[:, None]
