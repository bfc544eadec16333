"""The emulator of the tests refuses what Google's storage refuses: tests of a ledger stand on it."""

from __future__ import annotations

import io
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

import pytest

from tests.storage import BUCKET, CheckedStorage, Emulator, storage_emulator

exceptions = pytest.importorskip("google.api_core.exceptions", reason="needs apache-beam[gcp]")
storage = pytest.importorskip("google.cloud.storage", reason="needs apache-beam[gcp]")
Invalid = pytest.importorskip("google.cloud.storage.exceptions").InvalidResponse


@pytest.fixture(scope="module")
def emulator() -> Iterator[Emulator]:
    with storage_emulator() as running:
        yield running


@pytest.fixture
def bucket(emulator: Emulator) -> Any:
    return storage.Client(project=None).bucket(BUCKET.removeprefix("gs://"))


def simple(blob: Any, wanted: int) -> None:
    session = blob.client._http
    address = f"{blob.client._connection.API_BASE_URL}/upload/storage/v1/b/{blob.bucket.name}/o"
    answer = session.post(
        address, params={"uploadType": "media", "name": blob.name, "ifGenerationMatch": wanted}, data=b"new"
    )
    if answer.status_code != 200:
        raise exceptions.from_http_response(answer)


def multipart(blob: Any, wanted: int) -> None:
    blob.upload_from_string(b"new", if_generation_match=wanted)


def resumable(blob: Any, wanted: int) -> None:
    with _as_precondition():  # of unknown size, hence in parts
        blob.upload_from_file(io.BytesIO(b"new"), if_generation_match=wanted)


def copy(blob: Any, wanted: int) -> None:
    blob.bucket.copy_blob(_source(blob), blob.bucket, blob.name, if_generation_match=wanted)


def rewrite(blob: Any, wanted: int) -> None:
    blob.rewrite(_source(blob), if_generation_match=wanted)


@contextmanager
def _as_precondition() -> Iterator[None]:
    """Google's client has an error of its own for resumable uploads."""
    try:
        yield
    except Invalid as error:
        raise exceptions.from_http_response(error.response) from error


def _source(blob: Any) -> Any:
    source = blob.bucket.blob("source")
    source.upload_from_string(b"new")
    return source


WRITES = [simple, multipart, resumable, copy, rewrite]


@pytest.mark.parametrize("write", WRITES)
def test_an_object_is_created_once(bucket: Any, write: Callable[[Any, int], None]) -> None:
    name = f"once-{write.__name__}"
    write(bucket.blob(name), 0)
    first = bucket.get_blob(name).generation
    with pytest.raises(exceptions.PreconditionFailed):
        write(bucket.blob(name), 0)
    assert bucket.get_blob(name).generation == first
    assert bucket.blob(name).download_as_bytes() == b"new"


@pytest.mark.parametrize("write", WRITES)
def test_a_stated_generation_is_replaced_and_no_other(bucket: Any, write: Callable[[Any, int], None]) -> None:
    name = f"replaced-{write.__name__}"
    bucket.blob(name).upload_from_string(b"old")
    old = bucket.get_blob(name).generation
    with pytest.raises(exceptions.PreconditionFailed):
        write(bucket.blob(name), old + 1)
    assert bucket.blob(name).download_as_bytes() == b"old"
    write(bucket.blob(name), old)
    assert bucket.blob(name).download_as_bytes() == b"new"
    with pytest.raises(exceptions.PreconditionFailed):
        write(bucket.blob(f"never-{write.__name__}"), old)


def test_deletion_too(bucket: Any) -> None:
    bucket.blob("deleted").upload_from_string(b"old")
    generation = bucket.get_blob("deleted").generation
    with pytest.raises(exceptions.PreconditionFailed):
        bucket.blob("deleted").delete(if_generation_match=generation + 1)
    assert bucket.blob("deleted").exists()
    bucket.blob("deleted").delete(if_generation_match=generation)
    assert not bucket.blob("deleted").exists()
    with pytest.raises(exceptions.NotFound):
        bucket.blob("deleted").delete()


def test_a_resumable_upload_is_checked_when_it_ends(bucket: Any) -> None:
    late = bucket.blob("slow").open("wb", if_generation_match=0, chunk_size=256 * 1024)
    late.write(bytes(300 * 1024))  # more than a chunk: the upload has begun
    bucket.blob("slow").upload_from_string(b"quick", if_generation_match=0)
    with pytest.raises(exceptions.PreconditionFailed), _as_precondition():
        late.close()
    assert bucket.blob("slow").download_as_bytes() == b"quick"


def test_of_many_at_once_one_succeeds(bucket: Any) -> None:
    def attempt(number: int) -> bool:
        try:
            bucket.blob("contested").upload_from_string(b"%d" % number, if_generation_match=0)
        except exceptions.PreconditionFailed:
            return False
        return True

    with ThreadPoolExecutor(8) as pool:
        won = list(pool.map(attempt, range(40)))
    assert sum(won) == 1
    assert bucket.blob("contested").download_as_bytes() == b"%d" % won.index(True)


def test_without_the_extension_nothing_is_refused(bucket: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """So the tests above test the extension, and not the emulator under it."""
    monkeypatch.setattr(CheckedStorage, "check", lambda *_: None)
    bucket.blob("unchecked").upload_from_string(b"one", if_generation_match=0)
    bucket.blob("unchecked").upload_from_string(b"two", if_generation_match=0)
    assert bucket.blob("unchecked").download_as_bytes() == b"two"


@pytest.mark.slow
def test_faults_are_as_ordered(bucket: Any, emulator: Emulator, monkeypatch: pytest.MonkeyPatch) -> None:
    faults = iter([403, "lost", None])
    monkeypatch.setattr(emulator, "fault", lambda method, path: next(faults))
    with pytest.raises(exceptions.Forbidden):
        bucket.blob("faulty").upload_from_string(b"a", retry=None)
    with pytest.raises(OSError, match="RemoteDisconnected"):
        bucket.blob("faulty").upload_from_string(b"b", retry=None)
    assert bucket.blob("faulty").download_as_bytes(retry=None) == b"b"
