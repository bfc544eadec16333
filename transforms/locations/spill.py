"""Bulky bytes between stages: in line, or in files that the workers of one machine share.

A local runner copies every element several times at every stage, which costs more than all of this job's arithmetic.
So on one machine the bytes are written once to a private folder, and the elements that travel are references to them.
On a cluster, where workers share no disk, the bytes travel in line. Pure.
"""

from __future__ import annotations

import mmap
import os
import uuid
import weakref

_INLINE = b"inline:\0"  # eight bytes, so that what follows stays aligned
_FILE = b"at file:"


class Spill:
    """Stores bytes and hands out what may travel in their place. folder: None keeps them in line.

    Each worker appends to a file of its own. A retried bundle appends its bytes once more; nothing is overwritten.
    """

    def __init__(self, folder: str | None = None):
        self.folder = folder
        self._file: int | None = None  # a descriptor, closed with this object
        self._path = ""
        self._end = 0

    def store(self, *parts: bytes | memoryview) -> bytes:
        """Stores the parts one after another; returns what `load` takes."""
        if self.folder is None:
            return b"".join((_INLINE, *parts))
        if self._file is None:
            self._path = os.path.join(self.folder, uuid.uuid4().hex)
            self._file = os.open(self._path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
            weakref.finalize(self, os.close, self._file)
        start = self._end
        for part in parts:
            self._write(memoryview(part).cast("B"))
        return _FILE + f"{start}:{self._end}:{self._path}".encode()

    def _write(self, data: memoryview) -> None:
        assert self._file is not None
        while len(data):
            written = os.write(self._file, data)
            self._end += written
            data = data[written:]

    def __reduce__(self) -> tuple[type[Spill], tuple[str | None]]:
        return Spill, (self.folder,)  # every worker opens its own file


def load(stored: bytes) -> memoryview:
    """The bytes that `Spill.store` was given, joined."""
    if stored.startswith(_INLINE):
        return memoryview(stored)[len(_INLINE) :]
    start, end, path = stored[len(_FILE) :].split(b":", 2)
    first, last = int(start), int(end)
    if first == last:
        return memoryview(b"")
    page = first - first % mmap.ALLOCATIONGRANULARITY
    with open(path, "rb") as file:
        view = mmap.mmap(file.fileno(), last - page, offset=page, access=mmap.ACCESS_READ)
    return memoryview(view)[first - page :]
