"""Contribution bounding: one location of each user, in the group that holds all of the user's records. Pure.

The upper bits of a user's hash choose the group, so groups do not depend on the order of files and bundles. Within a
group, one record of each user counts. The key chooses it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from sfumato.schemas.places import Places
from sfumato.transforms.locations.encode import EncodedLocations
from sfumato.transforms.locations.records import UserRecords, join_records, keyed_below, sorted_records
from sfumato.transforms.locations.spill import Spill, load

# What a user adds: one of their records, their location of largest weight, or a distribution over all their locations.
Contribution = Literal["one", "top", "all"]
GROUP_BITS = 6  # 64 groups: few large elements


def by_user_group(users: NDArray[np.uint64]) -> tuple[NDArray[np.int64], list[tuple[int, slice]]]:
    """Sorts records by user group. A user's group is the upper bits of their hash.

    Args:
        users: uint64[n], hashes.

    Returns:
        The order of the records, int64[n], and for each group that has records its number and its slice of the order.
    """
    group = (users >> np.uint64(64 - GROUP_BITS)).astype(np.uint8)
    ends = np.cumsum(np.bincount(group, minlength=1 << GROUP_BITS)).tolist()
    slices = enumerate(map(slice, [0, *ends], ends))
    order = np.argsort(group, kind="stable")  # a radix sort, for bytes
    return order, [(number, rows) for number, rows in slices if rows.stop > rows.start]


def split_by_user_group(batch: EncodedLocations, spill: Spill) -> Iterator[tuple[int, bytes]]:
    """Splits a batch by user group: yields (group, stored columns).

    The columns are hashes, values if there are any, and codes. Users of dropped rows have chunks of their own, with
    hashes alone.
    """
    order, groups = by_user_group(batch.users)
    columns = [batch.users[order], batch.codes[order]]
    if batch.values is not None:
        columns.insert(1, batch.values[order])
    for number, rows in groups:
        yield number, spill.store(*(column[rows].data for column in columns))
    if len(batch.unusable):
        order, groups = by_user_group(batch.unusable)
        unusable = batch.unusable[order]
        for number, rows in groups:
            yield number, spill.store(unusable[rows].data)


def split_unusable(chunks: Iterable[bytes]) -> tuple[list[bytes], list[bytes]]:
    """Separates the chunks of one group: those with records, and those with hashes of users of dropped rows alone."""
    records: list[bytes] = []
    unusable: list[bytes] = []
    for chunk in chunks:
        (unusable if len(load(chunk)) == 1 else records).append(chunk)
    return records, unusable


def count_unusable(records: list[bytes], unusable: list[bytes]) -> int:
    """How many users of dropped rows have no record. The arguments are the results of `split_unusable`."""
    if not unusable:
        return 0
    hashes = np.unique(np.concatenate([np.frombuffer(load(chunk)[0], np.uint64) for chunk in unusable]))
    for chunk in records:
        hashes = hashes[~np.isin(hashes, np.frombuffer(load(chunk)[0], np.uint64))]
    return len(hashes)


def count_distinct(records: list[bytes]) -> int:
    """How many users the chunks of one group's records have, by their whole hashes."""
    return len(np.unique(np.concatenate([np.frombuffer(load(chunk)[0], np.uint64) for chunk in records])))


def any_repeated(users: NDArray[np.uint64]) -> bool:
    """Whether any user occurs twice. A sort of hashes alone is far faster than one of pairs."""
    ordered = np.sort(users)
    return bool((ordered[1:] == ordered[:-1]).any())


def bound_users(
    chunks: Iterable[bytes], places: Places, max_dwell: float | None = None, top: bool = False
) -> NDArray[np.uint64]:
    """One location of each user: uint64[users], the hash's upper 64 - places.bits bits above the location's code.

    The lower bits of the user's hash choose one of their records, uniformly or with probability in proportion to
    weights. So the choice depends on no other user and on no order.

    Args:
        chunks: of one group's records, from `split_by_user_group`.
        places: how a location and a category are coded.
        max_dwell: see `sorted_records`.
        top: chooses the location that holds most of the user's records or weight; among equal ones, by their hash.
    """
    users, codes, values = join_records(chunks, places)
    if any_repeated(users):
        records = sorted_records(users, codes, values, places, max_dwell)
        users, codes = records.users, records.codes_of(_most_frequent(records) if top else _drawn(records))
    return (users & ~places.mask) | codes


def bound_slots(chunks: Iterable[bytes], places: Places, records_per_user: int) -> NDArray[np.uint64]:
    """One record of each user in each of so many slots at most: uint64[rows], like the results of `bound_users`.

    In each slot one record counts, and of the slots `records_per_user`, both drawn uniformly. A user's hash decides,
    so the choice depends on no other user and on no order.

    Args:
        chunks: of one group's records, from `split_by_user_group`, without weights.
        places: how a location and a slot are coded.
        records_per_user: at least 1.
    """
    users, codes, _ = join_records(chunks, places)
    records = sorted_records(users, codes, None, places, None)
    slot_of_row = records.by_code >> np.uint64(2 * places.depth)  # with the index of the user above
    new = np.ones(len(slot_of_row), dtype=bool)
    new[1:] = slot_of_row[1:] != slot_of_row[:-1]
    first = np.flatnonzero(new)
    count = np.diff(first, append=len(slot_of_row))
    user = (records.by_code[first] >> np.uint64(places.bits)).astype(np.int64)
    slot = slot_of_row[first] & np.uint64((1 << places.category_bits) - 1)
    row = first + keyed_below(_mixed(records.users[user], slot, 1), count)
    order = np.lexsort((_mixed(records.users[user], slot, 2), user))
    begins = np.searchsorted(user[order], user[order])  # users ascend in this order too
    chosen = np.sort(order[np.arange(len(order)) - begins < records_per_user])
    return (records.users[user[chosen]] & ~places.mask) | records.codes_of(row[chosen])


def _mixed(hashes: NDArray[np.uint64], slot: NDArray[np.uint64], stream: int) -> NDArray[np.uint64]:
    """Pseudo-random bits for each user and slot, uint64[n], by SplitMix64 (Steele, Lea and Flood 2014)."""
    with np.errstate(over="ignore"):
        bits = hashes + (slot * np.uint64(4) + np.uint64(stream)) * np.uint64(0x9E3779B97F4A7C15)
        bits = (bits ^ (bits >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        bits = (bits ^ (bits >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
        return np.asarray(bits ^ (bits >> np.uint64(31)))


def _drawn(records: UserRecords) -> NDArray[np.int64]:
    """For each user the record at a keyed position among their records, in order of locations: int64[users]."""
    if records.weights is None:
        return records.starts + records.uniform(records.counts)
    amounts = records.amounts()
    position = amounts.before + records.uniform(amounts.totals)
    return amounts.rows[np.searchsorted(amounts.upto, position, side="right")]


def _most_frequent(records: UserRecords) -> NDArray[np.int64]:
    """For each user a record in the location that holds most of their records or weight: int64[users]."""
    amounts = records.amounts()
    held = np.diff(amounts.upto, prepend=0)
    most = np.maximum.reduceat(held, np.searchsorted(amounts.user, np.arange(len(records.users))))
    alike = np.flatnonzero(held == most[amounts.user])
    ties = np.bincount(amounts.user[alike])
    return np.asarray(amounts.rows[alike[np.cumsum(ties) - ties + records.uniform(ties)]])
