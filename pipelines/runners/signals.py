"""Signals end the process soon, and its files and pipelines are closed where that is possible.

SIGINT (Ctrl-C) and SIGTERM raise KeyboardInterrupt in the main thread, so that open files and pipelines are closed.
That may not be enough: Python runs the handler between its own instructions only, and code may catch the exception. So
a second thread waits for the signal too. It ends the process if the process has not ended after SECONDS_TO_UNWIND.
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
