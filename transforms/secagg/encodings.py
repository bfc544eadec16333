"""What clients make of their cells: vectors that secure aggregation can add. Pure.

Clients' vectors are never materialised: an encoding is linear in a client's weights, so a shard's sum follows from
the shard's index alone.
"""

from __future__ import annotations

import hashlib
from abc import ABC, abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sfumato.schemas.tree import Tree
from sfumato.transforms.locations.shards import ShardGroup

_MAX_TABLE_LEVEL = 10  # a table of a million cells fits the cache


class Encoding(ABC):
    """How a client's cells become a vector of `length` entries; everybody knows it.

    sensitivity: entries to which one location adds its weight (1 where a user has one location): the L1 norm of the
    vector of a user of weight 1. No entry gets the same location twice.
    """

    length: int
    sensitivity: int = 1

    @abstractmethod
    def count(self, group: ShardGroup, block: slice) -> NDArray[np.int64]:
        """Sums of the vectors of each shard of the block: int64[shards of block, length]."""

    @abstractmethod
    def entries_of(self, group: ShardGroup, block: slice) -> Iterator[NDArray[np.signedinteger[Any]]]:
        """To which entries every row of the block adds its weight: `sensitivity` arrays int[n].

        No entry is in two of them.
        """

    @property
    def fingerprint(self) -> str:
        """What tells this encoding from any other; the same in every process."""
        return repr(self)

    @property
    @abstractmethod
    def shares(self) -> NDArray[np.float64]:
        """What each entry would get of a user who is everywhere alike: float64[length]."""

    def works_by_user(self, group: ShardGroup) -> bool:
        """Whether `count` works on every row of a shard, so that large shards want small blocks."""
        return True


@dataclass(frozen=True)
class TreeEncoding(Encoding):
    """One entry for each node of a tree that has fewer than four children (paper 000, Section 5.6).

    With auxiliary data, one for each category and node: k one-hot bins a node (Section 5.7), category by category.
    """

    tree: Tree
    categories: int = 1

    @property
    def length(self) -> int:  # type: ignore[override]
        """Entries of the tree, times the categories."""
        return self.categories * len(self.tree.entries)

    @property
    def fingerprint(self) -> str:
        """See Encoding.fingerprint."""
        return f"tree {self.tree.depth} {self.categories} {hashlib.sha256(self.tree.nodes.tobytes()).hexdigest()}"

    @property
    def shares(self) -> NDArray[np.float64]:
        """See Encoding.shares: each entry's share of the area, the same in every category."""
        return np.tile(self.tree.areas / (self.categories * 4.0**self.tree.depth), self.categories)

    def works_by_user(self, group: ShardGroup) -> bool:
        """See Encoding.works_by_user."""
        # For a tree with more entries than a tenth of a shard's users it is cheaper to look up every user's cell.
        return self.tree.level <= _MAX_TABLE_LEVEL and 10 * self.length * group.shards >= len(group.keys)

    def count(self, group: ShardGroup, block: slice) -> NDArray[np.int64]:
        """Users of each shard at each entry, a location at the deepest node that covers it.

        A small tree costs two binary searches an entry and no work a user. Raises ValueError for a group with other
        categories.
        """
        if self.categories != group.places.categories:
            raise ValueError(f"the encoding has {self.categories} categories, the shards {group.places.categories}")
        tree, shards = self.tree, block.stop - block.start
        if not self.works_by_user(group):
            below = group.counts_below(tree.index.boundaries, block)
            intervals = np.diff(below.reshape(shards * self.categories, -1), axis=1)
            return tree.index.sum_intervals(intervals).reshape(shards, self.length)
        part, cells = shards_and_cells(group, block)
        entry = tree.entry_of_cell[cells >> np.uint64(2 * (tree.depth - tree.level))]
        sums = tally(part, entry, group, block, len(tree.entries))
        return sums.reshape(shards, -1)[:, : self.length]  # the bits of a category may hold more than there are

    def entries_of(self, group: ShardGroup, block: slice) -> Iterator[NDArray[np.signedinteger[Any]]]:
        """See Encoding.entries_of."""
        tree = self.tree
        part, cells = shards_and_cells(group, block)
        category = part & ((1 << group.places.category_bits) - 1)
        if tree.level <= _MAX_TABLE_LEVEL:
            entry = tree.entry_of_cell[cells >> np.uint64(2 * (tree.depth - tree.level))]
        else:
            entry = tree.index.owners(cells)
        yield category * len(tree.entries) + entry


def shards_and_cells(group: ShardGroup, block: slice) -> tuple[NDArray[np.int64], NDArray[np.uint64]]:
    """The shard, counted from the block's first, and the cell of every row of the block: int64[n], uint64[n].

    With several categories it is the part of a shard: shard << category_bits | category.
    """
    keys = group.keys_of(block)
    shift = keys.dtype.type(2 * group.depth)
    part = (keys >> shift).astype(np.int64) - (block.start << group.places.category_bits)
    return part, keys & keys.dtype.type((1 << int(shift)) - 1)


def tally(
    part: NDArray[np.int64], entry: NDArray[np.signedinteger], group: ShardGroup, block: slice, length: int
) -> NDArray[np.int64]:
    """Adds up the rows of a block by part and entry: int64[parts of block, length]. entry: int[n], one a row."""
    parts = (block.stop - block.start) << group.places.category_bits
    place = part * length + entry
    weights = group.weights_of(block)
    if weights is None:
        return np.bincount(place, minlength=parts * length).reshape(parts, length)
    sums = np.zeros(parts * length, dtype=np.int64)
    np.add.at(sums, place, weights)
    return sums.reshape(parts, length)
