"""Listings and calls of a storage, and that the emulator refuses what Google's storage refuses."""

from __future__ import annotations

import io
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from sfumato.schemas.errors import NotReadyError, RequestError
from sfumato.transforms.io import google_errors
from sfumato.transforms.io.files import content_digest, file_version, read_file, write_file
from sfumato.transforms.io.storage import listed, matching
from sfumato.transforms.privacy.ledger.stores import BucketStore
from sfumato.transforms.release.release_folder import manifest_at, publish, with_digests
from tests.storage import BUCKET, Emulator, collect_refused, put, storage_emulator

# --- the emulator of the tests refuses what Google's storage refuses: tests of a ledger stand on it ---

exceptions = pytest.importorskip("google.api_core.exceptions", reason="needs apache-beam[gcp]")
storage = pytest.importorskip("google.cloud.storage", reason="needs apache-beam[gcp]")
Invalid = pytest.importorskip("google.cloud.storage.exceptions").InvalidResponse


@pytest.fixture(scope="module")
def emulator() -> Iterator[Emulator]:
    with storage_emulator() as running:
        put(PLACE, b"content")
        yield running


@pytest.fixture
def bucket(emulator: Emulator) -> Any:
    return storage.Client(project=None).bucket(BUCKET.removeprefix("gs://"))


def multipart(blob: Any, wanted: int) -> None:
    blob.upload_from_string(b"new", if_generation_match=wanted)


def resumable(blob: Any, wanted: int) -> None:
    with _as_precondition():  # of unknown size, hence in parts
        blob.upload_from_file(io.BytesIO(b"new"), if_generation_match=wanted)


def copy(blob: Any, wanted: int) -> None:
    blob.bucket.copy_blob(_source(blob), blob.bucket, blob.name, if_generation_match=wanted)


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


WRITES = [multipart, resumable, copy]


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


# --- listing files: a place that cannot be listed is never taken for an empty one ---

google = pytest.importorskip("google.api_core.exceptions", reason="needs apache-beam[gcp]")
files = pytest.importorskip("apache_beam.io.gcp.gcsfilesystem", reason="needs apache-beam[gcp]")
auth = pytest.importorskip("apache_beam.internal.gcp.auth", reason="needs apache-beam[gcp]")


class Storage:
    """In place of Beam's client of Google's storage: ten objects, or a failure at the third."""

    def __init__(self, error: Exception | None = None):
        self.error = error

    def list_files(self, path: str, with_metadata: bool) -> Iterator[tuple[str, tuple[int, float]]]:
        for number in range(10):
            if number == 3 and self.error is not None:
                raise self.error
            yield f"gs://bucket/logs/{number}.parquet", (number, 0.0)

    def exists(self, path: str) -> bool:
        if self.error is not None:
            raise self.error
        return False


def use(monkeypatch: pytest.MonkeyPatch, storage: Storage) -> None:
    monkeypatch.setattr(files.GCSFileSystem, "_gcsIO", lambda _: storage)
    monkeypatch.setattr(auth._Credentials, "_credentials_init", True)  # as if there were credentials


def test_on_a_disk(tmp_path: Path) -> None:
    (tmp_path / "logs" / "deep").mkdir(parents=True)
    for name in ("a.parquet", "b.parquet", "c.csv", "deep/d.parquet"):
        (tmp_path / "logs" / name).write_bytes(b"12345")
    found = matching(str(tmp_path / "logs" / "*.parquet"))
    assert sorted(one.path for one in found) == [str(tmp_path / "logs" / name) for name in ("a.parquet", "b.parquet")]
    assert {one.size_in_bytes for one in found} == {5}
    assert len(matching(str(tmp_path / "logs" / "*.parquet"), limit=1)) == 1
    assert matching(str(tmp_path / "missing" / "*.parquet")) == []
    assert matching(str(tmp_path / "missing")) == []


def test_in_a_bucket(monkeypatch: pytest.MonkeyPatch) -> None:
    use(monkeypatch, Storage())
    assert [one.size_in_bytes for one in matching("gs://bucket/logs/*.parquet")] == list(range(10))
    assert len(matching("gs://bucket/logs/*", limit=2)) == 2
    assert matching("gs://bucket/logs/*.csv") == []


@pytest.mark.parametrize(
    ("error", "kind", "words"),
    [
        (google.ServiceUnavailable("overloaded"), NotReadyError, "cannot be reached now .*overloaded.*; try again"),
        (google.RetryError("no answer", None), NotReadyError, "cannot be reached now"),
        (ConnectionError("reset"), NotReadyError, "cannot be reached now .*reset"),
        (google.NotFound("the bucket"), RequestError, "cannot be listed .*no such file or bucket"),
        (google.Forbidden("no access"), RequestError, "cannot be listed .*no access"),
    ],
)
@pytest.mark.parametrize("pattern", ["gs://bucket/logs/*.parquet", "gs://bucket/logs/1.parquet"])
def test_a_failure_is_no_empty_folder(
    monkeypatch: pytest.MonkeyPatch, error: Any, kind: type[Exception], words: str, pattern: str
) -> None:
    """Nor is the part of a listing that came before it the whole."""
    use(monkeypatch, Storage(error))
    with pytest.raises(kind, match=words) as caught:
        matching(pattern)
    assert pattern in str(caught.value)


# --- calls of a storage are tried again, by one policy. Those of other services are tested where their modules are ---

PLACE = f"{BUCKET}/place/file.parquet"
RELEASE = {"cells.parquet": b"cells", "manifest.json": b'{"format": "sfumato-release/2", "release_id": "one"}'}
FAILURES = 2


@pytest.fixture(autouse=True)
def _short_pauses(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(google_errors, "FIRST_PAUSE_S", 0.01)
    yield
    collect_refused()


def failing_first(times: int, fault: int | str) -> Callable[[str, str], int | str | None]:
    """A fault of the first requests of every kind."""
    seen: dict[tuple[str, str], int] = {}

    def decide(method: str, path: str) -> int | str | None:
        seen[method, path] = seen.get((method, path), 0) + 1
        return fault if seen[method, path] <= times else None

    return decide


def append(name: str) -> list[bytes]:
    store = BucketStore(f"{BUCKET}/ledger-{name}")
    assert store.append(0, b"entry")
    return store.read()


CALLS: dict[str, Callable[[str], Any]] = {
    "version": lambda _: file_version(PLACE),
    "digest": lambda _: content_digest(PLACE),
    "read": lambda _: read_file(PLACE),
    "listing": lambda _: [file.size for file in listed(f"{BUCKET}/place/*")],
    "matching": lambda _: [file.size_in_bytes for file in matching(f"{BUCKET}/place/*")],
    "write": lambda name: write_file(f"{BUCKET}/written-{name}", b"new"),
    "ledger": append,
}


@pytest.mark.slow
@pytest.mark.parametrize("fault", [503, 429, "lost"])
@pytest.mark.parametrize("call", list(CALLS))
def test_a_storage_that_fails_twice_is_asked_a_third_time(call: str, fault: int | str, emulator: Emulator) -> None:
    """By a status, or by a connection that ends before its answer."""
    if call == "matching" and fault != 503:
        pytest.skip("Beam's own policy, with pauses of seconds, is shown once")
    emulator.fault = None
    expected = CALLS[call](f"plain-{fault}")
    emulator.fault = failing_first(1 if call == "matching" else FAILURES, fault)
    try:
        assert CALLS[call](f"failing-{fault}") == expected
    finally:
        emulator.fault = None


@pytest.mark.slow
def test_a_release_is_published_by_a_storage_that_fails(emulator: Emulator) -> None:
    """Uploads, copies and removals are Beam's, which tries each of them for two minutes."""
    emulator.fault = failing_first(1, 503)
    try:
        publish(f"{BUCKET}/release", RELEASE, "one", overwrite=False)
    finally:
        emulator.fault = None
    assert manifest_at(f"{BUCKET}/release") == with_digests(RELEASE)["manifest.json"]


@pytest.mark.slow
def test_what_does_not_pass_is_not_tried_again(emulator: Emulator) -> None:
    emulator.fault = lambda method, path: 403
    emulator.requests.clear()
    try:
        with pytest.raises(OSError, match="as the test wants it"):
            file_version(PLACE)
    finally:
        emulator.fault = None
    assert len(emulator.requests) == 1


@pytest.mark.slow
def test_a_storage_that_stays_away_is_given_up_in_time(emulator: Emulator, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(google_errors, "MAX_WAIT_S", 0.3)
    emulator.fault = lambda method, path: 503
    try:
        for call in ("version", "digest", "read", "listing", "write"):
            with pytest.raises(NotReadyError, match="cannot be reached now"):
                CALLS[call]("never")
    finally:
        emulator.fault = None
