"""All records of some users in one order: by user, then by location, whatever the order of files and bundles. Pure.

Weights of records become integers here: the amounts of a user's locations. All that follows is exact, and is the same
for weights as for plain counts.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sfumato.schemas.errors import DataError
from sfumato.schemas.places import Places
from sfumato.transforms.locations.spill import join, lengths_of

# A group of users has fewer records: gamma n + n with gamma and n below 2^31 fits 63 bits.
_MAX_RECORDS = (1 << 31) - 1
_AMOUNT = 1 << 31  # about the sum of the amounts of a user whose records have weights


def join_records(
    chunks: Iterable[bytes], places: Places
) -> tuple[NDArray[np.uint64], NDArray[Any], NDArray[np.float64] | None]:
    """All records of one user group, in any order. The chunks are taken, see `spill.take`.

    Args:
        chunks: of the group, from `split_by_user_group`.
        places: how a location and a category are coded.

    Returns:
        Hashes, uint64[n], codes, places.dtype[n], and values, float64[n], or None where the chunks hold none.
    """
    chunks = list(chunks)
    hashes, value = np.dtype(np.uint64), np.dtype(np.float64)
    if len(lengths_of(chunks[0])) == 3:
        users, values, codes = join(chunks, (hashes, value, places.dtype), last=True)
        return users, codes, values
    users, codes = join(chunks, (hashes, places.dtype), last=True)
    return users, codes, None


def keyed_below(users: NDArray[np.uint64], below: NDArray[np.int64]) -> NDArray[np.int64]:
    """A keyed uniform integer in [0, below) for each user, int64[users], from the lower 32 bits of their hash.

    users: uint64[users], hashes. below: int64[users], at most 2^31. The distance from uniform is at most below / 2^32.
    """
    words = (users & np.uint64(0xFFFFFFFF)) * below.astype(np.uint64)
    return (words >> np.uint64(32)).astype(np.int64)


def dwell_weights(users: NDArray[np.uint64], seconds: NDArray[np.float64], max_dwell: float) -> NDArray[np.float64]:
    """How long each record lasts, in seconds, float64[n]: until the same user's next record, at most max_dwell.

    A user's last record lasts max_dwell, so no user's weights are all zero. Records of one user and moment share their
    time.

    users, seconds: uint64[n], float64[n], in any order.
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
    """Records in the order of (user, code), whatever their order was.

    Attributes:
        places: how a location and a category are coded.
        users: uint64[users], the distinct hashes, ascending.
        starts, counts: int64[users], the index of each user's first record and the number of their records.
        by_code: uint64[n], (index of the user in `users`) << places.bits | code, ascending.
        weights: float64[n], finite and at least 0; None where all records weigh the same.
    """

    places: Places
    users: NDArray[np.uint64]
    starts: NDArray[np.int64]
    counts: NDArray[np.int64]
    by_code: NDArray[np.uint64]
    weights: NDArray[np.float64] | None = None

    @classmethod
    def from_columns(
        cls,
        users: NDArray[np.uint64],
        codes: NDArray[Any],
        places: Places,
        weights: NDArray[np.float64] | None = None,
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
        """The codes of some records: uint64[rows]."""
        return self.by_code[rows] & self.places.mask

    def amounts(self) -> Amounts:
        """The amount of each user in each of their locations. Raises DataError for too many records."""
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

    A block has as many users as fit beside a code in 64 bits. No number of users is an error: one user
    more would end a run.

    max_dwell: seconds, if values are times; None if they are weights.
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

    Attributes:
        rows: int64[rows], the index of one of its records.
        user: int64[rows], the index of the user.
        upto: int64[rows], the sum of all amounts up to and including this row.
        before: int64[users], the sum of all amounts before a user's first row.
        totals: int64[users], the sum of each user's amounts, in 1..2^31.
    """

    rows: NDArray[np.int64]
    user: NDArray[np.int64]
    upto: NDArray[np.int64]
    before: NDArray[np.int64]
    totals: NDArray[np.int64]
