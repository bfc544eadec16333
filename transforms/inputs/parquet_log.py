"""Parquet files: slices of row groups."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager

import pyarrow as pa
import pyarrow.parquet as pq
import pyarrow.types as pt

from sfumato.schemas.errors import RequestError
from sfumato.transforms.geo.geoparquet import geo_metadata
from sfumato.transforms.inputs.log_file import FileSlice, LogFile, Types, reading_file
from sfumato.transforms.io.files import is_remote, open_file

SLICE_ROWS = 4_000_000
BATCH_ROWS = 1 << 20
_READ_BYTES = 1 << 20  # of a column, from a local disk
_ROWS_OF_A_THREAD = 1 << 16  # fewer rows are decoded before Arrow's threads have started
_FIELD_ID = b"PARQUET:field_id"


@contextmanager
def open_parquet(path: str, version: str | None = None, size: int | None = None) -> Iterator[pq.ParquetFile]:
    """Opens a Parquet file, local or remote. Raises DataError with the path if it cannot be read as Parquet.

    version, size: see `open_file`.
    """
    # Arrow reads local files without Python's lock, and a few pages at a time: a row group may have any size.
    # Remote files need Beam's file systems, and few large reads: Arrow then holds the columns of a row group.
    remote = is_remote(path)
    with (
        reading_file(path, "Parquet"),
        open_file(path, version, size) if remote else pa.OSFile(os.fsencode(path)) as source,
        pq.ParquetFile(
            source, page_checksum_verification=True, pre_buffer=remote, buffer_size=0 if remote else _READ_BYTES
        ) as file,
    ):
        yield file


class ParquetLog:
    """An open Parquet file; see OpenLog."""

    def __init__(self, file: pq.ParquetFile, log: LogFile):
        self._file = file
        self._log = log
        schema, geo = file.schema_arrow, geo_metadata(file)  # a schema does not show that a column is GEOMETRY
        self.schema: pa.Schema = (
            schema.with_metadata({**(schema.metadata or {}), b"geo": json.dumps(geo)}) if geo else schema
        )
        self.rows = int(file.metadata.num_rows)

    @property
    def is_empty(self) -> bool:
        return self.rows == 0

    def cuts(self) -> Iterator[tuple[int, int, str]]:
        first = rows = 0
        for number in range(self._file.num_row_groups):
            if rows >= SLICE_ROWS:
                yield first, number, ""
                first, rows = number, 0
            rows += self._file.metadata.row_group(number).num_rows
        yield first, self._file.num_row_groups, ""

    def batches(self, part: FileSlice, names: Sequence[str]) -> Iterator[pa.RecordBatch]:
        groups = list(range(part.first, min(part.end, self._file.num_row_groups)))
        threads = sum(self._file.metadata.row_group(group).num_rows for group in groups) > _ROWS_OF_A_THREAD
        columns = [field for name in names for field in self._parts(name)]
        yield from self._file.iter_batches(BATCH_ROWS, row_groups=groups, columns=columns, use_threads=threads)

    def _parts(self, name: str) -> list[str]:
        """Returns the fields to read of a column: of a struct point only x and y, as others may have any size."""
        kind = self.schema.field(name).type
        kind = kind.storage_type if isinstance(kind, pa.BaseExtensionType) else kind
        return [f"{name}.x", f"{name}.y"] if pt.is_struct(kind) else [name]

    def check_ids(self, names: Iterable[str]) -> None:
        """Raises RequestError if a column of a table has another id here: it is another column of the same name."""
        wanted = set(names)
        for name, expected in self._log.field_ids:
            if name in wanted and name in self.schema.names:
                found = (self.schema.field(name).metadata or {}).get(_FIELD_ID)
                if found is not None and int(found) != expected:
                    raise RequestError(
                        f"{self._log.path}: column {name!r} was renamed or replaced in the table after this file was "
                        "written; rewrite the table's files, or read them as Parquet with their own names"
                    )


@contextmanager
def open_parquet_log(log: LogFile, types: Types) -> Iterator[ParquetLog]:
    """Opens a file; see LogFormat. It keeps the file's own types."""
    with open_parquet(log.path, log.version, log.size) as file:
        opened = ParquetLog(file, log)
        opened.check_ids(types)
        yield opened
