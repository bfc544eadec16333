"""How clients encode their cells as vectors that secure aggregation can add.

Clients' vectors are never materialised. A client has a weight at each of their cells: 1 at their only cell, or integers
that sum to gamma. An encoding is linear in these weights, so a shard's sum follows only from its rows (`ShardGroup`).

A row's key has three parts: the shard in the upper bits, then the bin (a category or a slot of time), then the cell's
code in the lowest 2 depth bits. A *part* is a shard's users of one bin: the bits of shard and bin together.

Rounding of a user's distribution to integers: once for all sub-queries, or entry by entry in each of them. Pure.

Systematic rounding is done where distributions are made (`locations/distributions.py`). A user's weights add up to
gamma exactly, so the L1 norm of the vector is gamma in every sub-query. Independent rounding is the paper's (000,
Section 5.7). Each client rounds every entry of a vector of norm gamma up or down on its own. The norm can then be
nearly gamma + d, where d is the vector's length.

In integers, weights are made systematically for gamma 2^f. For an entry's share X the client sends
floor((X + R) / 2^f), with R uniform in [0, 2^f). That is unbiased, and an entry without a share stays 0. Of K entries
with a share the client sends at most sum ceil(X / 2^f) < gamma + K, so the norm is at most gamma + d - 1. Where a
location adds to E entries, as in the E rows of a sketch, it is below gamma E + d. Both bounds hold for every outcome of
the R, and the R are independent of the noise. So the guarantee for the sensitivity gamma E + d holds given the R, and
also without them. One more user changes the ranks of the clients above, and so their R. All R have one distribution,
independent of the data.
"""

from __future__ import annotations

import hashlib
import math
from abc import ABC, abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from sfumato.schemas.tree import Tree
from sfumato.transforms.locations.distributions import MAX_GAMMA
from sfumato.transforms.locations.shards import ShardGroup
from sfumato.transforms.privacy.additive_noise import AdditiveNoise
from sfumato.transforms.privacy.keys import random_bits

_MAX_TABLE_LEVEL = 10  # a table of a million cells fits the cache


class Encoding(ABC):
    """How a client's cells become a vector. It is public.

    Attributes:
        length: entries of the vector.
        entries_per_location: how many different entries one location adds its weight to.
    """

    length: int
    entries_per_location: int = 1

    @abstractmethod
    def count(self, group: ShardGroup, block: slice) -> NDArray[np.int64]:
        """Returns the sums of the vectors of each shard of the block: int64[shards of block, length]."""

    @abstractmethod
    def entries_of(self, group: ShardGroup, block: slice) -> Iterator[NDArray[np.signedinteger[Any]]]:
        """Yields the entries that each row of the block adds its weight to: `entries_per_location` arrays int[n].

        The arrays have no entry in common.
        """

    @property
    def fingerprint(self) -> str:
        """Identifies the encoding. It is the same in every process."""
        return repr(self)

    @property
    @abstractmethod
    def shares(self) -> NDArray[np.float64]:
        """Each entry's share of a user who is evenly spread over the map: float64[length]."""

    def reads_every_row(self, group: ShardGroup) -> bool:
        """Returns whether `count` reads every row of a shard. Large shards then need small blocks."""
        return True


@dataclass(frozen=True)
class TreeEncoding(Encoding):
    """One entry for each node of a tree that has fewer than four children (paper 000, Section 5.6).

    With auxiliary data there is one for each bin and node: k one-hot bins for each node (Section 5.7), in order of
    bins.

    Attributes:
        tree: of the entries.
        bins: of the rows: auxiliary categories or slots of time.
        summed: counts all bins together, one entry for each node.
    """

    tree: Tree
    bins: int = 1
    summed: bool = False

    @property
    def length(self) -> int:  # type: ignore[override]
        """The tree's entries, times those of each node."""
        return self.entries_per_node * len(self.tree.entries)

    @property
    def entries_per_node(self) -> int:
        """Entries of a node: one for each bin, or 1 where they are summed."""
        return 1 if self.summed else self.bins

    @property
    def fingerprint(self) -> str:
        summed = " summed" if self.summed else ""
        digest = hashlib.sha256(self.tree.nodes.tobytes()).hexdigest()
        return f"tree {self.tree.depth} {self.bins}{summed} {digest}"

    @property
    def shares(self) -> NDArray[np.float64]:
        """See Encoding.shares: each entry's share of the area, the same in every bin."""
        return np.tile(self.tree.areas / (self.entries_per_node * 4.0**self.tree.depth), self.entries_per_node)

    def reads_every_row(self, group: ShardGroup) -> bool:
        # A lookup of every row's cell is cheaper for a tree with more entries than a tenth of a shard's users.
        return self.tree.level <= _MAX_TABLE_LEVEL and 10 * self.length * group.shards >= len(group.keys)

    def count(self, group: ShardGroup, block: slice) -> NDArray[np.int64]:
        """See Encoding.count. A location counts at the deepest node that covers it.

        A small tree costs two binary searches for each entry, whatever the number of users.

        Raises:
            ValueError: the group has other bins.
        """
        if self.bins != group.places.bins:
            raise ValueError(f"the encoding has {self.bins} bins, the shards {group.places.bins}")
        tree, shards = self.tree, block.stop - block.start
        if not self.reads_every_row(group):
            below = group.counts_below(tree.index.boundaries, block)
            intervals = np.diff(below.reshape(shards * self.bins, -1), axis=1)
            sums = tree.index.sum_intervals(intervals).reshape(shards, self.bins, -1)
            return np.asarray(sums.sum(axis=1) if self.summed else sums.reshape(shards, self.length))
        part, cells = parts_and_cells(group, block)
        sums = tally(part, self._entry_at(cells), group, block, len(tree.entries))
        if self.summed:
            return np.asarray(sums.reshape(shards, -1, len(tree.entries)).sum(axis=1))
        return sums.reshape(shards, -1)[:, : self.length]  # the bits of a bin may hold more bins than exist

    def entries_of(self, group: ShardGroup, block: slice) -> Iterator[NDArray[np.signedinteger[Any]]]:
        part, cells = parts_and_cells(group, block)
        number = 0 if self.summed else part & ((1 << group.places.bin_bits) - 1)
        yield number * len(self.tree.entries) + self._entry_at(cells)

    def _entry_at(self, cells: NDArray[np.uint64]) -> NDArray[np.signedinteger[Any]]:
        """Returns the entry of each cell: int[n], by a table or, for a deep tree, by binary search."""
        tree = self.tree
        if tree.level > _MAX_TABLE_LEVEL:
            return tree.index.owners(cells)
        return np.take(tree.entry_of_cell, cells >> np.uint64(2 * (tree.depth - tree.level)))


def parts_and_cells(group: ShardGroup, block: slice) -> tuple[NDArray[np.int64], NDArray[np.uint64]]:
    """Returns the part and the cell of every row of the block: int64[n], uint64[n].

    A part is shard << bin_bits | bin, with shards counted from the block's first one. With one bin it is the shard.
    """
    keys = group.keys_of(block)
    shift = keys.dtype.type(2 * group.depth)
    part = (keys >> shift).astype(np.int64) - (block.start << group.places.bin_bits)
    return part, keys & keys.dtype.type((1 << int(shift)) - 1)


def tally(
    part: NDArray[np.int64], entry: NDArray[np.signedinteger], group: ShardGroup, block: slice, length: int
) -> NDArray[np.int64]:
    """Adds up the rows of a block by part and entry: int64[parts of block, length].

    part, entry: int[n], one for each row, see `parts_and_cells`. A row adds its weight, or 1 without weights.
    """
    parts = (block.stop - block.start) << group.places.bin_bits
    place = part * length + entry
    weights = group.weights_of(block)
    if weights is None:
        return np.bincount(place, minlength=parts * length).reshape(parts, length)
    sums = np.zeros(parts * length, dtype=np.int64)
    np.add.at(sums, place, weights)
    return sums.reshape(parts, length)


Rounding = Literal["systematic", "independent"]
_MAX_FRACTION_BITS = 16  # a share is then exact to 1 / 65536 of a unit


def fraction_bits(gamma: int) -> int:
    """Returns f: the fraction bits of weights for gamma, as many as fit below MAX_GAMMA, at most 16.

    From gamma = 2^30 on there are none, and both roundings are the same.
    """
    return max(0, min(_MAX_FRACTION_BITS, MAX_GAMMA.bit_length() - gamma.bit_length()))


def stored_total(gamma: int, rounding: Rounding) -> int:
    """Returns the sum of a user's stored weights: gamma, or gamma 2^f before independent rounding."""
    return gamma << fraction_bits(gamma) if rounding == "independent" else gamma


def sensitivity_of(noise: AdditiveNoise, gamma: int, rounding: Rounding, length: int, entries: int) -> float:
    """Returns the largest norm of one user's vector, the one that the noise protects."""
    norm = l1_sensitivity if noise.NORM == 1 else l2_sensitivity
    return norm(gamma, rounding, length, entries)


def l1_sensitivity(gamma: int, rounding: Rounding, length: int, entries: int = 1) -> int:
    """Returns the largest L1 norm of a user's vector of `length` entries, `entries` of which a location adds to."""
    return gamma * entries + (length if rounding == "independent" else 0)


def l2_sensitivity(gamma: int, rounding: Rounding, length: int, entries: int) -> float:
    """Returns the largest L2 norm of such a vector, by the triangle inequality over locations and over the rounding."""
    return gamma * math.sqrt(entries) + (math.sqrt(length) if rounding == "independent" else 0)


def rounded_sums(group: ShardGroup, block: slice, encoding: Encoding, bits: int, subkey: bytes) -> NDArray[np.int64]:
    """Returns the sums of the clients' rounded vectors in each shard of the block: int64[shards of block, length].

    The R of a client and an entry depends on the subkey, the client's shard, their rank in it and the entry only.

    Args:
        group: of users with distributions.
        block: shards of the group.
        encoding: of the sub-query.
        bits: f, the fraction bits of the group's weights.
        subkey: of the sub-query.
    """
    shards, length = block.stop - block.start, encoding.length
    sums = np.zeros(shards * length, dtype=np.int64)
    weights = group.weights_of(block)
    if weights is None or group.clients is None:
        raise TypeError("independent rounding needs distributions, and the group has one location a user")
    clients = group.clients[group.starts[block.start] : group.starts[block.stop]]
    if not len(weights):
        return sums.reshape(shards, length)
    shard = np.repeat(np.arange(shards), np.diff(group.starts[block.start : block.stop + 1]))
    user = group.user_starts[block][shard] - group.user_starts[block.start] + clients
    for entry in encoding.entries_of(group, block):
        place = user * length + entry
        order = np.argsort(place)
        first = np.flatnonzero(np.diff(place[order], prepend=-1))
        share = np.add.reduceat(weights[order], first)
        row = order[first]  # one for each entry of a user
        low = clients[row].astype(np.uint64) << np.uint64(32) | entry[row].astype(np.uint64)
        draw = random_bits(subkey, group.numbers()[block][shard[row]], low)[:, 0] & np.uint64((1 << bits) - 1)
        np.add.at(sums, shard[row] * length + entry[row], (share + draw.astype(np.int64)) >> bits)
    return sums.reshape(shards, length)
