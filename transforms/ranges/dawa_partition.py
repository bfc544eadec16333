"""DAWA's first stage: a line of counts is cut into buckets in which counts differ little (Li, Hay, Miklau 2014).

Buckets are 2^k cells in a row, from a multiple of 2^k. A partition costs, bucket by bucket, the L1 deviation
dev(b) = sum over its cells of |x - mean| plus a penalty for what noise in the bucket's count will cost; with noise in
each bucket's cost, the cheapest partition is found and nothing else is told.

Why it is private. A user in cell i changes dev of the buckets that hold i, by at most D(m) = 2 (1 - 1/m) for one of m
cells: her cell's own deviation by 1 - 1/m, and the mean by 1/m in m - 1 others. Fix an outcome B, its one bucket b
that holds i, and all noise but that of b. B is the cheapest where the noise of b is at most some T: partitions with b
in them compare with B as before, and those without b set T. With her or without her, b costs at most D(m) more and
those, each with one other bucket that holds i, at most D(M) less (M: the longest), so T falls by s = D(m) + D(M) at
most. Noise -G, G geometric with P[G >= g] = exp(-g epsilon / s), has P[-G <= T - s] >= exp(-epsilon) P[-G <= T] for
all T. That is epsilon-differential privacy, for any penalty that does not depend on the people. Of noise symmetric
about 0 this needs only the lower tail; its upper one would add error (as in report-noisy-max with exponential noise).
Here everything is a whole number of units of 1/16 user, so nothing is rounded after noise; rounding dev down before
lets D grow to the next whole unit, which s counts in.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from sfumato.transforms.privacy.keys import RunKey
from sfumato.transforms.privacy.noise import geometric

UNITS = 16  # of cost, in one user
_ROW = 4096  # costs that share a stream
# The mean noise in the cost of the longest buckets, in 1 / epsilon: charged to every bucket, or the many short ones
# would win by their noise alone.
_MEAN_NOISE = 4.0


def deviations(counts: NDArray[np.int64], level: int) -> NDArray[np.int64]:
    """dev of the buckets of 2^level cells, in units, rounded down: int64[len(counts) / 2^level]."""
    cells = 1 << level
    buckets = counts.reshape(-1, cells)
    excess = np.maximum(buckets * cells - buckets.sum(axis=1, keepdims=True), 0)  # cells * (x - mean) above the mean
    return np.asarray(2 * UNITS * excess.sum(axis=1) // cells)


def sensitivity(level: int, levels: int) -> int:
    """s of a bucket of 2^level cells among up to 2^levels, in units."""
    return sum(-(-2 * UNITS * ((1 << one) - 1) // (1 << one)) for one in (level, levels))


def cheapest(
    counts: NDArray[np.int64], epsilon: float, penalty: float, key: RunKey
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Where buckets of the cheapest partition begin, and k of their 2^k cells: int64[b] each, in order.

    counts: int64[2^levels], of disjoint cells. penalty: the cost of a bucket besides its deviation, in users. The
    partition is epsilon-differentially private; all noise is drawn from the key.
    """
    levels = (len(counts) - 1).bit_length()
    charge = round(UNITS * (penalty + _MEAN_NOISE / epsilon))
    best = np.zeros(0, dtype=np.int64)
    whole = []  # by level: which buckets are at most as dear as the best of their halves
    for level in range(levels + 1):
        drawn = _noise(len(counts) >> level, epsilon, sensitivity(level, levels), key, level)
        own = deviations(counts, level) + charge - drawn
        halves = best[0::2] + best[1::2] if level else own
        whole.append(own <= halves)
        best = np.minimum(own, halves)
    return _cut(whole)


def _noise(buckets: int, epsilon: float, step: int, key: RunKey, level: int) -> NDArray[np.int64]:
    """G for each bucket: int64[buckets]."""
    length = min(_ROW, buckets)
    streams = np.arange(-(-buckets // length), dtype=np.uint64)
    return geometric(key, f"ranges dawa costs {level}", streams, length, epsilon, step).ravel()[:buckets]


def _cut(whole: list[NDArray[np.bool_]]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """The buckets that stay whole, met from the longest down."""
    halved = np.zeros(1, dtype=np.int64)
    starts, sizes = [], []
    for level in reversed(range(len(whole))):
        stays = whole[level][halved]
        starts.append(halved[stays] << level)
        sizes.append(np.full(len(starts[-1]), level))
        halved = (2 * halved[~stays, None] + np.arange(2)).ravel()
    order = np.argsort(np.concatenate(starts))
    return np.concatenate(starts)[order], np.concatenate(sizes)[order]
