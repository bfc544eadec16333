"""Reads Parquet logs in slices of row groups. Every job reads its logs here; `ReadLocations` encodes locations."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import apache_beam as beam
import pyarrow as pa
import pyarrow.parquet as pq
from apache_beam import typehints

from sfumato.schemas.errors import DataError, RequestError
from sfumato.schemas.locations import DROP_REASONS, Columns, LocationColumns
from sfumato.schemas.region import Locator
from sfumato.transforms import beam_patch  # noqa: F401
from sfumato.transforms.files import file_version, is_remote, open_file
from sfumato.transforms.locations.encode import encode_locations
from sfumato.transforms.locations.spill import Spill
from sfumato.transforms.locations.users import split_by_user_group
from sfumato.transforms.logs import READ_COUNTS, READ_FILE
from sfumato.transforms.metrics import (
    CLAMPED_ROWS,
    DROPPED_ROWS,
    READ_FILES,
    READ_ROWS,
    SLICE_READ,
    SLICE_ROWS,
    Stopwatch,
)
from sfumato.transforms.privacy.keys import RunKey

_SLICE_ROWS = 4_000_000
_BATCH_ROWS = 1 << 20
ROW_COUNTS = "row_counts"  # tag of the output with row counts
_HINT = "check the columns"
_HINTS = {  # by reason of DROP_REASONS
    "out_of_range": "check the columns: latitude and longitude may be swapped",
    "out_of_region": "check the region and the columns",
    "bad_weight": "weights must be finite numbers of at least 0",
    "unknown_category": "check --auxiliary, and that --categories names all its values",
    "negative_value": "give --signed shift:OFFSET or --signed split",
    "no_prefix_code": "integers must be 0 or more and have no more digits than --depth",
}


@dataclass(frozen=True)
class LogFile:
    """A Parquet file to read.

    Attributes:
        path: local or remote.
        version: of `file_version` at the start of the run; None if unknown.
        name: identifies the file in jobs that identify users by file and row; None for the path.
    """

    path: str
    version: str | None = None
    name: str | None = None


@dataclass(frozen=True)
class FileSlice:
    """Some row groups of a Parquet file. is_last: whether this is the last slice of the file."""

    file: LogFile
    row_groups: tuple[int, ...]
    is_last: bool

    @property
    def path(self) -> str:
        """The file's path."""
        return self.file.path


@dataclass(frozen=True)
class RowCounts:
    """Exact numbers of rows. They are not published.

    Attributes:
        rows: rows read.
        text_ids: rows read from files whose user ids are strings or bytes.
        dropped: rows dropped, one number for each reason of DROP_REASONS.
        clamped: rows whose value was moved to an end of its range.
    """

    rows: int = 0
    text_ids: int = 0
    dropped: tuple[int, ...] = (0,) * len(DROP_REASONS)
    clamped: int = 0

    @classmethod
    def from_batch(cls, rows: int, text_ids: bool, dropped: tuple[int, ...], clamped: int = 0) -> RowCounts:
        """The counts of one batch. text_ids: whether its user ids are strings or bytes."""
        return cls(rows, rows if text_ids else 0, dropped, clamped)

    def __add__(self, other: RowCounts) -> RowCounts:
        dropped = tuple(a + b for a, b in zip(self.dropped, other.dropped, strict=True))
        clamped = self.clamped + other.clamped
        return RowCounts(self.rows + other.rows, self.text_ids + other.text_ids, dropped, clamped)

    def report(self, part: FileSlice, stopwatch: Stopwatch) -> None:
        """Adds the counts of a slice to the job's metrics, and logs the file after its last slice.

        Args:
            part: the slice.
            stopwatch: the time of reading and encoding it.
        """
        READ_ROWS.add(self.rows)
        SLICE_ROWS.record(self.rows)
        SLICE_READ.record(stopwatch.milliseconds)
        for reason, number in zip(DROP_REASONS, self.dropped, strict=True):
            DROPPED_ROWS[reason].add(number)
        CLAMPED_ROWS.add(self.clamped)
        if part.is_last:
            READ_FILES.add()
            READ_FILE.emit(file=part.path)

    @property
    def without_id(self) -> int:
        """Rows dropped because they have no user id."""
        return self.dropped[DROP_REASONS.index("null_user_id")]

    def emit(self) -> None:
        """Logs the counts as a raw event, for the operator alone."""
        dropped = {reason: number for reason, number in zip(DROP_REASONS, self.dropped, strict=True) if number}
        READ_COUNTS.emit(rows=self.rows, dropped=dropped, clamped=self.clamped)

    def check_ids(self) -> None:
        """Raises DataError if user ids have two types in the files' schemas: one user could count as two."""
        if 0 < self.text_ids < self.rows:
            raise DataError("user ids are integers in some files and text in others, and a user would count twice")

    def check(self, max_bad_fraction: float) -> None:
        """Raises DataError if too many rows were dropped, or user ids have two types.

        For evaluations of public data only: the decision depends on exact numbers.
        """
        if self.rows == 0:
            raise DataError("the input files hold no rows")
        self.check_ids()
        if sum(self.dropped) > max_bad_fraction * self.rows:
            reasons = sorted(zip(self.dropped, DROP_REASONS, strict=True), reverse=True)
            raise DataError(
                f"more than max_bad_fraction={max_bad_fraction} of the rows were dropped, most often as "
                f"{', '.join(reason for number, reason in reasons if number)}; {_HINTS.get(reasons[0][1], _HINT)}, "
                "or raise --max_bad_fraction (the numbers are in the job's counters and with --verbose)"
            )


@contextmanager
def open_parquet(path: str) -> Iterator[pq.ParquetFile]:
    """Opens a Parquet file, local or remote. Raises DataError with the path if it cannot be read as Parquet."""
    try:
        # Arrow reads local files without Python's lock. Remote files need Beam's file systems.
        with (
            open_file(path) if is_remote(path) else pa.OSFile(path) as source,
            pq.ParquetFile(source, page_checksum_verification=True) as file,
        ):
            yield file
    except (PermissionError, FileNotFoundError, IsADirectoryError) as error:
        raise DataError(f"{path}: cannot be opened ({error.strerror or error})") from error
    except (pa.ArrowException, OSError) as error:
        raise DataError(f"{path}: cannot be read as Parquet ({error}); is it damaged or cut off?") from error


def sum_row_counts(counts: Iterable[RowCounts]) -> RowCounts:
    """Adds up row counts; a function for `beam.CombineGlobally`."""
    return sum(counts, start=RowCounts())


@dataclass(frozen=True)
class FileMetadata:
    """A file's footer: the number of rows, and the type of each column's values (see Columns.check)."""

    rows: int
    column_types: dict[str, str]


def inspect_file(path: str, columns: Columns) -> FileMetadata:
    """Reads a file's footer. Raises RequestError if a column is missing or has a wrong type."""
    with open_parquet(path) as file:
        return FileMetadata(file.metadata.num_rows, columns.check(file.schema_arrow, path))


def count_rows(path: str) -> int:
    """The rows of a file, from its footer. Raises DataError."""
    with open_parquet(path) as file:
        return int(file.metadata.num_rows)


@contextmanager
def open_log(log: LogFile) -> Iterator[pq.ParquetFile]:
    """Opens a file. Raises DataError if its version differs from `log.version` before or after the block."""
    _check_version(log)
    with open_parquet(log.path) as file:
        yield file
    _check_version(log)


def _check_version(log: LogFile) -> None:
    if log.version is not None and file_version(log.path) != log.version:
        raise DataError(f"{log.path}: changed while the job was running; nothing is charged or published, run it again")


def slice_file(source: str | LogFile) -> Iterator[FileSlice]:
    """Cuts a file into slices of about four million rows, between row groups."""
    log = LogFile(source) if isinstance(source, str) else source
    with open_log(log) as file:
        groups: list[int] = []
        rows = 0
        for number in range(file.num_row_groups):
            if rows >= _SLICE_ROWS:
                yield FileSlice(log, tuple(groups), is_last=False)
                groups, rows = [], 0
            groups.append(number)
            rows += file.metadata.row_group(number).num_rows
        yield FileSlice(log, tuple(groups), is_last=True)


def read_batches(part: FileSlice, columns: Columns) -> Iterator[pa.RecordBatch]:
    """Yields the columns of a slice in batches of at most a million rows. A thread decodes the next batch meanwhile."""
    with open_log(part.file) as file, ThreadPoolExecutor(1) as thread:
        try:
            columns.check(file.schema_arrow, part.path)
        except RequestError as error:
            raise DataError(str(error)) from error
        batches = file.iter_batches(_BATCH_ROWS, row_groups=list(part.row_groups), columns=columns.names())
        upcoming = thread.submit(next, batches, None)
        while (batch := upcoming.result()) is not None:
            upcoming = thread.submit(next, batches, None)
            yield batch


@typehints.with_input_types(FileSlice)
@typehints.with_output_types(tuple[int, bytes])
class _EncodeSliceFn(beam.DoFn):
    def __init__(self, columns: LocationColumns, locator: Locator, run_key: RunKey, spill: Spill):
        self._columns = columns
        self._locator = locator
        self._run_key = run_key
        self._spill = spill

    def process(self, part: FileSlice) -> Iterator[Any]:
        user_key = self._run_key.subkey("users")
        counts, stopwatch = RowCounts(), Stopwatch()
        for batch in stopwatch.over(read_batches(part, self._columns)):
            with stopwatch:
                encoded = encode_locations(batch, self._columns, self._locator, user_key)
            counts += RowCounts.from_batch(encoded.rows, encoded.text_ids, encoded.dropped)
            yield from split_by_user_group(encoded, self._spill)
        counts.report(part, stopwatch)
        yield beam.pvalue.TaggedOutput(ROW_COUNTS, counts)


class ReadLocations(beam.PTransform):
    """Paths of Parquet files, or LogFiles -> two PCollections: (user group, chunk) of `split_by_user_group`; RowCounts.

    When the pipeline runs it raises DataError with the path of a file that is damaged, has changed or lacks a column.
    """

    def __init__(self, columns: LocationColumns, locator: Locator, run_key: RunKey, spill: Spill):
        super().__init__()
        self._encode = _EncodeSliceFn(columns, locator, run_key, spill)

    def expand(self, paths: beam.PCollection) -> tuple[beam.PCollection, beam.PCollection]:
        encoded = (
            paths
            | "Slice" >> beam.FlatMap(slice_file)  # FileSlice
            | "SpreadSlices" >> beam.Reshuffle()
            | "Encode" >> beam.ParDo(self._encode).with_outputs(ROW_COUNTS, main="chunks")
        )
        return encoded.chunks, encoded[ROW_COUNTS]
