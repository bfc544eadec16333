"""How a command ends when it is interrupted: within seconds, with the status that shells expect, and cleaned up.

SIGINT (Ctrl-C) and SIGTERM raise KeyboardInterrupt in the main thread, so that all that is open is closed. Python runs
that handler between two of its own instructions alone, and code may swallow the exception; so a thread beside it waits
for the signal as well, and ends the process where it has not ended by itself.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

SECONDS_TO_UNWIND = 3.0
_SIGNALS = (signal.SIGINT, signal.SIGTERM)

_received: int | None = None
_last_steps: list[Callable[[], None]] = []


@contextmanager
def last_step(step: Callable[[], None]) -> Iterator[None]:
    """Has a step taken where the process is ended while the block runs, without the block's own end."""
    _last_steps.append(step)
    try:
        yield
    finally:
        _last_steps.remove(step)


def exit_status() -> int | None:
    """128 and the number of the signal that came, as shells have it; None where none came."""
    return None if _received is None else 128 + _received


@contextmanager
def ended_by_signals() -> Iterator[None]:
    """Lets SIGINT and SIGTERM end the process, which does nothing but what the block does."""
    reader, writer = os.pipe()
    os.set_blocking(writer, False)
    before = [signal.signal(number, _interrupt) for number in _SIGNALS]
    signal.set_wakeup_fd(writer, warn_on_full_buffer=False)  # written to at once, whatever Python is doing
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
    if _received is None:  # a second one would interrupt the closing
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
    """Ends the process, and those that it started, without waiting for threads that are at work."""
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
    """The processes that a process started, and theirs, where Linux tells."""
    for children in Path(f"/proc/{process}/task").glob("*/children"):
        with suppress(OSError):
            for child in map(int, children.read_text().split()):
                yield child
                yield from _descendants(child)
