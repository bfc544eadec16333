"""Listing files: a place that cannot be listed is never taken for an empty one."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from sfumato.schemas.errors import NotReadyError, RequestError
from sfumato.transforms.storage import matching

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
        (google.NotFound("the bucket"), RequestError, "cannot be listed .*there is no such file or bucket"),
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


def test_a_place_that_no_file_system_knows() -> None:
    with pytest.raises(RequestError, match=r"nowhere://bucket/\* cannot be listed"):
        matching("nowhere://bucket/*")
