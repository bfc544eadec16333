"""One location a user: contributions are bounded where all of a user's records meet.

Users are spread over groups by the upper bits of their hash, so a group is the same whatever the order of files
and bundles. Within a group the records of one user meet, and one of them, chosen by the key, counts. Pure.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from sfumato.schemas.places import Places
from sfumato.transforms.locations.encode import EncodedLocations
from sfumato.transforms.locations.records import UserRecords, join_records, sorted_records
from sfumato.transforms.locations.spill import Spill, load

# What a user adds: one of her records, her place of the most weight, or a distribution over all her places.
Contribution = Literal["one", "top", "all"]
GROUP_BITS = 6  # 64 groups: few large elements


def by_user_group(users: NDArray[np.uint64]) -> tuple[NDArray[np.int64], list[tuple[int, slice]]]:
    """An order of the records that brings user groups together, int64[n], and where in it each group is that has any.

    users: uint64[n], hashes. A user's group is the upper bits of her hash.
    """
    group = (users >> np.uint64(64 - GROUP_BITS)).astype(np.uint8)
    ends = np.cumsum(np.bincount(group, minlength=1 << GROUP_BITS)).tolist()
    places = enumerate(map(slice, [0, *ends], ends))
    order = np.argsort(group, kind="stable")  # a radix sort, for bytes
    return order, [(number, place) for number, place in places if place.stop > place.start]


def split_by_user_group(batch: EncodedLocations, spill: Spill) -> Iterator[tuple[int, bytes]]:
    """Splits a batch by user group: (group, the group's hashes, values if there are any, and codes, stored).

    Users of dropped rows come apart, as hashes alone: (group, hashes, stored).
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
    """The chunks of one group with records, and those with the hashes of users of dropped rows alone."""
    records: list[bytes] = []
    unusable: list[bytes] = []
    for chunk in chunks:
        (unusable if len(load(chunk)) == 1 else records).append(chunk)
    return records, unusable


def count_unusable(records: list[bytes], unusable: list[bytes]) -> int:
    """How many users of dropped rows have no record. Arguments: what `split_unusable` returns."""
    if not unusable:
        return 0
    hashes = np.unique(np.concatenate([np.frombuffer(load(chunk)[0], np.uint64) for chunk in unusable]))
    for chunk in records:
        hashes = hashes[~np.isin(hashes, np.frombuffer(load(chunk)[0], np.uint64))]
    return len(hashes)


def any_repeated(users: NDArray[np.uint64]) -> bool:
    """Whether any user is there twice: a sort of hashes alone is far faster than one of pairs."""
    ordered = np.sort(users)
    return bool((ordered[1:] == ordered[:-1]).any())


def bound_users(
    chunks: Iterable[bytes], places: Places, max_dwell: float | None = None, top: bool = False
) -> NDArray[np.uint64]:
    """One word a user, uint64[users]: the hash's upper 64 - places.bits bits above one of her places.

    chunks: what `split_by_user_group` made of one group's records; max_dwell: see `sorted_records`. A user's record is
    chosen among her records by the lower bits of her hash, uniformly or with chances in proportion to their weights; or
    with `top` it is the place where she has the most of them, or the most weight, and of several alike one by her hash.
    So the choice depends on nobody else and on no order.
    """
    users, codes, values = join_records(chunks, places)
    if any_repeated(users):
        records = sorted_records(users, codes, values, places, max_dwell)
        users, codes = records.users, records.codes_of(_most(records) if top else _drawn(records))
    return (users & ~places.mask) | codes


def _drawn(records: UserRecords) -> NDArray[np.int64]:
    """For each user the record at a keyed position among hers, in the order of places: int64[users]."""
    if records.weights is None:
        return records.starts + records.uniform(records.counts)
    amounts = records.amounts()
    position = amounts.before + records.uniform(amounts.totals)
    return amounts.rows[np.searchsorted(amounts.upto, position, side="right")]


def _most(records: UserRecords) -> NDArray[np.int64]:
    """For each user a record in the place that holds the most of her: int64[users]."""
    amounts = records.amounts()
    held = np.diff(amounts.upto, prepend=0)
    most = np.maximum.reduceat(held, np.searchsorted(amounts.user, np.arange(len(records.users))))
    alike = np.flatnonzero(held == most[amounts.user])
    ties = np.bincount(amounts.user[alike])
    return np.asarray(amounts.rows[alike[np.cumsum(ties) - ties + records.uniform(ties)]])
