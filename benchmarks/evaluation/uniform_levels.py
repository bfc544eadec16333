"""The non-private yardstick of paper 000, Section 6: the best uniform level of the quadtree. Pure; reads exact data."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray


def uniform_densities(sample: NDArray[Any]) -> Iterator[NDArray[np.float64]]:
    """The densities float64[2^d, 2^d] of a sample on the uniform levels 0..d, each constant within its 4^level blocks.

    sample: [2^d, 2^d] counts or weights. Raises ValueError for other shapes or an empty sample.
    """
    total, block = checked_total(sample), len(sample)
    while block >= 1:
        blocks = len(sample) // block
        sums = sample.reshape(blocks, block, blocks, block).sum(axis=(1, 3))
        yield np.repeat(np.repeat(sums / (total * block**2), block, axis=0), block, axis=1)
        block //= 2


def checked_total(sample: NDArray[Any]) -> float:
    """The sample's sum. Raises ValueError unless it is > 0 and the shape is [2^d, 2^d]."""
    side = len(sample)
    if sample.shape != (side, side) or side < 1 or side & (side - 1):
        raise ValueError(f"sample: must be [2^d, 2^d], got {sample.shape}")
    total = float(sample.sum())
    if not total > 0:
        raise ValueError("sample: has no users")
    return total
