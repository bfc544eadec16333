"""Answers to files of range queries by a released model: a file is an element, and is answered in batches."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import apache_beam as beam
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from apache_beam import typehints
from apache_beam.io.filesystems import FileSystems

from sfumato.schemas.ranges import answers_schema
from sfumato.transforms.logs import READ_FILE
from sfumato.transforms.ranges.model import RangeModel
from sfumato.transforms.ranges.opening import open_model
from sfumato.transforms.ranges.queries import read_queries


@dataclass(frozen=True)
class Tally:
    """How many queries there were; how many of them reach beyond the region, and lie wholly outside it."""

    queries: int = 0
    beyond: int = 0
    outside: int = 0

    def __add__(self, other: Tally) -> Tally:
        return Tally(self.queries + other.queries, self.beyond + other.beyond, self.outside + other.outside)


def sum_tallies(tallies: Iterable[Tally]) -> Tally:
    """Adds tallies up; a function for `beam.CombineGlobally`."""
    return sum(tallies, start=Tally())


def answer_batch(model: RangeModel, queries: pa.RecordBatch) -> pa.RecordBatch:
    """Answers of `answers_schema` to a batch of QUERIES_SCHEMA, row by row."""
    x, y, size = (queries.column(name).to_numpy() for name in ("x", "y", "size"))
    answers, inside = model.answer(x, y, size)
    columns, schema = (x, y, size, answers.users, answers.stddev, inside), answers_schema(model.model.ERROR)
    return pa.RecordBatch.from_arrays([pa.array(one, pa.float64()) for one in columns], schema=schema)


def tally_batch(answers: pa.RecordBatch) -> Tally:
    """What a batch of answers adds to the tally."""
    inside = answers.column("inside").to_numpy()
    return Tally(len(inside), int(np.count_nonzero(inside < 1)), int(np.count_nonzero(inside == 0)))


@typehints.with_input_types(tuple[str, str])
@typehints.with_output_types(Tally)
class _AnswerFileFn(beam.DoFn):
    def __init__(self, model: str):
        self._path = model

    def setup(self) -> None:
        self._model = open_model(self._path)

    def process(self, files: tuple[str, str]) -> Iterator[Tally]:
        queries, answers = files
        tally = Tally()
        with (
            FileSystems.create(answers) as sink,
            pq.ParquetWriter(sink, answers_schema(self._model.model.ERROR), use_dictionary=False) as writer,
        ):
            for batch in read_queries(queries):
                answered = answer_batch(self._model, batch)
                writer.write_batch(answered)
                tally += tally_batch(answered)
        READ_FILE.emit(file=queries)
        yield tally


@dataclass
class AnswerFiles(beam.PTransform):
    """Pairs of paths, of a query file and of the file for its answers -> one Tally of all.

    Answers stand in the order of their queries, a Parquet file of `answers_schema` for each query file; a retried
    element writes the same bytes. Files are answered beside each other, the queries of one in turn: many millions are
    answered sooner in several files. Raises RequestError or DataError as `read_queries` and `open_model` do.

    model: path of a released model, which the workers open.
    """

    model: str

    def __post_init__(self) -> None:
        super().__init__()

    def expand(self, files: beam.PCollection) -> beam.PCollection:
        """Wires the steps."""
        return (
            files
            # (path of queries, path of answers)
            | "Spread" >> beam.Reshuffle()
            # (path of queries, path of answers)
            | "Answer" >> beam.ParDo(_AnswerFileFn(self.model))
            # Tally
            | "Sum" >> beam.CombineGlobally(sum_tallies)
            # Tally
        )
