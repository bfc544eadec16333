"""Where a local run keeps bulky data between its stages."""

from __future__ import annotations

import signal
import sys
import tempfile
import threading
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from sfumato.pipelines.options import RunnerSettings
from sfumato.transforms.locations.spill import MEMORY, forget

BYTES_PER_ROW = 30  # 12 of a record's chunk, then 8, 4 and 4 of its user
VALUE_BYTES_PER_ROW = 8  # of a record's chunk, where records have weights or times
DISTRIBUTION_BYTES_PER_ROW = 76  # 12, and then 20, 20 and 16, or 24 with many levels, of each of its user's cells


@contextmanager
def scratch(settings: RunnerSettings, size: int) -> Iterator[str | None]:
    """A place for `Spill` (this process's memory, or a folder that only this user can read), cleared in the end.

    size: bytes that are expected. None where workers share no machine. Memory where one process does all the work and
    a third of what is available holds so much; users' cells then never reach a disk.
    """
    if not settings.local:
        with _terminated_by_exception():  # a job server that was started here must end as well
            yield None
    elif settings.one_process and 3 * size <= available_memory():
        place = f"{MEMORY}{uuid.uuid4().hex}"
        try:
            yield place
        finally:
            forget(place)
    else:
        with tempfile.TemporaryDirectory(prefix="sfumato-") as folder, _terminated_by_exception():
            yield folder


def available_memory() -> int:
    """Bytes that Linux says are available; 0 where nobody says."""
    try:
        lines = Path("/proc/meminfo").read_text().splitlines()
        return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("MemAvailable:"))
    except (OSError, StopIteration, ValueError):
        return 0


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
