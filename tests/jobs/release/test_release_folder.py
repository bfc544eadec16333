"""How a release's files are written, synced and replaced."""

from __future__ import annotations

import hashlib
import html
import json
import os
from dataclasses import replace
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest

from sfumato.pipelines.command_line import cli
from sfumato.schemas.errors import LedgerError, RequestError
from sfumato.transforms.privacy.ledger.stores import SqliteStore
from sfumato.transforms.release import release_folder
from sfumato.transforms.release.metadata import ReleaseMetadata
from sfumato.transforms.release.notices import refusal_files
from sfumato.transforms.release.published_release import open_release
from sfumato.transforms.release.publishing import check_same_result
from sfumato.transforms.release.release_folder import check_output, publish, with_digests
from tests.conftest import make_logs, write_files
from tests.keys import write_key
from tests.rejections import rejects

# --- release/test_release_folder.py ---

FILES = {
    "cells.parquet": b"a",
    "manifest.json": json.dumps({"release_id": "one", "format": "sfumato-release/2"}).encode(),
}
OTHER = {
    "density.npy": b"b",
    "manifest.json": json.dumps({"release_id": "two", "format": "sfumato-release/2"}).encode(),
}


def names(folder: Path) -> set[str]:
    return {path.name for path in folder.iterdir()}


def test_a_release_is_there_whole(tmp_path: Path) -> None:
    publish(str(tmp_path / "deep" / "out"), FILES, "one", overwrite=False)
    assert names(tmp_path / "deep") == {"out"}
    assert names(tmp_path / "deep" / "out") == set(FILES)
    assert open_release(tmp_path / "deep" / "out").manifest["release_id"] == "one"


def test_an_existing_output_is_refused_or_replaced_whole(tmp_path: Path) -> None:
    out = tmp_path / "out"
    publish(str(out), FILES, "one", overwrite=False)
    with rejects("output") as caught:
        publish(str(out), OTHER, "two", overwrite=False)
    assert "contains a release of sfumato" in str(caught.value)
    assert names(out) == set(FILES)
    publish(str(out), OTHER, "two", overwrite=True)
    assert names(out) == set(OTHER)
    assert names(tmp_path) == {"out"}


def test_overwrite_spares_what_is_no_release(tmp_path: Path) -> None:
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "thesis.tex").write_text("years of work")
    for overwrite in (True, False):  # a refusal never offers --overwrite where it would be refused
        with pytest.raises(RequestError, match=r"other files .* name another folder"):
            check_output(str(tmp_path / "out"), overwrite=overwrite)


def test_a_release_and_changes_do_not_replace_each_other(tmp_path: Path) -> None:
    changes = {"changes.png": b"of two maps", "manifest.json": b'{"format": "sfumato-changes/1"}'}
    for first, second, noun in ((FILES, changes, "folder of changes"), (changes, FILES, "release")):
        out = tmp_path / noun
        publish(str(out), first, "one", overwrite=False)
        with pytest.raises(RequestError, match=f"is not a {noun}, so --overwrite does not replace it"):
            publish(str(out), second, "two", overwrite=True)
        with pytest.raises(RequestError, match=f"is not a {noun}"):
            check_output(str(out), True, json.loads(second["manifest.json"])["format"])
        assert names(out) == set(first)
        publish(str(out), {**first, "manifest.json": first["manifest.json"] + b" "}, "three", overwrite=True)


def test_overwrite_spares_more_than_a_release(tmp_path: Path) -> None:
    out = tmp_path / "out"
    publish(str(out), FILES, "one", overwrite=False)
    (out / "notes.txt").write_text("mine")
    with pytest.raises(RequestError, match="is not a release"):
        publish(str(out), OTHER, "two", overwrite=True)
    (tmp_path / "web").mkdir()
    (tmp_path / "web" / "manifest.json").write_text('{"name": "a web app"}')
    with pytest.raises(RequestError, match="is not a release"):
        check_output(str(tmp_path / "web"), overwrite=True)


def test_the_same_release_id_with_other_content_is_no_retry(tmp_path: Path) -> None:
    publish(str(tmp_path / "out"), FILES, "one", overwrite=False)
    changed = {**FILES, "manifest.json": FILES["manifest.json"].replace(b"}", b', "epsilon": 2}')}
    with pytest.raises(RequestError, match="already exists"):
        publish(str(tmp_path / "out"), changed, "one", overwrite=False)
    publish(str(tmp_path / "out"), changed, "one", overwrite=True)
    assert open_release(tmp_path / "out").manifest["epsilon"] == 2


def test_place_that_cannot_be_written_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(RequestError, match="is not a writable folder"):
        check_output(str(tmp_path / "file" / "deep" / "out"), overwrite=False)
    if Path("/proc/version").exists():  # a folder that says that it can be written to
        with rejects("output"):
            check_output("/proc/out", overwrite=False)
    check_output(str(tmp_path / "new" / "out"), overwrite=False)
    assert [path.name for path in tmp_path.iterdir()] == ["file"]


def test_a_repeated_publication_changes_nothing(tmp_path: Path) -> None:
    out = tmp_path / "out"
    publish(str(out), FILES, "one", overwrite=False)
    before = (out / "cells.parquet").stat().st_mtime_ns
    publish(str(out), FILES, "one", overwrite=False)
    assert (out / "cells.parquet").stat().st_mtime_ns == before


@pytest.mark.parametrize("overwrite", [False, True])
def test_a_failure_leaves_things_as_they_were(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, overwrite: bool) -> None:
    out = tmp_path / "out"
    if overwrite:
        publish(str(out), FILES, "one", overwrite=False)

    def full(_: int) -> None:
        raise OSError("no space left on device")

    monkeypatch.setattr(release_folder.os, "fsync", full)
    with pytest.raises(OSError, match="no space"):
        publish(str(out), OTHER, "two", overwrite=overwrite)
    assert names(tmp_path) == ({"out"} if overwrite else set())
    if overwrite:
        assert names(out) == set(FILES)


@pytest.mark.parametrize("when", ["written", "moved away"])
def test_two_replacements_at_once_leave_one_whole(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, when: str) -> None:
    """One is stopped once its files are written, or as it is to move the old release; the other overtakes it."""
    out = str(tmp_path / "out")
    publish(out, FILES, "one", overwrite=False)
    more = {**OTHER, "cells.parquet": b"c"}
    rename, replaced = Path.rename, []

    def overtaken(path: Path, target: Path) -> Path:
        start = "partial" if when == "written" else "out"
        if not replaced and (f".{start}-" in path.name or path.name == start):
            replaced.append(path)
            publish(out, more, "two", overwrite=True)
        return rename(path, target)

    monkeypatch.setattr(Path, "rename", overtaken)
    publish(out, more, "two", overwrite=True)
    assert replaced
    assert {name: (tmp_path / "out" / name).read_bytes() for name in names(tmp_path / "out")} == with_digests(more)
    assert names(tmp_path) == {"out"}


@pytest.mark.parametrize("overwrite", [False, True])
def test_an_attempt_overtaken_before_it_looks_is_content(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, overwrite: bool
) -> None:
    """The other one publishes the same release between the look for a standing one and the check of the place."""
    out, check, overtaken = str(tmp_path / "out"), release_folder.check_output, []

    def late(*arguments: Any) -> None:
        if not overtaken:
            overtaken.append(True)
            publish(out, FILES, "one", overwrite=overwrite)
        check(*arguments)

    monkeypatch.setattr(release_folder, "check_output", late)
    publish(out, FILES, "one", overwrite=overwrite)
    assert overtaken
    assert names(tmp_path) == {"out"}


def test_a_folder_that_is_away_for_a_moment_is_no_reason_to_fail(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Between the two renames of another replacement nothing stands at the place."""
    out = tmp_path / "out"
    publish(str(out), FILES, "one", overwrite=False)
    replaceable, looked = release_folder._is_replaceable, []

    def away(output: Path, kind: str) -> bool:
        looked.append(output)
        return len(looked) > 1 and replaceable(output, kind)

    monkeypatch.setattr(release_folder, "_is_replaceable", away)
    publish(str(out), OTHER, "two", overwrite=True)
    assert names(out) == set(OTHER)


def test_publish_clears_away_its_own_killed_attempts(tmp_path: Path) -> None:
    for name in ("partial-two", "replaced-two", "partial-two-2"):
        (tmp_path / f".out.{name}-{'0' * 32}").mkdir()
    publish(str(tmp_path / "out"), OTHER, "two", overwrite=False)
    assert names(tmp_path) == {"out", f".out.partial-two-2-{'0' * 32}"}


def test_what_is_no_release_is_not_opened(tmp_path: Path) -> None:
    with pytest.raises(RequestError, match=r"no release found"):
        open_release(tmp_path)
    (tmp_path / "manifest.json").write_text('{"format": "something else"}')
    with pytest.raises(RequestError, match="something else"):
        open_release(tmp_path)


@pytest.mark.parametrize("name", [None, *FILES])
@pytest.mark.parametrize("content", [None, b"", b"damaged"])
def test_what_a_ledger_charged_is_restored(tmp_path: Path, name: str | None, content: bytes | None) -> None:
    """Only what is damaged is replaced: a release in order stays the folder that readers have open."""
    out = tmp_path / "out"
    publish(str(out), FILES, "one", overwrite=False, restores=True)
    whole, folder = {path.name: path.read_bytes() for path in out.iterdir()}, out.stat().st_ino
    if name is not None and content is None:
        (out / name).unlink()
    elif name is not None and content is not None:
        (out / name).write_bytes(content)
        if name == "manifest.json":
            with pytest.raises(RequestError):
                publish(str(out), FILES, "one", overwrite=False)
    publish(str(out), FILES, "one", overwrite=False, restores=True)
    assert {path.name: path.read_bytes() for path in out.iterdir()} == whole
    assert (out.stat().st_ino == folder) == (name is None)
    assert names(tmp_path) == {"out"}


def test_only_this_very_release_is_restored(tmp_path: Path) -> None:
    out = tmp_path / "out"
    publish(str(out), OTHER, "two", overwrite=False)
    with pytest.raises(RequestError, match="already exists"):
        publish(str(out), FILES, "one", overwrite=False, restores=True)
    (out / "manifest.json").write_bytes(b"")
    (out / "thesis.tex").write_text("years of work")
    with pytest.raises(RequestError, match=r"thesis\.tex"):
        publish(str(out), FILES, "one", overwrite=False, restores=True)
    assert names(out) == {*OTHER, "thesis.tex"}


# --- the ledger calls a release published only once the disk holds it, with its name and the name of its folder ---


@pytest.mark.parametrize("killed", [False, True])
def test_a_release_is_on_the_disk_before_the_ledger_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, killed: bool
) -> None:
    """killed: between the release's rename and the ledger's entry, so that another run commits it."""
    write_files(make_logs(600, 1, seed=0), tmp_path / "logs", 2)
    write_key(tmp_path / "key")
    release = tmp_path / "published" / "releases" / "monday"
    command = (
        *("heatmap", "--input", str(tmp_path / "logs"), "--output", str(release), "--key_file", str(tmp_path / "key")),
        *("--release_id", "monday", "--ledger", str(tmp_path / "ledger.db"), "--dataset", "city"),
        *("--period", "2026-11-20", "--budget", "9/1d", "--region=-1,50,1,51", "--depth", "4", "--epsilon", "4"),
    )
    if killed:
        with monkeypatch.context() as patch:
            patch.setattr("sfumato.transforms.release.publishing.sync_release", lambda _: 1 / 0)
            with pytest.raises((RuntimeError, ZeroDivisionError), match="division by zero"):
                cli.main(command)
        assert (release / "manifest.json").exists()
    steps: list[str] = []
    fsync, rename, append = os.fsync, Path.rename, SqliteStore.append

    def synced(file: int) -> None:
        steps.append(os.readlink(f"/proc/self/fd/{file}"))
        fsync(file)

    def renamed(path: Path, target: Path) -> Path:
        steps.append(f"rename to {target}")
        return rename(path, target)

    def appended(store: SqliteStore, index: int, entry: bytes) -> bool:
        steps.append(f"entry {index}")
        return append(store, index, entry)

    monkeypatch.setattr(os, "fsync", synced)
    monkeypatch.setattr(Path, "rename", renamed)
    monkeypatch.setattr(SqliteStore, "append", appended)
    assert cli.main(command) == 0
    commit = steps.index("entry 2")  # after limits and charge
    folders = [str(release), str(release.parent), str(release.parent.parent)]
    if killed:
        assert set(folders) <= set(steps[:commit])
        return
    named = steps.index(f"rename to {release}")
    assert set(folders) <= set(steps[named:commit])
    written = {one.rpartition("/")[2] for one in steps[:named] if ".partial-" in one}
    assert written == {path.name for path in release.iterdir()}


def test_check_same_result_refuses_another_one_under_one_charge() -> None:
    files = {"manifest.json": b"{}"}
    metadata = ReleaseMetadata("heatmap", "monday", "2026-11-21T00:00:00+00:00", "key file", True, {})
    check_same_result(files, metadata)  # nothing was published before
    same = replace(metadata, published_manifest_digest=hashlib.sha256(b"{}").hexdigest())
    check_same_result(files, same)
    with pytest.raises(LedgerError):
        check_same_result({"manifest.json": b"{ }"}, same)


def test_a_notice_shows_its_reason_and_runs_nothing() -> None:
    metadata = ReleaseMetadata("heatmap", "monday", "2026-11-21T00:00:00+00:00", "key file", True, {})
    reason = "<script>alert(1)</script> & <b>bold</b>"
    files = refusal_files(metadata, reason, Decimal(1), Decimal("0.01"), Decimal(0), "users are added")
    page = files["index.html"].decode()
    assert "<script" not in page
    assert html.escape(reason) in page
