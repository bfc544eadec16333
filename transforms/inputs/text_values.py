"""Values that a format holds as text: missing values, and times of ISO 8601 or in seconds. Pure."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as pt

from sfumato.schemas.errors import DataError
from sfumato.schemas.locations import TIME_TYPE

_MAX_SECONDS = 9e12  # since 1970, either way: what microseconds in 63 bits hold
_NUMBER = r"^[+-]?\d+(\.\d*)?$"
_ZONE = r"[T ]\d\d:?\d\d.*(Z|z|[+-]\d\d(:?\d\d)?)$"


def is_text(kind: pa.DataType) -> bool:
    """Whether an Arrow type holds strings."""
    return bool(pt.is_string(kind) or pt.is_large_string(kind) or pt.is_string_view(kind))


def from_text(column: pa.Array, kind: pa.DataType, path: str, name: str) -> pa.Array:
    """Text as values of another type, missing where it is empty.

    Args:
        column: strings.
        kind: strings, numbers, booleans, or TIME_TYPE.
        path, name: of the file and the column, for messages.

    Raises:
        DataError: a value is of another kind. The message does not quote it.
    """
    column = pc.if_else(pc.equal(column, ""), None, column)
    if is_text(kind):
        return column
    try:
        return to_times(column) if pt.is_timestamp(kind) else column.cast(kind)
    except pa.ArrowInvalid:
        what = "times of ISO 8601, or seconds since 1970" if pt.is_timestamp(kind) else f"values of {kind}"
        raise DataError(f"{path}: column {name!r} must hold {what}, and a value is neither") from None


def usable_values(column: pa.Array, kind: pa.DataType) -> pa.Array:
    """Text as values of another type; what is empty or of another kind is missing. Slower than `from_text`.

    So a value that one user's record holds does not decide whether a run ends.

    Args:
        column: strings.
        kind: numbers, booleans, or TIME_TYPE.
    """
    texts = pd.Series(column.to_numpy(zero_copy_only=False), dtype=object)
    if pt.is_boolean(kind):
        known = {"true": True, "1": True, "false": False, "0": False}
        return pa.array([known.get(str(text).lower()) for text in texts], kind)
    numbers = pd.to_numeric(texts, errors="coerce").to_numpy(dtype=np.float64, na_value=np.nan)
    if pt.is_integer(kind):
        whole = (np.abs(numbers) < 2.0**63) & (numbers == np.floor(numbers))
        return pa.array(np.where(whole, numbers, 0).astype(np.int64), kind, mask=~whole)
    if not pt.is_timestamp(kind):
        return pa.array(numbers, kind, mask=np.isnan(numbers))
    is_number = np.abs(numbers) < _MAX_SECONDS
    others = pd.to_datetime(texts.where(np.isnan(numbers)), errors="coerce", utc=True, format="ISO8601")
    times = others.to_numpy(dtype="datetime64[us]")
    seconds = np.round(np.where(is_number, numbers, 0) * 1e6).astype(np.int64)
    found = np.where(is_number, seconds, times.astype(np.int64))
    return pa.array(found, pa.int64(), mask=np.isnat(times) & ~is_number).cast(kind)


def largest_integer(column: pa.Array) -> float:
    """The largest absolute value of numbers that are all whole; 0 for others and where there is none."""
    numbers = np.asarray(column.drop_null().to_numpy(zero_copy_only=False), dtype=np.float64)
    numbers = numbers[np.isfinite(numbers)]
    return float(np.abs(numbers).max()) if len(numbers) and (numbers == np.round(numbers)).all() else 0.0


def to_times(column: pa.Array) -> pa.Array:
    """Text as TIME_TYPE: ISO 8601 with a zone, or without (then it is UTC), or seconds since 1970.

    A column may mix them. Raises ArrowInvalid for other text.
    """
    try:  # most columns hold one form alone
        return _without_zone(column)
    except pa.ArrowInvalid:
        pass
    numbers, zoned = pc.match_substring_regex(column, _NUMBER), pc.match_substring_regex(column, _ZONE)
    plain = pc.invert(pc.or_(numbers, zoned))
    seconds = pc.if_else(numbers, column, None).cast(pa.float64())
    return pc.coalesce(
        pc.cast(pc.round(pc.multiply(seconds, 1e6)), pa.int64(), safe=False).cast(TIME_TYPE),
        _cut(pc.if_else(zoned, column, None), "UTC"),
        _without_zone(pc.if_else(plain, column, None)),
    )


def _without_zone(column: pa.Array) -> pa.Array:
    return pc.assume_timezone(_cut(column, None), "UTC")


def _cut(column: pa.Array, zone: str | None) -> pa.Array:
    """Text as times to the microsecond; what is finer is cut off."""
    try:
        return column.cast(pa.timestamp("us", zone))
    except pa.ArrowInvalid:
        return column.cast(pa.timestamp("ns", zone)).cast(pa.timestamp("us", zone), safe=False)
