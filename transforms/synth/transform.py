"""Writes the people's records to Parquet files, one file for each element of a pipeline, and counts them."""

from __future__ import annotations

import functools
import threading
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import apache_beam as beam
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from apache_beam.io.filesystems import FileSystems
from numpy.typing import NDArray

import sfumato.transforms.beam_support  # noqa: F401  (installs caches and fixes)
from sfumato.schemas.region import Grid, by_row
from sfumato.transforms.synth.city import City, build_city, build_city_on
from sfumato.transforms.synth.people import make_records, make_trips, record_schema, trip_schema
from sfumato.transforms.synth.request import ROW_GROUP_ROWS, SynthSpec

_CITY_LOCK = threading.Lock()


def make_file_tables(spec: SynthSpec, index: int, city: City) -> Iterator[pa.Table]:
    """Yields the records of one file, as tables of at most a row group."""
    make = make_trips if spec.trips else functools.partial(make_records, day=spec.day)
    for first, last, record in spec.pieces(index):
        yield make(first, last, record, city=city, seed=spec.seed, region=spec.region, user_id=spec.user_id)


def count_codes(table: pa.Table, grid: Grid) -> NDArray[np.int64]:
    """Returns the number of records in each cell: int64[4^depth], in the order of codes."""
    codes = grid.codes(table["longitude"].to_numpy(), table["latitude"].to_numpy())
    return np.bincount(codes.view(np.int64), minlength=grid.side**2)


def density_raster(counts: NDArray[np.int64]) -> NDArray[np.float64]:
    """Returns the density, float64[2^depth, 2^depth], row 0 in the north, sum 1, of counts by code, int64[4^depth]."""
    return np.asarray(by_row(counts / counts.sum()))


@beam.typehints.with_input_types(int)
@beam.typehints.with_output_types(np.ndarray)
class WriteFile(beam.DoFn):
    """Index of a file -> its records by cell, int64[4^depth], or their number, int64[1]. Writes the file.

    A retried element writes the same bytes under the same name.
    """

    def __init__(self, spec: SynthSpec, folder: str, with_density: bool) -> None:
        self._spec, self._folder, self._with_density = spec, folder, with_density

    def setup(self) -> None:
        """Builds the city, once a process."""
        with _CITY_LOCK:
            self._city = build_city() if self._spec.day is None else build_city_on(self._spec.day)

    def process(self, index: int) -> Iterator[NDArray[np.int64]]:
        """Writes the file."""
        spec = self._spec
        counts = np.zeros(spec.grid.side**2 if self._with_density else 1, dtype=np.int64)
        path = FileSystems.join(self._folder, spec.file_name(index))
        schema = trip_schema(spec.user_id) if spec.trips else record_schema(spec.user_id)
        # No dictionary, because hardly any value repeats. Snappy reads as fast as no compression and makes files a
        # little smaller. zstd would save 10% and take three times as long.
        with (
            FileSystems.create(path) as sink,
            pq.ParquetWriter(sink, schema, compression="snappy", use_dictionary=False) as writer,
        ):
            for table in make_file_tables(spec, index, self._city):
                writer.write_table(table, row_group_size=ROW_GROUP_ROWS)
                counts += count_codes(table, spec.grid) if self._with_density else table.num_rows
        yield counts


def add_counts(counts: Iterable[NDArray[np.int64]]) -> NDArray[np.int64]:
    """Returns the sum of arrays int64[n]; int64[1] without any."""
    return sum(counts, np.zeros(1, dtype=np.int64))


@dataclass
class GeneratePeople(beam.PTransform):
    """The root of a pipeline -> one array of counts. Writes all files.

    The output is the number of records by cell code, int64[4^density_depth], or, without `with_density`, of all
    records, int64[1].
    """

    spec: SynthSpec
    folder: str
    with_density: bool = False

    def __post_init__(self) -> None:
        super().__init__()

    def expand(self, root: beam.pvalue.PBegin) -> beam.PCollection:
        return (
            root
            | "ListFiles" >> beam.Create(range(self.spec.files))  # PCollection[number of a file]
            | "Spread" >> beam.Reshuffle()
            | "WriteFiles" >> beam.ParDo(WriteFile(self.spec, self.folder, self.with_density))
            | "SumCounts" >> beam.CombineGlobally(add_counts)  # PCollection[int64[cells]]
        )
