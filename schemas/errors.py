"""The errors of jobs, and parts of their messages. `exit_code` is the command's exit status, for orchestrators."""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable, Sequence
from typing import Self

_OPTIONS = re.compile(r"([a-z][a-z0-9_]*(?:(?:, | and | or )[a-z][a-z0-9_]*)*): ")
_MOST_SHOWN = 20  # values of a list; a longer one is data
_FORMAT = re.compile(r"(?P<name>[a-z-]+)/(?P<version>[0-9]{1,6})")


class SfumatoError(Exception):
    """Base class of every error that a caller can act on.

    A message is one line, `SUBJECT: PROBLEM`: the option or the file, what is wrong with it, and what to do. Beam
    carries errors from workers only as text, so the message contains everything.

    >>> error = SfumatoError("epsilon: must be > 0, got -1")
    >>> error.option, error.file
    ('epsilon', None)
    >>> SfumatoError("logs/day.parquet: cannot be read").file
    'logs/day.parquet'
    """

    exit_code = 1

    def __str__(self) -> str:
        return " ".join(map(str.strip, super().__str__().splitlines()))

    @property
    def option(self) -> str | None:
        """Returns the wrong option, or key of a configuration, or several with commas; None if the message begins with
        none.
        """
        found = _OPTIONS.match(str(self))
        return None if found is None else found[1]

    @property
    def file(self) -> str | None:
        """Returns the path of the wrong file, folder or table; None if the message begins with none."""
        subject, colon, _ = str(self).partition(": ")
        return subject if colon and self.option is None and not subject.count(" ") else None


def reason_of(error: Exception) -> str:
    """Returns the reason of a failure, in the words of the system or of the library that raised the error."""
    return getattr(error, "strerror", None) or str(error) or type(error).__name__


def did_you_mean(name: str, known: Iterable[str], cutoff: float = 0.6) -> str:
    """Returns `; did you mean X?` with the nearest known name, or an empty text if no name is near.

    >>> did_you_mean("epsilom", ["epsilon", "delta"])
    '; did you mean epsilon?'
    """
    near = difflib.get_close_matches(name, list(known), n=1, cutoff=cutoff)
    return f"; did you mean {near[0]}?" if near else ""


class DataError(SfumatoError):
    """The data cannot support a release, for example because a file is damaged. Nothing is charged or published."""


class CheckFailedError(SfumatoError):
    """`sfumato audit` found a violation."""


class RefusedError(DataError):
    """A refusal after the charge. The decision and the message depend on noisy and public values only.

    A notice with the reason is published instead of the release.
    """


class NotAdmittedError(RefusedError):
    """A refusal because of the noisy counts of users. Only these counts are charged."""


class RequestError(SfumatoError, ValueError):
    """An option, a configuration file or the format of an input is wrong, or the system denies access or memory."""

    exit_code = 2


class MissingColumnError(RequestError):
    """A log lacks columns. `missing` has each with the option that names it."""

    missing: tuple[tuple[str, str], ...] = ()

    @classmethod
    def of(cls, path: str, missing: Iterable[tuple[str, str]], names: Sequence[str], advice: str = "") -> Self:
        """Returns the error of a file. missing: options and columns. names: of the columns that the file has."""
        found = tuple(missing)
        lacks = ", ".join(f"{column!r} (--{option}{did_you_mean(column, names)})" for option, column in found)
        error = cls(f"{found[0][0]}: {path} has no column {lacks}; choose from {', '.join(names)}{advice}")
        error.missing = found
        return error


class MissingTableError(RequestError, AttributeError):
    """A release does not contain this file or table. `hasattr(release, "cells")` is then false."""


class FormatError(RequestError):
    """A file was written by a newer version of sfumato, or by a version that is too old. It is not damaged."""


class BudgetError(SfumatoError):
    """The ledger's limits do not allow this release. The message gives the day when they will. Nothing is charged."""

    exit_code = 3


class LedgerError(SfumatoError):
    """The ledger is damaged, was changed, or does not match the releases: a release is damaged or missing.

    Nothing is charged until a person has checked it.
    """

    exit_code = 4


class NotReadyError(SfumatoError):
    """A later attempt may succeed: the date does not have enough data yet, a disk is full, or a service is unavailable.

    The exit status is EX_TEMPFAIL of sysexits.h. A new attempt with the same release id uses the same charge.
    """

    exit_code = 75


class TooFewUsersError(NotAdmittedError):
    """The noisy user count is below the required minimum. A later attempt may succeed, as with NotReadyError."""

    exit_code = NotReadyError.exit_code


def shown(value: object) -> str:
    """Returns a value for a message: numbers unchanged, text in quotes, long values shortened, of data their type."""
    if hasattr(value, "columns") or (isinstance(value, list) and len(value) > _MOST_SHOWN):
        return type(value).__name__
    try:
        if isinstance(value, tuple):
            value = ",".join(map(str, value))
        text = f"{value}" if isinstance(value, int | float) else repr(value)
    except ValueError:
        return "an integer of thousands of digits"
    return text if len(text) <= 120 else f"{text[:100]}..."


def check_format(subject: str, stated: object, newest: str, oldest: int | None = None) -> None:
    """Checks the format that a file states: a name and a whole number. Raises FormatError or RequestError.

    Args:
        subject: the option and the file, which begin the message.
        stated: the value in the file, of any type.
        newest: the newest format that this version of sfumato reads, such as `sfumato-ledger/2`.
        oldest: the oldest version of this format that it reads; None for only the newest.
    """
    found = _FORMAT.fullmatch(stated) if isinstance(stated, str) else None
    name, _, known = newest.partition("/")
    if found is None or found["name"] != name:
        raise RequestError(f"{subject}: must have the format {newest!r}, got {str(stated)[:60]!r}")
    version, last = int(found["version"]), int(known)
    first = last if oldest is None else oldest
    if version > last:
        raise FormatError(
            f"{subject} was written by a newer version of sfumato (format {version}; this version reads up to {last}); "
            "upgrade sfumato"
        )
    if version < first:
        raise FormatError(
            f"{subject} was written by an older version of sfumato (format {version}; this version reads from {first})"
            "; see docs/how_to/upgrade.md"
        )
