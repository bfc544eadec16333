"""Input files as a charge records them: keyed digests of their content, independent of names and folders."""

from __future__ import annotations

import hashlib
import hmac
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from sfumato.schemas.ledger import Charge

_LABEL = b"sfumato input file "
_BYTES = 16


def file_digest(secret: bytes, content_digest: str) -> str:
    """Returns the digest of an input file in a ledger. It is the same in every run with the same secret.

    Args:
        secret: the secret behind the run's key. Without it, nobody can confirm a guess at the file's content.
        content_digest: identifies the file's content, such as its SHA-256.

    Returns:
        32 hexadecimal digits.
    """
    return hmac.digest(secret, _LABEL + content_digest.encode(), hashlib.sha256)[:_BYTES].hex()


@dataclass(frozen=True)
class FileSelection:
    """The files found now, compared with the files of an earlier charge.

    Attributes:
        charged: indices of found files that were charged.
        late: indices of found files that were not charged.
        missing: digests of charged files that were not found.
    """

    charged: tuple[int, ...]
    late: tuple[int, ...]
    missing: tuple[str, ...]


def select_files(charged: Iterable[str], found: Sequence[str]) -> FileSelection:
    """Compares found files with charged files by content. Renamed or moved files still match.

    Args:
        charged: digests of the charged files (`Charge.files`), one for each copy.
        found: digests of the files found now, in any order.

    Returns:
        The selection. If there are more copies of a file than were charged, the later copies are late.
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
    files = set(new.files)
    return [
        one
        for one in charges
        if not files.isdisjoint(one.files)
        and not (one.dataset == new.dataset and (one.period.overlaps(new.period) or _reads_other_rows(one, new)))
    ]


def _reads_other_rows(one: Charge, other: Charge) -> bool:
    return one.rows_by is not None and one.rows_by == other.rows_by and not one.period.overlaps(other.period)
