"""DAWA on a Hilbert curve: runs of cells with similar counts are counted as one bucket (Li, Hay, Miklau 2014).

The cells of a grid of at most 2^20 are ordered along a Hilbert curve. Stage 1 cuts the curve into buckets of 2^k cells
that begin at a multiple of 2^k; it spends a quarter of epsilon. Stage 2 counts each bucket with discrete Laplace noise
and spends the rest, epsilon_2.

**Stage 1.** A bucket costs its L1 deviation, dev(b) = sum over its cells of |x - mean|, plus a penalty for the noise of
its count, 1 / epsilon_2, the mean absolute noise. Noise is added to the cost of every bucket. Only the cheapest
partition under these noisy costs is released.

Why stage 1 is private. A user in cell i changes dev only of the buckets that hold i. For a bucket of m cells the change
is at most D(m) = 2 (1 - 1/m): the deviation of cell i changes by at most 1 - 1/m, and the mean by 1/m in m - 1 other
cells. Fix an outcome B. Let b be its bucket that holds i. Fix all noise except that of b. B is the cheapest partition
if the noise of b is at most some T: partitions that contain b compare with B as before, and those without b determine
T. Adding or removing the user changes the cost of b by at most D(m). Partitions without b have one other bucket that
holds i, and change by at most D(M), where M is the longest length. So T moves by at most s = D(m) + D(M). Noise -G with
P[G >= g] = exp(-g epsilon / s), a geometric distribution, satisfies P[-G <= T - s] >= exp(-epsilon) P[-G <= T] for all
T. That is epsilon-differential privacy, for any penalty that does not depend on the data. The argument needs only the
lower tail of the noise, so the upper tail of symmetric noise would add error and nothing else (as in report-noisy-max
with exponential noise). All costs are whole multiples of 1/16 user, so nothing is rounded after the noise. Rounding dev
down lets D grow to the next whole unit, and s includes that.

**Differences from the authors' program.** Stage 2 does not spread noise over a hierarchy for the workload (their
GreedyH): squares of a few buckets gain little from it. Buckets are aligned; theirs begin anywhere. On the curve an
aligned bucket is a square or two squares with a common side, so it is one rectangle. Their program draws half of the
noise in costs that the argument above needs, draws none in the costs of single cells, and raises costs to the penalty
where noise takes them below it. The argument covers none of the three. So here every cost has the full noise, and costs
can fall as low as the noise takes them.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, ClassVar

import numpy as np
from annotated_types import Interval
from numpy.typing import NDArray

from benchmarks.baselines.range_methods.partitions import Partition, PartitionMethod
from benchmarks.baselines.range_methods.two_passes import split_epsilon
from sfumato.transforms.privacy.discrete_laplace import geometric
from sfumato.transforms.privacy.keys import RunKey
from sfumato.transforms.privacy.mechanism import discrete_laplace_stddev
from sfumato.transforms.ranges.field_counts import CollectionSpec, ExactCounts, add_noise

UNITS = 16  # of cost, in one user
_DEPTH = 10  # 2^20 cells, as in the papers
_COSTS_PER_STREAM = 4096
# The mean noise in the cost of the longest buckets, in 1 / epsilon. Every bucket pays it, or the many short buckets
# would win by their noise alone.
_MEAN_NOISE = 4.0


@dataclass(frozen=True)
class Dawa(PartitionMethod):
    """Raises RequestError unless dawa_share is in [0.01, 0.99]."""

    NAME: ClassVar[str] = "dawa"
    TEXT: ClassVar[str] = "buckets of cells with similar counts along a Hilbert curve"

    dawa_share: Annotated[float, Interval(ge=0.01, le=0.99)] = 0.25

    def collect(self, exact: ExactCounts, spec: CollectionSpec, key: RunKey) -> Partition:  # type: ignore[override]
        """See RangeMethod.collect. A user is in one bucket, so the two stages add up to epsilon."""
        partition_epsilon, count_epsilon = split_epsilon(spec.epsilon, self.dawa_share)
        depth = min(_DEPTH, exact.depth)
        finer = exact.depth - depth
        x, y = exact.xy
        counts = np.zeros(4**depth, dtype=np.int64)
        np.add.at(counts, hilbert_index(x >> finer, y >> finer, depth), exact.users)

        starts, levels = cheapest_partition(counts, partition_epsilon, 1 / count_epsilon, key)
        users = add_noise(np.add.reduceat(counts, starts), count_epsilon, key, "dawa buckets")
        variance = np.full(len(users), discrete_laplace_stddev(count_epsilon) ** 2)

        # A bucket spans the squares of 4^(level // 2) cells that hold its first and its last cell.
        below = levels // 2
        ends = [hilbert_xy(at, depth) for at in (starts, starts + (1 << levels) - 1)]
        (x0, x1), (y0, y1) = ((first >> below, last >> below) for first, last in zip(*ends, strict=True))
        scale = below + finer
        low = np.minimum(x0, x1) << scale, np.minimum(y0, y1) << scale
        high = (np.maximum(x0, x1) + 1) << scale, (np.maximum(y0, y1) + 1) << scale
        return Partition(exact.side, *low, *high, users, variance)


def bucket_deviations(counts: NDArray[np.int64], level: int) -> NDArray[np.int64]:
    """dev of the buckets of 2^level cells, in units, rounded down: int64[len(counts) / 2^level]."""
    cells = 1 << level
    buckets = counts.reshape(-1, cells)
    excess = np.maximum(buckets * cells - buckets.sum(axis=1, keepdims=True), 0)  # cells * (x - mean) above the mean
    return np.asarray(2 * UNITS * excess.sum(axis=1) // cells)


def cost_sensitivity(level: int, levels: int) -> int:
    """s of a bucket of 2^level cells, in units, where the longest bucket has 2^levels cells."""
    return sum(-(-2 * UNITS * ((1 << height) - 1) // (1 << height)) for height in (level, levels))


def cheapest_partition(
    counts: NDArray[np.int64], epsilon: float, penalty: float, key: RunKey
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Stage 1: the cheapest partition under noisy costs, epsilon-differentially private.

    Args:
        counts: int64[2^levels], of disjoint cells in the order of the curve.
        epsilon: the budget of the stage.
        penalty: cost of a bucket besides its deviation, in users; it must not depend on the data.
        key: all noise comes from it.

    Returns:
        The first cell of each bucket and k of its 2^k cells, int64[b] each, in order.
    """
    levels = (len(counts) - 1).bit_length()
    fixed_cost = round(UNITS * (penalty + _MEAN_NOISE / epsilon))
    best = np.zeros(0, dtype=np.int64)
    kept = []  # by level: the buckets that cost at most as much as the best partitions of their halves
    for level in range(levels + 1):
        noise = _cost_noise(len(counts) >> level, epsilon, cost_sensitivity(level, levels), key, level)
        cost = bucket_deviations(counts, level) + fixed_cost - noise
        halves = best[0::2] + best[1::2] if level else cost
        kept.append(cost <= halves)
        best = np.minimum(cost, halves)
    return _kept_buckets(kept)


def _cost_noise(buckets: int, epsilon: float, sensitivity: int, key: RunKey, level: int) -> NDArray[np.int64]:
    """G of each bucket: int64[buckets]."""
    length = min(_COSTS_PER_STREAM, buckets)
    streams = np.arange(-(-buckets // length), dtype=np.uint64)
    return geometric(key, f"ranges dawa costs {level}", streams, length, epsilon, sensitivity).ravel()[:buckets]


def _kept_buckets(kept: list[NDArray[np.bool_]]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """The partition, read from the longest buckets down: a bucket that is not kept is halved."""
    halved = np.zeros(1, dtype=np.int64)
    starts, sizes = [], []
    for level in reversed(range(len(kept))):
        stays = kept[level][halved]
        starts.append(halved[stays] << level)
        sizes.append(np.full(len(starts[-1]), level))
        halved = (2 * halved[~stays, None] + np.arange(2)).ravel()
    order = np.argsort(np.concatenate(starts))
    return np.concatenate(starts)[order], np.concatenate(sizes)[order]


def hilbert_index(x: NDArray[np.int64], y: NDArray[np.int64], depth: int) -> NDArray[np.int64]:
    """Positions of the cells (x, y) on the Hilbert curve through 2^depth x 2^depth cells, int64[n], from 0.

    The curve runs from (0, 0) to (2^depth - 1, 0) and enters and leaves each quadrant once. An index without its last
    two bits is that of the parent cell on the curve of depth - 1. So 4^j consecutive cells from a multiple of 4^j are a
    square, and 2 * 4^j from a multiple of that are two squares with a common side.
    """
    x, y = x.astype(np.int64), y.astype(np.int64)
    index = np.zeros_like(x)
    for level in reversed(range(depth)):
        right, south = (x >> level) & 1, (y >> level) & 1
        index = (index << 2) | ((3 * right) ^ south)
        x, y = _flipped(x & ((1 << level) - 1), y & ((1 << level) - 1), right, south, level)
    return index


def hilbert_xy(index: NDArray[np.int64], depth: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """The inverse of `hilbert_index`: x and y, int64[n] each."""
    index = index.astype(np.int64)
    x, y = np.zeros_like(index), np.zeros_like(index)
    for level in range(depth):
        quarter = (index >> (2 * level)) & 3
        right = quarter >> 1
        south = (quarter & 1) ^ right
        x, y = _flipped(x, y, right, south, level)
        x, y = x | (right << level), y | (south << level)
    return x, y


def _flipped(
    x: NDArray[np.int64], y: NDArray[np.int64], right: NDArray[np.int64], south: NDArray[np.int64], level: int
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Maps cells of a quadrant to the curve of that quadrant, and back: it flips the two quadrants with y near 0."""
    mirrored = (right == 1) & (south == 0)
    last = (1 << level) - 1
    x, y = np.where(mirrored, last - x, x), np.where(mirrored, last - y, y)
    return np.where(south == 0, y, x), np.where(south == 0, x, y)
