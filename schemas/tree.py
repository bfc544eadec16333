"""The adaptive quadtree: its nodes, the nodes with a vector entry, and the entry of each location.

A node is an integer: a 1 followed by its path, two bits a level. The root is 1, and the parent of i is i >> 2. A node
may have 0 to 4 children, and orphans are allowed (a grandchild without the child between). Every node with fewer than
four children has one vector entry. A location counts for the deepest node that covers it (paper 000, Section 5.6). The
root is always a node, so every location counts.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sfumato.schemas.region import deinterleave

_TWO = np.uint64(2)
_MAX_KEPT_LEVEL = 10  # some 100 MB with its index


@dataclass(frozen=True, eq=False)
class Tree:
    """A set of nodes: uint64[n], ascending and so level by level, with the root. depth: levels of the grid.

    >>> tree = Tree.of(depth=3, nodes=[4, 5, 6, 7])
    >>> tree.level, tree.complete
    (1, True)
    >>> refined = tree.refine(split=np.array([5], np.uint64), collapse=np.array([6], np.uint64))
    >>> node_names(refined.nodes)
    ['r', 'r0', 'r1', 'r3', 'r10', 'r11', 'r12', 'r13']
    >>> refined.areas.sum()  # finest cells
    np.int64(64)
    """

    depth: int
    nodes: NDArray[np.uint64]

    @classmethod
    def of(cls, depth: int, nodes: NDArray[np.uint64]) -> Tree:
        """Returns the tree of nodes, in any order, and the root. Raises ValueError for a node below the grid."""
        unique = np.union1d(np.asarray(nodes, dtype=np.uint64), np.ones(1, dtype=np.uint64))
        if unique[0] == 0 or int(node_levels(unique[-1:])[0]) > depth:
            raise ValueError(f"nodes must be on levels between 0 and {depth}")
        return cls(depth, unique)

    @classmethod
    def uniform(cls, depth: int, level: int) -> Tree:
        """Returns the complete tree down to a level."""
        return _uniform(depth, level) if level <= _MAX_KEPT_LEVEL else _uniform.__wrapped__(depth, level)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Tree) and self.depth == other.depth and np.array_equal(self.nodes, other.nodes)

    def __hash__(self) -> int:
        return hash((self.depth, self.nodes.tobytes()))

    def __reduce__(self) -> tuple[Any, tuple[int, Any]]:
        # Cached properties are not pickled. A complete tree follows from its level.
        return (Tree.uniform, (self.depth, self.level)) if self.complete else (Tree, (self.depth, self.nodes))

    @cached_property
    def entries(self) -> NDArray[np.uint64]:
        """Returns the nodes with a vector entry, in the vector's order: uint64[T], ascending."""
        if self.complete:
            return self.nodes[-(1 << (2 * self.level)) :]
        parents, children = np.unique(self.nodes[1:] >> _TWO, return_counts=True)
        return np.setdiff1d(self.nodes, parents[children == 4], assume_unique=True)

    @cached_property
    def index(self) -> TreeIndex:
        """Returns the elementary intervals of codes between the borders of nodes, and their entries."""
        depth = self.depth
        if self.complete:
            cells = np.arange((1 << (2 * self.level)) + 1, dtype=np.uint64)
            own = np.arange(len(cells) - 1)
            return TreeIndex(cells << np.uint64(2 * (depth - self.level)), own, own, own, len(own))
        level = node_levels(self.entries)
        below = (_TWO * (depth - level).astype(np.uint64)).astype(np.uint64)
        start = node_paths(self.entries) << below
        boundaries = np.union1d(start, start + (np.uint64(1) << below))
        first = boundaries[:-1]
        owner = np.zeros(len(first), dtype=np.int64)
        for at in range(depth + 1):  # the deepest match wins: longest prefix
            node = (first >> np.uint64(2 * (depth - at))) | np.uint64(1 << (2 * at))
            place = np.minimum(np.searchsorted(self.entries, node), len(self.entries) - 1)
            owner = np.where(self.entries[place] == node, place, owner)
        order = np.argsort(owner, kind="stable")
        groups = np.flatnonzero(np.concatenate(([True], np.diff(owner[order]) > 0)))
        return TreeIndex(boundaries, owner, order, groups, len(self.entries))

    @property
    def level(self) -> int:
        return int(node_levels(self.nodes[-1:])[0])

    @property
    def complete(self) -> bool:
        """Returns whether every node down to the deepest level exists."""
        return bool(len(self.nodes) == (4 ** (self.level + 1) - 1) // 3)

    @cached_property
    def entry_of_cell(self) -> NDArray[np.int32]:
        """Returns the entry of each cell of the tree's deepest level: int32[4^level], by code."""
        index = self.index
        lengths = np.diff(index.boundaries) >> np.uint64(2 * (self.depth - self.level))
        return np.repeat(index.owner.astype(np.int32), lengths.astype(np.int64))

    @cached_property
    def areas(self) -> NDArray[np.int64]:
        """Returns the area of each entry without its descendants, in finest cells: int64[T], may be 0."""
        cells = self.index.sum_intervals(np.diff(self.index.boundaries).astype(np.int64)[None, :])
        return np.asarray(cells[0])

    def parents(self) -> NDArray[np.int64]:
        """Returns the index in `nodes` of each node's nearest ancestor in the tree: int64[n]; -1 for the root."""
        ancestor = self.nodes >> _TWO
        found = np.full(len(self.nodes), -1, dtype=np.int64)
        for _ in range(self.depth):
            open_ = (found < 0) & (ancestor > 0)
            place = np.minimum(np.searchsorted(self.nodes, ancestor), len(self.nodes) - 1)
            found = np.where(open_ & (self.nodes[place] == ancestor), place, found)
            ancestor = ancestor >> _TWO
        return found

    def refine(self, split: NDArray[np.uint64], collapse: NDArray[np.uint64]) -> Tree:
        """Returns the tree with all children of `split` added (above the finest level) and the nodes `collapse`
        removed.
        """
        splittable = split[node_levels(split) < self.depth]
        children = (splittable[:, None] << _TWO) | np.arange(4, dtype=np.uint64)
        kept = np.setdiff1d(self.nodes, collapse, assume_unique=True)
        return Tree.of(self.depth, np.concatenate([kept, children.ravel()]))


@dataclass(frozen=True)
class TreeIndex:
    """Elementary intervals of a tree: codes in [boundaries[i], boundaries[i + 1]) count for entry owner[i].

    The vector has T = `entries` entries.
    """

    boundaries: NDArray[np.uint64]  # [E + 1], ascending, from 0 to 4^depth
    owner: NDArray[np.int64]  # [E]
    order: NDArray[np.int64]  # [E], sorts the intervals by owner
    groups: NDArray[np.int64]  # the start of each owner's intervals in that order
    entries: int

    def owners(self, codes: NDArray[np.uint64]) -> NDArray[np.int64]:
        """Returns the entries of cells of the finest grid: int64[n], for codes uint64[n] below 4^depth."""
        return np.asarray(self.owner[np.searchsorted(self.boundaries, codes, side="right") - 1])

    def sum_intervals(self, values: NDArray[np.int64]) -> NDArray[np.int64]:
        """Sums of interval values by entry: int64[rows, E] -> int64[rows, T]."""
        sums = np.zeros((len(values), self.entries), dtype=np.int64)
        owners = self.owner[self.order[self.groups]]
        if len(owners) == len(self.owner):  # one interval an entry
            sums[:, self.owner] = values
        else:
            sums[:, owners] = np.add.reduceat(values[:, self.order], self.groups, axis=1)
        return sums


@lru_cache(maxsize=32)
def _uniform(depth: int, level: int) -> Tree:
    """Returns the complete tree. The tree and its cached properties are kept, because methods use it often."""
    parts = [np.arange(1 << (2 * i), 2 << (2 * i), dtype=np.uint64) for i in range(level + 1)]
    return Tree(depth, np.concatenate(parts))


def node_levels(nodes: NDArray[np.uint64]) -> NDArray[np.int64]:
    """Levels of nodes, 0 for the root: int64[n]."""
    # A node has 2 level + 1 bits, at most 41, so a float's exponent is exact.
    return np.asarray((np.frexp(nodes.astype(np.float64))[1] - 1) // 2, dtype=np.int64)


def node_paths(nodes: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """Paths of nodes without the leading 1: uint64[n], the node's code on its own level."""
    return nodes ^ (np.uint64(1) << (_TWO * node_levels(nodes).astype(np.uint64)))


def node_positions(nodes: NDArray[np.uint64]) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int64]]:
    """Returns (level, x, y) of nodes, int64[n] each; x from the west, y from the north, in cells of the level."""
    x, y = deinterleave(node_paths(nodes))
    return node_levels(nodes), x, y


def node_names(nodes: NDArray[np.uint64]) -> list[str]:
    """Returns cell ids: `r` and one digit a level (0 north-west, 1 south-west, 2 north-east, 3 south-east)."""
    levels = node_levels(nodes)
    names = np.zeros((len(nodes), 1 + int(levels.max(initial=0))), dtype=np.uint8)
    names[:, 0] = ord("r")
    for level in range(1, names.shape[1]):
        deep = np.flatnonzero(levels >= level)
        digits = nodes[deep] >> (2 * (levels[deep] - level)).astype(np.uint64) & np.uint64(3)
        names[deep, level] = digits + np.uint64(ord("0"))
    found: list[str] = names.view(f"S{names.shape[1]}").ravel().astype(str).tolist()
    return found


def nodes_from_names(names: Sequence[str], depth: int) -> NDArray[np.uint64]:
    """Returns the inverse of `node_names`: uint64[n].

    Raises ValueError for a name that is no node of a grid of this depth.
    """
    texts = names if set(map(type, names)) <= {str} else [name if isinstance(name, str) else "" for name in names]
    length = np.fromiter(map(len, texts), dtype=np.int64, count=len(texts))
    characters = np.array(texts, dtype=f"U{depth + 1}").view(np.uint32).reshape(len(texts), depth + 1)  # others are cut
    is_name, nodes = (characters[:, 0] == ord("r")) & (length <= depth + 1), np.ones(len(texts), dtype=np.uint64)
    for place in range(1, min(int(length.max(initial=1)), depth + 1)):
        digit, inside = characters[:, place].astype(np.uint64) - np.uint64(ord("0")), place < length
        is_name &= ~inside | (digit < 4)  # a character before 0 wraps around
        nodes = np.where(inside, nodes << _TWO | digit, nodes)
    if not is_name.all():
        wrong = names[int(np.argmin(is_name))]
        raise ValueError(f"{wrong!r} is no cell id: r and at most {depth} digits 0 to 3")
    return nodes
