"""Where a ledger's entries lie: the one small interface that every backend has."""

from __future__ import annotations

from typing import Protocol


class LedgerStore(Protocol):
    """Entries that are only ever appended, numbered 0, 1, 2 ... Several processes may use one at once."""

    def read(self) -> list[bytes]:
        """All entries in order; none where there is no ledger yet.

        Raises LedgerError where what lies there is no ledger, NotReadyError where the place cannot be reached now.
        """

    def append(self, index: int, entry: bytes) -> bool:
        """Writes an entry durably as number `index`, if and only if there are exactly `index` entries.

        False where somebody else was faster. Raises RequestError where the place cannot be written to.
        """
