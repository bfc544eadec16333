"""Temporary folders for users' cells: private, and removed even where the process that made them was killed."""

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
