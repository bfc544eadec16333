"""Elements of a pipeline as logs: rows in memory, which the reader opens, checks and reads as it does files."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from operator import itemgetter
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from sfumato.schemas.errors import DataError
from sfumato.schemas.locations import Columns
from sfumato.schemas.log_layout import LogLayout
from sfumato.transforms.inputs.data_frame import table_of
from sfumato.transforms.inputs.log_file import FileSlice, LogFile, Types, reading_file
from sfumato.transforms.inputs.parquet_log import BATCH_ROWS

if TYPE_CHECKING:
    import pandas as pd

ROWS = "rows of the pipeline"  # what messages call them


class RowsLog:
    """Rows in memory, as an open log; see OpenLog."""

    def __init__(self, table: pa.Table):
        self._table = table
        self.schema: pa.Schema = table.schema
        self.rows = table.num_rows
        self.is_empty = table.num_rows == 0

    def cuts(self) -> Iterator[tuple[int, int, str]]:
        yield 0, self.rows, ""

    def batches(self, part: FileSlice, names: Sequence[str]) -> Iterator[pa.RecordBatch]:
        rows = self._table.slice(part.first, part.end - part.first)
        yield from rows.select(list(names)).combine_chunks().to_batches(BATCH_ROWS)


@contextmanager
def open_rows(log: LogFile, types: Types) -> Iterator[RowsLog]:
    """Opens the rows that a LogFile holds."""
    with reading_file(log.path, "rows"):
        yield RowsLog(rows_of(log))


def rows_of(log: LogFile) -> pa.Table:
    """Returns the rows that a LogFile holds."""
    assert log.content is not None
    with pa.ipc.open_stream(log.content) as stream:
        return stream.read_all()


def log_of_rows(rows: Sequence[dict[str, Any]], columns: Columns, layout: LogLayout) -> LogFile:
    """Returns rows as a log. Each value is read by the role of its column; a column that a row lacks is missing."""
    import pandas as pd  # slow to import, and only rows need it

    names = layout.columns or tuple(columns.names())
    # A frame made of bare arrays of objects guesses their type, and cannot store every text; a series keeps objects.
    given = {name: _column(_values(rows, name)) for name in names}
    frame = pd.DataFrame({name: pd.Series(values, dtype=values.dtype) for name, values in given.items()})
    return _log_of(table_of(frame, columns, layout), layout)


def _values(rows: Sequence[dict[str, Any]], name: str) -> list[Any]:
    try:
        return list(map(itemgetter(name), rows))  # faster than the same with `get`
    except KeyError:
        return [row.get(name) for row in rows]


def _column(values: list[Any]) -> NDArray[Any]:
    """Returns values as objects; numbers of one type as an array of it, which is converted faster, to the same."""
    kinds = set(map(type, values))
    if kinds == {float}:
        return np.array(values, np.float64)
    if kinds == {int}:
        with suppress(OverflowError):  # an integer beyond 64 bits
            return np.array(values, np.int64)
    found = np.empty(len(values), object)
    found[:] = values
    return found


def log_of_table(table: pa.Table | pa.RecordBatch | pd.DataFrame, columns: Columns, layout: LogLayout) -> LogFile:
    """Returns the columns of a table that a job reads as a log. Arrow's types stay; a data frame's say nothing."""
    if isinstance(table, pa.RecordBatch):
        table = pa.Table.from_batches([table])
    if not isinstance(table, pa.Table):
        return _log_of(table_of(table, columns, layout), layout)
    return _log_of(table.select([name for name in layout.columns if name in table.column_names]), layout)


def _log_of(table: pa.Table, layout: LogLayout) -> LogFile:
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, table.schema) as writer:
        writer.write_table(table)
    return LogFile(ROWS, layout=layout, content=sink.getvalue().to_pybytes())


def fields_of(element: Any) -> dict[str, Any]:
    """Returns the fields of a mapping, a `beam.Row` or a NamedTuple, by name. Raises DataError for others."""
    if isinstance(element, Mapping):
        return dict(element)  # a defaultdict has values for fields that the row lacks
    for name in ("as_dict", "_asdict"):
        if hasattr(element, name):
            return dict(getattr(element, name)())
    raise DataError(
        "input: elements must be rows (dictionaries, beam.Row, NamedTuple), tables (pyarrow, pandas) or paths of logs, "
        f"got {type(element).__name__}"
    )
