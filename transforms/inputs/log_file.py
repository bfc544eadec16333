"""A log file and a slice of it, as they travel through a pipeline, and an open one, as each format gives it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field
from typing import Protocol

import pyarrow as pa

from sfumato.schemas.errors import DataError, reason_of
from sfumato.schemas.locations import TIME_TYPE, Columns
from sfumato.schemas.log_layout import LogLayout

Types = Mapping[str, pa.DataType]  # of columns, by name
TO_THE_END = 1 << 62  # the end of a slice that ends where its file does


def types_of(columns: Columns, layout: LogLayout) -> dict[str, pa.DataType]:
    """Returns the type of each column that a run reads of a log, by its role."""
    types = dict(columns.text_types())
    if layout.days is not None:
        types.setdefault(layout.days.column, TIME_TYPE)
    if layout.e7:
        types |= {name: pa.int64() for name in (layout.latitude, layout.longitude) if name in types}
    if layout.place_column is not None:
        types[layout.place_column] = pa.string()
    return types


@dataclass(frozen=True)
class LogFile:
    """A file to read, or a table of a warehouse.

    field_ids: the columns' ids in the table that the file is a part of, empty without. A file with other ids under
    these names is refused, because its columns were renamed since.
    """

    path: str
    version: str | None = None  # of `log_version` at the start of the run; None if unknown
    name: str | None = None  # identifies the file in jobs that identify users by file and row; None for the path
    layout: LogLayout = field(default_factory=LogLayout)
    # Columns that the path or a table's log states, with the value of all rows as text; None is missing.
    partition: tuple[tuple[str, str | None], ...] = ()
    field_ids: tuple[tuple[str, int], ...] = ()
    size: int | None = None  # in bytes, of this version; None if unknown
    content: bytes | None = field(default=None, repr=False)  # of rows that are in no file: an Arrow stream, see `rows`


@dataclass(frozen=True)
class FileSlice:
    """A part of a file: what lies from `first` to before `end`, row groups or bytes.

    They are 0 and TO_THE_END of a file that is one slice and was not opened before.
    """

    file: LogFile
    first: int
    end: int
    is_last: bool  # of the file
    stream: str = ""  # name of the slice in a warehouse; empty for files


class OpenLog(Protocol):
    """An open file of any format. Errors are DataErrors that name the file and no value."""

    @property
    def schema(self) -> pa.Schema:
        """Returns its columns with the types in which `batches` yields them."""

    @property
    def rows(self) -> int:
        """Returns the number of rows. Formats without a footer estimate it from their size."""

    @property
    def is_empty(self) -> bool:
        """Returns whether there is no row at all."""

    def cuts(self) -> Iterator[tuple[int, int, str]]:
        """Returns the first, end and stream of each slice, in order."""

    def batches(self, part: FileSlice, names: Sequence[str]) -> Iterator[pa.RecordBatch]:
        """Yields the named columns of a slice, in batches of at most about a million rows."""


# A format of logs: it opens a file. Types: those of the columns that the job reads, by role. A format of text
# yields the columns in these types; a format with a schema keeps its own.
LogFormat = Callable[[LogFile, Types], AbstractContextManager[OpenLog]]


@contextmanager
def reading_file(path: str, kind: str, problem_of: Callable[[Exception], str] | None = None) -> Iterator[None]:
    """Converts errors of reading a file into DataErrors that name it.

    problem_of: what is wrong, where an error quotes a line or a value; such an error is not shown as the cause either.
    """
    try:
        yield
    except MemoryError:  # Arrow's own is an ArrowException too, and the file is not damaged
        raise
    except (PermissionError, FileNotFoundError, IsADirectoryError) as error:
        raise DataError(f"{path}: cannot be opened ({reason_of(error)})") from error
    except (pa.ArrowException, OSError, UnicodeDecodeError) as error:
        problem: object = error if problem_of is None else problem_of(error)
        if problem_of is None and isinstance(error, UnicodeDecodeError):
            problem = "not UTF-8 text"  # the error's own words quote the file
        raise DataError(
            f"{path}: cannot be read as {kind} ({problem}); if it is damaged or truncated, replace it and run again"
        ) from (error if problem_of is None else None)
