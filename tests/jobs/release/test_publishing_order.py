"""The ledger calls a release published only once the disk holds it, with its name and the name of its folder."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from sfumato.pipelines import cli
from sfumato.transforms.privacy.ledger.stores import SqliteStore
from tests.conftest import make_logs, write_files
from tests.keys import write_key


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
