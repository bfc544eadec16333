"""What clients make of their cells: vectors that secure aggregation can add. Pure.

Clients' vectors are never materialised: an encoding is linear in a client's weights, so a shard's sum follows from
the shard's index alone.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass

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

    @property
    @abstractmethod
    def shares(self) -> NDArray[np.float64]:
        """What each entry would get of a user who is everywhere alike: float64[length]."""

    def works_by_user(self, group: ShardGroup) -> bool:
        """Whether `count` works on every row of a shard, so that large shards want small blocks."""
        return True


@dataclass(frozen=True)
class TreeEncoding(Encoding):
    """One entry for each node of a tree that has fewer than four children (paper 000, Section 5.6)."""

    tree: Tree

    @property
    def length(self) -> int:  # type: ignore[override]
        """Entries of the tree."""
        return len(self.tree.entries)

    @property
    def shares(self) -> NDArray[np.float64]:
        """See Encoding.shares: each entry's share of the area."""
        return self.tree.areas / 4.0**self.tree.depth

    def works_by_user(self, group: ShardGroup) -> bool:
        """See Encoding.works_by_user."""
        # For a tree with more entries than a tenth of a shard's users it is cheaper to look up every user's cell.
        return self.tree.level <= _MAX_TABLE_LEVEL and 10 * self.length * group.shards >= len(group.keys)

    def count(self, group: ShardGroup, block: slice) -> NDArray[np.int64]:
        """Users of each shard at each entry, a location at the deepest node that covers it.

        A small tree costs two binary searches an entry and no work a user.
        """
        tree = self.tree
        if not self.works_by_user(group):
            return tree.index.sum_intervals(np.diff(group.counts_below(tree.index.boundaries, block), axis=1))
        shard, cells = shards_and_cells(group, block)
        return tally(
            shard, tree.entry_of_cell[cells >> np.uint64(2 * (tree.depth - tree.level))], group, block, self.length
        )


def shards_and_cells(group: ShardGroup, block: slice) -> tuple[NDArray[np.int64], NDArray[np.uint64]]:
    """The shard, counted from the block's first, and the cell of every row of the block: int64[n], uint64[n]."""
    keys = group.keys_of(block)
    shift = keys.dtype.type(2 * group.depth)
    return (keys >> shift).astype(np.int64) - block.start, keys & keys.dtype.type((1 << int(shift)) - 1)


def tally(
    shard: NDArray[np.int64], entry: NDArray[np.signedinteger], group: ShardGroup, block: slice, length: int
) -> NDArray[np.int64]:
    """Adds up the rows of a block by shard and entry: int64[shards of block, length]. entry: int[n], one a row."""
    shards = block.stop - block.start
    place = shard * length + entry
    weights = group.weights_of(block)
    if weights is None:
        return np.bincount(place, minlength=shards * length).reshape(shards, length)
    sums = np.zeros(shards * length, dtype=np.int64)
    np.add.at(sums, place, weights)
    return sums.reshape(shards, length)
