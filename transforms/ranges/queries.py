"""Files of range queries: squares by centre and side, one a row, read in batches and checked row by row.

A query file is Parquet with columns x and y, longitude and latitude of the square's centre in degrees, and size, its
side in metres, of any numeric types. Other columns are not read.
"""

from __future__ import annotations

import math
from collections.abc import Iterator

import numpy as np
import pyarrow as pa
import pyarrow.types as pt
from numpy.typing import NDArray

from sfumato.schemas.errors import DataError, RequestError
from sfumato.schemas.ranges import LARGEST, QUERY_COLUMNS, SMALLEST

QUERIES_SCHEMA = pa.schema([pa.field(name, pa.float64(), nullable=False) for name in QUERY_COLUMNS])
BATCH_ROWS = 1 << 16
_RULES = {
    "x": ("a longitude lies in -180..180 degrees", -180.0, 180.0),
    "y": ("a latitude lies in -90..90 degrees; are x and y swapped?", -90.0, 90.0),
    "size": (f"a side is {SMALLEST:g} m or more, and not more than round the Earth", SMALLEST, LARGEST),
}


def check_query_columns(schema: pa.Schema, path: str) -> None:
    """Raises RequestError, naming the file, unless x, y and size are there, each once, and hold numbers."""
    for name in QUERY_COLUMNS:
        if name not in schema.names:
            there = ", ".join(schema.names) or "none"
            raise RequestError(
                f"{path}: no column {name!r}; queries have {', '.join(QUERY_COLUMNS)}, here are: {there}"
            )
        if schema.names.count(name) > 1:
            raise RequestError(f"{path}: {schema.names.count(name)} columns are named {name!r}; leave one of them")
        kind = schema.field(name).type
        if not (pt.is_integer(kind) or pt.is_floating(kind) or pt.is_decimal(kind)):
            raise RequestError(f"{path}: column {name!r} must hold numbers, it holds {kind}; convert it")


def count_queries(path: str) -> int:
    """The rows of a query file, from its footer alone. Raises RequestError for its columns, DataError if unreadable."""
    from sfumato.transforms.locations.read import open_parquet  # which brings Beam's file systems

    with open_parquet(path) as file:
        check_query_columns(file.schema_arrow, path)
        return int(file.metadata.num_rows)


def read_queries(path: str, rows: int = BATCH_ROWS) -> Iterator[pa.RecordBatch]:
    """The queries of a file, local or in a bucket, in batches of at most so many rows of QUERIES_SCHEMA.

    Raises RequestError, naming the file and the row, for what is no square, and for columns; DataError where the file
    cannot be read as Parquet.
    """
    from sfumato.transforms.locations.read import open_parquet

    before = 0
    with open_parquet(path) as file:
        check_query_columns(file.schema_arrow, path)
        for batch in file.iter_batches(rows, columns=list(QUERY_COLUMNS)):
            yield checked_queries(batch, path, before)
            before += batch.num_rows


def checked_queries(batch: pa.RecordBatch, path: str, before: int = 0) -> pa.RecordBatch:
    """A batch's columns x, y and size as QUERIES_SCHEMA. path, before: its file, and the rows there before it.

    Raises RequestError, naming the file and the row, counted from 1, for a value that is missing, no finite number or
    out of its range.
    """
    columns = [_numbers(batch.column(name), name, path) for name in QUERY_COLUMNS]
    bad = np.zeros(batch.num_rows, dtype=bool)
    for name, values in zip(QUERY_COLUMNS, columns, strict=True):
        _, low, high = _RULES[name]
        bad |= ~((values >= low) & (values <= high))  # so written that NaN is bad
    if bad.any():
        _refuse(batch, columns, int(np.argmax(bad)), path, before)
    return pa.RecordBatch.from_arrays([pa.array(values) for values in columns], schema=QUERIES_SCHEMA)


def _numbers(column: pa.Array, name: str, path: str) -> NDArray[np.float64]:
    """NaN where nothing is."""
    try:
        return np.asarray(column.cast(pa.float64(), safe=False).to_numpy(zero_copy_only=False), dtype=np.float64)
    except pa.ArrowInvalid as error:
        raise DataError(f"{path}: column {name!r} cannot be read as numbers ({error})") from None


def _refuse(batch: pa.RecordBatch, columns: list[NDArray[np.float64]], row: int, path: str, before: int) -> None:
    for name, values in zip(QUERY_COLUMNS, columns, strict=True):
        rule, low, high = _RULES[name]
        if not low <= values[row] <= high:
            rule = rule if math.isfinite(values[row]) else "a square has three finite numbers"
            stands = f"{values[row]:g}" if batch.column(name)[row].is_valid else "nothing"
            raise RequestError(f"{path}: row {before + row + 1:,} has {stands} for {name}; {rule}")
