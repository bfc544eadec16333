"""The private folder where a local run keeps bulky data between its stages."""

from __future__ import annotations

import os
import signal
import sys
import tempfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from sfumato.pipelines.options import RunnerSettings

BYTES_PER_ROW = 30  # 12 of a record's chunk, then 8, 4 and 4 of its user
_MEMORY = "/dev/shm"


@contextmanager
def spill_folder(settings: RunnerSettings, rows: int) -> Iterator[str | None]:
    """A folder that only this user can read, removed in the end; None where workers share no disk.

    It lies in memory (Linux's /dev/shm) where `rows` rows fit there well, so that users' cells never reach a disk, and
    else where TMPDIR says.
    """
    if not settings.local:
        yield None
        return
    where = _MEMORY if "TMPDIR" not in os.environ and _fits_memory(rows * BYTES_PER_ROW) else None
    with tempfile.TemporaryDirectory(prefix="sfumato-", dir=where) as folder, _terminated_by_exception():
        yield folder


def _fits_memory(size: int) -> bool:
    """Whether a third of the memory file system and of the available memory holds so many bytes."""
    try:
        status = os.statvfs(_MEMORY)
        memory = dict(line.split(":") for line in Path("/proc/meminfo").read_text().splitlines())
        available = int(memory["MemAvailable"].split()[0]) * 1024
    except (OSError, KeyError, ValueError):
        return False  # not Linux, or an unusual one
    return 3 * size <= min(status.f_bavail * status.f_frsize, available) and os.access(_MEMORY, os.W_OK)


@contextmanager
def _terminated_by_exception() -> Iterator[None]:
    """Lets `kill` and `docker stop` unwind the stack, so that the folder with the users' cells is removed."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    previous = signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, previous)
