"""A full disk under the ledger ended a run with exit status 2, which a scheduler never tries again; 75 is right."""

from __future__ import annotations

import errno
import os
import resource
import sqlite3
import subprocess
import sys
from pathlib import Path

import pytest

from sfumato.schemas.errors import LedgerError, NotReadyError, RequestError
from sfumato.schemas.ledger import Limit
from sfumato.transforms.privacy.ledger.ledger import Ledger
from sfumato.transforms.privacy.ledger.stores import SqliteStore
from tests.unit.privacy.ledger.helpers import charge, ledger

LIMITS = Limit.parse_all("9/1d")


def test_a_full_disk_is_tried_again_later(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """SQLite's own limit on pages gives the error that a full disk gives. Nothing is lost, and later it goes on."""
    book = ledger(tmp_path)
    book.reserve(charge("first", epsilon="0.001"), LIMITS)
    connect = SqliteStore._connect

    def small(self: SqliteStore, mode: str) -> sqlite3.Connection:
        database = connect(self, mode)
        database.execute("PRAGMA max_page_count = 5")
        return database

    with monkeypatch.context() as patch:
        patch.setattr(SqliteStore, "_connect", small)
        with pytest.raises(NotReadyError, match="disk is full") as raised:
            _fill(book)
    assert raised.value.exit_code == 75
    entries = book.history(with_limits=True).entries
    assert entries >= 2
    book.reserve(charge("later", epsilon="0.001"))
    assert book.history(with_limits=True).entries == entries + 1


def _fill(book: Ledger) -> None:
    for number in range(100):
        book.reserve(charge(f"r{number}", epsilon="0.001"))


_WRITE = """
import resource, sys
from pathlib import Path
from sfumato.schemas.errors import SfumatoError
from tests.attacks.test_full_disk import LIMITS
from tests.unit.privacy.ledger.helpers import charge, ledger
resource.setrlimit(resource.RLIMIT_FSIZE, (40960, 40960))
try:
    for number in range(200):
        ledger(Path(sys.argv[1])).reserve(charge(f"r{number}", epsilon="0.001"), LIMITS)
except SfumatoError as error:
    print(error)
    sys.exit(error.exit_code)
"""


def test_a_write_that_the_system_refuses_is_tried_again_later(tmp_path: Path) -> None:
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(one for one in sys.path if one)}
    done = subprocess.run(
        [sys.executable, "-c", _WRITE, str(tmp_path)], env=environment, capture_output=True, text=True, timeout=120
    )
    assert done.returncode == 75, done.stdout + done.stderr
    assert "cannot be written to now" in done.stdout
    assert ledger(tmp_path).history(with_limits=True).entries > 2
    assert resource.getrlimit(resource.RLIMIT_FSIZE)[0] != 40960


def test_a_file_system_that_can_only_be_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ledger(tmp_path).reserve(charge("one"), LIMITS)
    statvfs = os.statvfs
    monkeypatch.setattr(os, "statvfs", lambda path: _ReadOnly(statvfs(path)))
    with pytest.raises(NotReadyError, match="on a file system that can only be read now"):
        ledger(tmp_path).reserve(charge("two"), LIMITS)
    assert ledger(tmp_path).history().entries == 2


class _ReadOnly:
    def __init__(self, real: os.statvfs_result):
        self.f_flag = real.f_flag | os.ST_RDONLY


@pytest.mark.parametrize(
    ("code", "kind"),
    [
        (sqlite3.SQLITE_IOERR_FSYNC, NotReadyError),
        (sqlite3.SQLITE_BUSY_SNAPSHOT, NotReadyError),
        (sqlite3.SQLITE_READONLY, RequestError),
        (sqlite3.SQLITE_CORRUPT_SEQUENCE, LedgerError),
        (sqlite3.SQLITE_NOTADB, LedgerError),
    ],
)
def test_errors_of_sqlite_have_the_exit_status_that_they_deserve(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, code: int, kind: type[Exception]
) -> None:
    ledger(tmp_path).reserve(charge("one"), LIMITS)

    def failing(self: SqliteStore, mode: str) -> sqlite3.Connection:
        error = sqlite3.OperationalError("planted")
        error.sqlite_errorcode = code
        raise error

    monkeypatch.setattr(SqliteStore, "_connect", failing)
    for attempt in (SqliteStore(str(tmp_path / "ledger.db")).read, lambda: ledger(tmp_path)._store.append(9, b"x")):
        with pytest.raises(kind, match="planted"):
            attempt()


@pytest.mark.parametrize("number", [errno.EIO, errno.ENOSPC, errno.ESTALE])
def test_errors_of_the_file_system_pass(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int) -> None:
    def failing(_: object, __: int) -> bool:
        raise OSError(number, os.strerror(number))

    ledger(tmp_path).reserve(charge("one"), LIMITS)
    monkeypatch.setattr(os, "access", failing)
    with pytest.raises(NotReadyError):
        ledger(tmp_path).history()
