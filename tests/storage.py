"""Google's storage on a local socket: the PyPI emulator, made to keep what it leaves out and can be made to fail.

The emulator takes no notice of preconditions on generations, on which a ledger stands. Here they are enforced, in one
step with the request they belong to, as Google does. It still has no access rights and no quotas, and the latency that
a test gives it; everything else goes through Google's real client.
"""

from __future__ import annotations

import gc
import json
import logging
import time
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cache, partial
from http import HTTPStatus
from http.server import ThreadingHTTPServer
from pathlib import Path
from threading import Lock, Thread
from typing import Any
from urllib.parse import parse_qs, urlparse

import pytest
from apache_beam.io.filesystems import FileSystems

pytest.importorskip("apache_beam.io.gcp.gcsio", reason="needs apache-beam[gcp]", exc_type=ImportError)
pytest.importorskip("gcp_storage_emulator.server", reason="needs the package gcp-storage-emulator")

from gcp_storage_emulator.exceptions import NotFound
from gcp_storage_emulator.handlers.buckets import create_bucket
from gcp_storage_emulator.server import RequestHandler
from gcp_storage_emulator.storage import Storage

from sfumato.transforms.io import storage
from sfumato.transforms.privacy.ledger import stores

BUCKET = "gs://test-bucket"


class PreconditionError(Exception):
    """What a request takes for granted does not hold."""


class CheckedStorage(Storage):  # type: ignore[misc]
    """A storage in memory that enforces `ifGenerationMatch` for whatever writes or deletes an object."""

    def __init__(self) -> None:
        super().__init__(use_memory_fs=True)
        self.wanted: str | None = None  # of the request under way: a generation, "0" for no object
        self.wanted_later: dict[str, str] = {}  # upload_id -> generation

    def check(self, bucket: str, name: str, wanted: str | None) -> None:
        """Raises PreconditionError where a generation is wanted and the object is of another."""
        if wanted is None:
            return
        try:
            generation = self.get_file_obj(bucket, name)["generation"]
        except NotFound:
            generation = "0"
        if str(generation) != wanted:
            raise PreconditionError

    def create_file(self, bucket: str, name: str, content: bytes, resource: Any, upload_id: str | None = None) -> None:
        wanted = self.wanted_later.pop(upload_id, None) if upload_id else self.wanted
        self.check(bucket, name, wanted)
        super().create_file(bucket, name, content, resource, upload_id)

    def create_resumable_upload(self, bucket: str, name: str, resource: Any) -> Any:
        self.check(bucket, name, self.wanted)
        upload_id = super().create_resumable_upload(bucket, name, resource)
        if self.wanted is not None:
            self.wanted_later[upload_id] = self.wanted
        return upload_id

    def delete_file(self, bucket: str, name: str) -> None:
        self.get_file_obj(bucket, name)
        self.check(bucket, name, self.wanted)
        super().delete_file(bucket, name)


# What may go wrong with a request (method, path): None, a status in place of an answer, or "lost": done, not answered.
Fault = Callable[[str, str], int | str | None]


@dataclass
class Emulator:
    """A running emulator. `fault` decides on every request; `requests` lists all, "METHOD path".

    latency: seconds that every request waits before it is answered, beside all others.
    """

    url: str
    requests: list[str]
    fault: Fault | None = None
    latency: float = 0.0
    storage: CheckedStorage = field(default_factory=CheckedStorage)
    lock: Any = field(default_factory=Lock)  # held by the request under way

    def objects(self, prefix: str) -> dict[str, bytes]:
        """The names below a folder of the bucket and what they hold, all at one moment, without a client."""
        bucket = BUCKET.removeprefix("gs://")
        with self.lock:
            found, _ = self.storage.get_file_list(bucket, prefix=f"{prefix}/")
            names = [one["name"] for one in found]
            return {name.removeprefix(f"{prefix}/"): self.storage.get_file(bucket, name) for name in names}


class _Handler(RequestHandler):  # type: ignore[misc]
    timeout = 20  # seconds for a client that stops in the midst of its request, and holds the others up

    def __init__(self, emulator: Emulator, *arguments: Any):
        self._emulator = emulator
        super().__init__(emulator.storage, *arguments)

    def _answer(self) -> None:
        path = urlparse(self.path)
        self._emulator.requests.append(f"{self.command} {path.path}")
        time.sleep(self._emulator.latency)
        fault = self._emulator.fault and self._emulator.fault(self.command, path.path)
        if isinstance(fault, int):
            self._refuse(fault, "as the test wants it")
            return
        output = self.wfile
        if fault == "lost":
            self.wfile = Nowhere()
        with self._emulator.lock, _no_collection():
            self.storage.wanted = parse_qs(path.query).get("ifGenerationMatch", [None])[0]
            try:
                getattr(super(), f"do_{self.command}")()
            except PreconditionError:
                self._refuse(HTTPStatus.PRECONDITION_FAILED, "At least one of the pre-conditions did not hold.")
        self.wfile = output

    def _refuse(self, status: int, message: str) -> None:
        error = {"code": status, "message": message, "errors": [{"message": message, "domain": "global"}]}
        body = json.dumps({"error": error}).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    do_GET = do_POST = do_PUT = do_DELETE = do_PATCH = _answer  # noqa: N815


@contextmanager
def _no_collection() -> Iterator[None]:
    """A writer of Google's client that failed uploads once more when it is collected: here it would wait for itself."""
    gc.disable()
    try:
        yield
    finally:
        gc.enable()


class Nowhere:
    """Where an answer goes that is lost."""

    closed = False

    def write(self, data: bytes) -> int:
        return len(data)

    def flush(self) -> None: ...


class _Server(ThreadingHTTPServer):
    request_queue_size = 128  # as many processes at once as a test may start
    daemon_threads = True

    def handle_error(self, *_: Any) -> None:
        """A client that is gone before its answer is not the emulator's affair."""


def collect_refused() -> None:
    """Google's client leaves the connections of refused downloads to the collector, which warns of each."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ResourceWarning)
        gc.collect()


@contextmanager
def storage_emulator() -> Iterator[Emulator]:
    """An emulator with an empty bucket, on a free port, which this process uses without credentials.

    With credentials, Google's client would look for them on the network and give up after 20 seconds.
    """
    from apache_beam.internal.gcp import auth

    for name in ("gcp_storage_emulator", "api"):  # it tells of every request, and of objects that are not there
        logging.getLogger(name).setLevel(logging.CRITICAL)
    emulator = Emulator("", [])
    create_bucket(BUCKET.removeprefix("gs://"), emulator.storage)
    server = _Server(("127.0.0.1", 0), partial(_Handler, emulator))
    emulator.url = f"http://127.0.0.1:{server.server_port}"
    Thread(target=server.serve_forever, args=(0.05,), daemon=True).start()  # how long `shutdown` may take, in seconds
    clients, build = list[Any](), storage._shared_client.__wrapped__

    @cache
    def build_and_keep(*arguments: Any) -> Any:
        clients.append(build(*arguments))
        return clients[-1]

    try:
        with pytest.MonkeyPatch.context() as patch:
            patch.setenv("STORAGE_EMULATOR_HOST", emulator.url)
            # A thread of the client would ask for the bucket beside the first request of every client.
            patch.setenv("DISABLE_GCS_PYTHON_CLIENT_OTEL_BUCKET_METADATA", "true")
            stores._open_store.cache_clear()  # its clients know another emulator
            patch.setattr(storage, "_shared_client", build_and_keep)
            patch.setattr(auth._Credentials, "_credentials_init", True)
            patch.setattr(auth._Credentials, "_credentials", None)
            yield emulator
    finally:
        for client in clients:
            client.close()  # else their connections would stay open, and a thread of the server with each
        collect_refused()
        server.shutdown()
        server.server_close()


def put(path: str, content: bytes) -> None:
    with FileSystems.create(path) as file:
        file.write(content)


def upload(folder: Path, prefix: str) -> str:
    """Copies a folder's files into the bucket; returns a pattern that matches them."""
    for file in folder.iterdir():
        put(f"{prefix}/{file.name}", file.read_bytes())
    return f"{prefix}/*.parquet"


def names(prefix: str) -> list[str]:
    """Names of all objects below a folder of the bucket."""
    found = FileSystems.match([f"{prefix}/**"])[0].metadata_list
    return sorted(one.path.removeprefix(f"{prefix}/") for one in found)
