"""Calls of a storage are tried again, by one policy. Those of other services are tested where their modules are."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from sfumato.schemas.errors import NotReadyError
from sfumato.transforms import google_errors
from sfumato.transforms.files import content_digest, file_version, read_file, write_file
from sfumato.transforms.privacy.ledger.stores import BucketStore
from sfumato.transforms.release.release_folder import manifest_at, publish, with_digests
from sfumato.transforms.storage import listed, matching
from tests.storage import BUCKET, Emulator, collect_refused, put, storage_emulator

PLACE = f"{BUCKET}/place/file.parquet"
RELEASE = {"cells.parquet": b"cells", "manifest.json": b'{"format": "sfumato-release/2", "release_id": "one"}'}
FAILURES = 2


@pytest.fixture(scope="module")
def bucket() -> Iterator[Emulator]:
    with storage_emulator() as running:
        put(PLACE, b"content")
        yield running


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
def test_a_storage_that_fails_twice_is_asked_a_third_time(call: str, fault: int | str, bucket: Emulator) -> None:
    """By a status, or by a connection that ends before its answer."""
    if call == "matching" and fault != 503:
        pytest.skip("Beam's own policy, with pauses of seconds, is shown once")
    bucket.fault = None
    expected = CALLS[call](f"plain-{fault}")
    bucket.fault = failing_first(1 if call == "matching" else FAILURES, fault)
    try:
        assert CALLS[call](f"failing-{fault}") == expected
    finally:
        bucket.fault = None


@pytest.mark.slow
def test_a_release_is_published_by_a_storage_that_fails(bucket: Emulator) -> None:
    """Uploads, copies and removals are Beam's, which tries each of them for two minutes."""
    bucket.fault = failing_first(1, 503)
    try:
        publish(f"{BUCKET}/release", RELEASE, "one", overwrite=False)
    finally:
        bucket.fault = None
    assert manifest_at(f"{BUCKET}/release") == with_digests(RELEASE)["manifest.json"]


@pytest.mark.slow
def test_what_does_not_pass_is_not_tried_again(bucket: Emulator) -> None:
    bucket.fault = lambda method, path: 403
    bucket.requests.clear()
    try:
        with pytest.raises(OSError, match="as the test wants it"):
            file_version(PLACE)
    finally:
        bucket.fault = None
    assert len(bucket.requests) == 1


@pytest.mark.slow
def test_a_storage_that_stays_away_is_given_up_in_time(bucket: Emulator, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(google_errors, "MAX_WAIT_S", 0.3)
    bucket.fault = lambda method, path: 503
    try:
        for call in ("version", "digest", "read", "listing", "write"):
            with pytest.raises(NotReadyError, match="cannot be reached now"):
                CALLS[call]("never")
    finally:
        bucket.fault = None
