"""The error of this package that replaces an exception, wherever a runner raised it."""

from __future__ import annotations

import errno
import re
import traceback
from collections.abc import Iterator

from sfumato.schemas.errors import DataError, NotReadyError, RequestError, SfumatoError

# A line of a traceback that names an exception: it follows the indented lines of a frame. Beam puts the name of an
# exception that it cannot copy into the text of a RuntimeError, and the failing step after any text.
_RAISED = re.compile(r"(?:\A|^  .*\n)(?:RuntimeError: )?([\w.]+)(?:: )?(.*?)(?: \[while running .*\])?$", re.MULTILINE)
_NUMBERED = re.compile(r"\[Errno (\d+)\] (.*)")  # of an OSError
_PASSING = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO, errno.ESTALE})
_DENIED = frozenset({errno.EACCES, errno.EPERM, errno.EROFS})
_AGAIN = "and run the same command again: a release with a ledger and a release id is not charged twice"


def error_of(error: BaseException) -> SfumatoError | None:
    """Returns the error of this package for an exception, without the step that Beam names; None for a bug.

    The error may be wrapped by a runner. Between runner and worker Beam carries an error as text only (a formatted
    traceback), so names of errors are read from the text of the traceback, local runs' too.
    """
    if isinstance(error, SfumatoError):
        return type(error)(message_of(error))
    text = "".join(traceback.format_exception(error))
    *_, (name, message) = _RAISED.findall(text) or [("", "")]
    if (found := _system_error(name, message)) is not None:
        return found
    # Only names qualified with their module count: other lines may quote anything, such as a file's content.
    types = {f"{one.__module__}.{one.__qualname__}": one for one in _subclasses(SfumatoError)}
    if lines := re.findall(rf"^({'|'.join(map(re.escape, types))}): (.*)$", text, flags=re.MULTILINE):
        name, message = lines[-1]
        return types[name](message_of(message))
    if type(error).__name__ == "DataflowRuntimeException":
        shown = list(filter(str.strip, str(error).splitlines()))  # a traceback may be between first and last line
        return DataError(" ".join(dict.fromkeys((shown[0], shown[-1]))))
    return None


def message_of(error: object) -> str:
    """Returns an error's message without the step that Beam names after it."""
    return re.sub(r" \[while running .*?\]\s*$", "", str(error))


def _system_error(name: str, message: str) -> SfumatoError | None:
    """Returns the error for one of the system that a person can resolve; None for any other.

    name: of the exception's type, in a traceback. message: its text.
    """
    numbered = _NUMBERED.match(message)
    number, reason = (int(numbered[1]), numbered[2]) if numbered else (0, "")
    if name.endswith("MemoryError") or number == errno.ENOMEM:
        return RequestError(
            "memory: not enough memory; raise the limit (`ulimit -v`, or that of the container), or lower --memory (in "
            f"a refresh: `memory:` in options), {_AGAIN}"
        )
    if number in _PASSING:
        return NotReadyError(f"{reason}: cannot be read or written now; check its disk, {_AGAIN}")
    if number in _DENIED:
        return RequestError(f"{reason}: grant this user access to the file and its folder, {_AGAIN}")
    return None


def _subclasses(base: type[SfumatoError]) -> Iterator[type[SfumatoError]]:
    for subclass in base.__subclasses__():
        yield subclass
        yield from _subclasses(subclass)
