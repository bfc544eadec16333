"""Bulky data between stages: in line, in memory, or in files that the workers of one machine share.

A local runner copies every element several times at every stage, which costs more than all of this job's arithmetic.
So on one machine the data stay in memory or in a private folder, and the elements are references to them. On a cluster,
where workers share neither, the data are in the elements. The caller that chose the place releases it: by `forget`, or
by deleting the folder. Nothing here deletes a file.
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

from sfumato.transforms.io.files import naming_file

# A reference begins with one of these tags. They have eight bytes, so that what follows stays aligned.
_TAG_BYTES = 8
_INLINE = b"inline:\0"
_HELD = b"held at:"
_FILE = b"at file:"
MEMORY = "memory:"
DEFAULT_GROUP_BITS = 6  # where the number of rows is not known

_held: dict[str, dict[int, tuple[memoryview, ...]]] = {}
_names = itertools.count()


class Spill:
    """Stores buffers and returns references to them.

    A retried bundle stores its buffers again; nothing is overwritten. A stored array must not be changed afterwards.

    Args:
        place: None keeps buffers in line. `memory:NAME` holds them in this process, without a copy, until they are
            taken or `forget` is called. A folder's path appends them to a file; each worker has its own.
        group_bits: the stages group records by user in 2^group_bits groups, see `users.group_bits`. No result
            depends on it.
    """

    def __init__(self, place: str | None = None, group_bits: int = DEFAULT_GROUP_BITS):
        self.place = place
        self.group_bits = group_bits
        self._file: int | None = None  # a descriptor, closed with this object
        self._path = ""
        self._end = 0

    @classmethod
    def of(cls, place: Spill | str | None) -> Spill:
        """Returns the Spill itself, or one with this place."""
        return place if isinstance(place, Spill) else cls(place)

    def store(self, *parts: bytes | memoryview) -> bytes:
        """Stores the parts. Returns a reference for `load`."""
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
        with naming_file(self.place):
            for view in views:
                while len(view):
                    written = os.write(self._file, view)
                    self._end += written
                    view = view[written:]
        return _FILE + f"{start}:{','.join(map(str, lengths))}:{self._path}".encode()

    def __reduce__(self) -> tuple[type[Spill], tuple[str | None, int]]:
        return Spill, (self.place, self.group_bits)  # every worker opens its own file


def forget(place: str) -> None:
    """Releases all buffers of `memory:NAME`."""
    _held.pop(place, None)


def load(stored: bytes) -> tuple[memoryview, ...]:
    """Returns the parts of a reference that `Spill.store` returned. Raises ValueError for other bytes."""
    tag, reference = stored[:_TAG_BYTES], memoryview(stored)[_TAG_BYTES:]
    if tag == _HELD:
        place, name = bytes(reference).decode().rsplit(" ", 1)
        return _held[place][int(name)]
    if tag == _INLINE:
        (count,) = struct.unpack_from("<q", reference)
        lengths = struct.unpack_from(f"<{count}q", reference, 8)
        return _cut(reference[8 * (1 + count) :], lengths)
    if tag != _FILE:
        raise ValueError(f"not a reference that Spill.store returned: it begins with {tag!r}")
    start, sizes, path = bytes(reference).split(b":", 2)
    first, lengths = int(start), tuple(map(int, sizes.split(b",")))
    if not sum(lengths):
        return _cut(memoryview(b""), lengths)
    page = first - first % mmap.ALLOCATIONGRANULARITY
    with open(path, "rb") as file:
        view = mmap.mmap(file.fileno(), first + sum(lengths) - page, offset=page, access=mmap.ACCESS_READ)
    return _cut(memoryview(view)[first - page :], lengths)


def take(stored: bytes) -> tuple[memoryview, ...]:
    """Returns parts of a reference, which nothing may load again: what memory holds is released with the last view."""
    parts = load(stored)
    if stored.startswith(_HELD):
        place, name = stored[_TAG_BYTES:].decode().rsplit(" ", 1)
        del _held[place][int(name)]
    return parts


def lengths_of(stored: bytes) -> tuple[int, ...]:
    """Returns the bytes of each part of a reference. What lies in a file is not read."""
    if stored.startswith(_FILE):
        return tuple(map(int, stored[_TAG_BYTES:].split(b":", 2)[1].split(b",")))
    return tuple(map(len, load(stored)))


def join(chunks: Iterable[bytes], dtypes: Sequence[np.dtype[Any]], last: bool = False) -> list[NDArray[Any]]:
    """Joins stored chunks, whose parts are columns: one array for each column, in order of chunks.

    Chunks are read one at a time, because there may be more of them than a process may open files, and more than its
    memory holds twice. last: whether they are taken, see `take`.

    Raises ValueError if the columns of a chunk have different lengths.
    """
    chunks = list(chunks)  # references, or in line what the runner has read anyway
    total = sum(lengths_of(chunk)[0] for chunk in chunks) // dtypes[0].itemsize
    columns = [np.empty(total, dtype) for dtype in dtypes]
    end, read = 0, take if last else load
    for chunk in chunks:
        parts = [np.frombuffer(part, dtype) for part, dtype in zip(read(chunk), dtypes, strict=True)]
        if len({len(part) for part in parts}) > 1:  # NumPy would repeat a column of one row
            raise ValueError(f"chunk: its columns have different lengths, {[len(part) for part in parts]}")
        begin, end = end, end + len(parts[0])
        for column, part in zip(columns, parts, strict=True):
            column[begin:end] = part
    return columns


def _cut(data: memoryview, lengths: tuple[int, ...]) -> tuple[memoryview, ...]:
    ends = list(itertools.accumulate(lengths))
    return tuple(data[end - length : end] for end, length in zip(ends, lengths, strict=True))
