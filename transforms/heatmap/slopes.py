"""The density of an estimate whose cells slope towards their neighbours. Pure post-processing.

Inside a cell nothing was measured; but where cells grow from west to east, so will most likely the halves of each. The
slope's strength was learned where it could be seen: from the measured levels above.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from sfumato.schemas.tree import node_levels
from sfumato.transforms.heatmap.raster import MAX_RASTER_DEPTH, density, painted
from sfumato.transforms.heatmap.state import Estimate

_HALVINGS = 2  # levels below a cell that slope; further down the slope between neighbours says nothing new


def estimate_density(estimate: Estimate, depth: int | None = None) -> NDArray[np.float64]:
    """The density float64[2^d, 2^d] of an estimate, as `raster.density` gives it, with slopes inside cells.

    Every cell keeps its total: what one half gains the other loses.
    """
    tree = estimate.tree
    depth = min(tree.depth, MAX_RASTER_DEPTH) if depth is None else depth
    flat = density(tree, estimate.counts, depth)
    if not estimate.slope:
        return flat
    pyramid, levels = [flat], [painted(tree, np.minimum(node_levels(tree.entries), depth).astype(np.float64), depth)]
    for _ in range(depth):
        pyramid.append(_blocks(pyramid[-1]).sum(axis=(1, 3)))
        levels.append(_blocks(levels[-1]).max(axis=(1, 3)))
    shown = pyramid[-1]
    for level in range(depth):
        entry = levels[depth - level]
        measured = pyramid[depth - level - 1]
        sloping = (entry <= level) & (level - entry < _HALVINGS)
        children = np.repeat(np.repeat(shown / 4, 2, axis=0), 2, axis=1)
        if sloping.any():
            children += _slope(shown * estimate.slope, np.where(sloping, shown / 4, 0))
        shown = np.where(np.repeat(np.repeat(entry > level, 2, axis=0), 2, axis=1), measured, np.maximum(children, 0))
    return np.asarray(shown / shown.sum())


def _slope(values: NDArray[np.float64], most: NDArray[np.float64]) -> NDArray[np.float64]:
    """What each cell's four children have above a quarter of it: float64[2 n, 2 n], at most `most` off. See `gradient`.

    The four add up to 0 in every cell.
    """
    padded = np.pad(values, 1, mode="edge")
    # Beyond the border lies the cell's own value, as in `FullTree.gradient`.
    east = (padded[1:-1, 2:] - padded[1:-1, :-2]) / 32
    south = (padded[2:, 1:-1] - padded[:-2, 1:-1]) / 32
    children = np.stack([[-east - south, east - south], [-east + south, east + south]])  # [row, column, ...]
    children = np.clip(children, -most, most)
    children -= children.mean(axis=(0, 1))
    side = len(values)
    return np.asarray(children.transpose(2, 0, 3, 1).reshape(2 * side, 2 * side))


def _blocks(cells: NDArray[np.float64]) -> NDArray[np.float64]:
    half = len(cells) // 2
    return cells.reshape(half, 2, half, 2)
