"""The values of records beside user and location, from Arrow columns: weight or time, and category or slot. Pure."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as pt
from numpy.typing import NDArray

from sfumato.schemas.locations import Auxiliary, LocationColumns, holds_text
from sfumato.schemas.slots import Slots
from sfumato.transforms.inputs.local_time import DAY_SECONDS, local_seconds
from sfumato.transforms.inputs.text_values import as_bytes

REASONS = ("null_value", "bad_weight", "unknown_category")
_PER_SECOND = {"s": 1, "ms": 10**3, "us": 10**6, "ns": 10**9}
_EPOCH_WEEKDAY = 3  # 1 January 1970 was a Thursday


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
        numbers = _seconds(block.column(columns.time))
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


def nulls(column: pa.Array) -> NDArray[np.bool_]:
    """Whether each value is missing: bool[n]."""
    return np.asarray(column.is_null().to_numpy(zero_copy_only=False), dtype=bool)


def _plain(column: pa.Array) -> pa.Array:
    return column.dictionary_decode() if pt.is_dictionary(column.type) else column


def _numbers(column: pa.Array) -> NDArray[np.float64]:
    """Nulls are NaN."""
    return np.asarray(_plain(column).to_numpy(zero_copy_only=False), dtype=np.float64)


def _seconds(column: pa.Array) -> NDArray[np.float64]:
    column = _plain(column)
    if not pt.is_timestamp(column.type):
        return _numbers(column)
    return _numbers(column.cast(pa.int64())) / _PER_SECOND[column.type.unit]


def slots_of(column: pa.Array, slots: Slots) -> tuple[NDArray[np.uint64], NDArray[np.bool_]]:
    """The slot of each time, by the local time of the slots' zone, and whether there is a time: uint64[n], bool[n].

    A timestamp without a zone, and a number of seconds since 1970, is in UTC. A moment outside the years 1 to 9999
    counts as no time.
    """
    local, known = local_seconds(column, slots.time_zone)
    day, second = np.divmod(local, DAY_SECONDS)
    weekday = (day + _EPOCH_WEEKDAY) % 7
    if slots.kind == "weekday":
        return weekday.astype(np.uint64), known
    hour = np.searchsorted(slots.edge_seconds, second, side="right") - 1
    slot = hour + 24 * weekday if slots.kind == "hour_of_week" else hour
    return np.asarray(slot, dtype=np.uint64), known


def _categories(column: pa.Array, auxiliary: Auxiliary) -> tuple[NDArray[np.uint64], NDArray[np.bool_]]:
    """The index of each value among the categories, and whether it is one of them: uint64[n], bool[n]."""
    column = _plain(column)
    if holds_text(column.type):
        texts = pa.array([name.encode() for name in auxiliary.categories], pa.large_binary())
        found = pc.index_in(as_bytes(column), value_set=texts).fill_null(-1).to_numpy()
        return np.maximum(found, 0).astype(np.uint64), found >= 0
    values = column.fill_null(False if pt.is_boolean(column.type) else 0).to_numpy(zero_copy_only=False)
    known = [("false", "true").index(name) if auxiliary.is_boolean else int(name) for name in auxiliary.categories]
    matches = np.array([values == value for value in known], dtype=bool)
    return np.argmax(matches, axis=0).astype(np.uint64), np.asarray(np.any(matches, axis=0))
