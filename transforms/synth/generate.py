"""Writes the people's records to Parquet files, one element of a pipeline a file, and counts them."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from dataclasses import dataclass

import apache_beam as beam
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from apache_beam.io.filesystems import FileSystems
from numpy.typing import NDArray

from sfumato.schemas.region import Grid, deinterleave
from sfumato.transforms.synth.city import City, build_city
from sfumato.transforms.synth.day_plan import build_city_on
from sfumato.transforms.synth.people import make_records, record_schema
from sfumato.transforms.synth.synth_request import ROW_GROUP_ROWS, SynthSpec

_CITY_LOCK = threading.Lock()


def make_file_tables(request: SynthSpec, index: int, city: City) -> Iterator[pa.Table]:
    """The records of one file, as tables of a row group or less each."""
    for first, last, record in request.pieces(index):
        yield make_records(
            first,
            last,
            record,
            city=city,
            seed=request.seed,
            region=request.region,
            user_id=request.user_id,
            day=request.day,
        )


def count_codes(table: pa.Table, grid: Grid) -> NDArray[np.int64]:
    """Records a cell, int64[4^depth], in the order of the cells' codes."""
    codes = grid.codes(table["longitude"].to_numpy(), table["latitude"].to_numpy())
    return np.bincount(codes.view(np.int64), minlength=grid.side**2)


def density_raster(counts: NDArray[np.int64], grid: Grid) -> NDArray[np.float64]:
    """Counts by code int64[4^depth] -> float64[2^depth, 2^depth], row 0 in the north, that sums to 1."""
    x, y = deinterleave(np.arange(grid.side**2, dtype=np.uint64))
    raster = np.empty((grid.side, grid.side))
    raster[y, x] = counts / counts.sum()
    return raster


@beam.typehints.with_input_types(int)
@beam.typehints.with_output_types(np.ndarray)
class WriteFile(beam.DoFn):
    """Writes one file into a folder; yields its counts int64[4^depth] if asked to, else int64[1], its rows.

    A retried element writes the same bytes under the same name.
    """

    def __init__(self, request: SynthSpec, folder: str, with_density: bool) -> None:
        self.request = request
        self.folder = folder
        self.with_density = with_density

    def setup(self) -> None:
        """Builds the city once a process."""
        with _CITY_LOCK:
            self.city = build_city() if self.request.day is None else build_city_on(self.request.day)

    def process(self, index: int) -> Iterator[NDArray[np.int64]]:
        """Writes the file with that index."""
        request = self.request
        counts = np.zeros(request.grid.side**2 if self.with_density else 1, dtype=np.int64)
        path = FileSystems.join(self.folder, request.file_name(index))
        schema = record_schema(request.user_id)
        # Hardly a value repeats, so a dictionary would be built and thrown away. Snappy reads as fast as no
        # compression here, and makes files a little smaller; zstd saves 10% and takes three times as long.
        with (
            FileSystems.create(path) as sink,
            pq.ParquetWriter(sink, schema, compression="snappy", use_dictionary=False) as writer,
        ):
            for table in make_file_tables(request, index, self.city):
                writer.write_table(table, row_group_size=ROW_GROUP_ROWS)
                counts += count_codes(table, request.grid) if self.with_density else table.num_rows
        yield counts


class SumCounts(beam.CombineFn):
    """Adds arrays of counts int64[n]."""

    def create_accumulator(self) -> NDArray[np.int64]:
        """A zero that takes the shape of whatever is added first."""
        return np.zeros(1, dtype=np.int64)

    def add_input(self, accumulator: NDArray[np.int64], counts: NDArray[np.int64]) -> NDArray[np.int64]:
        """Adds, in place once the accumulator has the full shape."""
        if accumulator.shape != counts.shape:
            return accumulator + counts
        accumulator += counts
        return accumulator

    def merge_accumulators(self, accumulators: Iterator[NDArray[np.int64]]) -> NDArray[np.int64]:
        """The sum of all."""
        total = self.create_accumulator()
        for accumulator in accumulators:
            total = self.add_input(total, accumulator)
        return total

    def extract_output(self, accumulator: NDArray[np.int64]) -> NDArray[np.int64]:
        """The sum itself."""
        return accumulator


@dataclass
class GeneratePeople(beam.PTransform):
    """From the root of a pipeline: writes all files into `folder` and yields one array of counts.

    The output is int64[4^density_depth], records by cell code; without `with_density` int64[1], all records.
    """

    request: SynthSpec
    folder: str
    with_density: bool = False

    def __post_init__(self) -> None:
        super().__init__()

    def expand(self, root: beam.pvalue.PBegin) -> beam.PCollection:
        """Wires the steps."""
        return (
            root
            | "ListFiles" >> beam.Create(range(self.request.files))
            # (file index)
            | "Spread" >> beam.Reshuffle()
            # (file index)
            | "WriteFiles" >> beam.ParDo(WriteFile(self.request, self.folder, self.with_density))
            # int64[4^depth] or int64[1]
            | "SumCounts" >> beam.CombineGlobally(SumCounts())
            # int64[4^depth] or int64[1]
        )
