"""Formats of files, such as `sfumato-ledger/2`: a name and a whole number, and which of them a reader accepts. Pure."""

from __future__ import annotations

import re

from sfumato.schemas.errors import FormatError, RequestError

_FORMAT = re.compile(r"(?P<name>[a-z-]+)/(?P<version>[0-9]{1,6})")


def check_format(subject: str, stated: object, newest: str, oldest: int | None = None) -> None:
    """Checks the format that a file states.

    Args:
        subject: the option and the file, which begin the message.
        stated: what the file states; anything.
        newest: the newest format that this version of sfumato reads, such as `sfumato-ledger/2`.
        oldest: the oldest version of this format that is read too; None for the newest alone.

    Raises:
        FormatError: the file was written by a newer version of sfumato, or by one that is too old.
        RequestError: the file states no format of this name.
    """
    found = _FORMAT.fullmatch(stated) if isinstance(stated, str) else None
    name, _, known = newest.partition("/")
    if found is None or found["name"] != name:
        raise RequestError(f"{subject}: the format is {str(stated)[:60]!r}, not {newest!r}")
    version, last = int(found["version"]), int(known)
    if version > last:
        raise FormatError(
            f"{subject} was written by a newer version of sfumato (format {version}; this one reads up to {last}): "
            "upgrade sfumato"
        )
    if version < (last if oldest is None else oldest):
        raise FormatError(
            f"{subject} was written by an older version of sfumato (format {version}; this one reads from "
            f"{last if oldest is None else oldest}): docs/how_to/upgrade.md says what to do"
        )
