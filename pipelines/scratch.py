"""Where a local run keeps bulky data between its stages."""

from __future__ import annotations

import fcntl
import os
import re
import shutil
import stat
import tempfile
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from sfumato.pipelines.interrupts import last_step
from sfumato.pipelines.options import RunnerSettings
from sfumato.transforms.locations.spill import MEMORY, forget

BYTES_PER_ROW = 30  # 12 of a record's chunk, then 8, 4 and 4 of its user
VALUE_BYTES_PER_ROW = 8  # of a record's chunk, where records have weights or times
DISTRIBUTION_BYTES_PER_ROW = 76  # 12, and then 20, 20 and 16, or 24 with many levels, of each of its user's cells
_PREFIX = "sfumato-scratch-"


@contextmanager
def scratch(settings: RunnerSettings, size: int) -> Iterator[str | None]:
    """A place for `Spill` (this process's memory, or a folder that only this user can read), cleared in the end.

    size: bytes that are expected. None where workers share no machine. Memory where a third of what is available holds
    so much; users' cells then never reach a disk.
    """
    sweep()
    if not settings.local:
        yield None
    elif 3 * size <= available_memory():
        place = f"{MEMORY}{uuid.uuid4().hex}"
        try:
            yield place
        finally:
            forget(place)
    else:
        with private_folder() as folder:
            yield folder


@contextmanager
def private_folder() -> Iterator[str]:
    """A new temporary folder that only this user can read, removed in the end.

    It is locked as long as its process lives, whatever ends it, so that `sweep` can tell whose time is over.
    """
    while True:
        folder = tempfile.mkdtemp(prefix=_PREFIX)
        lock = os.open(folder, os.O_RDONLY)
        fcntl.flock(lock, fcntl.LOCK_EX)
        if os.path.isdir(folder):  # else another process took it for left over, before it was locked
            break
        os.close(lock)

    def remove() -> None:
        shutil.rmtree(folder, ignore_errors=True)  # a thread that was interrupted may be writing still
        shutil.rmtree(folder, ignore_errors=True)

    with last_step(remove):
        try:
            yield folder
        finally:
            remove()
            os.close(lock)


def sweep() -> None:
    """Removes what this user's runs left behind that were killed, so that they could not remove it themselves."""
    for folder in Path(tempfile.gettempdir()).glob(f"{_PREFIX}*"):
        try:
            lock = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
        except OSError:
            continue  # it is gone, or another user's
        try:
            found = os.fstat(lock)
            ours = found.st_uid == os.getuid() and stat.S_IMODE(found.st_mode) == 0o700
            if ours and re.fullmatch(_PREFIX + "[a-z0-9_]{8}", folder.name):
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)  # BlockingIOError: its process lives
                shutil.rmtree(folder, ignore_errors=True)
        except OSError:
            continue
        finally:
            os.close(lock)


def available_memory() -> int:
    """Bytes that Linux says are available; 0 where nobody says."""
    try:
        lines = Path("/proc/meminfo").read_text().splitlines()
        return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("MemAvailable:"))
    except (OSError, StopIteration, ValueError):
        return 0
