"""Bulky bytes between stages: in line, held by the process, or in files that the workers of one machine share. Pure.

A local runner copies every element several times at every stage, which costs more than all of this job's arithmetic.
So on one machine the bytes stay where they are, in memory or in a private folder, and the elements that travel are
references to them. On a cluster, where workers share neither, the bytes travel in line.
"""

from __future__ import annotations

import itertools
import mmap
import os
import struct
import uuid
import weakref
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

_INLINE = b"inline:\0"  # eight bytes, so that what follows stays aligned
_HELD = b"held at:"
_FILE = b"at file:"
MEMORY = "memory:"

_held: dict[str, dict[int, tuple[memoryview, ...]]] = {}
_names = itertools.count()


class Spill:
    """Stores buffers and hands out what may travel in their place.

    place: None keeps them in line; `memory:NAME` holds them in this process, as they are and not copied, until
    `forget` is called; a folder's path appends them to a file of each worker's own. A retried bundle stores its buffers
    once more; nothing is overwritten. Whoever stores an array must not change it any more.
    """

    def __init__(self, place: str | None = None):
        self.place = place
        self._file: int | None = None  # a descriptor, closed with this object
        self._path = ""
        self._end = 0

    def store(self, *parts: bytes | memoryview) -> bytes:
        """Stores the parts; returns what `load` takes."""
        views = tuple(memoryview(part).cast("B") if len(part) else memoryview(b"") for part in parts)
        lengths = [len(view) for view in views]
        if self.place is None:
            return b"".join((_INLINE, struct.pack(f"<q{len(views)}q", len(views), *lengths), *views))
        if self.place.startswith(MEMORY):
            name = next(_names)
            _held.setdefault(self.place, {})[name] = views
            return _HELD + f"{self.place} {name}".encode()
        if self._file is None:
            self._path = os.path.join(self.place, uuid.uuid4().hex)
            self._file = os.open(self._path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
            weakref.finalize(self, os.close, self._file)
        start = self._end
        for view in views:
            self._write(view)
        return _FILE + f"{start}:{','.join(map(str, lengths))}:{self._path}".encode()

    def _write(self, data: memoryview) -> None:
        assert self._file is not None
        while len(data):
            written = os.write(self._file, data)
            self._end += written
            data = data[written:]

    def __reduce__(self) -> tuple[type[Spill], tuple[str | None]]:
        return Spill, (self.place,)  # every worker opens its own file


def forget(place: str) -> None:
    """Lets go of all that is held under `memory:NAME`."""
    _held.pop(place, None)


def load(stored: bytes) -> tuple[memoryview, ...]:
    """The parts that `Spill.store` was given."""
    kind, reference = stored[: len(_INLINE)], memoryview(stored)[len(_INLINE) :]
    if kind == _HELD:
        place, name = bytes(reference).decode().rsplit(" ", 1)
        return _held[place][int(name)]
    if kind == _INLINE:
        (count,) = struct.unpack_from("<q", reference)
        lengths = struct.unpack_from(f"<{count}q", reference, 8)
        return _cut(reference[8 * (1 + count) :], lengths)
    start, sizes, path = bytes(reference).split(b":", 2)
    first, lengths = int(start), tuple(map(int, sizes.split(b",")))
    if not sum(lengths):
        return _cut(memoryview(b""), lengths)
    page = first - first % mmap.ALLOCATIONGRANULARITY
    with open(path, "rb") as file:
        view = mmap.mmap(file.fileno(), first + sum(lengths) - page, offset=page, access=mmap.ACCESS_READ)
    return _cut(memoryview(view)[first - page :], lengths)


def join(chunks: Iterable[bytes], dtypes: Sequence[np.dtype[Any]]) -> list[NDArray[Any]]:
    """The columns of what was stored in chunks, each chunk a part a column: one array a column, in the chunks' order.

    dtypes: of the columns. Chunks are read one at a time, since there may be more than a process may open files.
    """
    chunks = list(chunks)  # references, or in line what the runner has read anyway
    total = sum(len(load(chunk)[0]) for chunk in chunks) // dtypes[0].itemsize
    columns = [np.empty(total, dtype) for dtype in dtypes]
    end = 0
    for chunk in chunks:
        parts = [np.frombuffer(part, dtype) for part, dtype in zip(load(chunk), dtypes, strict=True)]
        begin, end = end, end + len(parts[0])
        for column, part in zip(columns, parts, strict=True):
            column[begin:end] = part
    return columns


def _cut(data: memoryview, lengths: tuple[int, ...]) -> tuple[memoryview, ...]:
    ends = list(itertools.accumulate(lengths))
    return tuple(data[end - length : end] for end, length in zip(ends, lengths, strict=True))
