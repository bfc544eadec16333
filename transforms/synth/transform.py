"""Writes the people's records to Parquet files, one file for each element of a pipeline, and counts them."""

from __future__ import annotations

import functools
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import date

import apache_beam as beam
import pyarrow as pa
import pyarrow.parquet as pq
from apache_beam.io.filesystems import FileSystems

import sfumato.transforms.beam_support  # noqa: F401  (installs caches and fixes)
from sfumato.transforms.synth.city import City, build_city, build_city_on
from sfumato.transforms.synth.people import RECORD_SCHEMA, TRIP_SCHEMA, make_records, make_trips
from sfumato.transforms.synth.request import ROW_GROUP_ROWS, SynthRequest

_CITY_LOCK = threading.Lock()


def make_file_tables(request: SynthRequest, day: date | None, index: int, city: City) -> Iterator[pa.Table]:
    """Yields the records of one file, as tables of at most a row group."""
    make = make_trips if request.trips else functools.partial(make_records, day=day)
    for first, last, record in request.pieces(index):
        yield make(first, last, record, city=city, seed=request.seed, region=request.region)


def write_records(index: int, request: SynthRequest, day: date | None, folder: str) -> int:
    """Writes a file and returns the number of its records. A retry writes the same bytes under the same name."""
    with _CITY_LOCK:  # built once a process
        city = build_city() if day is None else build_city_on(day)
    path = FileSystems.join(folder, request.file_name(index))
    schema = TRIP_SCHEMA if request.trips else RECORD_SCHEMA
    # No dictionary, because hardly any value repeats. Snappy reads as fast as no compression and makes files a little
    # smaller. zstd would save 10% and take three times as long.
    with (
        FileSystems.create(path) as sink,
        pq.ParquetWriter(sink, schema, compression="snappy", use_dictionary=False) as writer,
    ):
        rows = 0
        for table in make_file_tables(request, day, index, city):
            writer.write_table(table, row_group_size=ROW_GROUP_ROWS)
            rows += table.num_rows
    return rows


@dataclass
class GeneratePeople(beam.PTransform):
    """The root of a pipeline -> the number of records in all files of a day, which it writes into a folder."""

    request: SynthRequest
    day: date | None  # None without days
    folder: str

    def __post_init__(self) -> None:
        super().__init__()

    def expand(self, root: beam.pvalue.PBegin) -> beam.PCollection:
        return (
            root
            | "ListFiles" >> beam.Create(range(self.request.files))  # PCollection[number of a file]
            | "Spread" >> beam.Reshuffle()
            | "WriteFiles" >> beam.Map(write_records, self.request, self.day, self.folder)
            | "SumRecords" >> beam.CombineGlobally(sum)  # PCollection[int]
        )
