"""Logs of every format as Arrow batches of the columns that a job reads: what `FORMATS` lists, opened and checked.

A format gives columns of a file. Here places become latitude and longitude in degrees, partitions become columns, and
the job's own check sees the result. So a job reads every format alike.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import AbstractContextManager, closing, contextmanager
from dataclasses import dataclass
from itertools import islice
from types import MappingProxyType

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as pt

from sfumato.schemas.errors import DataError, MissingColumnError, RequestError
from sfumato.schemas.locations import TIME_TYPE, Columns, check_time, field_type
from sfumato.transforms.inputs.bigquery_table import BIGQUERY, open_bigquery_log, table_state
from sfumato.transforms.inputs.csv_log import open_csv_log
from sfumato.transforms.inputs.local_time import of_days
from sfumato.transforms.inputs.log_file import TO_THE_END, FileSlice, LogFile, LogFormat, OpenLog, types_of
from sfumato.transforms.inputs.parquet_log import BATCH_ROWS, open_parquet_log
from sfumato.transforms.inputs.points import centres_of, check_cells, check_points, points_of
from sfumato.transforms.inputs.rows import open_rows
from sfumato.transforms.inputs.text_lines import open_json_log
from sfumato.transforms.inputs.text_values import parsed, text_array, without_views
from sfumato.transforms.io.files import file_version, is_remote

FORMATS: Mapping[str, LogFormat] = MappingProxyType({
    "parquet": open_parquet_log,
    "csv": open_csv_log,
    "ndjson": open_json_log,
    "bigquery": open_bigquery_log,
    "rows": open_rows,
})  # fmt: skip
SUFFIXES: Mapping[str, str] = MappingProxyType({
    **dict.fromkeys((".parquet", ".geoparquet", ".pq"), "parquet"),
    **dict.fromkeys((".csv", ".tsv", ".csv.gz", ".tsv.gz"), "csv"),
    **dict.fromkeys((".ndjson", ".jsonl", ".ndjson.gz", ".jsonl.gz"), "ndjson"),
})  # fmt: skip
_WITH_ROWS = ("parquet", "bigquery", "rows")  # formats whose files state the number of their rows
LeftOut = Callable[[int, int], None]  # is given the numbers of rows of earlier and of later days
# Small files share an element of a pipeline: at most this many bytes and files.
BUNDLE_BYTES, BUNDLE_FILES = 64 << 20, 128
_FILES_AHEAD = 16  # small remote files that are read at once


def format_by_name(path: str) -> str | None:
    """Returns the format for the suffix of a file's name; None if unknown."""
    name = path.lower()
    return next((found for suffix, found in SUFFIXES.items() if name.endswith(suffix)), None)


@dataclass(frozen=True)
class LogMetadata:
    """What a file states before its rows are read.

    Attributes:
        rows: their number; an estimate where the file has no footer.
        column_types: the kinds of `Columns.check`.
        is_exact: whether the number of rows is exact.
        may_lack_zones: whether the type of a column of times allows times without a zone, as text does.
    """

    rows: int
    column_types: dict[str, str]
    is_exact: bool
    may_lack_zones: bool


def inspect_log(log: LogFile, columns: Columns) -> LogMetadata:
    """Reads a file's footer or first rows. Raises RequestError if a column is missing or has a wrong type."""
    with open_log(log, columns) as (file, reading):
        times = [name for name, kind in types_of(columns, log.layout).items() if kind == TIME_TYPE]
        held = [field_type(file.schema, name, name, log.path) for name in times if name in file.schema.names]
        may_lack_zones = any(pt.is_timestamp(kind) and kind.tz is None for kind in held)
        has_rows = format_of(log) in _WITH_ROWS
        # Formats of text give every column of times the type of its role.
        return LogMetadata(file.rows, reading.column_types, has_rows, may_lack_zones or not has_rows)


def kinds_of(inspected: Iterable[tuple[str, Mapping[str, str]]]) -> dict[str, str]:
    """Returns the kind of each column's values in all files, by path. Raises RequestError if two files differ."""
    kinds, first = dict[str, str](), dict[str, str]()
    for path, of_file in inspected:
        for column, kind in of_file.items():
            if kinds.setdefault(column, kind) != kind:
                raise RequestError(
                    f"{path}: column {column!r} contains {kind}, but {kinds[column]} in {first[column]}; convert one "
                    "type to the other, as equal values would count twice"
                )
            first.setdefault(column, path)
    return kinds


def count_rows(log: LogFile) -> int:
    """Returns the rows of a file: 0 if it has none, otherwise their number, or an estimate. Raises DataError."""
    with open_raw(log) as file:
        return 0 if file.is_empty else max(file.rows, 1)


def slice_file(source: str | LogFile) -> Iterator[FileSlice]:
    """Cuts a file into slices of about four million rows."""
    log = LogFile(source) if isinstance(source, str) else source
    _check_version(log)
    with open_raw(log) as file:
        cuts = list(file.cuts())
    for number, (first, end, stream) in enumerate(cuts, 1):
        yield FileSlice(log, first, end, number == len(cuts), stream)
    _check_version(log)


def bundled(logs: Sequence[LogFile]) -> list[tuple[LogFile, ...]]:
    """Returns the files in order, as elements of a pipeline: small neighbours together, see `slice_bundle`."""
    bundles, size = list[list[LogFile]](), BUNDLE_BYTES
    for log in logs:
        own = BUNDLE_BYTES if log.size is None or log.path.startswith(BIGQUERY) else log.size
        if size + own > BUNDLE_BYTES or len(bundles[-1]) == BUNDLE_FILES:
            bundles.append([])
            size = 0
        bundles[-1].append(log)
        size += own
    return [tuple(bundle) for bundle in bundles]


def slice_bundle(source: str | LogFile | tuple[LogFile, ...]) -> Iterator[tuple[FileSlice, ...]]:
    """Yields the parts of a file one by one; or all files of a bundle, each as one slice and not opened."""
    if not isinstance(source, tuple):
        source = (LogFile(source) if isinstance(source, str) else source,)
    if len(source) > 1:
        yield tuple(FileSlice(log, 0, TO_THE_END, True) for log in source)
    else:
        yield from ((part,) for part in slice_file(source[0]))


def read_bundle(
    parts: Sequence[FileSlice], columns: Columns, left_out: LeftOut | None = None
) -> Iterator[pa.RecordBatch]:
    """Yields the rows of `read_batches` for each of the parts. Neighbouring batches of small files are joined."""
    if len(parts) == 1:
        yield from read_batches(parts[0], columns, left_out)
        return
    held, rows = list[pa.RecordBatch](), 0
    for batch in _batches_of_files(parts, columns, left_out):
        if held and (rows + batch.num_rows > BATCH_ROWS or batch.schema != held[0].schema):
            yield from _joined(held)
            held, rows = [], 0
        held.append(batch)
        rows += batch.num_rows
    if held:
        yield from _joined(held)


def _joined(batches: Sequence[pa.RecordBatch]) -> list[pa.RecordBatch]:
    return list(pa.Table.from_batches(batches).combine_chunks().to_batches())


def _batches_of_files(
    parts: Sequence[FileSlice], columns: Columns, left_out: LeftOut | None
) -> Iterator[pa.RecordBatch]:
    """Yields the batches of small files in order. Threads read remote files ahead, because each takes a while."""
    if not is_remote(parts[0].file.path):
        for part in parts:
            yield from read_batches(part, columns, left_out, ahead=False)
        return

    def read(part: FileSlice) -> tuple[list[pa.RecordBatch], list[tuple[int, int]]]:
        other_days = list[tuple[int, int]]()  # Beam's metrics belong to the thread of the caller
        batches = read_batches(part, columns, lambda *rows: other_days.append(rows), ahead=False)
        return list(batches), other_days

    reading = deque[Future[tuple[list[pa.RecordBatch], list[tuple[int, int]]]]]()
    waiting = iter(parts)
    with ThreadPoolExecutor(_FILES_AHEAD) as threads:
        reading.extend(threads.submit(read, part) for part in islice(waiting, _FILES_AHEAD))
        while reading:
            batches, other_days = reading.popleft().result()
            reading.extend(threads.submit(read, part) for part in islice(waiting, 1))
            for rows in other_days:
                if left_out is not None:
                    left_out(*rows)
            yield from batches


def read_batches(
    part: FileSlice, columns: Columns, left_out: LeftOut | None = None, ahead: bool = True
) -> Iterator[pa.RecordBatch]:
    """Yields the columns of a slice in batches of at most a million rows.

    left_out: is given the numbers of rows of earlier and of later days than those that are read.
    ahead: whether a thread decodes the next batch meanwhile.

    Raises DataError for a file that is damaged, that lacks a column, or whose version is not that of the LogFile.
    """
    _check_version(part.file)
    try:
        with (
            open_log(part.file, columns) as (file, reading),
            closing(_decoded(file.batches(part, reading.sources), ahead)) as batches,  # closed before the file
        ):
            for batch in batches:
                if (rows := reading.of_its_days(batch, left_out)).num_rows:
                    yield reading.presented(rows)
    except RequestError as error:
        raise DataError(str(error)) from error
    _check_version(part.file)


def _decoded(batches: Iterator[pa.RecordBatch], ahead: bool) -> Generator[pa.RecordBatch, None, None]:
    if not ahead:
        yield from batches
        return
    with ThreadPoolExecutor(1) as thread:
        upcoming = thread.submit(next, batches, None)
        while (batch := upcoming.result()) is not None:
            upcoming = thread.submit(next, batches, None)
            yield batch


def log_version(path: str) -> str:
    """Returns the version of a file or of a table of a warehouse; see `file_version`. Raises OSError."""
    return table_state(path).version if path.startswith(BIGQUERY) else file_version(path)


def _check_version(log: LogFile) -> None:
    if log.version is not None and log_version(log.path) != log.version:
        raise DataError(
            f"{log.path}: changed while the job was running; nothing was charged or published; run the job again"
        )


def format_of(log: LogFile) -> str:
    """Returns the name of a log's format, one of FORMATS."""
    return "rows" if log.content is not None else log.layout.format or format_by_name(log.path) or "parquet"


def open_raw(log: LogFile, names: Iterable[str] = ()) -> AbstractContextManager[OpenLog]:
    """Opens a file to read some columns as they are: formats of text give text. Raises DataError."""
    return FORMATS[format_of(log)](log, dict.fromkeys(names, pa.string()))


@contextmanager
def open_log(log: LogFile, columns: Columns) -> Iterator[tuple[OpenLog, Reading]]:
    """Opens a file and checks its columns. Raises RequestError, or DataError if it cannot be read."""
    types = types_of(columns, log.layout)
    with FORMATS[format_of(log)](log, types) as file:
        yield file, _reading(log, columns, file.schema, types)


@dataclass(frozen=True)
class Reading:
    """How the columns of one file become those that a job reads."""

    log: LogFile
    wanted: tuple[str, ...]  # the columns that the job reads
    sources: tuple[str, ...]  # the columns to read from the file
    constants: Mapping[str, pa.Scalar]  # columns that hold one value: of a partition
    derives: bool  # whether latitude and longitude come from another column
    column_types: dict[str, str]  # see Columns.check
    untyped: Mapping[str, pa.DataType]  # columns that have Arrow's type of no values, with the types of their roles

    def of_its_days(self, batch: pa.RecordBatch, left_out: LeftOut | None) -> pa.RecordBatch:
        """Returns the rows of a batch that belong to the run's days and hours, in types that can be filtered."""
        names = batch.schema.names
        columns = [
            pa.nulls(batch.num_rows, self.untyped[name]) if name in self.untyped else without_views(batch.column(name))
            for name in names
        ]
        batch = pa.RecordBatch.from_arrays(columns, names)
        days = self.log.layout.days
        if days is None:
            return batch
        kept, before, after = of_days(batch.column(days.column), days)
        if left_out is not None:
            left_out(before, after)
        if days.column not in self.wanted:
            batch = batch.select([name for name in batch.schema.names if name != days.column])
        return batch if kept.all() else batch.filter(pa.array(kept))

    def presented(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """Returns a batch of the file as the job reads it."""
        layout = self.log.layout
        made: dict[str, pa.Array] = {}
        if self.derives:
            if layout.cells is not None:
                places = centres_of(batch.column(layout.cells.column), layout.cells)
            else:
                places = points_of(batch.column(str(layout.geometry)))
            made = dict(zip((layout.latitude, layout.longitude), places, strict=True))
        elif layout.e7:
            names = [name for name in (layout.latitude, layout.longitude) if name in self.wanted]
            # Not safe: an integer that no float holds is no coordinate either, and the error would quote it.
            made = {name: pc.divide(batch.column(name).cast(pa.float64(), safe=False), 1e7) for name in names}
        if not (made or self.constants):
            return batch
        for name, value in self.constants.items():
            made[name] = pa.repeat(value, batch.num_rows)
        columns = [made[name] if name in made else batch.column(name) for name in self.wanted]
        return pa.RecordBatch.from_arrays(columns, list(self.wanted))


def _reading(log: LogFile, columns: Columns, schema: pa.Schema, types: Mapping[str, pa.DataType]) -> Reading:
    """Checks a file's columns. Raises RequestError."""
    layout, wanted = log.layout, tuple(columns.names())
    # A writer gives this type to a column without any value, as of an hour in which nobody was there.
    nulls = [field.name for field in schema if pt.is_null(field.type)]
    untyped = {name: kind for name, kind in types.items() if name in nulls}
    for name, kind in untyped.items():
        schema = _with_column(schema, name, kind)
    axes = [name for name in (layout.latitude, layout.longitude) if name in wanted]
    derives = bool(axes) and layout.place_column is not None
    missing, names = list[tuple[str, str]](), schema.names
    sources = [name for name in wanted if name in names]
    options = {"day_column": layout.days.column} if layout.days is not None else {}
    if derives:
        options["geometry_column" if layout.cells is None else "cell_column"] = str(layout.place_column)
    for option, name in options.items():
        if name not in names:  # one message names all that are missing, so the checks go on as if it were there
            missing.append((option, name))
            schema = _with_column(schema, name, types[name])
    shown = schema
    if derives:
        if layout.cells is None:
            check_points(schema, str(layout.geometry), log.path)
        else:
            check_cells(schema, layout.cells, log.path)
        for name in axes:
            shown = _with_column(shown, name, pa.float64())
        sources = [*(name for name in sources if name not in axes), str(layout.place_column)]
    elif layout.e7:
        for name in axes:
            if name in schema.names:
                if not pt.is_integer(held := field_type(schema, name, f"{name}_column", log.path)):
                    raise RequestError(
                        f"{log.path}: column {name!r} must contain integers, degrees times 10^7 (--coordinates e7), "
                        f"got {held}"
                    )
                shown = _with_column(shown, name, pa.float64())
    if layout.days is not None:
        check_time(schema, layout.days.column, path=log.path, option="day_column")
        sources.append(layout.days.column)
    constants = {}
    for name, value in log.partition:
        if name in wanted and name not in schema.names:
            kind = types.get(name, pa.string())
            raw = None if value is None else value.encode("utf-8", "surrogateescape")  # a name need not be UTF-8
            constants[name] = parsed(text_array([raw]), kind)[0]
            shown = _with_column(shown, name, kind)
    kinds = None
    while kinds is None:
        try:
            kinds = columns.check(shown, log.path)
        except MissingColumnError as error:
            missing += error.missing
            for _, name in error.missing:
                shown = _with_column(shown, name, columns.text_types().get(name, pa.string()))
    if missing:
        has_points = b"geo" in (schema.metadata or {}) or "geometry" in names
        no_place = has_points and any(name in axes for _, name in missing)
        advice = "; or give --geometry_column for a column of points" if no_place else ""
        raise MissingColumnError.of(log.path, missing, names, advice)
    kinds = {name: kind for name, kind in kinds.items() if name not in untyped}
    return Reading(log, wanted, tuple(dict.fromkeys(sources)), constants, derives, kinds, untyped)


def _with_column(schema: pa.Schema, name: str, kind: pa.DataType) -> pa.Schema:
    place = schema.get_field_index(name)
    field = pa.field(name, kind)
    return schema.append(field) if place < 0 else schema.set(place, field)
