"""What a run needs later is on the disk, not only in the system's memory: a power cut loses neither key nor charge."""

from __future__ import annotations

import os
import sqlite3
from pathlib import Path
from typing import Any

import pytest

from sfumato.transforms.privacy.ledger.stores import open_store
from sfumato.transforms.privacy.secrets import SECRET_BYTES, create_key_file


def test_a_new_key_is_synced_when_it_is_whole(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    synced: list[int] = []
    sync = os.fsync

    def seen(descriptor: int) -> None:
        synced.append(os.fstat(descriptor).st_size)
        sync(descriptor)

    monkeypatch.setattr(os, "fsync", seen)
    create_key_file(str(tmp_path / "key"))
    assert SECRET_BYTES in synced
    assert len((tmp_path / "key").read_bytes()) == SECRET_BYTES


def test_every_entry_of_a_ledger_is_synced(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """SQLite syncs at each COMMIT with `synchronous` at FULL (2) or EXTRA (3)."""
    levels: list[int] = []

    class Watched(sqlite3.Connection):
        def execute(self, sql: str, *more: Any) -> sqlite3.Cursor:
            if sql == "COMMIT":
                levels.append(super().execute("PRAGMA synchronous").fetchone()[0])
            return super().execute(sql, *more)

    connect = sqlite3.connect
    monkeypatch.setattr(sqlite3, "connect", lambda *given, **options: connect(*given, **options, factory=Watched))
    store = open_store(str(tmp_path / "ledger.db"))
    assert store.append(0, b"first")
    assert store.append(1, b"second")
    assert len(levels) == 2
    assert min(levels) >= 2
