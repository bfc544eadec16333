"""From Arrow batches to hashes of users and codes of locations. Bad rows are dropped and counted by reason. Pure."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from sfumato.schemas.locations import DROP_REASONS, LocationColumns
from sfumato.schemas.places import Places
from sfumato.schemas.region import Locator
from sfumato.transforms.inputs.text_values import without_views
from sfumato.transforms.locations.record_values import REASONS, nulls, read_values
from sfumato.transforms.privacy.user_hashes import hash_users

NULL_USER = DROP_REASONS.index("null_user_id")
_VALUE_REASONS = [DROP_REASONS.index(reason) for reason in REASONS]

# Rows of a block: its temporary columns stay in the processor's cache.
_BLOCK_ROWS = 1 << 16


@dataclass(frozen=True)
class EncodedLocations:
    """The n valid rows of a batch.

    Attributes:
        users: uint64[n], keyed hashes of the ids.
        codes: places.dtype[n], locations and categories.
        rows: rows read.
        dropped: rows dropped, one number for each reason of DROP_REASONS.
        values: float64[n], weights or times in seconds; None where the columns name none.
        unusable: uint64[k], the users of dropped rows that have an id, in any order. Users of valid rows may be among
            them.
    """

    users: NDArray[np.uint64]
    codes: NDArray[Any]
    rows: int
    dropped: tuple[int, ...]
    values: NDArray[np.float64] | None = None
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
            kept_users = np.flatnonzero(drawn(hashes))  # for several columns, indices are faster than a mask
            hashes, cells = hashes[kept_users], cells[kept_users]
            numbers, categories = _only(kept_users, numbers), _only(kept_users, categories)
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
    """The mask `outer` with its true values replaced by `inner`, a mask of these alone."""
    both = outer.copy()
    both[outer] = inner
    return both


def _users_of(ids: pa.Array, rows: NDArray[np.bool_], user_key: bytes) -> NDArray[np.uint64]:
    """The distinct hashes of the users of some rows. Rows without an id have none."""
    with_id = rows & ~nulls(ids)
    return np.unique(hash_users(without_views(ids).filter(pa.array(with_id)), user_key))


def _located(
    block: pa.RecordBatch, columns: LocationColumns, locator: Locator, dropped: NDArray[np.int64]
) -> tuple[pa.RecordBatch, NDArray[np.uint64], NDArray[np.bool_]]:
    """The rows with a user and coordinates that have a code.

    Returns:
        The rows, their codes, and which of all rows they are, bool[n]. The numbers of dropped rows are added to
        `dropped`.
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
    north, east = _degrees(latitude), _degrees(longitude)
    inside, cells = locator.locate(east, north)
    if not inside.all():
        dropped[2:5] += _reasons(north, east, inside)
        rest, usable = rest.filter(pa.array(inside)), _within(usable, inside)
    return rest, cells, usable


def _only(rows: NDArray[np.bool_] | NDArray[np.int64], column: NDArray[Any] | None) -> NDArray[Any] | None:
    return None if column is None else column[rows]


def _degrees(column: pa.Array) -> NDArray[np.float64]:
    return np.asarray(column.to_numpy(zero_copy_only=False), dtype=np.float64)


def _reasons(north: NDArray[np.float64], east: NDArray[np.float64], inside: NDArray[np.bool_]) -> NDArray[np.int64]:
    """Rows that are not finite, out of range, or out of the region: int64[3]. A row counts for its first reason."""
    finite = np.isfinite(north) & np.isfinite(east)
    on_globe = (np.abs(north) <= 90) & (np.abs(east) <= 180)
    return np.array([(~finite).sum(), (finite & ~on_globe).sum(), (on_globe & ~inside).sum()])
