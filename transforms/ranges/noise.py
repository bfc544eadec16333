"""Noise for counts of disjoint parts of a field, drawn once from the run's key."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from sfumato.transforms.privacy.keys import RunKey
from sfumato.transforms.privacy.noise import discrete_laplace

_ROW = 4096  # counts that share a stream


def noisy(counts: NDArray[np.int64], epsilon: float, key: RunKey, label: str) -> NDArray[np.float64]:
    """Counts, of any shape, each with discrete Laplace noise of scale 1 / epsilon.

    Epsilon-differentially private where adding or removing a user changes one of the counts by 1. A key and label give
    the same noise again: a label must name one set of counts.
    """
    flat = counts.ravel()
    length = min(_ROW, max(flat.size, 1))
    streams = np.arange(-(-max(flat.size, 1) // length), dtype=np.uint64)
    drawn = discrete_laplace(key, f"ranges {label}", streams, length, epsilon).ravel()
    return np.asarray(flat + drawn[: flat.size], dtype=np.float64).reshape(counts.shape)
