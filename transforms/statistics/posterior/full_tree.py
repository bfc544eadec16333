"""A full quadtree, level by level, and measurements of its nodes: from the results of sub-queries to noisy users. Pure.

Every node has four children or none, and siblings are side by side.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from sfumato.schemas.region import deinterleave, interleave
from sfumato.schemas.tree import Tree, node_levels, node_paths

Floats = NDArray[np.float64]

_TWO = np.uint64(2)
_FOUR = np.arange(4, dtype=np.uint64)
# The side of a child in its parent: -1 in the west and in the north, 1 in the east and in the south.
EAST, SOUTH = (np.where(side == 1, 1.0, -1.0) for side in deinterleave(_FOUR))


@dataclass(frozen=True, eq=False)
class FullTree:
    """A quadtree whose nodes have four children or none.

    Nodes 4 i .. 4 i + 3 of a level are the children of one node of the level above. They are family i of their level.
    """

    depth: int  # of the finest grid
    # For each level 0..L the nodes' paths (two bits a level), uint64[n], ascending. L may be below `depth`.
    codes: tuple[NDArray[np.uint64], ...]

    @classmethod
    def from_trees(cls, *trees: Tree) -> FullTree:
        """Returns the smallest full tree with all nodes of some trees: ancestors and siblings are added."""
        nodes = trees[0].nodes if len(trees) == 1 else np.concatenate([tree.nodes for tree in trees])
        level, paths = node_levels(nodes), node_paths(nodes)
        codes = [np.zeros(1, dtype=np.uint64)]
        inner: NDArray[np.uint64] = np.zeros(0, dtype=np.uint64)  # nodes of this level that have children
        for at in range(int(level.max()), 0, -1):
            families = np.unique(np.concatenate([paths[level == at], inner]) >> _TWO)
            codes.insert(1, children_of(families))
            inner = families
        return cls(trees[0].depth, tuple(codes))

    @cached_property
    def parents(self) -> tuple[NDArray[np.int64], ...]:
        """Returns, for each level, the index of each family's parent in the level above: int64[n / 4]."""
        places = [np.zeros(0, dtype=np.int64)]
        for above, here in zip(self.codes, self.codes[1:], strict=False):
            places.append(np.searchsorted(above, here[::4] >> _TWO))
        return tuple(places)

    @cached_property
    def leaves(self) -> tuple[NDArray[np.bool_], ...]:
        """Returns, for each level, whether a node has no children: bool[n]."""
        leaves = [np.ones(len(codes), dtype=bool) for codes in self.codes]
        for level, places in enumerate(self.parents):
            if level:
                leaves[level - 1][places] = False
        return tuple(leaves)

    @property
    def tree(self) -> Tree:
        """Returns the same nodes as a Tree, whose entries are the leaves, level by level."""
        # A Tree's node is its path after a leading 1 bit, which tells the level.
        nodes = [codes | np.uint64(1 << (2 * level)) for level, codes in enumerate(self.codes)]
        return Tree(self.depth, np.concatenate(nodes))

    def leaf_values(self, values: Sequence[Floats]) -> Floats:
        """Returns values by level and node, as one array of the leaves' values in the order of `tree`'s entries."""
        return np.concatenate([value[leaf] for value, leaf in zip(values, self.leaves, strict=True)])

    @property
    def leaf_levels(self) -> NDArray[np.int64]:
        """Returns the level of each leaf: int64[leaves], in the order of `tree`'s entries."""
        return np.repeat(np.arange(len(self.leaves)), [int(leaf.sum()) for leaf in self.leaves])

    def leaf_nodes(self, leaf: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Levels of leaves, and their indices on these: int64 like `leaf` (in the order of `tree`)."""
        return self.leaf_levels[leaf], np.concatenate([np.flatnonzero(one) for one in self.leaves])[leaf]

    def owners(self, tree: Tree) -> NDArray[np.int64]:
        """Returns the entry of a tree that covers each leaf: int64[leaves].

        All nodes of the tree must be nodes of this one.
        """
        first = [
            codes[leaf] << np.uint64(2 * (self.depth - level))
            for level, (codes, leaf) in enumerate(zip(self.codes, self.leaves, strict=True))
        ]
        return tree.index.owners(np.concatenate(first))

    def by_level(self, leaf_values: Floats) -> list[Floats]:
        """Returns values of the leaves, in the order of `tree`'s entries, by level and node; 0 at inner nodes."""
        values, at = [], 0
        for leaf in self.leaves:
            value = np.zeros(len(leaf))
            value[leaf] = leaf_values[at : at + (count := int(leaf.sum()))]
            values.append(value)
            at += count
        return values

    def sums(self, leaf_values: Sequence[Floats]) -> list[Floats]:
        """Returns every node's total of its leaves' values. Input and result have one float64[n] for each level."""
        totals = [np.where(leaf, value, 0.0) for value, leaf in zip(leaf_values, self.leaves, strict=True)]
        for level in range(len(totals) - 1, 0, -1):
            totals[level - 1][self.parents[level]] = by_family(totals[level]).sum(axis=1)
        return totals

    def values_at(self, level: int, codes: NDArray[np.uint64], values: Sequence[Floats]) -> Floats:
        """Returns values of nodes of a level, float64[n].

        A node below a leaf has its share, by area, of the leaf's value.

        values: by level and node, at least down to `level` or to the leaves.
        """
        found = np.zeros(len(codes))
        open_ = np.arange(len(codes))
        for at in range(min(level, len(self.codes) - 1), -1, -1):
            ancestors = codes[open_] >> np.uint64(2 * (level - at))
            place = self._places(at, ancestors)
            hit = self.codes[at][place] == ancestors
            found[open_[hit]] = values[at][place[hit]] / 4.0 ** (level - at)
            open_ = open_[~hit]
            if not len(open_):
                break
        return found

    def gradient(self, level: int, places: NDArray[np.int64], values: Sequence[Floats]) -> Floats:
        """Returns how far each child is from a quarter of its parent, as the parent's neighbours predict: float64[n,
        4].

        Let E and W be the values of the eastern and western neighbours. (E - W) / 2 is the growth over one node's
        width. A child's centre is a quarter of that width from its parent's centre, and it has a quarter of the area.
        So an eastern child has (E - W) / 32 more than a quarter of the parent. North and south are alike. A neighbour
        beyond the region's border counts as the node's own value.

        places: indices of the nodes on their level.
        """
        codes, side = self.codes[level][places], 1 << level
        x, y = (axis.astype(np.int64) for axis in deinterleave(codes))
        own, near = values[level][places], []
        for dx, dy in ((1, 0), (-1, 0), (0, 1), (0, -1)):
            inside = (x + dx >= 0) & (x + dx < side) & (y + dy >= 0) & (y + dy < side)
            there = interleave(
                np.where(inside, x + dx, x).astype(np.uint32), np.where(inside, y + dy, y).astype(np.uint32)
            )
            near.append(np.where(inside, self.values_at(level, there.astype(np.uint64), values), own))
        east, south = (near[0] - near[1]) / 32, (near[2] - near[3]) / 32
        return np.asarray(east[:, None] * EAST + south[:, None] * SOUTH)

    def _places(self, level: int, paths: NDArray[np.uint64]) -> NDArray[np.int64]:
        """Returns the index of each path on a level; of the next node, or the last, where there is no such node."""
        codes = self.codes[level]
        if len(codes) == 4**level:
            return paths.astype(np.int64)
        return np.minimum(np.searchsorted(codes, paths), len(codes) - 1)


def children_of(codes: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """Returns the paths of all children of some nodes: uint64[4 n], ascending if the nodes are."""
    return np.asarray(((codes[:, None] << _TWO) | _FOUR).ravel())


def by_family(values: Floats) -> Floats:
    """Returns values of a level's nodes, one row for each family of four siblings: float64[n] -> float64[n / 4, 4]."""
    return values.reshape(-1, 4)


@dataclass(frozen=True)
class TreeMeasurement:
    """Noisy users of the entries of a tree."""

    tree: Tree  # with T entries
    counts: Floats  # float64[T], noisy users
    variance: Floats  # float64[T], of their noise
    # How many times an entry's users are added to its variance, because a part of the users was queried; 0 where all
    # measurements are of the same users.
    sampling: float = 0.0


@dataclass(frozen=True)
class NodeMeasurements:
    """All measurements of single nodes, by level and node: the sums of users / variance and of 1 / variance."""

    weighted: list[Floats]
    weights: list[Floats]

    @classmethod
    def empty(cls, full: FullTree) -> NodeMeasurements:
        """Returns no measurements at all."""
        return cls(*([np.zeros(len(codes)) for codes in full.codes] for _ in range(2)))


@dataclass(frozen=True)
class SubtreeSums:
    """A node's users and their variance, by level and node, from the measurements of itself and of its descendants."""

    users: list[Floats]
    variance: list[Floats]


def measure(
    full: FullTree, measured: Sequence[TreeMeasurement], expected: Sequence[Floats] | None = None
) -> NodeMeasurements:
    """Assigns each measured entry to its node of `full`, a tree with every node of every measured tree.

    Some entries are a node less some descendants. Such an entry and its variance are divided by area among the leaves
    of the smallest full tree around the entry's tree. The sum of these leaves has the entry's variance again.

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
    users: list[Floats] = []
    variance: list[Floats] = []
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
