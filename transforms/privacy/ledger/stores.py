"""Where a ledger's entries are kept: the protocol of a store, and the store at a location."""

from __future__ import annotations

import os
from functools import lru_cache
from typing import Protocol

from sfumato.schemas.errors import RequestError
from sfumato.transforms.privacy.ledger.bucket_store import BucketStore
from sfumato.transforms.privacy.ledger.sqlite_store import SqliteStore


class LedgerStore(Protocol):
    """Keeps a ledger's entries, in order. Entries are never changed or removed."""

    def read(self) -> list[bytes]:
        """Returns all entries in order. Raises LedgerError, RequestError or NotReadyError."""
        ...

    def append(self, index: int, entry: bytes) -> bool:
        """Writes entry number `index` if exactly `index` entries exist, in one step and durably.

        Returns:
            Whether this call wrote the entry. False where another writer was faster.

        Raises:
            LedgerError, RequestError or NotReadyError. Only a later `read` shows whether the entry was written.
        """
        ...

    def check_writable(self) -> None:
        """Raises RequestError or NotReadyError if it is known that nothing can be written. Writes nothing."""
        ...


def open_store(location: str) -> LedgerStore:
    """Returns the store at a location: an SQLite file or `gs://bucket/folder`. Touches nothing.

    Raises:
        RequestError: the location is neither.
    """
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
