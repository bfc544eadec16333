"""CSV files with a header, plain or with gzip: slices of whole lines.

A column is read as what the job needs: user ids and categories as text, the rest as numbers, times or booleans. So the
id `007` stays different from `7`, whatever the other rows hold. A value of another kind is missing, so that no single
record decides whether a run ends. Values in quotes may hold anything but line breaks.
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

from sfumato.schemas.errors import DataError, RequestError
from sfumato.transforms.inputs.log_file import FileSlice, LogFile, Types
from sfumato.transforms.inputs.text_lines import LineFile, reading_text
from sfumato.transforms.inputs.text_values import from_text, largest_integer, usable_values

_DELIMITERS = (",", ";", "\t", "|")  # the one that most often stands in the header is the file's
_BOM = b"\xef\xbb\xbf"
_BLOCK_BYTES = 4 << 20
_QUOTE, _LINE_END = 34, 10
_OF_A_VALUE = "conversion error"  # in Arrow's message, where the lines themselves are right


class CsvLog:
    """An open CSV file; see OpenLog."""

    def __init__(self, log: LogFile, types: Types):
        self._log = log
        self._path = log.path
        self._types = types
        self._lines = LineFile(log)

    @cached_property
    def _header(self) -> tuple[list[str], str, int]:
        """The columns' names, the delimiter, and the bytes up to the first row."""
        head = self._lines.head
        line, _, _ = head.partition(b"\n")
        start = min(len(line) + 1, len(head))
        text = line.removeprefix(_BOM).decode("utf-8").rstrip("\r")
        if "\r" in text:
            raise DataError(f"{self._path}: its lines end in CR; convert the line ends to LF")
        if not text.strip():
            raise DataError(f"{self._path}: its first line is empty, and must name the columns")
        delimiter = max(_DELIMITERS, key=text.count)
        names = [name.strip() for name in next(csv.reader([text], delimiter=delimiter))]
        if any(not name or _is_number(name) for name in names):
            raise RequestError(
                f"{self._path}: its first line must be a header that names every column; it seems to be a record"
            )
        for name in self._types:
            if names.count(name) > 1:
                raise RequestError(f"{self._path}: {names.count(name)} columns are named {name!r}; leave one of them")
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

    def largest_integer(self, name: str) -> float:
        head = FileSlice(self._log, self._header[2], len(self._lines.head), is_last=True)
        return max((largest_integer(batch.column(0)) for batch in self.batches(head, [name])), default=0.0)

    def batches(self, part: FileSlice, names: Sequence[str]) -> Iterator[pa.RecordBatch]:
        header, delimiter, start = self._header
        # Columns that nobody reads may share a name, so here they have none.
        columns = [name if name in names else f"\0{place}" for place, name in enumerate(header)]
        parsing = pa_csv.ParseOptions(delimiter=delimiter, newlines_in_values=False)
        converting = pa_csv.ConvertOptions(
            include_columns=list(names),
            column_types={name: _parsed_type(self._types[name]) for name in names},
            strings_can_be_null=False,  # a category may be NA, the code of Namibia; numbers may be missing as NA
        )
        as_text = pa_csv.ConvertOptions(
            include_columns=list(names), column_types=dict.fromkeys(names, pa.string()), strings_can_be_null=False
        )
        reading = pa_csv.ReadOptions(column_names=columns, block_size=_BLOCK_BYTES)
        for chunk in self._lines.chunks(max(part.first, start), part.end):
            self._check_quotes(chunk)
            if len(chunk) < _BLOCK_BYTES and not bytes(chunk).strip():
                continue  # blank lines, of which Arrow makes no table
            try:
                table = pa_csv.read_csv(pa.py_buffer(chunk), reading, parsing, converting)
            except pa.ArrowInvalid as error:
                if _OF_A_VALUE not in str(error):
                    raise
                table = pa_csv.read_csv(pa.py_buffer(chunk), reading, parsing, as_text)
            for batch in table.combine_chunks().to_batches():
                yield pa.RecordBatch.from_arrays([self._converted(batch.column(name), name) for name in names], names)

    def _converted(self, column: pa.Array, name: str) -> pa.Array:
        if not pt.is_string(column.type):
            return column
        try:
            return from_text(column, self._types[name], self._path, name)
        except DataError:
            return usable_values(column, self._types[name])

    def _check_quotes(self, chunk: memoryview) -> None:
        """Raises DataError where a line has an odd number of quotes.

        A value with a line break starts on such a line. A slice could begin in the middle of it, so it is refused.
        """
        raw = np.frombuffer(chunk, np.uint8)
        quotes = raw == _QUOTE
        if not quotes.any():
            return
        starts = np.concatenate([[0], np.flatnonzero(raw == _LINE_END) + 1])
        starts = starts[starts < len(raw)]
        if np.bitwise_xor.reduceat(quotes.view(np.uint8), starts).any():
            raise DataError(
                f"{self._path}: a line has an odd number of quotes; a value may not hold a line break, and a quote in "
                "a value is written twice; convert the file to Parquet, or leave the column out"
            )


def _parsed_type(kind: pa.DataType) -> pa.DataType:
    """The type that Arrow's CSV reader converts to; times are converted afterwards."""
    return pa.string() if pt.is_timestamp(kind) else kind


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
