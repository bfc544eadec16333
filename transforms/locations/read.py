"""Parquet files -> encoded locations, in slices of row groups, with row counts beside them."""

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
from sfumato.schemas.region import Grid
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
ROW_COUNTS = "row_counts"
_HINT = "check the columns"
_HINTS = {
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

    version: of `file_version` at the start of the run; None where it was not read. name: identifies the file within the
    run, where rows are identified by it; by default the path.
    """

    path: str
    version: str | None = None
    name: str | None = None


@dataclass(frozen=True)
class FileSlice:
    """Some row groups of a Parquet file. last: whether this is the last slice of the file."""

    file: LogFile
    row_groups: tuple[int, ...]
    last: bool

    @property
    def path(self) -> str:
        """The file's path."""
        return self.file.path


@dataclass(frozen=True)
class RowCounts:
    """Rows read and rows dropped, one number for each reason of DROP_REASONS.

    text_ids: rows read with ids of strings or bytes. clamped: rows whose value was moved to the border of a range.
    """

    rows: int = 0
    text_ids: int = 0
    dropped: tuple[int, ...] = (0,) * len(DROP_REASONS)
    clamped: int = 0

    @classmethod
    def from_batch(cls, rows: int, text_ids: bool, dropped: tuple[int, ...], clamped: int = 0) -> RowCounts:
        """The counts of one batch, whose ids are text or not."""
        return cls(rows, rows if text_ids else 0, dropped, clamped)

    def __add__(self, other: RowCounts) -> RowCounts:
        dropped = tuple(a + b for a, b in zip(self.dropped, other.dropped, strict=True))
        clamped = self.clamped + other.clamped
        return RowCounts(self.rows + other.rows, self.text_ids + other.text_ids, dropped, clamped)

    def report(self, part: FileSlice, stopwatch: Stopwatch) -> None:
        """Adds the rows of a slice to the job's metrics, and tells of its file once all of it is read.

        stopwatch: how long reading and encoding took.
        """
        READ_ROWS.add(self.rows)
        SLICE_ROWS.record(self.rows)
        SLICE_READ.record(stopwatch.milliseconds)
        for reason, number in zip(DROP_REASONS, self.dropped, strict=True):
            DROPPED_ROWS[reason].add(number)
        CLAMPED_ROWS.add(self.clamped)
        if part.last:
            READ_FILES.add()
            READ_FILE.emit(file=part.path)

    @property
    def without_id(self) -> int:
        """Rows dropped because they have no user id."""
        return self.dropped[DROP_REASONS.index("null_user_id")]

    def emit(self) -> None:
        """Writes the counts into the log, as operations data."""
        dropped = {why: number for why, number in zip(DROP_REASONS, self.dropped, strict=True) if number}
        READ_COUNTS.emit(rows=self.rows, dropped=dropped, clamped=self.clamped)

    def check_ids(self) -> None:
        """Raises DataError where ids have two types, in files' schemas: one user could count as two."""
        if 0 < self.text_ids < self.rows:
            raise DataError("user ids are integers in some files and text in others, and a user would count twice")

    def check(self, max_bad_fraction: float) -> None:
        """Raises DataError where too many rows were dropped, or where one user could count as two.

        These are exact numbers: for evaluations of data that one may look at, and never for a release.
        """
        if self.rows == 0:
            raise DataError("the input files hold no rows")
        self.check_ids()
        if sum(self.dropped) > max_bad_fraction * self.rows:
            reasons = sorted(zip(self.dropped, DROP_REASONS, strict=True), reverse=True)
            raise DataError(
                f"more than max_bad_fraction={max_bad_fraction} of the rows were dropped, most often as "
                f"{', '.join(reason for number, reason in reasons if number)}; {_HINTS.get(reasons[0][1], _HINT)}, "
                "or raise --max_bad_fraction (the job's counters, and --verbose, tell the numbers)"
            )


@contextmanager
def open_parquet(path: str) -> Iterator[pq.ParquetFile]:
    """Opens a Parquet file, local or remote. Raises DataError naming the file where it cannot be read as Parquet."""
    try:
        # Arrow reads local files without the interpreter; everything else goes through Beam's file systems.
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
    """Reads a file's footer. Raises RequestError for a missing or mistyped column."""
    with open_parquet(path) as file:
        return FileMetadata(file.metadata.num_rows, columns.check(file.schema_arrow, path))


def count_rows(path: str) -> int:
    """The rows of a file, from its footer. Raises DataError."""
    with open_parquet(path) as file:
        return int(file.metadata.num_rows)


@contextmanager
def open_log(log: LogFile) -> Iterator[pq.ParquetFile]:
    """Opens a file whose content must be that of its version, before and after. Raises DataError."""
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
                yield FileSlice(log, tuple(groups), last=False)
                groups, rows = [], 0
            groups.append(number)
            rows += file.metadata.row_group(number).num_rows
        yield FileSlice(log, tuple(groups), last=True)


def read_batches(part: FileSlice, columns: Columns) -> Iterator[pa.RecordBatch]:
    """Yields the slice's needed columns in batches of at most a million rows, decoding one batch ahead."""
    with open_log(part.file) as file, ThreadPoolExecutor(1) as ahead:
        try:
            columns.check(file.schema_arrow, part.path)
        except RequestError as error:
            raise DataError(str(error)) from error
        batches = file.iter_batches(_BATCH_ROWS, row_groups=list(part.row_groups), columns=columns.names())
        coming = ahead.submit(next, batches, None)
        while (batch := coming.result()) is not None:
            coming = ahead.submit(next, batches, None)
            yield batch


@typehints.with_input_types(FileSlice)
@typehints.with_output_types(tuple[int, bytes])
class _EncodeSliceFn(beam.DoFn):
    def __init__(self, columns: LocationColumns, grid: Grid, run_key: RunKey, spill: Spill):
        self._columns = columns
        self._grid = grid
        self._run_key = run_key
        self._spill = spill

    def process(self, part: FileSlice) -> Iterator[Any]:
        user_key = self._run_key.subkey("users")
        counts, stopwatch = RowCounts(), Stopwatch()
        for batch in stopwatch.over(read_batches(part, self._columns)):
            with stopwatch:
                encoded = encode_locations(batch, self._columns, self._grid, user_key)
            counts += RowCounts.from_batch(encoded.rows, encoded.text_ids, encoded.dropped)
            yield from split_by_user_group(encoded, self._spill)
        counts.report(part, stopwatch)
        yield beam.pvalue.TaggedOutput(ROW_COUNTS, counts)


class ReadLocations(beam.PTransform):
    """Paths of Parquet files, or LogFiles -> a pair of PCollections: (user group, chunk) pairs, and row counts.

    Chunks are what `split_by_user_group` makes; row counts are RowCounts.
    Raises DataError, naming the file, for a file that is damaged or lacks a column.
    """

    def __init__(self, columns: LocationColumns, grid: Grid, run_key: RunKey, spill: Spill):
        super().__init__()
        self._encode = _EncodeSliceFn(columns, grid, run_key, spill)

    def expand(self, paths: beam.PCollection) -> tuple[beam.PCollection, beam.PCollection]:
        encoded = (
            paths
            | "Slice" >> beam.FlatMap(slice_file)  # FileSlice
            | "SpreadSlices" >> beam.Reshuffle()
            | "Encode" >> beam.ParDo(self._encode).with_outputs(ROW_COUNTS, main="chunks")
        )
        return encoded.chunks, encoded[ROW_COUNTS]
