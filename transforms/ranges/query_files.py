"""Files of range queries: read in batches, checked row by row, and answered by a released model.

A query file is Parquet with columns x and y, longitude and latitude of the square's centre in degrees, and size, its
side in metres, of any numeric types. Other columns are not read.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import apache_beam as beam
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pyarrow.types as pt
from apache_beam import typehints
from apache_beam.io.filesystems import FileSystems
from numpy.typing import NDArray

from sfumato.schemas.errors import DataError, RequestError
from sfumato.schemas.ranges import LARGEST, QUERY_COLUMNS, SMALLEST, Boxes, Field, answers_schema
from sfumato.transforms.inputs.parquet_log import open_parquet
from sfumato.transforms.observability.logs import READ_FILE
from sfumato.transforms.ranges.model import RangeModel
from sfumato.transforms.ranges.model_file import open_model

QUERIES_SCHEMA = pa.schema([pa.field(name, pa.float64(), nullable=False) for name in QUERY_COLUMNS])
BATCH_ROWS = 1 << 16
_RULES = {
    "x": ("a longitude is in -180..180 degrees", -180.0, 180.0),
    "y": ("a latitude is in -90..90 degrees; are x and y swapped?", -90.0, 90.0),
    "size": (f"a side is {SMALLEST:g} m or more, and at most the Earth's circumference", SMALLEST, LARGEST),
}
MIN_SQUARES = 1_000  # with fewer, networks overfit a few places
MAX_SQUARES = 50_000  # of a workload: the job's graph carries them several times


def count_queries(path: str) -> int:
    """Reads the number of rows from a file's footer. Raises RequestError for its columns, DataError if unreadable."""
    with open_parquet(path) as file:
        check_query_columns(file.schema_arrow, path)
        return int(file.metadata.num_rows)


def read_queries(path: str, rows: int = BATCH_ROWS) -> Iterator[pa.RecordBatch]:
    """Reads a query file, local or in a bucket, in batches of QUERIES_SCHEMA.

    Raises RequestError if a column or a row is wrong, naming the file and the row; DataError if it is no Parquet.
    """
    before = 0
    with open_parquet(path) as file:
        check_query_columns(file.schema_arrow, path)
        for batch in file.iter_batches(rows, columns=list(QUERY_COLUMNS)):
            yield checked_queries(batch, path, before)
            before += batch.num_rows


def read_workload(path: str, field: Field) -> Boxes:
    """Returns the squares of a file, clipped to the field, without those outside it.

    Raises RequestError for too few or too many squares, or a row that is no square; DataError if the file cannot be
    read.
    """
    try:
        rows = count_queries(path)
        if rows > MAX_SQUARES:
            raise RequestError(
                f"{path} holds {rows:,} squares, and the limit is {MAX_SQUARES:,}; give a sample of them"
            )
        batches = [[batch.column(name).to_numpy() for name in QUERY_COLUMNS] for batch in read_queries(path)]
    except RequestError as error:
        raise RequestError(f"workload: {error}") from None
    squares = [field.squares(*batch).clipped(field.side) for batch in batches]
    edges = [np.concatenate([getattr(batch, name) for batch in squares] or [[]]) for name in ("x0", "y0", "x1", "y1")]
    boxes = Boxes(*edges)
    inside = boxes.areas > 0
    if 0 < inside.sum() < MIN_SQUARES:
        raise RequestError(
            f"workload: {inside.sum():,} squares of {path} lie in the region, too few to learn from; give "
            f"{MIN_SQUARES:,} or more, or leave it out"
        )
    if not inside.any():
        raise RequestError(f"workload: no square of {path} lies in the region {field.grid.region}")
    return Boxes(*(edge[inside] for edge in edges))


def check_query_columns(schema: pa.Schema, path: str) -> None:
    """Raises RequestError, naming the file, unless it has columns x, y and size, each once and of numbers."""
    for name in QUERY_COLUMNS:
        if name not in schema.names:
            present = ", ".join(schema.names) or "none"
            raise RequestError(
                f"{path}: no column {name!r}; queries need {', '.join(QUERY_COLUMNS)}, the file has: {present}"
            )
        if schema.names.count(name) > 1:
            raise RequestError(f"{path}: {schema.names.count(name)} columns are named {name!r}; leave one of them")
        kind = schema.field(name).type
        if not (pt.is_integer(kind) or pt.is_floating(kind) or pt.is_decimal(kind)):
            raise RequestError(f"{path}: column {name!r} must hold numbers, it holds {kind}; convert it")


def checked_queries(batch: pa.RecordBatch, path: str, before: int = 0) -> pa.RecordBatch:
    """Converts a batch with columns x, y and size to QUERIES_SCHEMA and checks its values.

    Raises RequestError for a value that is missing, not finite or out of range. Its message names the file, and the row
    from 1, after those `before` the batch.
    """
    columns = [_numbers(batch.column(name), name, path) for name in QUERY_COLUMNS]
    # In this form NaN is not good.
    good = [(values >= low) & (values <= high) for values, (_, low, high) in zip(columns, _RULES.values(), strict=True)]
    for row in np.flatnonzero(~np.all(good, axis=0))[:1].tolist():
        number, values = next((number, columns[number]) for number in range(3) if not good[number][row])
        name, (rule, _, _) = list(_RULES.items())[number]
        rule = rule if math.isfinite(values[row]) else "a square has three finite numbers"
        value = f"{values[row]:g}" if batch.column(name)[row].is_valid else "nothing"
        raise RequestError(f"{path}: row {before + row + 1:,} has {value} for {name}; {rule}")
    return pa.RecordBatch.from_arrays([pa.array(values) for values in columns], schema=QUERIES_SCHEMA)


def _numbers(column: pa.Array, name: str, path: str) -> NDArray[np.float64]:
    """Returns a column as float64, NaN where a value is missing."""
    try:
        return np.asarray(column.cast(pa.float64(), safe=False).to_numpy(zero_copy_only=False), dtype=np.float64)
    except pa.ArrowInvalid as error:
        raise DataError(f"{path}: column {name!r} cannot be read as numbers ({error})") from None


@dataclass(frozen=True)
class QueryCounts:
    """The numbers of answered queries, of those that reach beyond the region, and of those outside it."""

    queries: int = 0
    beyond: int = 0
    outside: int = 0

    def __add__(self, other: QueryCounts) -> QueryCounts:
        return QueryCounts(self.queries + other.queries, self.beyond + other.beyond, self.outside + other.outside)


def sum_query_counts(counts: Iterable[QueryCounts]) -> QueryCounts:
    """Adds counts up; a function for `beam.CombineGlobally`."""
    return sum(counts, start=QueryCounts())


def answer_batch(model: RangeModel, queries: pa.RecordBatch, additive: bool = False) -> pa.RecordBatch:
    """Answers a batch of QUERIES_SCHEMA row by row, as a batch of `answers_schema`. additive: see RangeModel.answer."""
    x, y, size = (queries.column(name).to_numpy() for name in ("x", "y", "size"))
    answers, inside = model.answer(x, y, size, additive=additive)
    columns, schema = (x, y, size, answers.users, answers.stddev, inside), answers_schema(model.model.ERROR)
    return pa.RecordBatch.from_arrays([pa.array(column, pa.float64()) for column in columns], schema=schema)


def count_answers(answers: pa.RecordBatch) -> QueryCounts:
    """Returns the counts of one batch of answers."""
    inside = answers.column("inside").to_numpy()
    return QueryCounts(len(inside), int(np.count_nonzero(inside < 1)), int(np.count_nonzero(inside == 0)))


@typehints.with_input_types(tuple[str, str])
@typehints.with_output_types(QueryCounts)
class _AnswerFileFn(beam.DoFn):
    def __init__(self, model: str, additive: bool):
        self._path, self._additive = model, additive

    def setup(self) -> None:
        self._model = open_model(self._path)

    def process(self, files: tuple[str, str]) -> Iterator[QueryCounts]:
        queries, answers = files
        counts = QueryCounts()
        with (
            FileSystems.create(answers) as sink,
            pq.ParquetWriter(sink, answers_schema(self._model.model.ERROR), use_dictionary=False) as writer,
        ):
            for batch in read_queries(queries):
                answered = answer_batch(self._model, batch, self._additive)
                writer.write_batch(answered)
                counts += count_answers(answered)
        READ_FILE.emit(file=queries)
        yield counts


@dataclass
class AnswerFiles(beam.PTransform):
    """Pairs of paths (query file, file for its answers) -> one QueryCounts of all.

    Each answer file is Parquet of `answers_schema`, in the order of its queries. A retried element writes the same
    bytes. An element is a file, so workers share many millions of queries best in several files. Raises RequestError
    or DataError as `read_queries` and `open_model` do. model: a path that the workers can open. additive: see
    RangeModel.answer.
    """

    model: str
    additive: bool = False

    def __post_init__(self) -> None:
        super().__init__()

    def expand(self, files: beam.PCollection) -> beam.PCollection:
        return (
            files
            | "Spread" >> beam.Reshuffle()  # PCollection[tuple[path of queries, path of answers]]
            | "Answer" >> beam.ParDo(_AnswerFileFn(self.model, self.additive))  # PCollection[QueryCounts]
            | "Sum" >> beam.CombineGlobally(sum_query_counts)  # PCollection[QueryCounts]
        )
