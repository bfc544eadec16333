"""Measurements of a quadtree: from the results of sub-queries to noisy users of each node. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from sfumato.schemas.tree import Tree
from sfumato.transforms.heatmap.posterior.full_tree import FullTree, by_family


@dataclass(frozen=True)
class TreeMeasurement:
    """Noisy users of the entries of a tree.

    Attributes:
        tree: with T entries.
        counts: float64[T], noisy users.
        variance: float64[T], of their noise.
        sampling: how many times an entry's users are added to its variance, because a part of the users was queried; 0
            where all measurements are of the same users.
    """

    tree: Tree
    counts: NDArray[np.float64]
    variance: NDArray[np.float64]
    sampling: float = 0.0


@dataclass(frozen=True)
class NodeMeasurements:
    """All measurements of single nodes, by level and node: the sums of users / variance and of 1 / variance."""

    weighted: list[NDArray[np.float64]]
    weights: list[NDArray[np.float64]]

    @classmethod
    def empty(cls, full: FullTree) -> NodeMeasurements:
        """No measurements at all."""
        return cls(*([np.zeros(len(codes)) for codes in full.codes] for _ in range(2)))


@dataclass(frozen=True)
class SubtreeSums:
    """A node's users and their variance, by level and node, from the measurements of itself and of its descendants."""

    users: list[NDArray[np.float64]]
    variance: list[NDArray[np.float64]]


def measure(
    full: FullTree, measured: Sequence[TreeMeasurement], expected: Sequence[NDArray[np.float64]] | None = None
) -> NodeMeasurements:
    """Assigns each measured entry to its node.

    Some entries are a node less some descendants. Such an entry and its variance are divided by area among the leaves
    of the smallest full tree around the entry's tree. The sum of these leaves has the entry's variance again.

    Args:
        full: a tree with every node of every measured tree.
        measured: the measurements.
        expected: users by level and node of `full`, for the variance of sampling; None leaves that out.
    """
    nodes = NodeMeasurements.empty(full)
    for one in measured:
        own = FullTree.from_trees(one.tree)
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


def add_up(full: FullTree, own: NodeMeasurements) -> SubtreeSums:
    """Weights each node's own measurement and the sum of its children's by inverse variance, from below.

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
    return SubtreeSums(users[::-1], variance[::-1])
