"""Contribution bounding: one location of each user, in the group that holds all of the user's records. Pure.

The upper bits of a user's hash choose the group, so groups do not depend on the order of files and bundles. Within a
group, all records are in one order: by user, then by location. One record of each user counts, and the key chooses it.
Weights of records become integers here: the amounts of a user's locations. All that follows is exact, and is the same
for weights as for plain counts.
"""

from __future__ import annotations

import itertools
import math
from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from sfumato.schemas.errors import DataError
from sfumato.schemas.region import Places
from sfumato.transforms.locations.encode import EncodedLocations
from sfumato.transforms.locations.spill import DEFAULT_GROUP_BITS, Spill, join, lengths_of, load

# A group of users has fewer records: gamma n + n with gamma and n below 2^31 fits 63 bits.
_MAX_RECORDS = (1 << 31) - 1
_AMOUNT = 1 << 31  # about the sum of the amounts of a user whose records have weights
# What a user adds: one of their records, their location of largest weight, or a distribution over all their locations.
Contribution = Literal["one", "top", "all"]
MAX_GROUP_BITS = 16  # NumPy sorts numbers of at most 16 bits by their digits, which takes linear time
ROW_BYTES = 160  # of memory at most, for each record of a group while its users are bounded
MAX_GROUP_BYTES = 2_000_000_000
_GROUP_ROWS = 1 << 20  # of logs of few rows, so that all workers have some groups
_MIN_BITS, _MANY_BITS = 2, 6
_BUFFERED_ROWS = 1 << 22
_RARE_BITS = 10


def join_records(
    chunks: Iterable[bytes], places: Places
) -> tuple[NDArray[np.uint64], NDArray[Any], NDArray[np.float64] | None]:
    """Returns all records of one user group, in any order, from its chunks, which are taken, see `spill.take`.

    Hashes are uint64[n], codes places.dtype[n], and values float64[n], or None where the chunks hold none.
    """
    chunks = list(chunks)
    values = [np.dtype(np.float64)] * (len(lengths_of(chunks[0])) - 2)
    users, *held, codes = join(chunks, (np.dtype(np.uint64), *values, places.dtype), last=True)
    return users, codes, held[0] if held else None


def keyed_below(users: NDArray[np.uint64], below: NDArray[np.int64]) -> NDArray[np.int64]:
    """Returns a keyed uniform integer in [0, below) for each user, int64[users], from the lower 32 bits of their hash.

    below is at most 2^31. The distance from uniform is at most below / 2^32.
    """
    words = (users & np.uint64(0xFFFFFFFF)) * below.astype(np.uint64)
    return (words >> np.uint64(32)).astype(np.int64)


def dwell_weights(users: NDArray[np.uint64], seconds: NDArray[np.float64], max_dwell: float) -> NDArray[np.float64]:
    """Returns how long each record lasts, in seconds, float64[n]: until the same user's next record, at most max_dwell.

    A user's last record lasts max_dwell, so no user's weights are all zero. Records of one user and moment share their
    time. Records may be in any order.
    """
    order = np.lexsort((seconds, users))
    users, seconds = users[order], seconds[order]
    new_user = np.ones(len(users), dtype=bool)
    new_user[1:] = users[1:] != users[:-1]
    new_moment = new_user.copy()
    new_moment[1:] |= seconds[1:] != seconds[:-1]
    first = np.flatnonzero(new_moment)
    at, last = seconds[first], np.append(new_user[first[1:]], True)
    with np.errstate(over="ignore"):  # an infinite wait is cut to max_dwell
        wait = np.diff(at, append=np.inf)
    wait = np.where(last, max_dwell, np.minimum(wait, max_dwell))
    together = np.diff(first, append=len(users))
    weights = np.empty(len(users))
    weights[order] = np.repeat(wait / together, together)
    return weights


@dataclass(frozen=True)
class UserRecords:
    """Records in the order of (user, code), whatever their order was."""

    places: Places
    users: NDArray[np.uint64]  # [users], the distinct hashes, ascending
    starts: NDArray[np.int64]  # [users], the index of each user's first record
    counts: NDArray[np.int64]  # [users], the number of their records
    by_code: NDArray[np.uint64]  # [n], (index of the user in `users`) << places.bits | code, ascending
    weights: NDArray[np.float64] | None = None  # [n], finite and at least 0; None where all records weigh the same

    @classmethod
    def from_columns(
        cls, users: NDArray[np.uint64], codes: NDArray[Any], places: Places, weights: NDArray[np.float64] | None = None
    ) -> UserRecords:
        """Sorts records of at most `most_users` users: hashes uint64[n], sorted in place, and codes unsigned[n]."""
        order = np.argsort(users)
        codes = codes[order]
        weights = None if weights is None else weights[order]
        del order  # up to half of a worker's memory
        users.sort()
        new = np.ones(len(users), dtype=bool)
        new[1:] = users[1:] != users[:-1]
        starts = np.flatnonzero(new)
        del new
        counts = np.diff(starts, append=len(users))
        # Sorting (index of the user, code) as one number orders each user's records by code.
        by_code = np.repeat(np.arange(len(starts), dtype=np.uint64), counts)
        by_code <<= np.uint64(places.bits)
        by_code |= codes
        if weights is None:
            by_code.sort()
            return cls(places, users[starts], starts, counts, by_code)
        by_place = np.argsort(by_code)
        return cls(places, users[starts], starts, counts, by_code[by_place], weights[by_place])

    def codes_of(self, rows: NDArray[np.int64]) -> NDArray[np.uint64]:
        return self.by_code[rows] & self.places.mask

    def amounts(self) -> Amounts:
        """Returns the amount of each user in each of their locations. Raises DataError for too many records."""
        if len(self.by_code) > _MAX_RECORDS:
            raise DataError(
                "too many records in a group of users: use less data, or plain --contribution one without weights"
            )
        last = np.ones(len(self.by_code), dtype=bool)  # whether this is the last of its user's records in its location
        last[:-1] = self.by_code[1:] != self.by_code[:-1]
        rows = np.flatnonzero(last)
        user = (self.by_code[rows] >> np.uint64(self.places.bits)).astype(np.int64)
        if self.weights is None:
            return Amounts(rows, user, rows + 1, self.starts, self.counts)
        first_place = np.searchsorted(user, np.arange(len(self.users)))
        # A user's heaviest record becomes about 2^62 / (number of records), so that the sum fits 63 bits. Rounding
        # loses nothing that matters, and integers have the same sum in any order. Weights of only 0 count as equal.
        heaviest = np.repeat(np.maximum.reduceat(self.weights, self.starts), self.counts)
        shares = np.divide(self.weights, heaviest, out=np.ones_like(heaviest), where=heaviest > 0)
        bits = 62 - np.frexp(self.counts.astype(np.float64))[1]
        integers = np.ldexp(shares, np.repeat(bits, self.counts)).astype(np.int64)
        held = np.add.reduceat(integers, np.append(0, rows[:-1] + 1)).astype(np.float64)
        held /= np.add.reduceat(integers, self.starts)[user]
        upto = np.cumsum((held * _AMOUNT).astype(np.int64))  # below 2^62: users of a group times 2^31
        ends = upto[np.append(first_place[1:], len(user)) - 1]
        totals = np.diff(ends, prepend=0)
        return Amounts(rows, user, upto, ends - totals, totals)


def sorted_records(
    users: NDArray[np.uint64],
    codes: NDArray[Any],
    values: NDArray[np.float64] | None,
    places: Places,
    max_dwell: float | None,
) -> Iterator[UserRecords]:
    """Yields the records of `join_records` in order, by blocks of users. `users` may be sorted in place.

    A block has as many users as fit with a code in 64 bits. No number of users is an error: one user more would end a
    run. max_dwell: seconds, if values are times; None if they are weights.
    """
    if values is not None and max_dwell is not None:
        values = dwell_weights(users, values, max_dwell)
    most_users = 1 << (64 - places.bits)
    if len(users) <= most_users:
        yield UserRecords.from_columns(users, codes, places, values)
        return
    order = np.argsort(users)
    users, codes, values = users[order], codes[order], None if values is None else values[order]
    starts = np.flatnonzero(np.append(True, users[1:] != users[:-1]))
    for first, end in itertools.pairwise([*starts[::most_users].tolist(), len(users)]):
        block = slice(first, end)
        yield UserRecords.from_columns(users[block], codes[block], places, None if values is None else values[block])


@dataclass(frozen=True)
class Amounts:
    """The amount of each user in each of their locations, in integers: the records there, or a share of their weights.

    A row is a location of a user, in the order of (user, code).
    """

    rows: NDArray[np.int64]  # [rows], the index of one of its records
    user: NDArray[np.int64]  # [rows], the index of the user
    upto: NDArray[np.int64]  # [rows], the sum of all amounts up to and including this row
    before: NDArray[np.int64]  # [users], the sum of all amounts before a user's first row
    totals: NDArray[np.int64]  # [users], the sum of each user's amounts, in 1..2^31


def group_bits(rows: int, max_bytes: float = MAX_GROUP_BYTES) -> int:
    """Returns how many upper bits of a hash say the user group, 2..16: log2 of the number of groups.

    It follows from public figures only, and no result depends on it. Groups have about a million rows, up to 64
    groups. From there on they grow up to the memory for one group, and then their number follows the rows.
    """
    few = min((-(-rows // _GROUP_ROWS) - 1).bit_length(), _MANY_BITS) if rows else 0
    needed = max(math.ceil(rows * ROW_BYTES / max_bytes) - 1, 0).bit_length()
    return max(_MIN_BITS, min(max(few, needed), MAX_GROUP_BITS))


def by_user_group(
    users: NDArray[np.uint64], bits: int = DEFAULT_GROUP_BITS
) -> tuple[NDArray[np.int64], list[tuple[int, slice]]]:
    """Sorts records by user group: the upper 1..16 bits of the users' hashes, uint64[n].

    Returns the order of the records, int64[n], and of each group that has records its number and slice of the order.
    """
    group = (users >> np.uint64(64 - bits)).astype(np.uint8 if bits <= 8 else np.uint16)
    ends = np.cumsum(np.bincount(group, minlength=1 << bits)).tolist()
    slices = enumerate(map(slice, [0, *ends], ends))
    order = np.argsort(group, kind="stable")  # a radix sort, for 8 and 16 bits
    return order, [(number, rows) for number, rows in slices if rows.stop > rows.start]


class UserGroups:
    """Records of some batches, split by user group. Each group's columns are its own arrays, released separately."""

    def __init__(self, spill: Spill):
        self._spill = spill
        self._records: defaultdict[int, list[tuple[NDArray[Any], ...]]] = defaultdict(list)
        self._unusable: defaultdict[int, list[tuple[NDArray[Any], ...]]] = defaultdict(list)
        self._rows = 0

    @property
    def is_full(self) -> bool:
        """Returns whether there are enough rows for `chunks`: about four million."""
        return self._rows >= _BUFFERED_ROWS

    def add(self, batch: EncodedLocations) -> None:
        """Adds the records of a batch, and its users of dropped rows."""
        columns = (batch.users, batch.codes) if batch.values is None else (batch.users, batch.values, batch.codes)
        self._add(self._records, columns)
        self._add(self._unusable, (batch.unusable,))

    def _add(self, groups: defaultdict[int, list[tuple[NDArray[Any], ...]]], columns: tuple[NDArray[Any], ...]) -> None:
        order, slices = by_user_group(columns[0], self._spill.group_bits)
        for number, rows in slices:  # `clip` checks no index, and so needs no copy
            groups[number].append(tuple(column.take(order[rows], mode="clip") for column in columns))
        self._rows += len(order)

    def chunks(self) -> Iterator[tuple[int, bytes]]:
        """Yields (group, stored columns) and forgets the records.

        The columns are hashes, values if there are any, and codes. Users of dropped rows have chunks of their own, with
        hashes only.
        """
        for groups in (self._records, self._unusable):
            while groups:
                number, pieces = groups.popitem()
                joined = pieces[0] if len(pieces) == 1 else map(np.concatenate, zip(*pieces, strict=True))
                yield number, self._spill.store(*(column.data for column in joined))
        self._rows = 0


def split_unusable(chunks: Iterable[bytes]) -> tuple[list[bytes], list[bytes]]:
    """Separates the chunks of one group: those with records, and those with hashes of users of dropped rows only."""
    records: list[bytes] = []
    unusable: list[bytes] = []
    for chunk in chunks:
        (unusable if len(lengths_of(chunk)) == 1 else records).append(chunk)
    return records, unusable


def count_unusable(records: list[bytes], unusable: list[bytes]) -> int:
    """Returns how many users of dropped rows have no record. The arguments are the results of `split_unusable`."""
    if not unusable:
        return 0
    hashes = np.unique(np.concatenate(list(map(_users_of, unusable))))
    for chunk in records:
        hashes = hashes[~np.isin(hashes, _users_of(chunk))]
    return len(hashes)


def count_distinct(records: list[bytes]) -> int:
    """Returns how many users the chunks of one group's records have, by their whole hashes."""
    return len(np.unique(np.concatenate(list(map(_users_of, records)))))


def _users_of(chunk: bytes) -> NDArray[np.uint64]:
    return np.frombuffer(load(chunk)[0], np.uint64)


def any_repeated(users: NDArray[np.uint64]) -> bool:
    """Returns whether any user occurs twice. A sort of hashes only is far faster than one of pairs."""
    ordered = np.sort(users)
    return bool((ordered[1:] == ordered[:-1]).any())


def bound_users(
    chunks: Iterable[bytes], places: Places, max_dwell: float | None = None, top: bool = False
) -> NDArray[np.uint64]:
    """Returns one location of each user: uint64[users], ascending, the hash's upper 64 - places.bits bits above the
    code.

    The lower bits of the user's hash choose one of their records, uniformly or with probability in proportion to
    weights. So the choice depends on no other user and on no order. top: it is the location that holds most of the
    user's records or weight; among equal ones, by their hash.

    chunks: of one group's records, see `join_records`. max_dwell: see `sorted_records`.
    """
    users, codes, values = join_records(chunks, places)
    if not len(users):
        return users
    bounded = users & ~places.mask
    bounded |= codes
    bounded.sort()
    if _may_repeat(users, bounded, places):
        del bounded
        blocks = []
        for records in sorted_records(users, codes, values, places, max_dwell):
            chosen = _most_frequent(records) if top else _drawn(records)
            blocks.append(records.users & ~places.mask | records.codes_of(chosen))
        bounded = np.concatenate(blocks)
        bounded.sort()  # users with equal upper bits are in the order of their codes
    return bounded


def _may_repeat(users: NDArray[np.uint64], bounded: NDArray[np.uint64], places: Places) -> bool:
    """Returns whether any user occurs twice, by the upper bits of `bounded`, which are in order, and then by whole
    hashes.
    """
    upper = bounded >> np.uint64(places.bits)
    equal = upper[np.flatnonzero(upper[1:] == upper[:-1])]
    if not len(equal):
        return False
    if len(equal) > len(users) >> _RARE_BITS:  # far more than by chance
        return any_repeated(users)
    return any_repeated(users[np.isin(users >> np.uint64(places.bits), equal)])


def bound_slots(chunks: Iterable[bytes], places: Places, records_per_user: int) -> NDArray[np.uint64]:
    """Returns one record of each user in each of this many slots at most: uint64[rows], like the results of
    `bound_users`.

    In each slot one record counts, and of the slots `records_per_user`, both drawn uniformly. A user's hash decides,
    so the choice depends on no other user and on no order. chunks: see `join_records`, without weights.
    """
    users, codes, _ = join_records(chunks, places)
    blocks = sorted_records(users, codes, None, places, None)
    return np.sort(np.concatenate([_slots_of_users(records, places, records_per_user) for records in blocks]))


def _slots_of_users(records: UserRecords, places: Places, records_per_user: int) -> NDArray[np.uint64]:
    """See `bound_slots`; in any order."""
    slot_of_row = records.by_code >> np.uint64(2 * places.depth)  # with the index of the user above
    new = np.ones(len(slot_of_row), dtype=bool)
    new[1:] = slot_of_row[1:] != slot_of_row[:-1]
    first = np.flatnonzero(new)
    count = np.diff(first, append=len(slot_of_row))
    user = (records.by_code[first] >> np.uint64(places.bits)).astype(np.int64)
    slot = slot_of_row[first] & np.uint64((1 << places.bin_bits) - 1)
    row = first + keyed_below(_mixed(records.users[user], slot, 1), count)
    order = np.lexsort((_mixed(records.users[user], slot, 2), user))
    begins = np.searchsorted(user[order], user[order])  # users ascend in this order too
    chosen = np.sort(order[np.arange(len(order)) - begins < records_per_user])
    return (records.users[user[chosen]] & ~places.mask) | records.codes_of(row[chosen])


def _mixed(hashes: NDArray[np.uint64], slot: NDArray[np.uint64], stream: int) -> NDArray[np.uint64]:
    """Returns pseudo-random bits for each user and slot, uint64[n], by SplitMix64 (Steele, Lea and Flood 2014)."""
    with np.errstate(over="ignore"):
        bits = hashes + (slot * np.uint64(4) + np.uint64(stream)) * np.uint64(0x9E3779B97F4A7C15)
        bits = (bits ^ (bits >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        bits = (bits ^ (bits >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
        return np.asarray(bits ^ (bits >> np.uint64(31)))


def _drawn(records: UserRecords) -> NDArray[np.int64]:
    """Returns for each user the record at a keyed position among their records, in order of locations: int64[users]."""
    if records.weights is None:
        return records.starts + keyed_below(records.users, records.counts)
    amounts = records.amounts()
    position = amounts.before + keyed_below(records.users, amounts.totals)
    return amounts.rows[np.searchsorted(amounts.upto, position, side="right")]


def _most_frequent(records: UserRecords) -> NDArray[np.int64]:
    """Returns for each user a record in the location that holds most of their records or weight: int64[users]."""
    amounts = records.amounts()
    held = np.diff(amounts.upto, prepend=0)
    most = np.maximum.reduceat(held, np.searchsorted(amounts.user, np.arange(len(records.users))))
    alike = np.flatnonzero(held == most[amounts.user])
    ties = np.bincount(amounts.user[alike])
    return np.asarray(amounts.rows[alike[np.cumsum(ties) - ties + keyed_below(records.users, ties)]])
