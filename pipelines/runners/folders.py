"""Folders: private temporary ones for users' cells, and those that a command makes for its output.

A private folder is removed even if the process that made it was killed.
"""

from __future__ import annotations

import fcntl
import logging
import os
import re
import shutil
import stat
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from apache_beam.io.filesystem import BeamIOError
from apache_beam.io.filesystems import FileSystems

from sfumato.pipelines.runners.signals import last_step
from sfumato.schemas.errors import RequestError
from sfumato.transforms.io.files import is_remote
from sfumato.transforms.io.storage import matching
from sfumato.transforms.observability.logs import log_event

_PREFIX = "sfumato-scratch-"


@contextmanager
def private_folder() -> Iterator[str]:
    """Yields a new temporary folder that only this user can read, and removes it when the block ends.

    Its process locks it. The lock ends with the process, however that ends, so `sweep` finds leftover folders by it.
    """
    while True:
        folder = tempfile.mkdtemp(prefix=_PREFIX)
        try:
            lock = os.open(folder, os.O_RDONLY)
        except FileNotFoundError:  # another process removed it as a leftover already
            continue
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


def make_folders(path: str) -> list[str]:
    """Makes a local folder and its missing parents. Returns the new folders, the innermost first.

    Raises RequestError if they cannot be made.
    """
    if is_remote(path):  # a bucket has no folders
        return []
    missing = [str(folder) for folder in (Path(path), *Path(path).parents) if not folder.exists()]
    try:
        os.makedirs(path, exist_ok=True)
    except OSError as error:
        parent = os.path.dirname(path) or "."
        raise RequestError(f"output: cannot write to {parent!r} ({error.strerror}); name another folder") from None
    return missing


def remove_tree(path: str) -> None:
    """Removes a file, or a folder with its files, if it exists."""
    try:
        if is_remote(path):
            if files := matching(path) + matching(FileSystems.join(path, "*")):
                FileSystems.delete([file.path for file in files])
        elif os.path.exists(path):
            FileSystems.delete([path])
    except BeamIOError as error:
        log_event("not_removed", f"{path} could not be removed ({error})", logging.WARNING)
