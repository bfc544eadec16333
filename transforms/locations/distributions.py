"""Contribution bounding: one distribution of each user over all their locations, in integers. Pure.

The integers of a user add up to gamma exactly. A user with n records, n_c of them in cell c, has about gamma n_c / n
there. Where records have weights, n and n_c are sums of weights. Rounding is systematic, so the sum is gamma for any
data and the L1 sensitivity of sums over users is gamma. If each cell were rounded on its own, it would be gamma + d for
d cells (paper 000, "Several locations a user"). `users.py` is the other way: one record of each user counts.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sfumato.schemas.errors import RequestError
from sfumato.schemas.region import Places
from sfumato.transforms.locations.shards import ShardGroup, ShardPlan, key_dtype, keys_in_groups, shards_in, shards_of
from sfumato.transforms.locations.spill import Spill, join
from sfumato.transforms.locations.users import UserRecords, join_records, keyed_below, sorted_records

# The largest number below, gamma n + n, then fits 63 bits: a user's amounts add up to n <= 2^31.
MAX_GAMMA = (1 << 31) - 1
_ROWS_PER_ELEMENT = 700_000


@dataclass(frozen=True)
class Distributions:
    """Locations of users, one in each row, in the order of (user, code), each pair once.

    The complete hash identifies a user. The shard depends on the same upper bits as with one location a user. Weights
    are at least 1; a user's add up to gamma.
    """

    users: NDArray[np.uint64]
    codes: NDArray[Any]
    weights: NDArray[np.int64]

    def population(self) -> int:
        return int(np.count_nonzero(self.users[1:] != self.users[:-1])) + bool(len(self.users))

    def store(self, spill: Spill) -> Iterator[bytes]:
        """Yields the rows in parts of a moderate size, stored."""
        for first in range(0, len(self.users), _ROWS_PER_ELEMENT):
            part = slice(first, first + _ROWS_PER_ELEMENT)
            yield spill.store(self.users[part].data, self.weights[part].data, self.codes[part].data)

    @classmethod
    def from_columns(cls, columns: tuple[memoryview, ...], places: Places) -> Distributions:
        """Returns the rows of one part, loaded."""
        users, weights, codes = columns
        hashes, amounts = np.frombuffer(users, np.uint64), np.frombuffer(weights, np.int64)
        return cls(hashes, np.frombuffer(codes, places.dtype), amounts)


def check_gamma(gamma: int) -> None:
    """Raises RequestError for a gamma that is no integer, or whose sums could overflow."""
    if not (isinstance(gamma, int) and 1 <= gamma <= MAX_GAMMA):
        raise RequestError(f"gamma: must be an integer in 1..{MAX_GAMMA}, got {gamma}")


def bound_distributions(
    chunks: Iterable[bytes], places: Places, gamma: int, max_dwell: float | None = None
) -> Distributions:
    """Returns the distribution of every user of one group.

    It depends on the user's records and hash only, and on no order. A weight differs by less than 1 from gamma times
    the location's share of the user, and its mean over the hash is exact. A share is of the records, or of their
    weights to within 2^-31. Locations with weight 0 are left out.

    chunks: see `join_records`. gamma: the sum of a user's weights. max_dwell: see `sorted_records`.

    Raises RequestError if gamma is out of range, DataError if there are too many records.
    """
    check_gamma(gamma)
    blocks = [
        _distributions_of(records, gamma, places)
        for records in sorted_records(*join_records(chunks, places), places, max_dwell)
    ]
    if len(blocks) == 1:
        return blocks[0]
    columns = ([getattr(block, name) for block in blocks] for name in ("users", "codes", "weights"))
    return Distributions(*map(np.concatenate, columns))


def _distributions_of(records: UserRecords, gamma: int, places: Places) -> Distributions:
    amounts = records.amounts()
    user = amounts.user
    # Let A_j of the user's n be in their first j locations, and U be uniform in [0, 1). These locations together get
    # floor(gamma A_j / n + U). As floor((a + x) / n) = floor((a + floor(x)) / n) for integers a and n, the offset
    # floor(n U) / n gives the same. U is 32 bits of the user's hash, so that u is uniform up to n / 2^32.
    u = keyed_below(records.users, amounts.totals)
    upto = (gamma * (amounts.upto - amounts.before[user]) + u[user]) // amounts.totals[user]
    before = np.zeros_like(upto)
    before[1:] = np.where(user[1:] == user[:-1], upto[:-1], 0)  # each user starts at floor(u / n) = 0
    weights = upto - before
    kept = weights > 0
    codes = records.codes_of(amounts.rows[kept]).astype(places.dtype)
    return Distributions(records.users[user[kept]], codes, weights[kept])


def split_distributions(
    rows: Distributions, shard_plan: ShardPlan, places: Places, spill: Spill
) -> Iterator[tuple[int, bytes]]:
    """Yields (shard group, stored rows) of the users who take part. See `split_by_shard_group`."""
    shard = shards_of(rows.users, shard_plan, places)  # ascending, as the hashes are
    taking_part = int(np.searchsorted(shard, shard_plan.shards))
    group, keys = keys_in_groups(shard[:taking_part], rows.codes[:taking_part], shard_plan.shift(True), places)
    numbers, starts, counts = np.unique(group, return_index=True, return_counts=True)
    for number, start, end in zip(numbers.tolist(), starts, starts + counts, strict=True):
        yield number, spill.store(rows.users[start:end].data, rows.weights[start:end].data, keys[start:end].data)


def build_weighted_shard_group(
    group: int, chunks: Iterable[bytes], shard_plan: ShardPlan, places: Places, spill: Spill
) -> ShardGroup:
    """Returns the index of one shard group, from its chunks of `split_distributions`, which are taken.

    Ranks follow hashes.
    """
    users, weights, keys = join(chunks, (np.dtype(np.uint64), np.dtype(np.int64), key_dtype(places)), last=True)
    first, shards = shards_in(group, shard_plan, shard_plan.shift(True))
    order = np.argsort(users, kind="stable")  # fast: users are in order in each chunk, so this is a merge
    users, weights, keys = users[order], weights[order], keys[order]
    new = np.ones(len(users), dtype=bool)
    new[1:] = users[1:] != users[:-1]
    user = np.cumsum(new) - 1
    shard = (keys >> keys.dtype.type(places.bits)).astype(np.int64)  # ascending too
    rank = user - user[np.searchsorted(shard, np.arange(shards))[shard]] if len(user) else user
    # Stable: rows with equal keys stay in order of ranks, so the index does not depend on the order of chunks.
    order = np.argsort(keys, kind="stable")
    weights, clients, keys = weights[order], rank[order].astype(np.uint32), keys[order]
    return ShardGroup(first, shards, places, keys, spill.store(weights.data, clients.data, keys.data), weights, clients)
