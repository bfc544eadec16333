"""Temporary folders for users' cells: private, and removed even if the process that made them was killed."""

from __future__ import annotations

import fcntl
import os
import re
import shutil
import stat
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from sfumato.pipelines.interrupts import last_step

_PREFIX = "sfumato-scratch-"


@contextmanager
def private_folder() -> Iterator[str]:
    """A new temporary folder that only this user can read. It is removed when the block ends.

    Its process locks it. The lock ends with the process, however that ends, so `sweep` finds leftover folders by it.
    """
    while True:
        folder = tempfile.mkdtemp(prefix=_PREFIX)
        lock = os.open(folder, os.O_RDONLY)
        fcntl.flock(lock, fcntl.LOCK_EX)
        if os.path.isdir(folder):  # otherwise another process removed it as a leftover before it was locked
            break
        os.close(lock)

    def remove() -> None:
        shutil.rmtree(folder, ignore_errors=True)
        shutil.rmtree(folder, ignore_errors=True)  # again: an interrupted thread may have written meanwhile

    with last_step(remove):
        try:
            yield folder
        finally:
            remove()
            os.close(lock)


def sweep() -> None:
    """Removes the leftover folders of this user's killed processes."""
    for folder in Path(tempfile.gettempdir()).glob(f"{_PREFIX}*"):
        try:
            lock = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
        except OSError:
            continue  # it is gone, or another user's
        try:
            status = os.fstat(lock)
            ours = status.st_uid == os.getuid() and stat.S_IMODE(status.st_mode) == 0o700
            if ours and re.fullmatch(_PREFIX + "[a-z0-9_]{8}", folder.name):
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)  # BlockingIOError: its process is alive
                shutil.rmtree(folder, ignore_errors=True)
        except OSError:
            continue
        finally:
            os.close(lock)
