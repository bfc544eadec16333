"""Files of lines, plain or with gzip: slices and chunks of whole records, and errors without values."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import cached_property
from typing import Any

import pyarrow as pa

from sfumato.schemas.errors import DataError
from sfumato.transforms.files import is_remote, open_file
from sfumato.transforms.inputs.log_file import TO_THE_END, LogFile

Whole = Callable[[bytes], int]  # how many bytes of some data are whole records; the data begin with a record

CHUNK_BYTES = 16 << 20
SLICE_BYTES = 256 << 20
MAX_RECORD_BYTES = 64 << 20
NO_RECORD = b"\0\n"  # a line that no format takes for a record
HEAD_BYTES = 1 << 20
_GZIP_RATIO = 4  # a rough guess at how much smaller gzip makes a log; only the number of threads depends on it


def whole_lines(data: bytes) -> int:
    """Returns how many bytes of some data are whole lines. Only LF ends a line."""
    return data.rfind(b"\n") + 1


class LineFile:
    """A file of lines, read from any place on.

    Args:
        log: the file.
        whole: finds whole records, where a record may have several lines.

    Attributes:
        path: of the file.
        is_packed: whether it is read through gzip, by its name.
    """

    def __init__(self, log: LogFile, whole: Whole = whole_lines):
        self.path = log.path
        self.is_packed = log.path.endswith(".gz")
        self._log = log
        self._whole = whole

    @cached_property
    def head(self) -> bytes:
        """The first megabyte. Raises DataError for UTF-16."""
        with self._opened(0) as stream:
            data = bytes(stream.read(HEAD_BYTES))
        if data.startswith((b"\xff\xfe", b"\xfe\xff")):
            raise DataError(f"{self.path}: is UTF-16 text; convert it to UTF-8")
        return data

    @cached_property
    def _size(self) -> int:
        if self._log.size is not None:
            return self._log.size
        with open_file(self.path) as stream:
            end: int = stream.seek(0, os.SEEK_END)
            return end

    def estimated_lines(self, start: int) -> int:
        """The number of lines after the first `start` bytes, from the file's size and its first lines."""
        sample = self.head[start:]
        lines = sample.count(b"\n") + (not sample.endswith(b"\n"))
        size = self._size * (_GZIP_RATIO if self.is_packed else 1)
        return lines * max(size - start, 0) // max(len(sample), 1)

    def is_blank(self, start: int) -> bool:
        """Whether nothing but spaces and line ends follows the first `start` bytes."""
        return all(not bytes(chunk).strip() for chunk in self.chunks(start, TO_THE_END))

    def cuts(self, start: int) -> Iterator[tuple[int, int, str]]:
        """The first and end, in bytes, of slices of about SLICE_BYTES of whole records; see OpenLog.cuts."""
        first = start
        if not self.is_packed and self._size - start > 1.5 * SLICE_BYTES:
            # From the start on: whether a line end is inside a quoted value shows from no place in the middle.
            for _, end in self._whole_chunks(start, TO_THE_END):
                if end - first >= SLICE_BYTES and self._size - end > SLICE_BYTES // 2:
                    yield first, end, ""
                    first = end
        yield first, TO_THE_END, ""

    def chunks(self, first: int, end: int) -> Iterator[memoryview]:
        """Yields chunks of whole records from a byte to before another; the last line may lack its end.

        A line of more than MAX_RECORD_BYTES is replaced by NO_RECORD, so that its size ends no run.
        """
        return (chunk for chunk, _ in self._whole_chunks(first, end))

    def _whole_chunks(self, first: int, end: int) -> Iterator[tuple[memoryview, int]]:
        """Yields chunks as `chunks` does, and where a slice may end after each: a place in the file, or 0 for none."""
        rest, is_skipping = b"", False
        with self._opened(first) as stream:
            while data := bytes(stream.read(min(CHUNK_BYTES, end - first))):
                first += len(data)
                if is_skipping:  # the rest of a line that is too long
                    is_skipping = b"\n" not in data
                    data = b"" if is_skipping else data[data.index(b"\n") + 1 :]
                data = rest + data if rest else data
                cut = self._whole(data)
                if not cut and len(data) > MAX_RECORD_BYTES:
                    cut = whole_lines(data)  # a quote that nobody closes
                if cut:
                    yield memoryview(data)[:cut], first - len(data) + cut
                rest = data[cut:]
                if len(rest) > MAX_RECORD_BYTES and b"\n" not in rest:
                    yield memoryview(NO_RECORD), 0  # a slice must not begin inside this line
                    rest, is_skipping = b"", True
        if rest:
            yield memoryview(rest), first

    @contextmanager
    def _opened(self, place: int) -> Iterator[Any]:
        """A stream of bytes from a place on; through gzip what comes before it is read and forgotten."""
        with ExitStack() as stack:
            log = self._log
            stream: Any = stack.enter_context(
                open_file(log.path, log.version, log.size) if is_remote(log.path) else pa.OSFile(log.path)
            )
            if self.is_packed:
                stream = stack.enter_context(pa.CompressedInputStream(stream, "gzip"))
                stream.read(place)
            else:
                stream.seek(place)
            yield stream


@contextmanager
def reading_text(path: str, kind: str) -> Iterator[None]:
    """Converts errors of reading text into DataErrors that name the file. No value of the file is in the message."""
    try:
        yield
    except (PermissionError, FileNotFoundError, IsADirectoryError) as error:
        raise DataError(f"{path}: cannot be opened ({error.strerror or error})") from error
    except (pa.ArrowException, OSError, UnicodeDecodeError) as error:
        problem = next((text for pattern, text in _PROBLEMS if re.search(pattern, str(error))), type(error).__name__)
        # The cause quotes the line or the value, so it is not shown.
        raise DataError(f"{path}: cannot be read as {kind} ({problem}); is it damaged or cut off?") from None


_PROBLEMS = (
    (r"UTF-?8|utf-8", "its header is not UTF-8 text"),
    (r"[Tt]runcated compressed|zlib|gzip", "its gzip data are damaged or end too early"),
)
