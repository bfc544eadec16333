"""From the answers of sub-queries to what each node of a full quadtree was measured at."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from sfumato.schemas.tree import Tree
from sfumato.transforms.heatmap.posterior.levels import FullTree, by_family


@dataclass(frozen=True)
class Measured:
    """Noisy users float64[T] of the entries of a tree, and the variance of the noise in them, float64[T].

    sampling: how many times its users' number is added to an entry's variance, because not everybody was asked;
    0 where that is the same sample for all measurements.
    """

    tree: Tree
    counts: NDArray[np.float64]
    variance: NDArray[np.float64]
    sampling: float = 0.0


@dataclass(frozen=True)
class Own:
    """What single nodes were measured at, by level and node: the sums of users / variance, and of 1 / variance."""

    weighted: list[NDArray[np.float64]]
    weights: list[NDArray[np.float64]]

    @classmethod
    def nothing(cls, full: FullTree) -> Own:
        """No measurements at all."""
        return cls(*([np.zeros(len(codes)) for codes in full.codes] for _ in range(2)))


@dataclass(frozen=True)
class Sums:
    """By level and node: what is known of a node's users from below and from itself, and its variance."""

    users: list[NDArray[np.float64]]
    variance: list[NDArray[np.float64]]


def measure(full: FullTree, measured: Sequence[Measured], expected: Sequence[NDArray[np.float64]] | None = None) -> Own:
    """Brings each measured entry to its node.

    full: has every node of every tree. expected: users by level and node of `full`, for the variance of sampling;
    None leaves it out. A tree's entry that is a node less some descendants is shared out by area to the leaves of the
    least full tree around that tree, and so is its variance; then sums of leaves have the entry's variance again.
    """
    nodes = Own.nothing(full)
    for one in measured:
        own = FullTree.of(one.tree)
        index, areas = one.tree.index, np.maximum(one.tree.areas, 1)
        for level, (codes, leaf) in enumerate(zip(own.codes, own.leaves, strict=True)):
            codes = codes[leaf]
            if not len(codes):
                continue
            shift = np.uint64(2 * (full.depth - level))
            entry = index.owners(codes << shift)
            share = 4.0 ** (full.depth - level) / areas[entry]
            place = np.searchsorted(full.codes[level], codes)
            variance = one.variance[entry] * share
            if expected is not None and one.sampling:
                variance = variance + one.sampling * expected[level][place]
            nodes.weighted[level][place] += one.counts[entry] * share / variance
            nodes.weights[level][place] += 1 / variance
    return nodes


def add_up(full: FullTree, own: Own) -> Sums:
    """Each node's own measurement and the sum of its children's, weighted by inverse variance, from below.

    Every leaf must have been measured.
    """
    users: list[NDArray[np.float64]] = []
    variance: list[NDArray[np.float64]] = []
    for level in range(len(full.codes) - 1, -1, -1):
        value, weight = own.weighted[level].copy(), own.weights[level].copy()
        if users:
            below = 1 / by_family(variance[-1]).sum(axis=1)
            parents = full.parents[level + 1]
            value[parents] += by_family(users[-1]).sum(axis=1) * below
            weight[parents] += below
        users.append(value / weight)
        variance.append(1 / weight)
    return Sums(users[::-1], variance[::-1])
