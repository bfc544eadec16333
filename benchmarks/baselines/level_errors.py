"""The squared error of every uniform level of a quadtree, in one pass (paper 000, Section 6)."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from benchmarks.evaluation.uniform_levels import checked_total


def best_uniform_level(sample: NDArray[Any], truth: NDArray[np.float64]) -> tuple[int, float]:
    """(level, MSE) of the uniform quadtree level whose density of `sample` has the smallest mean squared error.

    Arguments and errors as of `level_errors`.
    """
    errors = level_errors(sample, truth)
    level = int(errors.argmin())
    return level, float(errors[level])


def level_errors(sample: NDArray[Any], truth: NDArray[np.float64]) -> NDArray[np.float64]:
    """The mean squared error of each level of `uniform_densities`, float64[d + 1].

    The squared error of a level has two parts: the truth around its own block means, summed over all finer levels, and
    the sample's block means around the truth's. So one pass up a pyramid with sums of squares gives all levels.

    Args:
        sample: [2^d, 2^d] exact counts or weights of the users.
        truth: float64[2^d, 2^d] that sums to 1.

    Raises:
        ValueError: the shapes differ or are not [2^d, 2^d], or the sample is empty.
    """
    total = checked_total(sample)
    if truth.shape != sample.shape:
        raise ValueError(f"truth: must have the sample's shape {sample.shape}, got {truth.shape}")
    side, area, within = len(sample), 1, 0.0
    ours, true = sample / total, truth
    errors = []
    while True:
        errors.append((within + float(((ours - true) ** 2).sum()) / area) / side**2)
        if len(true) == 1:
            return np.array(errors[::-1])
        coarse = _halved(true)
        spread = true - np.repeat(np.repeat(coarse / 4, 2, axis=0), 2, axis=1)
        within += float((spread**2).sum()) / area
        ours, true, area = _halved(ours), coarse, 4 * area


def _halved(sums: NDArray[np.float64]) -> NDArray[np.float64]:
    """Sums of blocks of 2 x 2 cells."""
    half = len(sums) // 2
    coarse: NDArray[np.float64] = sums.reshape(half, 2, half, 2).sum(axis=(1, 3))
    return coarse
