"""How a command ends: the error that replaces an exception, wherever it was raised, and interrupts.

SIGINT (Ctrl-C) and SIGTERM raise KeyboardInterrupt in the main thread, so that open files and pipelines are closed.
That may not be enough: Python runs the handler between its own instructions only, and code may catch the exception. So
a second thread waits for the signal too. It ends the process if the process has not ended after SECONDS_TO_UNWIND.
"""

from __future__ import annotations

import errno
import os
import re
import signal
import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

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


SECONDS_TO_UNWIND = 3.0
_SIGNALS = (signal.SIGINT, signal.SIGTERM)

_received: int | None = None
_last_steps: list[Callable[[], None]] = []


@contextmanager
def last_step(step: Callable[[], None]) -> Iterator[None]:
    """Registers a step to take if the process is ended within the block, so that the block's end does not run."""
    _last_steps.append(step)
    try:
        yield
    finally:
        _last_steps.remove(step)


def is_interrupted() -> bool:
    """Returns whether a signal was received. `ended_by_signals` then ends the process with 128 plus its number."""
    return _received is not None


@contextmanager
def ended_by_signals() -> Iterator[None]:
    """Lets SIGINT and SIGTERM end the process while the block runs. The process must do nothing else."""
    reader, writer = os.pipe()
    os.set_blocking(writer, False)
    before = [signal.signal(number, _interrupt) for number in _SIGNALS]
    signal.set_wakeup_fd(writer, warn_on_full_buffer=False)  # the C handler writes to it, whatever Python is doing
    threading.Thread(target=_watch, args=(reader,), daemon=True).start()
    try:
        yield
    finally:
        if _received is not None:
            _exit(128 + _received)
        signal.set_wakeup_fd(-1)
        for number, handler in zip(_SIGNALS, before, strict=True):
            signal.signal(number, handler)
        os.close(writer)


def _interrupt(number: int, _: object) -> None:
    global _received
    if _received is None:  # a second signal would interrupt the clean-up
        _received = number
        raise KeyboardInterrupt


def _watch(reader: int) -> None:
    while (number := os.read(reader, 1)) and number[0] not in _SIGNALS:
        pass
    if number:
        time.sleep(SECONDS_TO_UNWIND)
        _exit(128 + number[0])
    os.close(reader)


def _exit(status: int) -> None:
    """Ends the process and the processes that it started, without waiting for running threads."""
    for process in list(_descendants(os.getpid())):
        with suppress(OSError):
            os.kill(process, signal.SIGKILL)
    for step in reversed(_last_steps):
        with suppress(Exception):
            step()
    for stream in (sys.stdout, sys.stderr):
        with suppress(Exception):
            stream.flush()
    os._exit(status)


def _descendants(process: int) -> Iterator[int]:
    """Yields child processes of a process and their children; none outside Linux."""
    for children in Path(f"/proc/{process}/task").glob("*/children"):
        with suppress(OSError):
            for child in map(int, children.read_text().split()):
                yield child
                yield from _descendants(child)
