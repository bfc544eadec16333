"""BigQuery tables: one read session of BigQuery's Storage API, whose streams are slices and yield Arrow batches."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import cached_property
from typing import Any, NamedTuple

import pyarrow as pa

from sfumato.schemas.errors import DataError, NotReadyError, RequestError
from sfumato.transforms.inputs.log_file import FileSlice, LogFile, Types
from sfumato.transforms.inputs.parquet_log import BATCH_ROWS
from sfumato.transforms.io.google_errors import google_retry, may_pass

BIGQUERY = "bigquery:"
_MAX_STREAMS = 64


class TableState(NamedTuple):
    """The present state of a table in BigQuery."""

    rows: int
    size: int  # in bytes
    changed: float  # time of the last change, in seconds since 1970
    version: str  # changes whenever the table does


class BigQueryLog:
    """A table as an open log; see OpenLog."""

    def __init__(self, log: LogFile, types: Types):
        self._path = log.path
        self._columns = log.layout.columns

    @cached_property
    def schema(self) -> pa.Schema:
        return pa.ipc.read_schema(pa.py_buffer(self._session(1, ()).arrow_schema.serialized_schema))

    @cached_property
    def rows(self) -> int:
        return table_state(self._path).rows

    @property
    def is_empty(self) -> bool:
        return self.rows == 0

    def cuts(self) -> Iterator[tuple[int, int, str]]:
        session = self._session(_MAX_STREAMS, self._columns)
        for number, stream in enumerate(session.streams):
            yield number, number + 1, stream.name
        if not session.streams:  # an empty table has none
            yield 0, 0, ""

    def batches(self, part: FileSlice, names: Sequence[str]) -> Iterator[pa.RecordBatch]:
        if not part.stream:
            return
        schema, held, rows = None, list[pa.RecordBatch](), 0
        for message in _read_client().read_rows(part.stream, retry=google_retry()):
            if schema is None:
                schema = pa.ipc.read_schema(pa.py_buffer(message.arrow_schema.serialized_schema))
            raw = pa.py_buffer(message.arrow_record_batch.serialized_record_batch)
            held.append(pa.ipc.read_record_batch(raw, schema).select(list(names)))
            rows += held[-1].num_rows
            if rows >= BATCH_ROWS // 4:  # small messages are joined into batches
                yield from pa.Table.from_batches(held).combine_chunks().to_batches()
                held, rows = [], 0
        if held:
            yield from pa.Table.from_batches(held).combine_chunks().to_batches()

    def _session(self, streams: int, columns: Sequence[str]) -> Any:
        """Returns a read session: a fixed state of the table for some hours."""
        from google.cloud.bigquery_storage_v1 import types

        project, dataset, table = _parts(self._path)
        read_session = types.ReadSession(
            table=f"projects/{project}/datasets/{dataset}/tables/{table}",
            data_format=types.DataFormat.ARROW,
            read_options=types.ReadSession.TableReadOptions(selected_fields=list(columns)),
        )
        client = _read_client()
        return client.create_read_session(
            parent=f"projects/{project}", read_session=read_session, max_stream_count=streams, retry=google_retry()
        )


def _parts(path: str) -> list[str]:
    """Returns project, data set and table. Raises RequestError."""
    parts = path.removeprefix(BIGQUERY).split(".")
    if len(parts) != 3 or not all(parts):
        raise RequestError(f"{path}: must be bigquery:PROJECT.DATASET.TABLE")
    return parts


def table_state(path: str) -> TableState:
    """Asks BigQuery for a table's state. Raises RequestError if there is no such table."""
    parts = _parts(path)
    with _reading(path):
        table = _client(parts[0]).get_table(".".join(parts), retry=google_retry())
    if table.table_type != "TABLE":
        raise RequestError(f"{path}: must be a table, got a {table.table_type.lower()}; copy it to a table")
    return TableState(table.num_rows, table.num_bytes, table.modified.timestamp(), f"{table.etag}-{table.modified}")


def table_digest(path: str) -> str:
    """Returns a digest of a table in its present state: of its name and its last change. A copy has another one."""
    return hashlib.sha256(f"{path} {table_state(path).version}".encode()).hexdigest()


def _client(project: str) -> Any:
    from google.cloud import bigquery

    return bigquery.Client(project=project)


def _read_client() -> Any:
    from google.cloud import bigquery_storage_v1

    return bigquery_storage_v1.BigQueryReadClient()


@contextmanager
def _reading(path: str) -> Iterator[None]:
    try:
        from google.api_core.exceptions import GoogleAPIError, NotFound
        from google.auth.exceptions import GoogleAuthError
        from google.cloud import bigquery, bigquery_storage_v1  # noqa: F401
    except ImportError:
        raise RequestError("input: BigQuery tables require the extra gcp; run: pip install '.[gcp]'") from None
    try:
        yield
    except NotFound:
        raise RequestError(f"{path}: table not found") from None
    except (GoogleAPIError, GoogleAuthError) as error:
        if may_pass(error):
            raise NotReadyError(f"{path}: cannot be reached now ({error}); try again later") from error
        raise DataError(f"{path}: cannot be read ({error})") from error


@contextmanager
def open_bigquery_log(log: LogFile, types: Types) -> Iterator[BigQueryLog]:
    """Opens a table; see LogFormat. It keeps the table's own types."""
    with _reading(log.path):
        yield BigQueryLog(log, types)
