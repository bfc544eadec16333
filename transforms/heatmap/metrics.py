"""How far a density is from the truth, and the paper's non-private yardstick. Pure; for evaluation only."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray


def mean_squared_error(estimate: NDArray[np.float64], truth: NDArray[np.float64]) -> float:
    """Mean over all cells of the squared difference of two densities of one shape (paper 000, Section 6.1)."""
    return float(np.mean((estimate - truth) ** 2))


def best_uniform_level(sample: NDArray[np.int64], truth: NDArray[np.float64]) -> tuple[int, float]:
    """The non-private baseline: (level, MSE) of the uniform quadtree level whose density of `sample` is best.

    sample: int64[2^d, 2^d] exact counts of the same users; truth: float64[2^d, 2^d] summing to 1.
    """
    side = len(sample)
    depth = side.bit_length() - 1
    errors = []
    for level in range(depth + 1):
        block = side >> level
        coarse = sample.reshape(1 << level, block, 1 << level, block).sum(axis=(1, 3)) / (sample.sum() * block**2)
        errors.append(mean_squared_error(np.kron(coarse, np.ones((block, block))), truth))
    return int(np.argmin(errors)), min(errors)
