"""The Hilbert curve: an order of the cells of a square in which neighbours in the order are neighbours on the map.

The curve of depth d runs through 2^d x 2^d cells, from (0, 0) to (2^d - 1, 0). It enters and leaves each quadrant once:
an index without its last two bits is that of the cell above on the curve of depth d - 1. So 4^j cells in a row from a
multiple of 4^j are a square, and 2 * 4^j from a multiple of that are two squares with a common side.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray


def hilbert_index(x: NDArray[np.int64], y: NDArray[np.int64], depth: int) -> NDArray[np.int64]:
    """Places of the cells (x, y) on the curve, int64[n], from 0."""
    x, y = x.astype(np.int64), y.astype(np.int64)
    index = np.zeros_like(x)
    for level in reversed(range(depth)):
        right, far = (x >> level) & 1, (y >> level) & 1
        index = (index << 2) | ((3 * right) ^ far)
        x, y = _turned(x & ((1 << level) - 1), y & ((1 << level) - 1), right, far, level)
    return index


def hilbert_xy(index: NDArray[np.int64], depth: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """The inverse of `hilbert_index`: x and y, int64[n] each."""
    index = index.astype(np.int64)
    x, y = np.zeros_like(index), np.zeros_like(index)
    for level in range(depth):
        quarter = (index >> (2 * level)) & 3
        right = quarter >> 1
        far = (quarter & 1) ^ right
        x, y = _turned(x, y, right, far, level)
        x, y = x | (right << level), y | (far << level)
    return x, y


def _turned(
    x: NDArray[np.int64], y: NDArray[np.int64], right: NDArray[np.int64], far: NDArray[np.int64], level: int
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Cells of a quadrant as the curve meets them, and back: in the near quadrants it is turned over."""
    mirrored = (right == 1) & (far == 0)
    last = (1 << level) - 1
    x, y = np.where(mirrored, last - x, x), np.where(mirrored, last - y, y)
    return np.where(far == 0, y, x), np.where(far == 0, x, y)
