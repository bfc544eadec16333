"""Files of lines, plain or with gzip: slices and chunks of whole records, errors without values; and JSON objects.

Each line of newline-delimited JSON is parsed separately, and each value by the role of its column: ids and
categories as the canonical text of the value, the rest as numbers, times or booleans. A field that a line lacks is
missing there; a line that is no object has no field at all. So no record decides how another one is read.
"""

from __future__ import annotations

import codecs
import json
import os
import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from functools import cached_property
from typing import Any

import orjson
import pyarrow as pa
import pyarrow.types as pt

from sfumato.schemas.errors import DataError
from sfumato.transforms.inputs.log_file import TO_THE_END, FileSlice, LogFile, Types, reading_file
from sfumato.transforms.inputs.text_values import values_of
from sfumato.transforms.io.files import is_remote, open_file

Whole = Callable[[bytes], int]  # how many bytes of some data are whole records; the data begin with a record

CHUNK_BYTES = 16 << 20
SLICE_BYTES = 256 << 20
MAX_RECORD_BYTES = 16 << 20
NO_RECORD = b"\0\n"  # a line that no format takes for a record
HEAD_BYTES = 1 << 20
# Byte order marks. That of UTF-32 begins with one of UTF-16.
_MARKS = {codecs.BOM_UTF32_LE: "UTF-32", codecs.BOM_UTF32_BE: "UTF-32", codecs.BOM_UTF16_LE: "UTF-16",
          codecs.BOM_UTF16_BE: "UTF-16"}  # fmt: skip
_FIRST_LINES = 1000
_GZIP_RATIO = 4  # a rough guess at how much smaller gzip makes a log; only the number of threads depends on it
_MAX_INTEGER = 2.0**63  # orjson rounds larger integers


def whole_lines(data: bytes) -> int:
    """Returns the number of bytes of data in whole lines. Only LF ends a line."""
    return data.rfind(b"\n") + 1


class LineFile:
    """A file of lines, read from any place on, through gzip if its name ends in .gz.

    Args:
        log: the file.
        whole: finds whole records, where a record may have several lines.
        quote: around values with line breaks; None where a record is a line.
    """

    def __init__(self, log: LogFile, whole: Whole = whole_lines, quote: bytes | None = None):
        self.path = log.path
        self.is_packed = log.path.endswith(".gz")
        self._log = log
        self._whole = whole
        self._quote = quote

    @cached_property
    def head(self) -> bytes:
        """Returns the first megabyte. Raises DataError if a byte order mark states another encoding than UTF-8."""
        with self._opened(0) as stream:
            data = bytes(stream.read(HEAD_BYTES))
        for mark, encoding in _MARKS.items():
            if data.startswith(mark):
                raise self.of_encoding(encoding)
        return data

    def of_encoding(self, encoding: str) -> DataError:
        """Returns the error for a file in another encoding than UTF-8, with the command that converts it."""
        return DataError(f"{self.path}: must be UTF-8, got {encoding}; convert it: {conversion(encoding)}")

    @cached_property
    def _size(self) -> int:
        if self._log.size is not None:
            return self._log.size
        with open_file(self.path) as stream:
            end: int = stream.seek(0, os.SEEK_END)
            return end

    def estimated_lines(self, start: int) -> int:
        """Returns the number of lines after the first `start` bytes, from the file's size and its first lines."""
        sample = self.head[start:]
        lines = sample.count(b"\n") + (not sample.endswith(b"\n"))
        size = self._size * (_GZIP_RATIO if self.is_packed else 1)
        return lines * max(size - start, 0) // max(len(sample), 1)

    def is_blank(self, start: int) -> bool:
        """Returns whether nothing but spaces and line ends follows the first `start` bytes."""
        return all(not bytes(chunk).strip() for chunk in self.chunks(start, TO_THE_END))

    def cuts(self, start: int) -> Iterator[tuple[int, int, str]]:
        """Yields the first and end, in bytes, of slices of about SLICE_BYTES of whole records; see OpenLog.cuts."""
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

        A record of more than MAX_RECORD_BYTES is replaced by NO_RECORD, so that its size ends no run.
        """
        return (chunk for chunk, _ in self._whole_chunks(first, end))

    def _whole_chunks(self, first: int, end: int) -> Iterator[tuple[memoryview, int]]:
        """Yields chunks as `chunks` does, and where a slice may end after each: a place in the file, or 0 for none."""
        rest, long_from, in_quotes = b"", None, False
        with self._opened(first) as stream:
            while data := bytes(stream.read(min(CHUNK_BYTES, end - first))):
                first += len(data)
                if long_from is not None:  # within a record that is too long
                    cut, in_quotes = self._record_end(data, in_quotes)
                    if not cut:
                        continue
                    yield memoryview(NO_RECORD), 0
                    data, long_from = data[cut:], None
                if rest:
                    data = rest + data
                    if self._is_too_long(data):
                        yield memoryview(NO_RECORD), 0
                        data = data[self._record_end(data, False)[0] :]
                if cut := self._whole(data):
                    yield memoryview(data)[:cut], first - len(data) + cut
                rest = data[cut:]
                if len(rest) > MAX_RECORD_BYTES:
                    long_from, (_, in_quotes) = first - len(rest), self._record_end(rest, False)
                    rest = b""
        if long_from is not None and in_quotes:  # a quote that nobody closes hides no line after it
            yield from LineFile(self._log)._whole_chunks(long_from, end)
        elif long_from is not None:
            yield memoryview(NO_RECORD), 0
        elif rest:
            yield memoryview(rest), first

    def _is_too_long(self, data: bytes) -> bool:
        """Returns whether the first record of some data ends and is too long, regardless of the ends of chunks."""
        return self._record_end(data, False)[0] > MAX_RECORD_BYTES + 1 and not self._whole(data[: MAX_RECORD_BYTES + 1])

    def _record_end(self, data: bytes, in_quotes: bool) -> tuple[int, bool]:
        """Returns where the first record of some data ends, 0 if it does not, and whether the data end within quotes.

        in_quotes: whether they begin so.
        """
        if self._quote is None:
            return data.find(b"\n") + 1, False
        place = 0
        while (line_end := data.find(b"\n", place) + 1) > 0:
            in_quotes ^= bool(data.count(self._quote, place, line_end) % 2)
            if not in_quotes:
                return line_end, False
            place = line_end
        return 0, in_quotes ^ bool(data.count(self._quote, place) % 2)

    @contextmanager
    def _opened(self, place: int) -> Iterator[Any]:
        """Yields a stream of bytes from a place on; through gzip what comes before it is read and forgotten."""
        with ExitStack() as stack:
            log = self._log
            stream: Any = stack.enter_context(
                open_file(log.path, log.version, log.size) if is_remote(log.path) else pa.OSFile(os.fsencode(log.path))
            )
            if self.is_packed:
                stream = stack.enter_context(pa.CompressedInputStream(stream, "gzip"))
                stream.read(place)
            else:
                stream.seek(place)
            yield stream


def encoding_of(text: bytes) -> str:
    """Returns the encoding of text that begins with ASCII letters, has zero bytes and no byte order mark."""
    width, order = ("32" if b"\0\0" in text[:4] else "16"), ("BE" if text.startswith(b"\0") else "LE")
    return f"UTF-{width}{order}"


def reading_text(path: str, kind: str) -> AbstractContextManager[None]:
    """Converts errors of reading text into DataErrors that name the file. No value of the file is in the message."""

    def problem_of(error: Exception) -> str:
        return next((text for pattern, text in _PROBLEMS if re.search(pattern, str(error))), f"not {kind}")

    return reading_file(path, kind, problem_of)


def conversion(encoding: str) -> str:
    """Returns the command that converts a file from an encoding."""
    return f"iconv -f {encoding} -t UTF-8 OLD > NEW"


_PROBLEMS = (
    (
        r"UTF-?8|utf-8",
        f"the header is not UTF-8; if it is Windows-1252, as Excel writes it, convert it: {conversion('CP1252')}",
    ),
    (r"[Tt]runcated compressed|zlib|gzip", "the gzip data are damaged or truncated"),
)


class JsonLog:
    """An open file of JSON objects; see OpenLog. Its columns are those that the job reads: a file states none."""

    def __init__(self, log: LogFile, types: Types):
        self._types = types
        self._layout = log.layout
        self._lines = LineFile(log)
        if self._lines.head.lstrip()[:1] == b"[":
            raise DataError(f"{log.path}: must contain one JSON object per line (NDJSON), got one JSON array")

    @property
    def schema(self) -> pa.Schema:
        return pa.schema(list(self._types.items()))

    @property
    def rows(self) -> int:
        return self._lines.estimated_lines(0)

    @property
    def is_empty(self) -> bool:
        return self._lines.is_blank(0)

    def cuts(self) -> Iterator[tuple[int, int, str]]:
        yield from self._lines.cuts(0)

    def batches(self, part: FileSlice, names: Sequence[str]) -> Iterator[pa.RecordBatch]:
        for chunk in self._lines.chunks(part.first, part.end):
            lines = [line for line in bytes(chunk).split(b"\n") if line.strip()]
            records = [_record(line) for line in lines]
            columns = []
            for name in names:
                values = [record.get(name) for record in records]
                if not pt.is_floating(self._types[name]):
                    values = [
                        _lenient(line).get(name) if type(value) is float and abs(value) >= _MAX_INTEGER else value
                        for line, value in zip(lines, values, strict=True)
                    ]
                columns.append(values_of(values, self._types[name], self._layout))
            yield pa.RecordBatch.from_arrays(columns, list(names))


def first_fields(log: LogFile) -> list[str]:
    """Returns the names of the fields of a JSON file's first records: a file states none.

    For the operator only, because what the records hold decides. Raises DataError for UTF-16 and UTF-32.
    """
    file = LineFile(log)
    if b"\0" in file.head[:4]:
        raise file.of_encoding(encoding_of(file.head))
    return list(dict.fromkeys(name for line in file.head.split(b"\n")[:_FIRST_LINES] for name in _record(line)))


def _record(line: bytes) -> dict[str, Any]:
    """Returns the fields of a line; none where it is no object."""
    try:
        record = orjson.loads(line)
    except orjson.JSONDecodeError:
        return _lenient(line)
    return record if isinstance(record, dict) else {}


def _lenient(line: bytes) -> dict[str, Any]:
    """Returns the fields of a line by Python's parser: it knows NaN, half surrogate pairs and integers of any size."""
    try:
        record = json.loads(line)
    except (ValueError, RecursionError):
        return {}
    return record if isinstance(record, dict) else {}


@contextmanager
def open_json_log(log: LogFile, types: Types) -> Iterator[JsonLog]:
    """Opens a file; see LogFormat."""
    with reading_text(log.path, "newline-delimited JSON"):
        yield JsonLog(log, types)
