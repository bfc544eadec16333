"""From Arrow batches to users, locations, weights and categories. Bad rows are dropped and counted by reason. Pure."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as pt
from numpy.typing import NDArray

from sfumato.schemas.locations import DROP_REASONS, Auxiliary, LocationColumns, holds_text
from sfumato.schemas.region import Locator, Places
from sfumato.schemas.slots import Slots
from sfumato.transforms.inputs.local_time import DAY_SECONDS, PER_SECOND, local_seconds
from sfumato.transforms.inputs.text_values import as_bytes, decoded, nulls, without_views
from sfumato.transforms.privacy.user_hashes import hash_users

REASONS = ("null_value", "bad_weight", "unknown_category")
_EPOCH_WEEKDAY = 3  # 1 January 1970 was a Thursday
NULL_USER = DROP_REASONS.index("null_user_id")
_VALUE_REASONS = [DROP_REASONS.index(reason) for reason in REASONS]

# Rows of a block: its temporary columns stay in the processor's cache.
_BLOCK_ROWS = 1 << 16


def read_values(
    block: pa.RecordBatch, columns: LocationColumns
) -> tuple[NDArray[np.float64] | None, NDArray[np.uint64] | None, NDArray[np.int8]]:
    """Reads the values of a batch of n rows.

    Returns:
        Weights or times in seconds, float64[n], and categories or slots, uint64[n]; None where the columns name none.
        Then the fault of each row, int8[n]: 0 for a good row, else 1 + the index in REASONS. The other numbers of a row
        with a fault have no meaning.
    """
    faults = np.zeros(block.num_rows, dtype=np.int8)
    numbers = categories = None
    if columns.weight is not None:
        numbers = _numbers(block.column(columns.weight))
        _note(faults, "bad_weight", ~((numbers >= 0) & (numbers < np.inf)))
        _note(faults, "null_value", nulls(block.column(columns.weight)))
    elif columns.time is not None:
        numbers = _numbers(block.column(columns.time))
        _note(faults, "null_value", ~np.isfinite(numbers))
    if columns.auxiliary is not None:
        categories, known = _categories(block.column(columns.auxiliary.column), columns.auxiliary)
        _note(faults, "unknown_category", ~known & (faults == 0))
        _note(faults, "null_value", nulls(block.column(columns.auxiliary.column)))
    if columns.slots is not None:
        categories, known = slots_of(block.column(columns.slots.column), columns.slots)
        _note(faults, "null_value", ~known & (faults == 0))
    return numbers, categories, faults


def _note(faults: NDArray[np.int8], reason: str, where: NDArray[np.bool_]) -> None:
    faults[where] = 1 + REASONS.index(reason)


def _numbers(column: pa.Array) -> NDArray[np.float64]:
    """Returns numbers, and times in seconds. Nulls are NaN."""
    column, unit = decoded(column), 1
    if pt.is_timestamp(column.type):
        column, unit = column.cast(pa.int64()), PER_SECOND[column.type.unit]
    return np.asarray(column.to_numpy(zero_copy_only=False), dtype=np.float64) / unit


def slots_of(column: pa.Array, slots: Slots) -> tuple[NDArray[np.uint64], NDArray[np.bool_]]:
    """Returns the slot of each time, by the local time of the slots' zone, and whether there is a time: uint64[n],
    bool[n].

    A timestamp without a zone, and a number of seconds since 1970, is in UTC. A moment outside the years 1 to 9999
    counts as no time.
    """
    local, known = local_seconds(column, slots.time_zone)
    day, second = np.divmod(local, DAY_SECONDS)
    if slots.kind == "day":
        return (day % len(slots)).astype(np.uint64), known
    weekday = (day + _EPOCH_WEEKDAY) % 7
    if slots.kind == "weekday":
        return weekday.astype(np.uint64), known
    hour = np.searchsorted(slots.edge_seconds, second, side="right") - 1
    slot = hour + 24 * weekday if slots.kind == "hour_of_week" else hour
    return np.asarray(slot, dtype=np.uint64), known


def _categories(column: pa.Array, auxiliary: Auxiliary) -> tuple[NDArray[np.uint64], NDArray[np.bool_]]:
    """Returns the index of each value among the categories, and whether it is one of them: uint64[n], bool[n]."""
    column = decoded(column)
    if holds_text(column.type):
        texts = pa.array([name.encode() for name in auxiliary.categories], pa.large_binary())
        found = pc.index_in(as_bytes(column), value_set=texts).fill_null(-1).to_numpy()
        return np.maximum(found, 0).astype(np.uint64), found >= 0
    values = column.fill_null(False if pt.is_boolean(column.type) else 0).to_numpy(zero_copy_only=False)
    known = [("false", "true").index(name) if auxiliary.is_boolean else int(name) for name in auxiliary.categories]
    matches = np.array([values == value for value in known], dtype=bool)
    return np.argmax(matches, axis=0).astype(np.uint64), np.asarray(np.any(matches, axis=0))


@dataclass(frozen=True)
class EncodedLocations:
    """The n valid rows of a batch. A user of a valid row may also be among the k users of dropped rows."""

    users: NDArray[np.uint64]  # [n], keyed hashes of the ids
    codes: NDArray[Any]  # places.dtype[n], locations and categories
    rows: int  # that were read
    dropped: tuple[int, ...]  # rows, one number for each reason of DROP_REASONS
    values: NDArray[np.float64] | None = None  # [n], weights or times in seconds; None where the columns name none
    # [k], the users of dropped rows that have an id, in any order
    unusable: NDArray[np.uint64] = field(default_factory=lambda: np.empty(0, dtype=np.uint64))


def encode_locations(
    batch: pa.RecordBatch,
    columns: LocationColumns,
    locator: Locator,
    user_key: bytes,
    drawn: Callable[[NDArray[np.uint64]], NDArray[np.bool_]] | None = None,
) -> EncodedLocations:
    """Hashes the users and codes the locations of one Arrow batch.

    locator: gives a location its code. Rows without one are dropped as out of the region.
    drawn: hashes uint64[n] -> bool[n], whether to keep each user; None keeps all users.
    """
    rows = batch.num_rows
    users = np.empty(rows, dtype=np.uint64)
    codes = np.empty(rows, dtype=Places(locator.depth, columns.bins).dtype)
    values = np.empty(rows, dtype=np.float64) if columns.has_weights else None
    kept, dropped, unusable = 0, np.zeros(len(DROP_REASONS), dtype=np.int64), [np.empty(0, dtype=np.uint64)]
    for first in range(0, rows, _BLOCK_ROWS):
        rows_of_block = batch.slice(first, _BLOCK_ROWS)
        block, cells, usable = _located(rows_of_block, columns, locator, dropped)
        numbers = categories = None
        if columns.has_weights or columns.bins > 1:
            numbers, categories, faults = read_values(block, columns)
            good = faults == 0
            if not good.all():
                dropped[_VALUE_REASONS] += np.bincount(faults, minlength=1 + len(REASONS))[1:]
                block, cells = block.filter(pa.array(good)), cells[good]
                numbers, categories = _only(good, numbers), _only(good, categories)
                usable = _within(usable, good)
        if len(cells) < rows_of_block.num_rows:
            unusable.append(_users_of(rows_of_block.column(columns.user_id), ~usable, user_key))
        hashes = hash_users(block.column(columns.user_id), user_key)
        if drawn is not None:
            drawn_rows = np.flatnonzero(drawn(hashes))  # for several columns, indices are faster than a mask
            hashes, cells = hashes[drawn_rows], cells[drawn_rows]
            numbers, categories = _only(drawn_rows, numbers), _only(drawn_rows, categories)
        end = kept + len(cells)
        users[kept:end] = hashes
        codes[kept:end] = cells if categories is None else cells | categories << np.uint64(2 * locator.depth)
        if values is not None:
            values[kept:end] = numbers
        kept = end
    return EncodedLocations(
        users[:kept],
        codes[:kept],
        rows,
        tuple(int(n) for n in dropped),
        None if values is None else values[:kept],
        np.unique(np.concatenate(unusable)) if len(unusable) > 1 else unusable[0],
    )


def _within(outer: NDArray[np.bool_], inner: NDArray[np.bool_]) -> NDArray[np.bool_]:
    """Returns the mask `outer` with its true values replaced by `inner`, a mask of these only."""
    both = outer.copy()
    both[outer] = inner
    return both


def _users_of(ids: pa.Array, rows: NDArray[np.bool_], user_key: bytes) -> NDArray[np.uint64]:
    """Returns the distinct hashes of the users of some rows. Rows without an id have none."""
    with_id = rows & ~nulls(ids)
    return np.unique(hash_users(without_views(ids).filter(pa.array(with_id)), user_key))


def _located(
    block: pa.RecordBatch, columns: LocationColumns, locator: Locator, dropped: NDArray[np.int64]
) -> tuple[pa.RecordBatch, NDArray[np.uint64], NDArray[np.bool_]]:
    """Returns the rows with a user and coordinates that have a code, their codes, and a mask of these rows among
    all rows, bool[n].

    The numbers of dropped rows are added to `dropped`.
    """
    usable = np.ones(block.num_rows, dtype=bool)
    ids, latitude, longitude = (block.column(name) for name in (columns.user_id, columns.latitude, columns.longitude))
    names = columns.names_beside_coordinates()
    rest = pa.RecordBatch.from_arrays([without_views(block.column(name)) for name in names], names)
    if ids.null_count or latitude.null_count or longitude.null_count:
        null_user = nulls(ids)
        null_coordinate = nulls(latitude) | nulls(longitude)
        dropped[0] += null_user.sum()
        dropped[1] += (null_coordinate & ~null_user).sum()
        usable = ~(null_user | null_coordinate)
        present = pa.array(usable)
        rest, latitude, longitude = (column.filter(present) for column in (rest, latitude, longitude))
    north, east = (np.asarray(one.to_numpy(zero_copy_only=False), np.float64) for one in (latitude, longitude))
    inside, cells = locator.locate(east, north)
    if not inside.all():
        dropped[2:5] += _reasons(north, east, inside)
        rest, usable = rest.filter(pa.array(inside)), _within(usable, inside)
    return rest, cells, usable


def _only(rows: NDArray[np.bool_] | NDArray[np.int64], column: NDArray[Any] | None) -> NDArray[Any] | None:
    return None if column is None else column[rows]


def _reasons(north: NDArray[np.float64], east: NDArray[np.float64], inside: NDArray[np.bool_]) -> NDArray[np.int64]:
    """Counts rows that are not finite, out of range, or out of the region: int64[3].

    A row counts for its first reason.
    """
    finite = np.isfinite(north) & np.isfinite(east)
    on_globe = (np.abs(north) <= 90) & (np.abs(east) <= 180)
    return np.array([(~finite).sum(), (finite & ~on_globe).sum(), (on_globe & ~inside).sum()])
