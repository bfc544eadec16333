"""A ledger in a bucket: no entry is lost, written twice or taken for another's, whatever the network does."""

from __future__ import annotations

import os
import pickle
import sys
from collections.abc import Iterator
from typing import Any

import pytest

from sfumato.schemas.errors import LedgerError, NotReadyError, RequestError
from sfumato.transforms.io import google_errors
from sfumato.transforms.privacy.ledger import stores
from sfumato.transforms.privacy.ledger.stores import BucketStore, LedgerStore
from tests.rejections import rejects
from tests.storage import BUCKET, Emulator, names, put, storage_emulator
from tests.unit.privacy.ledger.helpers import forks


@pytest.fixture(scope="module")
def running() -> Iterator[Emulator]:
    with storage_emulator() as emulator:
        yield emulator


@pytest.fixture
def emulator(running: Emulator) -> Iterator[Emulator]:
    yield running
    running.fault = None


@pytest.fixture
def place(emulator: Emulator, request: pytest.FixtureRequest) -> str:
    return f"{BUCKET}/{request.node.name}/ledger"


def test_entries_come_back_in_order_and_are_fetched_once(place: str, emulator: Emulator) -> None:
    store: LedgerStore = BucketStore(place)
    assert store.read() == []
    entries = [b'{"entry": %d}' % number for number in range(12)]
    assert [store.append(index, entry) for index, entry in enumerate(entries[:11])] == [True] * 11
    assert store.read() == entries[:11]
    before = len(emulator.requests)
    assert store.append(11, entries[11])
    assert store.read() == entries
    assert len(emulator.requests) - before == 3  # create, list, and the new one
    assert BucketStore(place).read() == BucketStore(f"{place}/").read() == entries
    assert names(place) == [f"{index:08d}.json" for index in range(12)]


def test_an_entry_is_written_once_and_makes_no_gap(place: str) -> None:
    store, other = BucketStore(place), BucketStore(place)
    assert not store.append(1, b"too early")
    assert store.append(0, b"first")
    assert not other.append(0, b"second")
    assert not other.append(0, b"first")  # nothing was unclear here, so equal bytes are another's
    assert not store.append(0, b"third")
    assert not other.append(2, b"too early")
    assert other.append(1, b"second")
    assert store.read() == [b"first", b"second"]


def _append(url: str, place: str, number: int, start: Any) -> None:
    os.environ["STORAGE_EMULATOR_HOST"] = url  # the server that forks may be older than the emulator
    store = BucketStore(place)
    start.wait()
    for entry in range(10):
        index = len(store.read())
        while not store.append(index, b"entry %d of process %d" % (entry, number)):
            index += 1


@pytest.mark.slow
def test_processes_at_once_lose_nothing(place: str, emulator: Emulator) -> None:
    fork = forks()
    start = fork.Barrier(5, timeout=300)
    processes = [fork.Process(target=_append, args=(emulator.url, place, number, start)) for number in range(5)]
    for process in processes:
        process.start()
    for process in processes:
        process.join(300)
    assert [process.exitcode for process in processes] == [0] * 5
    written = [b"entry %d of process %d" % (entry, number) for number in range(5) for entry in range(10)]
    assert sorted(BucketStore(place).read()) == sorted(written)
    assert names(place) == [f"{index:08d}.json" for index in range(50)]


# --- what the network does ---


def test_a_lost_answer_is_found_to_be_ours(place: str, emulator: Emulator) -> None:
    faults = iter(["lost", 503, "lost"])
    emulator.fault = lambda method, path: next(faults, None)
    assert BucketStore(place).append(0, b"ours")
    emulator.fault = None
    assert BucketStore(place).read() == [b"ours"]


def test_after_a_lost_answer_anothers_entry_is_not_ours(place: str, emulator: Emulator) -> None:
    other, attempts = BucketStore(place), []

    def fault(method: str, path: str) -> int | None:
        if path.startswith("/upload"):
            attempts.append(method)
        if len(attempts) == 1:
            emulator.fault = None
            assert other.append(0, b"another's")
            return 503
        return None

    emulator.fault = fault
    assert not BucketStore(place).append(0, b"ours")
    assert BucketStore(place).read() == [b"another's"]


def test_a_service_that_is_down_is_for_later(place: str, emulator: Emulator, monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (stores, google_errors):
        monkeypatch.setattr(module, "MAX_WAIT_S", 0.5)
    store = BucketStore(place)
    emulator.fault = lambda method, path: 503
    with rejects("ledger", NotReadyError):
        store.read()
    with rejects("ledger", NotReadyError):
        store.append(0, b"entry")
    monkeypatch.setenv("STORAGE_EMULATOR_HOST", "http://127.0.0.1:9")  # nobody listens there
    with rejects("ledger", NotReadyError):
        BucketStore(place).read()
    with rejects("ledger", NotReadyError):
        BucketStore(place).append(0, b"entry")


@pytest.mark.parametrize("bucket", [BUCKET, "gs://no-such-bucket"])
def test_a_missing_right_or_bucket_is_reported(bucket: str, emulator: Emulator) -> None:
    store = BucketStore(f"{bucket}/unreadable/ledger")
    emulator.fault = (lambda method, path: 403) if bucket == BUCKET else None
    with rejects("ledger"):
        store.read()
    with rejects("ledger"):
        store.append(0, b"entry")


# --- what others do to the bucket ---


def test_a_removed_entry_is_noticed(place: str) -> None:
    for index in (0, 1, 3):
        put(f"{place}/{index:08d}.json", b"entry")
    with rejects("ledger", LedgerError):
        BucketStore(place).read()


def test_a_gap_that_closes_is_none(place: str, emulator: Emulator) -> None:
    """A long listing comes in several answers."""
    for index in (0, 2):
        put(f"{place}/{index:08d}.json", b"%d" % index)
    listings = []

    def fault(method: str, path: str) -> None:
        if path.endswith("/o"):
            listings.append(path)
        if len(listings) == 2:
            emulator.fault = None
            put(f"{place}/00000001.json", b"1")

    emulator.fault = fault
    assert BucketStore(place).read() == [b"0", b"1", b"2"]


def test_an_entry_that_vanishes_while_it_is_read(place: str, emulator: Emulator) -> None:
    store = BucketStore(place)
    store.append(0, b"entry")
    emulator.fault = lambda method, path: 404 if "00000000" in path else None
    with rejects("ledger", LedgerError):
        BucketStore(place).read()


def test_an_object_that_is_no_entry_is_noticed(place: str) -> None:
    BucketStore(place).append(0, b"entry")
    put(f"{place}/notes.txt", b"?")
    with rejects("ledger", LedgerError):
        BucketStore(place).read()


def test_a_folder_made_in_the_console_is_no_object(place: str) -> None:
    from google.cloud.storage import Client

    folder = place.removeprefix(f"{BUCKET}/")
    Client(project=None).bucket(BUCKET.removeprefix("gs://")).blob(f"{folder}-empty").upload_from_string(b"")
    assert BucketStore(place).read() == []  # nor is a name that merely begins alike


# --- the request ---


@pytest.mark.parametrize(
    "place", ["gs://bucket", "gs://bucket/", "gs:///x", "ledger.db", "s3://bucket/x", "gs://B/x", ""]
)
def test_other_places_are_refused(place: str) -> None:
    with rejects("ledger"):
        BucketStore(place)


def test_without_googles_client_the_remedy_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "google.cloud.storage", None)
    with pytest.raises(RequestError, match=r"pip install '\.\[gcp\]'"):
        BucketStore("gs://bucket/ledger")


def test_credentials_are_looked_for_outside_the_emulator_alone(place: str, monkeypatch: pytest.MonkeyPatch) -> None:
    import google.auth
    from google.auth.exceptions import DefaultCredentialsError

    def search(*_: Any, **__: Any) -> None:
        raise DefaultCredentialsError("none")

    monkeypatch.setattr(google.auth, "default", search)
    assert BucketStore(place).read() == []
    monkeypatch.delenv("STORAGE_EMULATOR_HOST")
    with pytest.raises(RequestError, match=r"no credentials for Google Cloud .*gcloud auth application-default login"):
        BucketStore(place).read()


def test_a_worker_gets_the_place_alone(place: str) -> None:
    store = BucketStore(place)
    store.append(0, b"entry")
    assert pickle.loads(pickle.dumps(store)).read() == [b"entry"]
