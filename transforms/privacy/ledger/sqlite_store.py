"""A ledger's entries in an SQLite file. Several processes of one machine may use it at once."""

from __future__ import annotations

import errno
import os
import sqlite3
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

from sfumato.schemas.errors import LedgerError, NotReadyError, RequestError

_WAIT = 60.0  # seconds for another process's write
# Errors that pass, or have causes outside the ledger: another process, a full or failing disk.
_PASSING = frozenset({
    sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED, sqlite3.SQLITE_FULL, sqlite3.SQLITE_IOERR, sqlite3.SQLITE_NOMEM,
    sqlite3.SQLITE_CANTOPEN,
})  # fmt: skip
_PASSING_SYSTEM = frozenset({errno.EIO, errno.ENOSPC, errno.EDQUOT, errno.ESTALE, errno.EMFILE, errno.ENFILE})
_DENIED = frozenset({sqlite3.SQLITE_READONLY, sqlite3.SQLITE_PERM, sqlite3.SQLITE_AUTH})
_TABLE = "CREATE TABLE IF NOT EXISTS entries (number INTEGER PRIMARY KEY, entry BLOB NOT NULL) STRICT"
# These prevent accidents. An attacker can drop them; the chain of hashes then shows what was changed.
_APPEND_ONLY = (
    "CREATE TRIGGER IF NOT EXISTS no_update BEFORE UPDATE ON entries BEGIN SELECT RAISE(ABORT, 'append only'); END",
    "CREATE TRIGGER IF NOT EXISTS no_delete BEFORE DELETE ON entries BEGIN SELECT RAISE(ABORT, 'append only'); END",
)


class SqliteStore:
    """A `LedgerStore` in a file, created by the first append. Use a local disk: SQLite's locks fail on some shares."""

    def __init__(self, path: str):
        self._path = Path(path)

    def read(self) -> list[bytes]:
        """See LedgerStore.read. Without a file there are no entries."""
        with self._errors("read"):
            if not self._path.exists():
                return []
            if not os.access(self._path, os.R_OK):
                raise RequestError(f"ledger: {self._path} cannot be read by this user")
            # Opened for writing if possible: only then SQLite rolls back a killed process's unfinished write.
            with closing(self._connect("rw")) as database:
                # One query, because another process may create the table meanwhile.
                tables = {name for (name,) in database.execute("SELECT name FROM sqlite_master").fetchall()}
                if "entries" not in tables:
                    if tables:
                        raise LedgerError(f"ledger: {self._path} is a database, and no ledger")
                    return []  # another process is creating it
                rows = database.execute("SELECT number, entry FROM entries ORDER BY number").fetchall()
        if [number for number, _ in rows] != list(range(len(rows))):
            raise LedgerError(f"ledger: {self._path} lacks entries; it is damaged or has been tampered with")
        return [bytes(entry) for _, entry in rows]

    def append(self, index: int, entry: bytes) -> bool:
        """See LedgerStore.append. If it raises, nothing was written."""
        with self._errors("written to"):
            self.check_writable()
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

    def check_writable(self) -> None:
        """See LedgerStore.check_writable."""
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
        """Converts errors of SQLite and of the file system. done: what could not be done, as a participle."""
        try:
            yield
        except (sqlite3.Error, OSError) as error:
            if isinstance(error, sqlite3.Error):
                code = getattr(error, "sqlite_errorcode", sqlite3.SQLITE_ERROR) & 0xFF  # the primary result code
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
