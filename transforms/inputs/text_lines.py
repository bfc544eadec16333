"""Files of lines, plain or with gzip: slices and chunks of whole lines, and errors without values."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from functools import cached_property
from typing import Any

import pyarrow as pa

from sfumato.schemas.errors import DataError
from sfumato.transforms.files import is_remote, open_file
from sfumato.transforms.inputs.log_file import TO_THE_END, LogFile

CHUNK_BYTES = 16 << 20
SLICE_BYTES = 256 << 20
MAX_LINE_BYTES = 64 << 20
_HEAD_BYTES = 1 << 20
_GZIP_RATIO = 4  # a rough guess at how much smaller gzip makes a log; only the number of threads depends on it


class LineFile:
    """A file of lines, read from any place on.

    Attributes:
        path: of the file.
        is_packed: whether it is read through gzip, by its name.
    """

    def __init__(self, log: LogFile):
        self.path = log.path
        self.is_packed = log.path.endswith(".gz")
        self._log = log

    @cached_property
    def head(self) -> bytes:
        """The first whole lines, up to a megabyte. Raises DataError for what is no text of lines."""
        with self._opened(0) as stream:
            data = bytes(stream.read(_HEAD_BYTES))
        if data.startswith((b"\xff\xfe", b"\xfe\xff")):
            raise DataError(f"{self.path}: is UTF-16 text; convert it to UTF-8")
        if len(data) < _HEAD_BYTES:
            return data
        cut = data.rfind(b"\n") + 1
        if not cut:
            raise DataError(f"{self.path}: has no line end in its first megabyte; is it a text file?")
        return data[:cut]

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
        lines = len(sample.splitlines())
        size = self._size * (_GZIP_RATIO if self.is_packed else 1)
        return lines * max(size - start, 0) // max(len(sample), 1)

    def is_blank(self, start: int) -> bool:
        """Whether nothing but spaces and line ends follows the first `start` bytes."""
        return all(not bytes(chunk).strip() for chunk in self.chunks(start, TO_THE_END))

    def cuts(self, start: int) -> Iterator[tuple[int, int, str]]:
        """The first and end, in bytes, of slices of about SLICE_BYTES that end at line ends; see OpenLog.cuts."""
        first = start
        while not self.is_packed and self._size - first > 1.5 * SLICE_BYTES:
            end = self._line_end(first + SLICE_BYTES)
            yield first, end, ""
            first = end
        yield first, TO_THE_END, ""

    def _line_end(self, place: int) -> int:
        """The byte after the line end that follows a byte."""
        with self._opened(place) as stream:
            while data := bytes(stream.read(1 << 16)):
                if (found := data.find(b"\n")) >= 0:
                    return place + found + 1
                place += len(data)
        return place

    def chunks(self, first: int, end: int) -> Iterator[memoryview]:
        """Chunks of whole lines from a byte to before another; the last line may lack its end."""
        rest = b""
        with self._opened(first) as stream:
            while data := stream.read(min(CHUNK_BYTES, end - first)):
                first += len(data)
                lines = rest + data if rest else data
                if cut := lines.rfind(b"\n") + 1:
                    yield memoryview(lines)[:cut]
                rest = lines[cut:]
                if len(rest) > MAX_LINE_BYTES:
                    raise DataError(f"{self.path}: has a line of more than {MAX_LINE_BYTES >> 20} MiB")
        if rest:
            yield memoryview(rest)

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
    (r"Expected \d+ columns, got \d+", "a line has more or fewer values than the header"),
    (r"UTF-?8|utf-8", "it is not UTF-8 text"),
    (r"[Tt]runcated compressed|zlib|gzip", "its gzip data are damaged or end too early"),
    (r"conversion error|Error parsing", "a value is not of its column's kind"),
    (r"Invalid value|Missing a|Expected|Parse|parse", "a line is no record"),
)
