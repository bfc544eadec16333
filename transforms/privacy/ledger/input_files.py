"""Input files as a charge records them: keyed digests of their content, independent of names and folders."""

from __future__ import annotations

import hashlib
import hmac
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from sfumato.schemas.ledger import Charge


def file_digest(secret: bytes, content_digest: str) -> str:
    """Returns the digest of an input file in a ledger, 32 hexadecimal digits, the same in every run with this secret.

    Without the secret behind the run's key, nobody can confirm a guess at the file's content.

    content_digest: identifies the file's content, such as its SHA-256.
    """
    return hmac.digest(secret, b"sfumato input file " + content_digest.encode(), hashlib.sha256)[:16].hex()


@dataclass(frozen=True)
class FileSelection:
    """Indices of the found files that were charged and that were not, and digests of charged files that are missing."""

    charged: tuple[int, ...]
    late: tuple[int, ...]
    missing: tuple[str, ...]


def select_files(charged: Iterable[str], found: Sequence[str]) -> FileSelection:
    """Compares the digests of found files with those of charged ones, `Charge.files`. Renamed or moved files match.

    If there are more copies of a file than were charged, the later copies are late.
    """
    left = Counter(charged)
    kept: list[int] = []
    late: list[int] = []
    for index, digest in enumerate(found):
        (kept if left[digest] > 0 else late).append(index)
        left[digest] -= 1
    missing = [digest for digest, number in left.items() for _ in range(number)]
    return FileSelection(tuple(kept), tuple(late), tuple(sorted(missing)))


def charged_elsewhere(charges: Iterable[Charge], new: Charge) -> list[Charge]:
    """Returns charges that share a file with the new one but are for another dataset, or for other days.

    Without those of the same dataset that read other days' rows of the file, by the same column and time zone: no row
    is in both.
    """

    def same_days_or_other_rows(one: Charge) -> bool:
        return one.period.overlaps(new.period) or (one.rows_by is not None and one.rows_by == new.rows_by)

    files = set(new.files)
    shared = [one for one in charges if not files.isdisjoint(one.files)]
    return [one for one in shared if one.dataset != new.dataset or not same_days_or_other_rows(one)]
