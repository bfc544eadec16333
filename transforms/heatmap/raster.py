"""Rasters of a map: from noisy counts to densities, with slopes inside cells. Pure.

Densities follow paper 000, Section 6.1: small counts stay, negative ones count as 0, and a node's users are spread over
its area without its children. All of it is post-processing and costs no budget.
"""

from __future__ import annotations

import functools

import numpy as np
from numpy.typing import NDArray

from sfumato.schemas.region import by_row
from sfumato.schemas.tree import Tree, node_levels
from sfumato.transforms.heatmap.state import Estimate

MAX_PAINTED_DEPTH = 11  # of a picture
_SLOPING_LEVELS = 2  # below an entry; deeper levels are split evenly, because nothing says how to slope them
MAX_RASTER_DEPTH = 12  # 4096 x 4096 float64 is 128 MiB; finer trees are summed into such cells


def density(tree: Tree, counts: NDArray[np.float64], depth: int | None = None) -> NDArray[np.float64]:
    """The density float64[2^d, 2^d] of counts float64[T], one for each entry. It adds up to 1.

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


def estimate_density(estimate: Estimate, depth: int | None = None) -> NDArray[np.float64]:
    """The density float64[2^d, 2^d] of an estimate, as `density` gives it, with slopes inside cells.

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


def _slope(values: NDArray[np.float64], limit: NDArray[np.float64]) -> NDArray[np.float64]:
    """The difference of each cell's four children from a quarter of the cell: float64[2 n, 2 n]. See `gradient`.

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


def _quarters(cells: NDArray[np.float64]) -> list[NDArray[np.float64]]:
    """The four cells of each block of 2 x 2, float64[n, n] each of float64[2 n, 2 n]; row 0 is in the north."""
    return [cells[row::2, column::2] for column in (0, 1) for row in (0, 1)]


def painted(tree: Tree, values: NDArray[np.float64], depth: int | None = None) -> NDArray[np.float64]:
    """The value of each cell's entry, float64[2^d, 2^d], row 0 in the north, of values float64[T], one for each entry.

    Without `depth`, d is the tree's deepest level, at most 11. Where entries are finer, a cell shows the entry at its
    corner.
    """
    depth = min(tree.level, MAX_PAINTED_DEPTH) if depth is None else depth
    step = np.uint64(1 << (2 * (tree.depth - depth)))
    first = (tree.index.boundaries + step - np.uint64(1)) // step  # the first cell whose corner lies in each interval
    return by_row(np.repeat(values[tree.index.owner], np.diff(first).astype(np.int64)))
