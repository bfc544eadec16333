"""Shards: a keyed hash of the user decides whether the user takes part, and in which shard. Pure.

With h a user's hash as a number in [0, 1), the user takes part if h < sampling rate, in shard
floor(h * shards / sampling rate). One user's presence moves no other user. Shard sizes vary by about their square root.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from sfumato.schemas.region import Places
from sfumato.transforms.locations.spill import Spill, join, load
from sfumato.transforms.statistics.bisection import bisect_each_integer

_MAX_GROUP_SHIFT = 6
# What a release reveals about participation. planned: nothing; every planned shard reports with the planned noise.
# paper: the number of users decides which shards are lost and how much noise there is (paper 000).
Participation = Literal["planned", "paper"]


@dataclass(frozen=True)
class ShardPlan:
    """The spread of the participating users over shards. Every figure is public or differentially private.

    Attributes:
        population: number of users in the logs.
        users: expected number of users who take part.
        sampling_rate: users over population.
        shards: how many there are.
        required_survivors: the clients of a shard who must respond, whose shares add up to its noise. In the paper's
            model a shard with fewer survivors reveals nothing.
        participation: the model.
    """

    population: float
    users: float
    sampling_rate: float
    shards: int
    required_survivors: int
    participation: Participation = "planned"

    @property
    def planned_clients(self) -> int | None:
        """Clients that a shard is planned for, whatever the number of its users; None in the paper's model."""
        if self.participation == "paper":
            return None
        return max(self.required_survivors, round(self.users / self.shards))

    @property
    def group_shift(self) -> int:
        """Returns a group has 2^group_shift shards: about a million users, and at most 64 shards."""
        return max(0, min(_MAX_GROUP_SHIFT, 20 - int(self.users / self.shards).bit_length()))

    def shift(self, weighted: bool) -> int:
        """Returns `group_shift`, or less where users have distributions, because a user may then have many rows."""
        return max(0, self.group_shift - 4) if weighted else self.group_shift

    @classmethod
    def for_users(
        cls,
        population: float,
        users: float | None,
        shard_size: int,
        dropout: float,
        participation: Participation = "planned",
    ) -> ShardPlan:
        """Plans ceil(U / S) shards of equal expected size, about `shard_size` (5% above it rather than half of it)."""
        population = max(population, 1.0)
        expected = population if users is None else min(float(users), population)
        shards = max(1, round(expected / shard_size))
        if expected / shards > 1.05 * shard_size:
            shards = math.ceil(expected / shard_size)
        required = max(1, math.ceil((1 - dropout) * min(shard_size, expected / shards)))
        return cls(
            population=population,
            users=expected,
            sampling_rate=expected / population,
            shards=shards,
            required_survivors=required,
            participation=participation,
        )


@dataclass(frozen=True)
class ShardGroup:
    """An index over the users of some consecutive shards, built once for the counts of any tree.

    It holds raw locations and has no way into a release.

    Without weights a row is a user, who counts 1. With weights a user may have several rows. One more user changes the
    ranks of the clients above and no other row. Counts do not depend on ranks. A rank only assigns a keyed draw of the
    shard (a noise share, dropout) to a client. All these draws have one distribution, independent of the data. So the
    output of a shard has the same distribution for any order of ranks.

    Attributes:
        first: number of the first shard.
        shards: how many there are.
        places: how a location and a bin are coded.
        keys: uint32[rows] or uint64[rows], sorted: (shard - first) << places.bits | code, so that a shard's users are
            in order of bin, then of location.
        stored: the result of `Spill.store` for the `columns`, where the group was stored.
        weights: int64[rows]; None where every row counts 1.
        clients: uint32[rows], the user's rank in the shard. Each of the ranks 0 .. users - 1 has a row.
    """

    first: int
    shards: int
    places: Places
    keys: NDArray[Any]
    stored: bytes | None = None
    weights: NDArray[np.int64] | None = None
    clients: NDArray[np.uint32] | None = None

    @classmethod
    def from_columns(cls, first: int, shards: int, places: Places, stored: bytes) -> ShardGroup:
        """Returns the group whose `columns` are stored."""
        *weighted, keys = load(stored)
        group = cls(first, shards, places, np.frombuffer(keys, key_dtype(places)), stored)
        if not weighted:
            return group
        weights, clients = weighted
        return replace(group, weights=np.frombuffer(weights, np.int64), clients=np.frombuffer(clients, np.uint32))

    @property
    def depth(self) -> int:
        """Returns the depth of the grid."""
        return self.places.depth

    def columns(self) -> tuple[memoryview, ...]:
        """Returns the columns of the group's rows: keys; or weights, clients and keys."""
        if self.weights is None or self.clients is None:
            return (self.keys.data,)
        return self.weights.data, self.clients.data, self.keys.data

    def sizes(self) -> NDArray[np.int64]:
        """Returns users in each shard: int64[shards]."""
        return np.diff(self.user_starts)

    def counts_below(self, boundaries: NDArray[np.uint64], block: slice) -> NDArray[np.int64]:
        """Returns users of each shard of the block whose code is below each boundary: int64[shards, len(boundaries)].

        With several bins they are apart: int64[shards, bins, len(boundaries)]. With weights it is the sum
        of the weights below. boundaries: uint64, ascending, at most 4^depth.
        """
        places = self.places
        if places.bins == 1:
            positions, starts = self._positions(boundaries, np.arange(block.start, block.stop)), self.starts[block]
        else:
            parts = np.arange(block.start, block.stop)[:, None] << places.bin_bits | np.arange(places.bins)
            positions = self._positions(boundaries, parts)
            starts = self._positions(np.zeros(1, dtype=np.uint64), parts)[..., 0]
        starts = starts[..., None]
        return (
            positions - starts
            if self.weights is None
            else self._weights_before[positions] - self._weights_before[starts]
        )

    def keys_of(self, block: slice) -> NDArray[Any]:
        """Returns the keys of the block's shards, a view."""
        return self.keys[self.starts[block.start] : self.starts[block.stop]]

    def weights_of(self, block: slice) -> NDArray[np.int64] | None:
        """Returns the weights of `keys_of(block)`, a view; None where every row counts 1."""
        return None if self.weights is None else self.weights[self.starts[block.start] : self.starts[block.stop]]

    @cached_property
    def starts(self) -> NDArray[np.int64]:
        """Returns the index of each shard's first key, and the number of keys: int64[shards + 1]."""
        first_parts = np.arange(self.shards + 1) << self.places.bin_bits
        return self._positions(np.zeros(1, dtype=np.uint64), first_parts)[:, 0]

    @cached_property
    def user_starts(self) -> NDArray[np.int64]:
        """Users before each shard, and all users: int64[shards + 1]. Equal to `starts` without weights."""
        if self.clients is None:
            return self.starts
        users = np.zeros(self.shards + 1, dtype=np.int64)
        filled = np.flatnonzero(np.diff(self.starts))
        if len(filled):
            users[1 + filled] = 1 + np.maximum.reduceat(self.clients, self.starts[filled]).astype(np.int64)
        return np.cumsum(users)

    def only(self, mask: NDArray[np.bool_]) -> ShardGroup:
        """Returns the same shards without the rows of the users whose mask is false. The other users get new ranks.

        mask: bool[users], in order of shards, then of ranks (without weights, of keys).
        """
        if self.weights is None or self.clients is None:
            return ShardGroup(self.first, self.shards, self.places, self.keys[mask])
        shard_start = np.repeat(self.user_starts[:-1], np.diff(self.starts))
        user = shard_start + self.clients
        kept_before = np.concatenate([[0], np.cumsum(mask)])
        rank = (kept_before[user] - kept_before[shard_start]).astype(np.uint32)
        kept = mask[user]
        return ShardGroup(self.first, self.shards, self.places, self.keys[kept], None, self.weights[kept], rank[kept])

    def numbers(self) -> NDArray[np.uint64]:
        """Returns the shards' numbers in the run: uint64[shards]."""
        return np.arange(self.first, self.first + self.shards, dtype=np.uint64)

    @cached_property
    def _weights_before(self) -> NDArray[np.int64]:
        assert self.weights is not None
        return np.concatenate([[0], np.cumsum(self.weights)])

    def _positions(self, codes: NDArray[np.uint64], parts: NDArray[np.int64]) -> NDArray[np.int64]:
        """Keys before each code of some parts: int64[*parts, len(codes)], both ascending.

        A part is a shard's users of one bin; its number is shard << bin_bits | bin.
        """
        bounds = (parts.astype(np.uint64)[..., None] << np.uint64(2 * self.depth)) + codes
        # The last boundary may be just above the largest value of the keys' type. Then every key is below it.
        limit = np.iinfo(self.keys.dtype).max
        found = np.searchsorted(self.keys, np.minimum(bounds, limit).astype(self.keys.dtype).ravel())
        found = found.reshape(bounds.shape)
        return np.where(bounds > limit, len(self.keys), found) if bounds.flat[-1] > limit else found


def key_dtype(places: Places) -> np.dtype[Any]:
    """Returns the smallest unsigned type for a shard's position in its group above a code."""
    bits = places.bits + _MAX_GROUP_SHIFT
    return np.dtype(np.uint32 if bits <= 32 else np.uint64)


def shards_of(users: NDArray[np.uint64], shard_plan: ShardPlan, places: Places) -> NDArray[np.int64]:
    """Returns the shard of each user, int64[n]; `shard_plan.shards` or more for users who do not take part.

    It depends on the bits of the hash above a code. Ascending hashes have ascending shards.

    users: uint64[n], hashes or results of `bound_users`.
    """
    scale = shard_plan.shards / shard_plan.sampling_rate * 2.0 ** (places.bits - 64)
    shard = ((users >> np.uint64(places.bits)).astype(np.float64) * scale).astype(np.int64)
    if shard_plan.sampling_rate >= 1:
        np.minimum(shard, shard_plan.shards - 1, out=shard)
    return shard


def starts_of_shards(
    users: NDArray[np.uint64], shards: NDArray[np.int64], shard_plan: ShardPlan, places: Places
) -> NDArray[np.int64]:
    """Returns the index of the first user who is in each shard or above: int64[len(shards)].

    By binary searches, so that few users' shards are computed. users: as for `shards_of`, at least one, ascending.
    """
    before, after = np.full(len(shards), -1, dtype=np.int64), np.full(len(shards), len(users), dtype=np.int64)
    return 1 + bisect_each_integer(lambda at: shards_of(users[at], shard_plan, places) < shards, before, after)


def keys_in_groups(
    shard: NDArray[np.int64], codes: NDArray[Any], shift: int, places: Places
) -> tuple[NDArray[np.int64], NDArray[Any]]:
    """Returns the group of 2^shift shards of each row, int64[n], and the row's key in it, key_dtype(places)[n]."""
    group, position = shard >> shift, shard & ((1 << shift) - 1)
    return group, ((position.astype(np.uint64) << np.uint64(places.bits)) | codes).astype(key_dtype(places))


def shards_in(group: int, shard_plan: ShardPlan, shift: int) -> tuple[int, int]:
    """Returns the first shard of a group of 2^shift shards, and its number of shards. The last group may have fewer."""
    first = group << shift
    return first, min(1 << shift, shard_plan.shards - first)


def split_by_shard_group(
    users: NDArray[np.uint64], shard_plan: ShardPlan, places: Places, spill: Spill
) -> Iterator[tuple[int, bytes]]:
    """Yields (shard group, stored keys) of the users who take part.

    Groups without users are missing; `empty_shard_groups` has every group. users: uint64[n], ascending, from
    `bound_users`.
    """
    if not len(users):
        return
    lowest, highest = shards_of(users[[0, -1]], shard_plan, places).tolist()
    shift, dtype = shard_plan.group_shift, key_dtype(places)
    for group in range(lowest >> shift, (min(highest, shard_plan.shards - 1) >> shift) + 1):
        first, shards = shards_in(group, shard_plan, shift)
        starts = starts_of_shards(users, np.arange(first, first + shards + 1), shard_plan, places)
        if starts[0] < starts[-1]:
            position = np.repeat(np.arange(shards, dtype=dtype) << dtype.type(places.bits), np.diff(starts))
            position |= (users[starts[0] : starts[-1]] & places.mask).astype(dtype)
            yield group, spill.store(position.data)


def empty_shard_groups(shard_plan: ShardPlan, weighted: bool = False) -> Iterator[tuple[int, bytes]]:
    """Yields every shard group of the plan, without users: (shard group, stored columns).

    The groups must not depend on the data: a group without users reports too, with noise only.

    Args:
        shard_plan: whose shards they are.
        weighted: whether users have distributions.
    """
    empty = Spill().store(*[b""] * (3 if weighted else 1))
    for group in range(-(-shard_plan.shards >> shard_plan.shift(weighted))):
        yield group, empty


def build_shard_group(
    group: int, chunks: Iterable[bytes], shard_plan: ShardPlan, places: Places, spill: Spill
) -> ShardGroup:
    """Returns the index of one shard group, from all its chunks of `split_by_shard_group`, which are taken."""
    (keys,) = join(chunks, (key_dtype(places),), last=True)
    keys.sort()
    first, shards = shards_in(group, shard_plan, shard_plan.group_shift)
    return ShardGroup(first, shards, places, keys, spill.store(keys.data))
