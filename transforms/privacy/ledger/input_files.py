"""Input files as a charge remembers them: by keyed digests of their content, so that names and places do not matter."""

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
    """The digest of an input file in a ledger, the same in every run under one secret.

    Args:
        secret: the secret behind the run's key. Without it nobody can confirm a guess at the file.
        content_digest: what tells the file's content, such as its SHA-256.

    Returns:
        32 hexadecimal digits.
    """
    return hmac.digest(secret, _LABEL + content_digest.encode(), hashlib.sha256)[:_BYTES].hex()


@dataclass(frozen=True)
class FileSelection:
    """Which of the files that were found a charge was made for.

    charged, late: places in the list of found files. missing: digests of charged files that were not found.
    """

    charged: tuple[int, ...]
    late: tuple[int, ...]
    missing: tuple[str, ...]


def select_files(charged: Iterable[str], found: Sequence[str]) -> FileSelection:
    """Tells charged files from late ones, by content: a rename or another folder changes nothing.

    Args:
        charged: digests of the files that were charged (`Charge.files`), a digest for each copy.
        found: digests of the files that are there now, in any order.

    Returns:
        The selection. Where there are more copies of a file than were charged, the later ones are late.
    """
    left = Counter(charged)
    kept: list[int] = []
    late: list[int] = []
    for place, digest in enumerate(found):
        (kept if left[digest] > 0 else late).append(place)
        left[digest] -= 1
    missing = [digest for digest, number in left.items() for _ in range(number)]
    return FileSelection(tuple(kept), tuple(late), tuple(sorted(missing)))


def charged_elsewhere(charges: Iterable[Charge], new: Charge) -> list[Charge]:
    """Charges for a file of the new one under another dataset, or for days of which it has none."""
    files = set(new.files)
    return [
        one
        for one in charges
        if not files.isdisjoint(one.files) and not (one.dataset == new.dataset and one.period.meets(new.period))
    ]
