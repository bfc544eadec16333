"""Newline-delimited JSON, plain or with gzip: an object a line, slices of whole lines.

Numbers stay numbers and text stays text, as in the file's first records: a user id `7` is an integer, `"7"` is text.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import cached_property
from typing import Any

import pyarrow as pa
import pyarrow.json as pa_json
import pyarrow.types as pt

from sfumato.schemas.errors import DataError
from sfumato.transforms.inputs.log_file import FileSlice, LogFile, Types
from sfumato.transforms.inputs.text_lines import LineFile, reading_text
from sfumato.transforms.inputs.text_values import from_text, is_text, largest_integer, usable_values

_BLOCK_BYTES = 4 << 20
# In Arrow's message, where a line is an object and a value of it is wrong.
_OF_A_VALUE = re.compile(r"changed from|Failed to convert|too big|specified twice")
_ARROW_TYPES = {bool: pa.bool_(), int: pa.int64(), float: pa.float64(), str: pa.string()}
_MAX_INTEGER, _MAX_FLOAT = 1 << 63, 1.7e308


class JsonLog:
    """An open file of JSON objects; see OpenLog."""

    def __init__(self, log: LogFile, types: Types):
        self._log = log
        self._path = log.path
        self._types = types
        self._lines = LineFile(log)

    @cached_property
    def _inferred(self) -> pa.Schema:
        """The columns and types of the first records."""
        head = self._lines.head
        if not head.strip():
            raise DataError(f"{self._path}: holds no record, so its columns are not known")
        if head.lstrip()[:1] == b"[":
            raise DataError(f"{self._path}: is one JSON array; write one object a line (NDJSON) instead")
        try:
            return _read(memoryview(head), None).schema
        except pa.ArrowInvalid as error:
            if not _OF_A_VALUE.search(str(error)):
                raise
            return _most_common_types(_records(head))

    @cached_property
    def schema(self) -> pa.Schema:
        return pa.schema([(field.name, self._type(field)) for field in self._inferred])

    def _type(self, field: pa.Field) -> pa.DataType:
        """The type in which a column is yielded, by that of its first records."""
        wanted, held = self._types.get(field.name), field.type
        if wanted is None or pt.is_null(held):
            return wanted or held
        texts = is_text(held) or pt.is_timestamp(held)  # Arrow takes text that looks like a time for a time
        if texts:
            return wanted if pt.is_timestamp(wanted) else pa.string()
        numbers = pt.is_integer(held) or pt.is_floating(held)
        return pa.float64() if numbers and (pt.is_floating(wanted) or pt.is_timestamp(wanted)) else held

    @property
    def rows(self) -> int:
        return self._lines.estimated_lines(0)

    @property
    def is_empty(self) -> bool:
        return self._lines.is_blank(0)

    def cuts(self) -> Iterator[tuple[int, int, str]]:
        yield from self._lines.cuts(0)

    def largest_integer(self, name: str) -> float:
        head = FileSlice(self._log, 0, len(self._lines.head), is_last=True)
        return max((largest_integer(batch.column(0)) for batch in self.batches(head, [name])), default=0.0)

    def batches(self, part: FileSlice, names: Sequence[str]) -> Iterator[pa.RecordBatch]:
        types = {name: self.schema.field(name).type for name in names}
        parsed = [(name, pa.string() if pt.is_timestamp(kind) else kind) for name, kind in types.items()]
        for chunk in self._lines.chunks(part.first, part.end):
            if len(chunk) < _BLOCK_BYTES and not bytes(chunk).strip():
                continue
            try:
                table = _read(chunk, pa.schema(parsed))
            except pa.ArrowInvalid as error:
                if not _OF_A_VALUE.search(str(error)):
                    raise
                table = _read_each(chunk, pa.schema(parsed))
            for batch in table.combine_chunks().to_batches():
                columns = [self._converted(batch.column(name), types[name], name) for name in names]
                yield pa.RecordBatch.from_arrays(columns, names)

    def _converted(self, column: pa.Array, kind: pa.DataType, name: str) -> pa.Array:
        if not pt.is_string(column.type):
            return column
        try:
            return from_text(column, kind, self._path, name)
        except DataError:
            return usable_values(column, kind)


def _read(chunk: memoryview, schema: pa.Schema | None) -> pa.Table:
    parsing = pa_json.ParseOptions(
        explicit_schema=schema, unexpected_field_behavior="infer" if schema is None else "ignore"
    )
    blocks = pa_json.ReadOptions(block_size=min(len(chunk), _BLOCK_BYTES) if schema is not None else len(chunk))
    return pa_json.read_json(pa.BufferReader(pa.py_buffer(chunk)), blocks, parsing)


def _read_each(chunk: memoryview, schema: pa.Schema) -> pa.Table:
    """Reads lines one by one, which is slow; a value of another kind than its column's is missing.

    Raises:
        ArrowInvalid: a line is no object.
    """
    records = _records(bytes(chunk))
    columns = [[_kept(record.get(field.name), field.type) for record in records] for field in schema]
    return pa.table([pa.array(column, field.type) for column, field in zip(columns, schema, strict=True)], schema)


def _records(lines: bytes) -> list[dict[str, Any]]:
    """The objects of lines. Raises ArrowInvalid where a line is no object."""
    records = []
    for line in lines.splitlines():
        if line.strip():
            try:
                records.append(json.loads(line))
            except ValueError:
                raise pa.ArrowInvalid("Invalid value") from None
    if not all(isinstance(one, dict) for one in records):
        raise pa.ArrowInvalid("Invalid value")
    return records


def _most_common_types(records: list[dict[str, Any]]) -> pa.Schema:
    """The type that most values of each column have; numbers are floating-point where any is."""
    fields = []
    for name in dict.fromkeys(name for record in records for name in record):
        kinds = Counter(type(one) for record in records if (one := record.get(name)) is not None)
        if kinds[float]:
            kinds[float] += kinds.pop(int, 0)
        fields.append(pa.field(name, _ARROW_TYPES.get(kinds.most_common(1)[0][0], pa.null()) if kinds else pa.null()))
    return pa.schema(fields)


def _kept(value: Any, kind: pa.DataType) -> Any:
    """A value that is of a type; None for others."""
    if isinstance(value, bool):
        return value if pt.is_boolean(kind) else None
    if isinstance(value, str):
        return value if is_text(kind) else None
    if isinstance(value, int | float) and pt.is_floating(kind):
        return float(value) if abs(value) < _MAX_FLOAT else None
    return value if isinstance(value, int) and pt.is_integer(kind) and -_MAX_INTEGER <= value < _MAX_INTEGER else None


@contextmanager
def open_json_log(log: LogFile, types: Types) -> Iterator[JsonLog]:
    """Opens a file; see LogFormat."""
    with reading_text(log.path, "newline-delimited JSON"):
        yield JsonLog(log, types)
