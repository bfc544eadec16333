"""Quantile mechanisms to compare with: SliceQuantiles, the trees of PyDP and of paper 004, the quantiles of OpenDP."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from sfumato.transforms.histogram.sampling_round import Histogram


def greedy_ranks(levels: Sequence[Histogram], bits: int) -> np.ndarray:
    """Estimated users below each of the 2^bits + 1 borders of bins: float64.

    A range [0, r] is cut greedily into nodes of a trie, at most base - 1 of each level, and their counts are added up
    (paper 004, Section 4.2). An unpublished node counts as 0. `build_hierarchy` divides nodes from the top instead.

    Args:
        levels: published histograms of binary prefixes, the shortest first.
        bits: of a bin.
    """
    border = np.arange((1 << bits) + 1)
    below, above = np.zeros(len(border)), 0
    for level in levels:
        counts = np.zeros(1 << level.level)
        counts[level.items.astype(np.int64)] = level.counts
        before = np.append(0, np.cumsum(counts))
        node = border >> (bits - level.level)
        parent = (border >> (bits - above)) << (level.level - above) if above else np.zeros_like(node)
        below += before[node] - before[parent]
        above = level.level
    return below


def slice_quantiles(
    values: np.ndarray, shares: Sequence[float], epsilon: float, low: float, high: float, generator: np.random.Generator
) -> np.ndarray:
    """SliceQuantiles (arXiv 2505.13662), pure, under adding or removing a user: float64[m] values.

    Half of epsilon pays for binary-tree noise on the ranks. It makes the slices of neighbouring logs differ in one
    slice only. The other half pays for one draw of the exponential mechanism in each slice.

    Args:
        values: float64[n], ascending.
        shares: of users below the quantiles, ascending.
        epsilon: of all.
        low: lower end of the range.
        high: upper end of the range.
        generator: of the noise.
    """
    count = len(shares)
    rate = epsilon / 4  # of the draws: the slice of one more user replaces one value
    noise = tree_noise(count, epsilon / 2, generator)
    half = math.ceil(2 / rate * math.log(count * 2**34 / 0.05))  # the range over the least distance of two values
    ranks = [round(share * len(values)) + int(one) for share, one in zip(shares, noise, strict=True)]
    found, start = [], low
    for rank in ranks:
        inside = np.clip(values[max(rank - half, 0) : rank + half + 1], start, high)
        ends = np.concatenate(([start], inside, [high]))
        distance = np.abs(np.arange(len(inside) + 1) - len(inside) / 2)
        weights = np.diff(ends) * np.exp(-rate / 2 * (distance - distance.min()))
        run = int(np.searchsorted(np.cumsum(weights), generator.random() * weights.sum()))
        start = float(generator.uniform(ends[run], ends[run + 1]))
        found.append(start)
    return np.array(found)


def tree_noise(count: int, epsilon: float, generator: np.random.Generator) -> np.ndarray:
    """Noise of the prefix sums 1..count by the binary tree of continual counting, int64[count]."""
    height = count.bit_length()
    success = -math.expm1(-epsilon / height)
    noise = np.zeros(count, np.int64)
    for level in range(height):
        nodes = generator.geometric(success, count + 1) - generator.geometric(success, count + 1)
        for prefix in range(1, count + 1):
            if prefix >> level & 1:
                noise[prefix - 1] += nodes[prefix >> level]
    return noise


def tree_of(values: np.ndarray, low: float, high: float):  # type: ignore[no-untyped-def]
    """A quantile tree of PyDP that holds the values: 16 branches, 4 levels (Google's defaults)."""
    from pydp._pydp import _algorithms

    tree = _algorithms.QuantileTree(low, high, 4, 16)
    for value in values.tolist():
        tree.add_entry(value)
    return tree


def opendp_quantiles(
    values: list[float], shares: Sequence[float], epsilon: float, candidates: list[float]
) -> np.ndarray:
    """Quantiles of OpenDP, each with an equal share of epsilon, among `candidates`: float64[m]."""
    import opendp.prelude as dp

    dp.enable_features("contrib")
    space = dp.vector_domain(dp.atom_domain(T=float, nan=False)), dp.symmetric_distance()

    def measurement(share: float, scale: float):  # type: ignore[no-untyped-def]
        return dp.m.make_private_quantile(*space, dp.max_divergence(), candidates, share, scale)

    found = []
    for share in shares:
        unit = measurement(share, 1.0).map(1)
        found.append(measurement(share, unit * len(shares) / epsilon * (1 + 1e-9))(values))
    return np.array(found)
