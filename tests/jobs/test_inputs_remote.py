"""Inputs in a storage: few requests, many of them at once, and what is read is what was listed."""

from __future__ import annotations

import io
from collections.abc import Iterator
from pathlib import Path
from threading import Barrier

import pyarrow.parquet as pq
import pytest

from sfumato.pipelines import inputs
from sfumato.pipelines.inputs import content_digests, inspect, match_files, with_rows
from sfumato.schemas.errors import DataError, RequestError
from sfumato.schemas.locations import LocationColumns
from sfumato.transforms.files import content_digest, file_version
from sfumato.transforms.inputs.log_reader import bundled, read_bundle, slice_bundle
from tests.conftest import make_logs, write_files
from tests.storage import BUCKET, Emulator, put, storage_emulator, upload

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
def test_a_run_looks_once_at_each_object(bucket: Emulator, logs: str) -> None:
    """The listing has versions and digests; one request reads a footer."""
    bucket.requests.clear()
    files = match_files(logs)
    assert len(bucket.requests) == 1
    assert inspect(with_rows(files, COLUMNS), COLUMNS)[0] == FILES
    digests = content_digests(files)
    assert len(bucket.requests) == 1 + FILES
    assert [file.version for file in files] == [file_version(file.path) for file in files]
    assert digests == [content_digest(file.path) for file in files]
    assert len(set(digests)) == FILES


@pytest.mark.slow
def test_footers_are_read_at_once(bucket: Emulator, logs: str) -> None:
    """Each request waits until eight have come; alone they would wait for ever."""
    files, together = match_files(logs), Barrier(8)

    def wait(method: str, path: str) -> None:
        if path.startswith("/download/"):
            together.wait(timeout=30)

    bucket.fault = wait
    assert len(with_rows(files)) == FILES
    assert inspect(files, COLUMNS)[0] == FILES
    assert not together.broken


def test_local_files_are_digested_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    files, together = match_files(write_files(make_logs(16, 1, seed=0), tmp_path, 8)), Barrier(4)

    def digest(path: str) -> str:
        together.wait(timeout=30)
        return content_digest(path)

    monkeypatch.setattr(inputs, "content_digest", digest)
    assert content_digests(files) == [content_digest(file.path) for file in files]


@pytest.mark.slow
def test_a_replaced_object_is_not_read_as_the_one_that_was_listed(logs: str) -> None:
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
def test_a_bundle_of_objects_has_their_rows(logs: str, tmp_path: Path) -> None:
    local = [file.log for file in match_files(str(tmp_path / "*.parquet"))]
    remote = [file.log for file in match_files(logs)]
    found = []
    for files in (local, remote):
        ((parts,),) = (tuple(slice_bundle(bundle)) for bundle in bundled(files))
        found.append([batch.to_pylist() for batch in read_bundle(parts, COLUMNS)])
    assert found[0] == found[1]
    assert sum(map(len, found[1])) == FILES


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
    for status, words in ((403, "cannot be listed"), (404, "there is no such file or bucket")):
        bucket.fault = lambda method, path, status=status: status
        with pytest.raises(RequestError, match=words):
            match_files(logs)
