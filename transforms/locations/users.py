"""One location a user: contributions are bounded where all of a user's records meet.

Users are spread over groups by the upper bits of their hash, so a group is the same whatever the order of files
and bundles. Within a group the records of one user meet, and one of them, chosen uniformly by the key, counts. Pure.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from sfumato.schemas.errors import DataError
from sfumato.transforms.locations.encode import EncodedLocations, code_dtype
from sfumato.transforms.locations.spill import Spill, load

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
    """Splits a batch by user group: (group, the group's hashes and then its codes, stored)."""
    order, groups = by_user_group(batch.users)
    users, codes = batch.users[order], batch.codes[order]
    for number, place in groups:
        yield number, spill.store(users[place].data, codes[place].data)


def any_repeated(users: NDArray[np.uint64]) -> bool:
    """Whether any user is there twice: a sort of hashes alone is far faster than one of pairs."""
    ordered = np.sort(users)
    return bool((ordered[1:] == ordered[:-1]).any())


def bound_users(chunks: Iterable[bytes], depth: int) -> NDArray[np.uint64]:
    """One word a user, uint64[users]: the hash's upper 64 - 2 depth bits above the code of one of her cells.

    chunks: what `split_by_user_group` made of one group's records. A user's record is chosen uniformly among her
    records by the lower bits of her hash, so the choice depends on nobody else and on no order.
    """
    users, codes = join_records(chunks, depth)
    if any_repeated(users):
        users, codes = _choose(users, codes, depth)
    shift = np.uint64(2 * depth)
    return ((users >> shift) << shift) | codes


def join_records(chunks: Iterable[bytes], depth: int) -> tuple[NDArray[np.uint64], NDArray[np.uint64]]:
    """All records of one user group, from what `split_by_user_group` made of them: hashes and codes, uint64[n] each."""
    chunks = list(chunks)  # references, or in line what the runner has read anyway
    total = sum(len(load(chunk)[0]) for chunk in chunks) // 8
    users, codes = np.empty(total, np.uint64), np.empty(total, np.uint64)
    end = 0
    for chunk in chunks:  # one at a time: a group may have more chunks than a process may open files
        hashes, cells = load(chunk)
        begin, end = end, end + len(hashes) // 8
        users[begin:end] = np.frombuffer(hashes, np.uint64)
        codes[begin:end] = np.frombuffer(cells, code_dtype(depth))
    return users, codes


@dataclass(frozen=True)
class UserRecords:
    """Records in the order of (user, code), so of no other order.

    users: uint64[users], the distinct hashes, ascending; starts, counts: int64[users], where each user's records start
    and how many they are; by_code: uint64[n], (place of the user among `users`) << 2 depth | code, ascending.
    """

    users: NDArray[np.uint64]
    starts: NDArray[np.int64]
    counts: NDArray[np.int64]
    by_code: NDArray[np.uint64]

    @classmethod
    def of(cls, users: NDArray[np.uint64], codes: NDArray[np.uint64], depth: int) -> UserRecords:
        """Sorts records, hashes and codes uint64[n]. Raises DataError for more users than fit beside a code."""
        order = np.argsort(users)
        users = users[order]
        new = np.ones(len(users), dtype=bool)
        new[1:] = users[1:] != users[:-1]
        starts = np.flatnonzero(new)
        counts = np.diff(starts, append=len(users))
        if len(starts) > 1 << (64 - 2 * depth):
            raise DataError(f"too many users for depth {depth}: use a smaller depth")
        # Sorting (place of the user, code) as one number orders each user's records by code.
        place = np.repeat(np.arange(len(starts), dtype=np.uint64), counts)
        by_code = np.sort((place << np.uint64(2 * depth)) | codes[order])
        return cls(users[starts], starts, counts, by_code)


def _choose(
    users: NDArray[np.uint64], codes: NDArray[np.uint64], depth: int
) -> tuple[NDArray[np.uint64], NDArray[np.uint64]]:
    """For every distinct user the record at a keyed uniform position among her records in the order of codes."""
    records = UserRecords.of(users, codes, depth)
    uniform = (records.users & np.uint64(0xFFFFFFFF)).astype(np.float64) * 2.0**-32
    chosen = records.starts + (uniform * records.counts).astype(np.int64)
    return records.users, records.by_code[chosen] & np.uint64((1 << (2 * depth)) - 1)
