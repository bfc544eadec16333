"""Newline-delimited JSON, plain or with gzip: an object a line, slices of whole lines.

Each line is parsed by itself, and each value as the role of its column says: ids and categories as the canonical text
of the value, the rest as numbers, times or booleans. A field that a line lacks is missing there; a line that is no
object has no field at all. So no record decides how another one is read.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import orjson
import pyarrow as pa
import pyarrow.types as pt

from sfumato.schemas.errors import DataError
from sfumato.transforms.inputs.log_file import FileSlice, LogFile, Types
from sfumato.transforms.inputs.text_lines import LineFile, reading_text
from sfumato.transforms.inputs.text_values import values_of

_MAX_INTEGER = 2.0**63  # orjson rounds larger integers


class JsonLog:
    """An open file of JSON objects; see OpenLog. Its columns are those that the job reads: a file states none."""

    def __init__(self, log: LogFile, types: Types):
        self._types = types
        self._lines = LineFile(log)
        if self._lines.head.lstrip()[:1] == b"[":
            raise DataError(f"{log.path}: is one JSON array; write one object a line (NDJSON) instead")

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
                columns.append(values_of(values, self._types[name]))
            yield pa.RecordBatch.from_arrays(columns, list(names))


def _record(line: bytes) -> dict[str, Any]:
    """The fields of a line; none where it is no object."""
    try:
        record = orjson.loads(line)
    except orjson.JSONDecodeError:
        return _lenient(line)
    return record if isinstance(record, dict) else {}


def _lenient(line: bytes) -> dict[str, Any]:
    """The fields of a line by Python's parser: it knows NaN, half surrogate pairs and integers of any size."""
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
