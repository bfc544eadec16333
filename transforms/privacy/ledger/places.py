"""From a ledger's place, as an option names it, to the ledger."""

from __future__ import annotations

import os
from functools import lru_cache

from sfumato.schemas.errors import RequestError
from sfumato.transforms.privacy.ledger.ledger import Ledger
from sfumato.transforms.privacy.ledger.store import LedgerStore


def open_ledger(place: str) -> Ledger:
    """The ledger in an SQLite file, or in a bucket (gs://bucket/folder). Touches nothing. Raises RequestError."""
    return Ledger(_store(place, os.getpid()))


def absolute(place: str) -> str:
    """A ledger's place that worker processes understand as well, whichever folder they work in."""
    return place if "://" in place else os.path.abspath(place)


@lru_cache(maxsize=16)
def _store(place: str, _: int) -> LedgerStore:
    """The store, kept since one in a bucket knows the entries that it has read. _: the process, for clients' sake."""
    if place.startswith("gs://"):
        from sfumato.transforms.privacy.ledger.bucket import BucketLedger

        return BucketLedger(place)
    if "://" in place:
        raise RequestError(f"ledger: a file or gs://bucket/folder, got {place!r}")
    if os.path.isdir(place):
        raise RequestError(f"ledger: {place} is a folder; name a file in it, such as {place.rstrip('/')}/ledger.db")
    from sfumato.transforms.privacy.ledger.sqlite import SqliteLedger

    return SqliteLedger(place)
