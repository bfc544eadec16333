"""Inputs in Google's services: buckets of an emulator, with few requests, many at once, and tables of BigQuery.

BigQuery is stubs on local sockets: the Storage API on gRPC, which serves streams of Arrow, and tables by REST.

The stubs keep to the protocol's messages, and to what the service promises of a session: a fixed state, rows of each
stream once, the selected columns alone. What they do not show: Google's own limits, credentials and errors.
"""

from __future__ import annotations

import io
import json
import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Event, Thread
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

pytest.importorskip("google.cloud.bigquery_storage_v1", reason="needs apache-beam[gcp]")

import grpc
from google.auth.credentials import AnonymousCredentials
from google.cloud import bigquery, bigquery_storage_v1
from google.cloud.bigquery_storage_v1 import types
from google.cloud.bigquery_storage_v1.services.big_query_read.transports import BigQueryReadGrpcTransport

from sfumato.pipelines.command_line import cli
from sfumato.pipelines.frame.inputs import inspect, match_files
from sfumato.schemas.errors import DataError, RequestError
from sfumato.schemas.locations import LocationColumns
from sfumato.transforms.inputs import bigquery_table
from sfumato.transforms.inputs.bigquery_table import table_digest
from sfumato.transforms.inputs.log_reader import (
    bundled,
    inspect_log,
    read_batches,
    read_bundle,
    slice_bundle,
    slice_file,
)
from sfumato.transforms.io import storage
from sfumato.transforms.privacy.ledger.ledger import open_ledger
from tests.conftest import make_logs, write_files
from tests.jobs.inputs.test_log_reader import encoded
from tests.keys import write_key
from tests.log_forms import records
from tests.rejections import rejects
from tests.storage import BUCKET, Emulator, put, storage_emulator, upload

TABLE = "bigquery:project.city.visits"
SERVICE = "google.cloud.bigquery.storage.v1.BigQueryRead"


class Warehouse:
    """A table, and what was asked of it. Its streams hold every third row each, in messages of 50 rows."""

    def __init__(self, table: pa.Table):
        self.table, self.etag, self.kind = table, "one", "TABLE"
        self.sessions: list[tuple[list[str], int]] = []
        self.failures = 0  # calls to refuse, as if the services were overloaded

    def fails_now(self) -> bool:
        self.failures -= 1
        return self.failures >= 0

    def create(self, request: types.CreateReadSessionRequest, _: Any) -> types.ReadSession:
        if self.fails_now():
            _.abort(grpc.StatusCode.UNAVAILABLE, "overloaded")
        assert request.read_session.table == "projects/project/datasets/city/tables/visits"
        fields = list(request.read_session.read_options.selected_fields)
        if unknown := set(fields) - set(self.table.column_names):
            _.abort(grpc.StatusCode.INVALID_ARGUMENT, f"no such field: {unknown}")
        self.sessions.append((fields, request.max_stream_count))
        chosen = self.table.select(fields or self.table.column_names)
        streams = [
            types.ReadStream(name=f"{len(self.sessions) - 1}/{number}")
            for number in range(min(3, request.max_stream_count) if self.table.num_rows else 0)
        ]
        schema = types.ArrowSchema(serialized_schema=chosen.schema.serialize().to_pybytes())
        return types.ReadSession(name="session", streams=streams, arrow_schema=schema)

    def read(self, request: types.ReadRowsRequest, _: Any) -> Iterator[types.ReadRowsResponse]:
        if self.fails_now():
            _.abort(grpc.StatusCode.UNAVAILABLE, "overloaded")
        session, number = map(int, request.read_stream.split("/"))
        fields, _count = self.sessions[session]
        rows = self.table.select(fields or self.table.column_names).take(list(range(number, self.table.num_rows, 3)))
        rows = rows.slice(request.offset).combine_chunks()
        schema = types.ArrowSchema(serialized_schema=rows.schema.serialize().to_pybytes())
        for first, batch in enumerate(rows.to_batches(max_chunksize=50)):
            raw = types.ArrowRecordBatch(serialized_record_batch=batch.serialize().to_pybytes())
            first_schema = {"arrow_schema": schema} if first == 0 else {}
            yield types.ReadRowsResponse(arrow_record_batch=raw, row_count=batch.num_rows, **first_schema)

    def described(self) -> dict[str, Any]:
        return {
            "tableReference": {"projectId": "project", "datasetId": "city", "tableId": "visits"}, "etag": self.etag,
            "numRows": str(self.table.num_rows), "numBytes": "1000", "lastModifiedTime": "1795168800000",
            "type": self.kind,
        }  # fmt: skip


@pytest.fixture
def warehouse(monkeypatch: pytest.MonkeyPatch) -> Iterator[Warehouse]:
    """Stubs of both services, to which this package's clients lead."""
    made = Warehouse(records())

    class Tables(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            if made.fails_now():
                self.send_error(503)
                return
            is_ours = self.path.partition("?")[0].endswith("/projects/project/datasets/city/tables/visits")
            content = json.dumps(made.described() if is_ours else {"error": {"code": 404, "message": "none"}}).encode()
            self.send_response(200 if is_ours else 404)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            self.wfile.write(content)

        def log_message(self, *_: Any) -> None:
            pass

    create = grpc.unary_unary_rpc_method_handler(
        made.create, types.CreateReadSessionRequest.deserialize, types.ReadSession.serialize
    )
    read = grpc.unary_stream_rpc_method_handler(
        made.read, types.ReadRowsRequest.deserialize, types.ReadRowsResponse.serialize
    )
    server = grpc.server(ThreadPoolExecutor(4))
    handlers = {"CreateReadSession": create, "ReadRows": read}
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(SERVICE, handlers),))
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    tables = ThreadingHTTPServer(("127.0.0.1", 0), Tables)
    thread = Thread(target=tables.serve_forever, args=(0.01,), daemon=True)  # seconds until it sees that it is to end
    thread.start()
    channel = grpc.insecure_channel(f"127.0.0.1:{port}")
    transport = BigQueryReadGrpcTransport(channel=channel)
    place = {"api_endpoint": f"http://127.0.0.1:{tables.server_port}"}
    monkeypatch.setattr(
        bigquery_table,
        "_client",
        lambda project: bigquery.Client(project, credentials=AnonymousCredentials(), client_options=place),
    )
    reader = bigquery_storage_v1.BigQueryReadClient(transport=transport)
    monkeypatch.setattr(bigquery_table, "_read_client", lambda: reader)
    yield made
    channel.close()
    server.stop(None).wait()
    tables.shutdown()
    tables.server_close()
    thread.join()


def test_a_table_gives_what_its_records_give_as_parquet(warehouse: Warehouse, tmp_path: Path) -> None:
    pq.write_table(warehouse.table, tmp_path / "expected.parquet")
    assert encoded(TABLE, {}) == encoded(tmp_path / "expected.parquet", {})


def test_a_job_reads_its_columns_and_charges_the_table_once(warehouse: Warehouse, tmp_path: Path) -> None:
    write_key(tmp_path / "key")
    command = ["heatmap", f"--input={TABLE}", "--region=-1,50,1,51", "--depth=4", f"--key_file={tmp_path / 'key'}"]
    command += [f"--ledger={tmp_path / 'ledger.db'}", "--dataset=city", "--budget=1/1d"]

    def run(name: str, day: str) -> int:
        more = [f"--output={tmp_path / name}", f"--release_id={name}", f"--period={day}"]
        return cli.main([*command, *more])

    assert run("one", "2026-11-20") == 0
    ((read, _),) = [session for session in warehouse.sessions if session[1] > 1]  # the others ask for the types alone
    assert sorted(read) == ["latitude", "longitude", "user_id"]
    assert run("two", "2026-11-21") == 2  # the same state of the table
    assert len(open_ledger(str(tmp_path / "ledger.db")).history().charges) == 1


def test_a_table_that_changes_is_another_one_and_ends_a_run(warehouse: Warehouse) -> None:
    (file,) = match_files(TABLE)
    before, parts = table_digest(TABLE), list(slice_file(file.log))
    assert len(parts) == 3
    warehouse.etag = "two"
    assert table_digest(TABLE) != before
    with pytest.raises(DataError, match="changed while the job was running"):
        list(read_batches(parts[0], LocationColumns()))


def test_services_that_fail_are_asked_again(warehouse: Warehouse, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sfumato.transforms.io.google_errors.FIRST_PAUSE_S", 0.01)
    warehouse.failures = 2
    (file,) = match_files(TABLE)
    assert warehouse.failures == -1
    rows = 0
    for part in slice_file(replace(file.log, version=None)):
        warehouse.failures = 1
        rows += sum(batch.num_rows for batch in read_batches(part, LocationColumns()))
    assert rows == warehouse.table.num_rows
    warehouse.failures = 2
    assert inspect_log(replace(file.log, version=None), LocationColumns()).rows == rows


def test_what_is_no_table(warehouse: Warehouse, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("bigquery:visits", "bigquery:project.city.none"):
        with rejects("input"):
            match_files(name)
    with pytest.raises(RequestError, match="no column 'lat'"):
        encoded(TABLE, {"latitude_column": "lat"}, LocationColumns(latitude="lat"))
    warehouse.kind = "VIEW"  # only a table has a known state
    with rejects("input"):
        match_files(TABLE)
    monkeypatch.setitem(sys.modules, "google.cloud.bigquery", None)
    monkeypatch.delattr("google.cloud.bigquery")
    with pytest.raises(RequestError, match=r"pip install '\.\[gcp\]'"):
        match_files(TABLE)


# --- buckets ---


FILES = 24


COLUMNS = LocationColumns()


@pytest.fixture
def bucket() -> Iterator[Emulator]:
    with storage_emulator() as running:
        yield running


@pytest.fixture
def logs(bucket: Emulator, tmp_path: Path) -> str:
    """A pattern of FILES logs of one user each, in the bucket."""
    write_files(make_logs(FILES, 1, seed=0), tmp_path, FILES)
    return upload(tmp_path, f"{BUCKET}/logs/day=2026-11-20")


@pytest.mark.slow
def test_a_replaced_object_is_not_read_as_the_listed_one(logs: str) -> None:
    files = match_files(logs)
    other = io.BytesIO()
    pq.write_table(make_logs(3, 1, seed=1), other)
    put(files[5].path, other.getvalue())
    with pytest.raises((DataError, RequestError), match=r"log-\d+\.parquet"):
        inspect(files, COLUMNS)
    parts = [part for bundle in bundled([file.log for file in files]) for part in slice_bundle(bundle)]
    with pytest.raises(DataError, match="changed while the job was running"):
        list(read_bundle(parts[0], COLUMNS))


@pytest.mark.slow
def test_a_listing_shows_what_a_pattern_matches_and_no_more(bucket: Emulator, logs: str) -> None:
    put(f"{BUCKET}/logs/day=2026-11-20/deep/one.parquet", b"1")
    put(f"{BUCKET}/logs/day=2026-11-20/notes.txt", b"1")
    assert len(match_files(logs)) == FILES
    assert len(match_files(f"{BUCKET}/logs")) == FILES + 1
    assert len(match_files(f"{BUCKET}/logs/**/log-1?.parquet")) == 10
    assert [file.path for file in match_files(f"{BUCKET}/logs/day=2026-11-20/log-3.parquet")] == [
        f"{BUCKET}/logs/day=2026-11-20/log-3.parquet"
    ]
    for status, words in ((403, "cannot be listed"), (404, "no such file or bucket")):
        bucket.fault = lambda method, path, status=status: status
        with pytest.raises(RequestError, match=words):
            match_files(logs)


NO_CREDENTIALS = ("STORAGE_EMULATOR_HOST", "GOOGLE_APPLICATION_CREDENTIALS")


@pytest.mark.slow
def test_without_credentials_a_bucket_is_refused_at_once(tmp_path: Path) -> None:
    """Google's client looks for its metadata server, here one that takes connections and never responds."""
    kept = {name: value for name, value in os.environ.items() if name not in NO_CREDENTIALS}
    nowhere = {"HOME": str(tmp_path), "CLOUDSDK_CONFIG": str(tmp_path)}
    logs, output = "gs://a-bucket/*.parquet", str(tmp_path / "out")
    arguments = ["heatmap", "--input", logs, "--output", output, "--region=-1,50,1,51"]
    with socket.create_server(("127.0.0.1", 0)) as silent:
        server = dict.fromkeys(("GCE_METADATA_IP", "GCE_METADATA_HOST"), f"127.0.0.1:{silent.getsockname()[1]}")
        done = subprocess.run(
            [sys.executable, "-m", "sfumato.pipelines.command_line.cli", *arguments],
            env={**kept, **nowhere, **server}, capture_output=True, text=True, timeout=300, check=False,
        )  # fmt: skip
    assert done.returncode == 2, done.stderr
    assert "no credentials for Google Cloud; run: gcloud auth application-default login" in done.stderr


def test_credentials_are_looked_for_a_while_only(monkeypatch: pytest.MonkeyPatch) -> None:
    """However long Google's client looks, and whatever it finds then."""
    auth = pytest.importorskip("apache_beam.internal.gcp.auth", reason="needs apache-beam[gcp]")
    monkeypatch.delenv("STORAGE_EMULATOR_HOST", raising=False)
    monkeypatch.setattr(auth._Credentials, "_credentials_init", False)
    storage._check_credentials.cache_clear()  # a process looks once, and the emulator's tests needed none
    assert storage.CREDENTIALS_S <= 10
    monkeypatch.setattr(storage, "CREDENTIALS_S", 0.1)
    found = Event()
    monkeypatch.setattr("google.auth.default", lambda: found.wait(60))
    with rejects("input"):
        match_files("gs://a-bucket/*.parquet")
    assert not found.is_set()
    found.set()
