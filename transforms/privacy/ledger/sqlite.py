"""The embedded ledger: an SQLite file. Several processes of one machine may use it at once."""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

from sfumato.schemas.errors import LedgerError, NotReadyError, RequestError

_WAIT = 60.0  # seconds for another process's write
_TABLE = "CREATE TABLE IF NOT EXISTS entries (number INTEGER PRIMARY KEY, entry BLOB NOT NULL) STRICT"
# Who means harm can drop these; they stop accidents. What harm does shows in the chain of hashes.
_APPEND_ONLY = (
    "CREATE TRIGGER IF NOT EXISTS no_update BEFORE UPDATE ON entries BEGIN SELECT RAISE(ABORT, 'append only'); END",
    "CREATE TRIGGER IF NOT EXISTS no_delete BEFORE DELETE ON entries BEGIN SELECT RAISE(ABORT, 'append only'); END",
)


class SqliteLedger:
    """A `LedgerStore` in a file, made at the first append; on a local disk, as SQLite's locks fail on some shares."""

    def __init__(self, path: str):
        self._path = Path(path)

    def read(self) -> list[bytes]:
        """All entries in order; none where there is no file. Raises LedgerError or NotReadyError."""
        if not self._path.exists():
            return []
        if not os.access(self._path, os.R_OK):
            raise RequestError(f"ledger: {self._path} cannot be read by this user")
        try:
            # For writing, if that may be: only so is a write undone that a killed process left half done.
            with closing(self._connect("rw")) as database, self._busy():
                if not database.execute("SELECT name FROM sqlite_master WHERE name = 'entries'").fetchone():
                    if database.execute("SELECT name FROM sqlite_master").fetchone():
                        raise LedgerError(f"ledger: {self._path} is a database, and no ledger")
                    return []  # another process is making it
                rows = database.execute("SELECT number, entry FROM entries ORDER BY number").fetchall()
        except sqlite3.DatabaseError as error:
            raise LedgerError(f"ledger: {self._path} cannot be read ({error})") from None
        if [number for number, _ in rows] != list(range(len(rows))):
            raise LedgerError(f"ledger: {self._path} lacks entries; it is damaged or has been tampered with")
        return [bytes(entry) for _, entry in rows]

    def append(self, index: int, entry: bytes) -> bool:
        """Writes an entry as number `index` if there are exactly so many. Raises RequestError or NotReadyError."""
        self._check_writable()
        try:
            with closing(self._connect("rwc")) as database, self._busy():
                database.execute("PRAGMA synchronous = FULL")
                database.execute("BEGIN IMMEDIATE")
                for statement in (_TABLE, *_APPEND_ONLY):
                    database.execute(statement)
                (entries,) = database.execute("SELECT COUNT(*) FROM entries").fetchone()
                if entries == index:
                    database.execute("INSERT INTO entries VALUES (?, ?)", (index, entry))
                database.execute("COMMIT")
        except sqlite3.DatabaseError as error:
            raise RequestError(f"ledger: {self._path} cannot be written to ({error})") from None
        return bool(entries == index)

    def _connect(self, mode: str) -> sqlite3.Connection:
        address = f"{self._path.absolute().as_uri()}?mode={mode}"
        return sqlite3.connect(address, uri=True, timeout=_WAIT, isolation_level=None)

    def _check_writable(self) -> None:
        place = self._path if self._path.exists() else self._path.absolute().parent
        if not place.exists():
            raise RequestError(f"ledger: there is no folder {place}; make it first")
        if not os.access(place, os.W_OK):
            raise RequestError(f"ledger: {place} cannot be written to by this user")

    @contextmanager
    def _busy(self) -> Iterator[None]:
        try:
            yield
        except sqlite3.OperationalError as error:
            if error.sqlite_errorcode == sqlite3.SQLITE_BUSY:
                raise NotReadyError(f"ledger: {self._path} is in use by others; try again") from None
            raise
