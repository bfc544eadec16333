"""The embedded ledger: an SQLite file. Several processes of one machine may use it at once."""

from __future__ import annotations

import errno
import os
import sqlite3
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

from sfumato.schemas.errors import LedgerError, NotReadyError, RequestError

_WAIT = 60.0  # seconds for another process's write
# What passes, or is mended outside of the ledger: another process, a full disk, one that fails.
_PASSING = frozenset({
    sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED, sqlite3.SQLITE_FULL, sqlite3.SQLITE_IOERR, sqlite3.SQLITE_NOMEM,
    sqlite3.SQLITE_CANTOPEN,
})  # fmt: skip
_PASSING_SYSTEM = frozenset({errno.EIO, errno.ENOSPC, errno.EDQUOT, errno.ESTALE, errno.EMFILE, errno.ENFILE})
_DENIED = frozenset({sqlite3.SQLITE_READONLY, sqlite3.SQLITE_PERM, sqlite3.SQLITE_AUTH})
_TABLE = "CREATE TABLE IF NOT EXISTS entries (number INTEGER PRIMARY KEY, entry BLOB NOT NULL) STRICT"
# Who means harm can drop these; they stop accidents. What harm does shows in the chain of hashes.
_APPEND_ONLY = (
    "CREATE TRIGGER IF NOT EXISTS no_update BEFORE UPDATE ON entries BEGIN SELECT RAISE(ABORT, 'append only'); END",
    "CREATE TRIGGER IF NOT EXISTS no_delete BEFORE DELETE ON entries BEGIN SELECT RAISE(ABORT, 'append only'); END",
)


class SqliteStore:
    """A `LedgerStore` in a file, made at the first append; on a local disk, as SQLite's locks fail on some shares."""

    def __init__(self, path: str):
        self._path = Path(path)

    def read(self) -> list[bytes]:
        """All entries in order; none where there is no file. Raises LedgerError, RequestError or NotReadyError."""
        with self._errors("read"):
            if not self._path.exists():
                return []
            if not os.access(self._path, os.R_OK):
                raise RequestError(f"ledger: {self._path} cannot be read by this user")
            # For writing, if that may be: only so is a write undone that a killed process left half done.
            with closing(self._connect("rw")) as database:
                if not database.execute("SELECT name FROM sqlite_master WHERE name = 'entries'").fetchone():
                    if database.execute("SELECT name FROM sqlite_master").fetchone():
                        raise LedgerError(f"ledger: {self._path} is a database, and no ledger")
                    return []  # another process is making it
                rows = database.execute("SELECT number, entry FROM entries ORDER BY number").fetchall()
        if [number for number, _ in rows] != list(range(len(rows))):
            raise LedgerError(f"ledger: {self._path} lacks entries; it is damaged or has been tampered with")
        return [bytes(entry) for _, entry in rows]

    def append(self, index: int, entry: bytes) -> bool:
        """Writes an entry as number `index` if there are exactly so many.

        Raises LedgerError, RequestError or NotReadyError; then nothing is written.
        """
        with self._errors("written to"):
            self._check_writable()
            with closing(self._connect("rwc")) as database:
                database.execute("PRAGMA synchronous = FULL")
                database.execute("BEGIN IMMEDIATE")
                for statement in (_TABLE, *_APPEND_ONLY):
                    database.execute(statement)
                (entries,) = database.execute("SELECT COUNT(*) FROM entries").fetchone()
                if entries == index:
                    database.execute("INSERT INTO entries VALUES (?, ?)", (index, entry))
                database.execute("COMMIT")
        return bool(entries == index)

    def _connect(self, mode: str) -> sqlite3.Connection:
        address = f"{self._path.absolute().as_uri()}?mode={mode}"
        return sqlite3.connect(address, uri=True, timeout=_WAIT, isolation_level=None)

    def _check_writable(self) -> None:
        folder = self._path.absolute().parent  # where SQLite puts a journal
        if not folder.exists():
            raise RequestError(f"ledger: there is no folder {folder}; make it first")
        if os.statvfs(folder).f_flag & os.ST_RDONLY:
            raise NotReadyError(f"ledger: {folder} is on a file system that can only be read now; try again later")
        for place in (self._path, folder):
            if place.exists() and not os.access(place, os.W_OK):
                raise RequestError(f"ledger: {place} cannot be written to by this user")

    @contextmanager
    def _errors(self, done: str) -> Iterator[None]:
        """Turns the errors of SQLite and of the file system into ours."""
        try:
            yield
        except (sqlite3.Error, OSError) as error:
            if isinstance(error, sqlite3.Error):
                code = getattr(error, "sqlite_errorcode", sqlite3.SQLITE_ERROR) & 0xFF  # without what SQLite adds to it
                passing, denied = code in _PASSING, code in _DENIED
            else:
                passing, denied = error.errno in _PASSING_SYSTEM, True
            if passing:
                raise NotReadyError(
                    f"ledger: {self._path} cannot be {done} now ({error}); look at its disk, and try again later"
                ) from None
            if denied:
                raise RequestError(f"ledger: {self._path} cannot be {done} ({error})") from None
            raise LedgerError(f"ledger: {self._path} cannot be {done} ({error}); it is damaged, or no ledger") from None
