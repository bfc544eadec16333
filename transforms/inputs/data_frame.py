"""Data frames of pandas as Arrow tables, each value by the role of its column. Pure.

The type of a data frame's column follows from all of its values: one missing id makes floating-point numbers of
integers, and one text makes objects of them. So a column's type decides nothing here. Each value is read separately, as
from a text format, and what a column is follows from the job's options.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, date, datetime, timedelta
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as pt
import shapely
from numpy.typing import NDArray

from sfumato.schemas.errors import RequestError
from sfumato.schemas.locations import TIME_TYPE, Columns
from sfumato.schemas.log_layout import CellColumn, LogLayout
from sfumato.transforms.inputs.log_file import types_of
from sfumato.transforms.inputs.text_values import canonical_text, finite, parsed, text_array, values_of

if TYPE_CHECKING:
    import pandas as pd

_BLOCK_ROWS = 1 << 20  # texts of a block fit an Arrow array
_EPOCH = datetime(1970, 1, 1)


def table_of(frame: pd.DataFrame, columns: Columns, layout: LogLayout) -> pa.Table:
    """Returns the columns that a job reads, each in the type of its role.

    Other columns are left out unread, as they may hold anything. Raises RequestError if two columns have the name of
    one that the job reads.
    """
    names = [str(label) for label in frame.columns]
    types = types_of(columns, layout)
    found = {name: types[name] for name in layout.columns if name in names}
    for name in found:
        if names.count(name) > 1:
            raise RequestError(f"input: the data frame has several columns named {name!r}; keep only one")
    if not found:  # the run ends with a message that lists the columns
        return pa.table({name: pa.nulls(len(frame)) for name in dict.fromkeys(names)})
    blocks = [
        pa.table(_arrays(frame.iloc[first : first + _BLOCK_ROWS], names, found, layout))
        for first in range(0, max(len(frame), 1), _BLOCK_ROWS)
    ]
    table = pa.concat_tables(blocks)
    if len(found) < len(layout.columns):  # then the run ends with a message that lists the columns
        for name in dict.fromkeys(names):
            if name not in found:
                table = table.append_column(name, pa.nulls(len(frame)))
    return table


def _arrays(
    frame: pd.DataFrame, names: list[str], types: Mapping[str, pa.DataType], layout: LogLayout
) -> dict[str, pa.Array]:
    made = {}
    for name, kind in types.items():
        column = frame.iloc[:, names.index(name)]
        if name == layout.place_column:
            made[name] = text_array([_place(value, layout.cells) for value in column])
        elif pt.is_timestamp(kind):
            # Without a zone, as text: one row can change the column's type, so whether times may lack zones must not
            # follow from it. They are read as the same moments.
            made[name] = _times(column, layout).cast(pa.timestamp("us"))
        else:
            made[name] = _numbers(column, layout) if pt.is_floating(kind) else parsed(_texts(column), kind)
    return made


# The columns of most frames hold numbers only. These are converted together, to the same values.


def _texts(column: pd.Series) -> pa.Array:
    if isinstance(column.dtype, np.dtype) and column.dtype.kind in "iu":
        return pa.array(column.to_numpy().astype(f"{column.dtype.kind}8")).cast(pa.string())
    values = column.tolist()
    if set(map(type, values)) == {str}:
        return text_array(values)
    return text_array([canonical_text(_plain(value)) for value in values])


def _numbers(column: pd.Series, layout: LogLayout) -> pa.Array:
    """Returns each value as a floating-point number; booleans, and texts of none, are missing."""
    if isinstance(column.dtype, np.dtype) and column.dtype.kind in "iuf":
        return finite(pa.array(column.to_numpy().astype(np.float64), from_pandas=True))
    return values_of(list(map(_plain, column)), pa.float64(), layout)


def _times(column: pd.Series, layout: LogLayout) -> pa.Array:
    """Returns each value as TIME_TYPE: a moment, seconds since 1970, or text of ISO 8601 or the layout's dates."""
    dtype: Any = column.dtype
    if dtype.kind == "M" and hasattr(dtype, "tz"):
        return _moments(column.dt.tz_convert(None).to_numpy())
    if isinstance(dtype, np.dtype) and dtype.kind == "M":
        return _moments(column.to_numpy())
    moments = pa.array([_microseconds(value) for value in column], pa.int64()).cast(TIME_TYPE)
    others = [None if isinstance(value, date) else _plain(value) for value in column]
    return pc.coalesce(moments, values_of(others, TIME_TYPE, layout))


def _moments(raw: NDArray[np.datetime64]) -> pa.Array:
    """Returns moments in UTC to the microsecond. Beyond the years 1 to 9999 they are missing."""
    years = raw.astype("datetime64[Y]").astype(np.int64) + 1970
    usable = ~np.isnat(raw) & (years >= 1) & (years <= 9999)
    microseconds = np.where(usable, raw, raw.dtype.type("NaT")).astype("datetime64[us]")
    return pa.array(microseconds.astype(np.int64), mask=~usable).cast(TIME_TYPE)


def _microseconds(value: Any) -> int | None:
    """Returns the microseconds from 1970 to a moment; None for what is none. See `_moments`."""
    if isinstance(value, np.datetime64):
        found: int | None = _moments(np.array([value]))[0].value
        return found
    if not isinstance(value, date) or value != value:  # pandas' missing time is a date
        return None
    if not isinstance(value, datetime):
        value = datetime(value.year, value.month, value.day)
    try:
        naive = value if value.tzinfo is None else value.astimezone(UTC).replace(tzinfo=None)
        return (naive - _EPOCH) // timedelta(microseconds=1) if 1 <= naive.year <= 9999 else None
    except (OverflowError, ValueError):
        return None


def _plain(value: Any) -> Any:
    """Returns a value as one that every format has, where it has one."""
    if isinstance(value, complex | np.complexfloating):  # one in a column makes all numbers complex
        return None if value.imag else value.real
    if isinstance(value, bytes):
        return value.decode("utf-8", "surrogateescape")
    if isinstance(value, date):
        return value.isoformat() if value == value else None
    return None if isinstance(value, np.datetime64 | np.timedelta64) else value


def _place(value: Any, cells: CellColumn | None) -> str | None:
    """Returns a place as text: points as hexadecimal WKB or as WKT, cells of H3 in hexadecimal."""
    if isinstance(value, bytes):
        return value.hex()
    if isinstance(value, shapely.Point):
        return str(shapely.to_wkb(value, hex=True))
    text = canonical_text(_plain(value))
    is_number = isinstance(value, int | np.integer) and text is not None and text.isdecimal()
    return f"{int(value):x}" if is_number and cells is not None and cells.index == "h3" else text
