"""Where a ledger's entries are kept: an SQLite file, or a Google Cloud Storage bucket."""

from __future__ import annotations

import errno
import os
import random
import re
import sqlite3
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager
from functools import cached_property, lru_cache
from pathlib import Path
from typing import Any, Protocol

from sfumato.schemas.errors import LedgerError, NotReadyError, RequestError
from sfumato.transforms.io.google_errors import FIRST_PAUSE_S, LONGEST_PAUSE_S, MAX_WAIT_S, google_retry, may_pass

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
REQUEST_TIMEOUT_S = 30.0
READERS = 8  # threads; Google's client keeps 10 connections
_LOCATION = re.compile(r"gs://(?P<bucket>[a-z0-9][a-z0-9._-]+)/(?P<prefix>[^/].*?)/*")
_ENTRY = re.compile(r"(\d{8})\.json")


class LedgerStore(Protocol):
    """Keeps a ledger's entries, in order. Entries are never changed or removed."""

    def read(self) -> list[bytes]:
        """Returns all entries in order. Raises LedgerError, RequestError or NotReadyError."""

    def append(self, index: int, entry: bytes) -> bool:
        """Writes entry number `index` if exactly `index` entries exist, in one step and durably.

        Returns whether this call wrote it: False where another writer was faster. After LedgerError, RequestError or
        NotReadyError, only a later `read` shows whether the entry was written.
        """

    def check_writable(self) -> None:
        """Raises RequestError or NotReadyError if it is known that nothing can be written. Writes nothing."""


def open_store(location: str) -> LedgerStore:
    """Returns the store at an SQLite file or `gs://bucket/folder`. Touches nothing. Raises RequestError for others."""
    return _open_store(location, os.getpid())


def absolute_location(location: str) -> str:
    """Returns a ledger's location that worker processes understand too, whatever folder they run in."""
    return location if "://" in location else os.path.abspath(location)


@lru_cache(maxsize=16)
def _open_store(location: str, _process: int) -> LedgerStore:
    # Cached because a bucket's store keeps the entries that it has read. The process id is part of the cache's key
    # because Google's clients do not survive a fork.
    if location.startswith("gs://"):
        return BucketStore(location)
    if "://" in location:
        raise RequestError(f"ledger: must be a file or gs://bucket/folder, got {location!r}")
    if os.path.isdir(location):
        raise RequestError(
            f"ledger: {location} is a folder; name a file in it, such as {location.rstrip('/')}/ledger.db"
        )
    return SqliteStore(location)


class SqliteStore:
    """A `LedgerStore` in a file, which several processes of one machine may use at once. The first append creates it.

    Use a local disk: SQLite's locks fail on some shares.
    """

    def __init__(self, path: str):
        self._path = Path(path)

    def read(self) -> list[bytes]:
        # Without a file there are no entries.
        with self._errors("read"):
            if not self._path.exists():
                return []
            if not os.access(self._path, os.R_OK):
                raise RequestError(f"ledger: {self._path} is not readable by this user; change its permissions")
            # Opened for writing if possible: only then SQLite rolls back a killed process's unfinished write.
            with closing(self._connect("rw")) as database:
                # One query, because another process may create the table meanwhile.
                tables = {name for (name,) in database.execute("SELECT name FROM sqlite_master").fetchall()}
                if "entries" not in tables:
                    if tables:
                        raise LedgerError(f"ledger: {self._path} is a database but not a ledger")
                    return []  # another process is creating it
                rows = database.execute("SELECT number, entry FROM entries ORDER BY number").fetchall()
        if [number for number, _ in rows] != list(range(len(rows))):
            raise LedgerError(f"ledger: {self._path} misses entries; it is damaged or has been tampered with")
        return [bytes(entry) for _, entry in rows]

    def append(self, index: int, entry: bytes) -> bool:
        # If it raises, nothing was written.
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
        folder = self._path.absolute().parent  # where SQLite puts a journal
        if not folder.exists():
            raise RequestError(f"ledger: folder not found: {folder}; create it first")
        if os.statvfs(folder).f_flag & os.ST_RDONLY:
            raise NotReadyError(f"ledger: {folder} is on a read-only file system; try again later")
        for place in (self._path, folder):
            if place.exists() and not os.access(place, os.W_OK):
                raise RequestError(f"ledger: {place} is not writable by this user; change its permissions")

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
                    f"ledger: {self._path} cannot be {done} now ({error}); check its disk, and try again later"
                ) from None
            if denied:
                raise RequestError(f"ledger: {self._path} cannot be {done} ({error})") from None
            raise LedgerError(
                f"ledger: {self._path} cannot be {done} ({error}); it is damaged, or not a ledger"
            ) from None


class BucketStore:
    """A LedgerStore at `gs://bucket/prefix`. Entry i is the object `prefix/0000000i.json`, written once.

    The storage decides which writer is first: an object is created only if none of its name exists (generation 0). The
    roles Storage Object Creator and Storage Object Viewer suffice. Do not grant the right to delete, which overwriting
    needs too. Then nobody who runs jobs can change an entry, or remove the newest ones, a removal that a chain of
    hashes cannot reveal. A retention policy on the bucket also binds the bucket's owner.

    Several processes may use one ledger, and several threads one BucketStore. Create it after a fork, not before.
    Raises RequestError if the location has another form, or Google's client is not installed.
    """

    def __init__(self, location: str):
        found = _LOCATION.fullmatch(location)
        if not found:
            raise RequestError(f"ledger: {location!r} must name a folder in a bucket, such as gs://my-bucket/ledger")
        self.location = location
        self._bucket_name, self._prefix = found["bucket"], f"{found['prefix']}/"
        self._known = 0  # a lower bound of the number of entries
        self._cache: dict[tuple[int, int], bytes] = {}  # (number, generation) -> entry
        _import_client()

    def __reduce__(self) -> tuple[type[BucketStore], tuple[str]]:
        return BucketStore, (self.location,)

    def read(self) -> list[bytes]:
        with self._errors("read"):
            try:
                generations = self._list()
            except LedgerError:  # a long listing has several pages, and others append meanwhile
                generations = self._list()
            with ThreadPoolExecutor(READERS) as pool:
                entries = list(pool.map(self._entry, range(len(generations)), generations))
        self._known = max(self._known, len(entries))
        return entries

    def append(self, index: int, entry: bytes) -> bool:
        # If an attempt's answer is lost, the next attempt compares the object that it finds with the entry. So no two
        # entries may be equal.
        with self._errors("written to"):
            blob = self._blob(index)
            # Entries are never removed, so known ones need no check.
            if index > self._known and not self._blob(index - 1).exists(**_tried()):
                return False
            ours = self._create(blob, entry)
        self._known = max(self._known, index + 1)
        return ours

    def check_writable(self) -> None:
        """Checks nothing: a bucket shows only at a write whether an account may write."""

    def _create(self, blob: Any, entry: bytes) -> bool:
        """Returns whether this call created the object."""
        from google.api_core.exceptions import Forbidden, PreconditionFailed

        end, pause, unclear = time.monotonic() + MAX_WAIT_S, FIRST_PAUSE_S, False
        while True:
            try:
                blob.upload_from_string(
                    entry, content_type="application/json", if_generation_match=0, timeout=REQUEST_TIMEOUT_S, retry=None
                )
            except (PreconditionFailed, Forbidden) as error:
                # Without the right to overwrite, an existing object can be reported as Forbidden.
                if isinstance(error, Forbidden) and not blob.exists(**_tried()):
                    raise
                return unclear and bytes(blob.download_as_bytes(**_tried())) == entry
            except Exception as error:
                if not may_pass(error) or time.monotonic() + pause > end:
                    raise
                unclear = True
                time.sleep(pause * random.uniform(0.5, 1))
                pause = min(2 * pause, LONGEST_PAUSE_S)
            else:
                return True

    def _list(self) -> list[int]:
        """Returns the generations of all entries in order. Raises LedgerError."""
        found: dict[int, int] = {}
        listing = self._client.list_blobs(
            self._bucket_name, prefix=self._prefix, fields="items(name,generation),nextPageToken", **_tried()
        )
        for blob in listing:
            name = blob.name.removeprefix(self._prefix)
            number = _ENTRY.fullmatch(name)
            if number:
                found[int(number[1])] = int(blob.generation)
            elif name:  # an empty name is the folder, which Google's console creates
                raise LedgerError(f"ledger: {self.location} contains {name!r}, which is not a ledger entry")
        for index in range(len(found)):
            if index not in found:
                raise LedgerError(f"ledger: {self.location} has later entries but no entry {index}: some were removed")
        return [found[index] for index in range(len(found))]

    def _entry(self, index: int, generation: int) -> bytes:
        from google.api_core.exceptions import NotFound

        if (index, generation) not in self._cache:
            try:
                content = self._blob(index, generation).download_as_bytes(**_tried())
            except NotFound:
                raise LedgerError(
                    f"ledger: {self.location}: entry {index} was removed or replaced during the read"
                ) from None
            self._cache[index, generation] = bytes(content)
        return self._cache[index, generation]

    def _blob(self, index: int, generation: int | None = None) -> Any:
        return self._client.bucket(self._bucket_name).blob(f"{self._prefix}{index:08d}.json", generation=generation)

    @cached_property
    def _client(self) -> Any:
        # Objects need no project, and looking for one takes time. Google's client needs no credentials if
        # STORAGE_EMULATOR_HOST is set.
        return _import_client()(project=None)

    @contextmanager
    def _errors(self, done: str) -> Iterator[None]:
        """Converts errors of Google's client. done: what could not be done, as a participle."""
        from google.api_core.exceptions import Forbidden, GoogleAPIError, NotFound, Unauthorized
        from google.auth.exceptions import GoogleAuthError

        try:
            yield
        except NotFound:
            raise RequestError(f"ledger: {self.location}: bucket not found: {self._bucket_name!r}; create it") from None
        except (Forbidden, Unauthorized) as error:
            raise RequestError(
                f"ledger: {self.location} may not be {done} ({type(error).__name__}); grant the account that runs the "
                "job the roles Storage Object Creator and Storage Object Viewer on the bucket"
            ) from None
        except (GoogleAPIError, GoogleAuthError, OSError) as error:  # the errors of `requests` are OSErrors
            kind = type(error).__name__
            if may_pass(error):
                raise NotReadyError(
                    f"ledger: {self.location} cannot be reached now ({kind}); try again later"
                ) from None
            if isinstance(error, GoogleAuthError):
                raise RequestError(
                    f"ledger: {self.location}: no credentials for Google Cloud ({kind}); run: "
                    "gcloud auth application-default login, or set GOOGLE_APPLICATION_CREDENTIALS"
                ) from None
            raise RequestError(f"ledger: {self.location} cannot be {done} ({kind})") from None


def _tried() -> dict[str, Any]:
    return {"timeout": REQUEST_TIMEOUT_S, "retry": google_retry()}


def _import_client() -> Any:
    try:
        from google.cloud.storage import Client
    except ImportError:
        raise RequestError("ledger: a bucket requires the extra gcp; run: pip install '.[gcp]'") from None
    return Client
