"""CSV files with a header, plain or with gzip: slices of whole records (RFC 4180).

A column is read as its role in the job: user ids and categories as text, the rest as numbers, times or booleans. So
the id `007` stays different from `7`, whatever the other rows hold.

Only LF and CR LF end a record, and not within quotes. A line with more or fewer values than the header, or with a quote
that is not closed, is one row without any value, and the next line is read as if it were not there: what one user's
record holds neither ends a run nor hides or adds another user's.
"""

from __future__ import annotations

import csv
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import cached_property

import numpy as np
import pyarrow as pa
import pyarrow.csv as pa_csv
import pyarrow.types as pt
from numpy.typing import NDArray

from sfumato.schemas.errors import DataError, RequestError
from sfumato.transforms.inputs.log_file import FileSlice, LogFile, Types
from sfumato.transforms.inputs.text_lines import (
    HEAD_BYTES,
    MAX_RECORD_BYTES,
    LineFile,
    encoding_of,
    reading_text,
    whole_lines,
)
from sfumato.transforms.inputs.text_values import finite, in_one_form, parsed, text_array

DELIMITERS = (",", ";", "\t", "|")  # the most frequent in the header is the file's
_BOM = b"\xef\xbb\xbf"
_BLOCK_BYTES = 4 << 20
_QUOTE, _LF, _CR = 34, 10, 13
_MAX_LINES = 100  # that a quote may run on for, where not all quotes of a chunk are in place
_RETURN = "\u0100"  # a carriage return inside a value, which Python's csv module would take for a line's end
_OF_A_VALUE = "conversion error"  # in Arrow's message, where the lines themselves are right


class CsvLog:
    """An open CSV file; see OpenLog."""

    def __init__(self, log: LogFile, types: Types):
        self._log = log
        self._path = log.path
        self._types = types
        self._lines = LineFile(log, self._whole_records, b'"')

    @cached_property
    def _header(self) -> tuple[list[str], str, int]:
        """Returns the columns' names, the delimiter, and the bytes up to the first row."""
        head = self._lines.head
        if not head:  # a logger that writes its header with its first record
            return list(self._types), ",", 0
        line, line_end, _ = head.partition(b"\n")
        if not line_end and len(head) >= HEAD_BYTES:
            raise DataError(f"{self._path}: no line end in the first megabyte; check that it is a text file")
        if b"\0" in line:  # no name of a column has one; what the records hold decides nothing
            raise self._lines.of_encoding(encoding_of(line))
        start = min(len(line) + 1, len(head))
        text = line.removeprefix(_BOM).decode("utf-8").rstrip("\r")
        if "\r" in text:
            raise DataError(f"{self._path}: lines end in CR; convert them to LF")
        if not text.strip():
            raise DataError(f"{self._path}: the first line is empty; it must name the columns")
        delimiter = max(DELIMITERS, key=text.count)
        names = [name.strip() for name in next(csv.reader([text], delimiter=delimiter))]
        if any(not name or _is_number(name) for name in names):
            raise RequestError(
                f"{self._path}: the first line must name every column, and seems to be a record; add a header"
            )
        for name in self._types:
            if names.count(name) > 1:
                raise RequestError(f"{self._path}: {names.count(name)} columns are named {name!r}; keep only one")
        return names, delimiter, start

    @property
    def schema(self) -> pa.Schema:
        return pa.schema([(name, self._types.get(name, pa.string())) for name in dict.fromkeys(self._header[0])])

    @property
    def rows(self) -> int:
        return self._lines.estimated_lines(self._header[2])

    @property
    def is_empty(self) -> bool:
        return self._lines.is_blank(self._header[2])

    def cuts(self) -> Iterator[tuple[int, int, str]]:
        yield from self._lines.cuts(self._header[2])

    def batches(self, part: FileSlice, names: Sequence[str]) -> Iterator[pa.RecordBatch]:
        start = self._header[2]
        for chunk in self._lines.chunks(max(part.first, start), part.end):
            if not bytes(chunk).strip():
                continue  # blank lines, which Arrow cannot make into a table
            columns, without_values = (self._plain if self._is_plain(chunk) else self._any_form)(chunk, names)
            # Lines that are no record are rows too, so that they count as what has no user id.
            missing = [pa.nulls(without_values, column.type) for column in columns]
            columns = [pa.concat_arrays(pair) for pair in zip(columns, missing, strict=True)]
            yield pa.RecordBatch.from_arrays(columns, list(names))

    def _plain(self, chunk: memoryview, names: Sequence[str]) -> tuple[list[pa.Array], int]:
        """Returns the columns of lines that are a record each, and the number of lines with other numbers of values."""
        header, delimiter, _ = self._header
        without_values = list[int]()

        def skip(_: pa_csv.InvalidRow) -> str:
            without_values.append(1)  # by a thread of Arrow
            return "skip"

        # Columns that nobody reads may share a name, so here they have none.
        columns = [name if name in names else f"\0{place}" for place, name in enumerate(header)]
        # A block that a line does not fit ends Arrow's reading.
        line_ends = np.flatnonzero(np.frombuffer(chunk, np.uint8) == _LF)
        longest = int(np.diff(line_ends, prepend=-1, append=len(chunk)).max())
        reading = pa_csv.ReadOptions(column_names=columns, block_size=max(_BLOCK_BYTES, longest + 1))
        parsing = pa_csv.ParseOptions(delimiter=delimiter, invalid_row_handler=skip)
        for direct in (pt.is_floating, lambda _: False):  # Arrow reads numbers fast, where all of them are numbers
            types = {name: self._types[name] if direct(self._types[name]) else pa.string() for name in names}
            converting = pa_csv.ConvertOptions(
                include_columns=list(names),
                column_types=types,
                decimal_point=self._log.layout.decimal,
                strings_can_be_null=False,  # a category may be NA, the code of Namibia; numbers may be missing as NA
                check_utf8=False,
            )
            without_values.clear()
            try:
                table = pa_csv.read_csv(pa.py_buffer(chunk), reading, parsing, converting)
                break
            except pa.ArrowInvalid as error:
                if _OF_A_VALUE not in str(error):
                    raise
        held = [table.column(name).combine_chunks() for name in names]
        return [self._values(column, name) for column, name in zip(held, names, strict=True)], len(without_values)

    def _any_form(self, chunk: memoryview, names: Sequence[str]) -> tuple[list[pa.Array], int]:
        """Returns the columns of lines of any form, as `_plain` returns them; slower."""
        header, delimiter, _ = self._header
        places, rows, without_values = [header.index(name) for name in names], list[list[str]](), 0
        for fields, _ in _records(bytes(chunk), delimiter, len(header), is_end=True):
            if fields is None:
                without_values += 1
            elif fields:
                rows.append(fields)
        columns = []
        for name, place in zip(names, places, strict=True):
            raw = [row[place].replace(_RETURN, "\r").encode("latin-1") for row in rows]
            columns.append(self._values(text_array(raw), name))
        return columns, without_values

    def _values(self, column: pa.Array, name: str) -> pa.Array:
        kind, layout = self._types[name], self._log.layout
        if pt.is_floating(column.type):
            return finite(column)
        return parsed(in_one_form(column, kind, layout), kind)

    def _whole_records(self, data: bytes) -> int:
        """See Whole."""
        end = whole_lines(data)
        raw = np.frombuffer(data, np.uint8, end)
        quotes = np.flatnonzero(raw == _QUOTE) if b'"' in data else np.empty(0, np.int64)
        if not len(quotes):
            return end
        delimiter = self._header[1]
        if _are_in_place(raw, quotes, delimiter):
            ends = np.flatnonzero(raw == _LF) + 1
            whole = ends[np.searchsorted(quotes, ends) % 2 == 0]
            return int(whole[-1]) if len(whole) else 0
        return sum(taken for _, taken in _records(data[:end], delimiter, len(self._header[0]), is_end=False))

    def _is_plain(self, chunk: memoryview) -> bool:
        """Returns whether Arrow reads the lines as this module does: records end at line ends and nowhere else."""
        if chunk[:3] == _BOM:  # Arrow takes it off the first value
            return False
        try:  # a line with other numbers of values that is not UTF-8 would end Arrow's reading
            str(chunk, "utf-8")
        except UnicodeDecodeError:
            return False
        raw = np.frombuffer(chunk, np.uint8)
        returns = np.flatnonzero(raw == _CR)
        returns = returns[returns + 1 < len(raw)]
        if len(returns) and (raw[returns + 1] != _LF).any():
            return False
        quotes = np.flatnonzero(raw == _QUOTE)
        if not len(quotes):
            return True
        line_ends = np.flatnonzero(raw == _LF)
        return (
            len(quotes) % 2 == 0
            and not (np.searchsorted(quotes, line_ends) % 2).any()
            and _are_in_place(raw, quotes, self._header[1])
        )


def _are_in_place(raw: NDArray[np.uint8], quotes: NDArray[np.int64], delimiter: str) -> bool:
    """Returns whether quotes are only around whole values, or twice for one in a value.

    raw: uint8[n], bytes that begin with a record. quotes: int64[k], the places of all quotes in them.
    """
    around = np.array([ord(delimiter), _LF, _QUOTE], np.uint8)
    opening, closing = quotes[::2], quotes[1::2]
    before = raw[opening[opening > 0] - 1]
    closing = closing[closing + 1 < len(raw)]
    after = raw[closing + 1]
    line_end = np.zeros(len(closing), dtype=bool)
    inner = np.flatnonzero((after == _CR) & (closing + 2 < len(raw)))
    line_end[inner] = raw[closing[inner] + 2] == _LF
    return bool(np.isin(before, around).all() and (np.isin(after, around) | line_end).all())


class _Feed:
    """Lines for Python's csv module, from a place that can be set back, and of one record up to a limit."""

    def __init__(self, lines: list[str]):
        self.lines = lines
        self.at = 0
        self.limit = len(lines)
        self.is_exhausted = False

    def __iter__(self) -> _Feed:
        return self

    def __next__(self) -> str:
        if self.at == self.limit:
            self.is_exhausted = True
            raise StopIteration
        self.at += 1
        return self.lines[self.at - 1] + "\n"


def _records(data: bytes, delimiter: str, columns: int, is_end: bool) -> Iterator[tuple[list[str] | None, int]]:
    """Yields the values and the bytes of each record, one after the other.

    Values are bytes as Latin-1; a blank line has none, and a line that is no record has None. A record of several lines
    must conform to RFC 4180. Otherwise its first line is no record, and the second one begins the next.

    data: begin with a record. columns: the number of values of a record. is_end: whether no more lines come. If some
    do, records end before one that they may belong to.
    """
    csv.field_size_limit(2 * MAX_RECORD_BYTES)
    raw = data.split(b"\n")
    if not raw[-1]:
        raw.pop()
    feed = _Feed([line.decode("latin-1").replace("\r", _RETURN) for line in raw])
    reader = csv.reader(feed, delimiter=delimiter)
    # Else each of many quotes that nobody closes would be followed to the end of the data.
    most_lines = len(raw) if _is_record(data, delimiter, is_whole=False) else _MAX_LINES
    while feed.at < len(raw):
        first = feed.at
        feed.limit = min(first + most_lines, len(raw))
        fields = next(reader)
        lines = raw[first : feed.at]
        text = b"\n".join(lines)
        if feed.is_exhausted and feed.at == len(raw) and not is_end:
            return
        if len(lines) > 1 and (feed.is_exhausted or len(fields) != columns or not _is_record(text + b"\n", delimiter)):
            feed.at, feed.is_exhausted = first + 1, False
            reader = csv.reader(feed, delimiter=delimiter)
            yield None, len(lines[0]) + 1
            continue
        if text in (b"", b"\r"):
            yield [], len(text) + 1
            continue
        if text.endswith(b"\r"):
            fields[-1] = fields[-1].removesuffix(_RETURN)
        yield (fields if len(fields) == columns and not feed.is_exhausted else None), len(text) + 1


def _is_record(text: bytes, delimiter: str, is_whole: bool = True) -> bool:
    """Returns whether the quotes of some lines are in place. is_whole: whether the last value in quotes must end."""
    raw = np.frombuffer(text, np.uint8)
    quotes = np.flatnonzero(raw == _QUOTE)
    return (len(quotes) % 2 == 0 or not is_whole) and _are_in_place(raw, quotes, delimiter)


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True


@contextmanager
def open_csv_log(log: LogFile, types: Types) -> Iterator[CsvLog]:
    """Opens a file; see LogFormat."""
    with reading_text(log.path, "CSV"):
        yield CsvLog(log, types)
