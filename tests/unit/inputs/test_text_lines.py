"""Newline-delimited JSON: each line by itself, values by the role of their column, missing values."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from sfumato.schemas.errors import DataError
from sfumato.schemas.locations import LocationColumns
from sfumato.transforms.inputs.log_file import LogFile
from sfumato.transforms.inputs.log_reader import inspect_log, read_batches, slice_file


def rows(path: Path, content: str, **columns: Any) -> list[dict[str, Any]]:
    """The records that a job reads from a file of this content."""
    path.write_text(content)
    read = LocationColumns(**columns)
    log = LogFile(str(path))
    inspect_log(log, read)
    return [row for part in slice_file(log) for batch in read_batches(part, read) for row in batch.to_pylist()]


def test_ids_are_text_and_missing_values_are_missing(tmp_path: Path) -> None:
    text = '{"user_id": "2026-11-20", "latitude": 1, "longitude": 2.5, "more": {"deep": [1]}}\n\n'
    text += '{"longitude": null, "user_id": null, "latitude": 4}\n{"user_id": 12345678901234567890123, "latitude": "1"}'
    assert rows(tmp_path / "log.ndjson", text) == [
        {"user_id": "2026-11-20", "latitude": 1.0, "longitude": 2.5},
        {"user_id": None, "latitude": 4.0, "longitude": None},
        {"user_id": "12345678901234567890123", "latitude": 1.0, "longitude": None},
    ]


@pytest.mark.parametrize(
    ("line", "found"),
    [
        ('{"user_id": 7, "latitude": 1, "longitude": 2}', ("7", 1, 2)),
        ('{"user_id": 7.0, "latitude": "1", "longitude": "x"}', ("7", 1, None)),
        ('{"user_id": true, "latitude": 1, "longitude": 2}', ("true", 1, 2)),
        ('{"user_id": "b", "latitude": "north", "longitude": true}', ("b", None, None)),
        ('{"user_id": "b", "latitude": [1], "longitude": {"a": 1}}', ("b", None, None)),
        ('{"user_id": "b", "latitude": 1e999, "longitude": 2, "longitude": 3}', ("b", None, 3)),
        ('{"user_id": "b", "latitude": NaN, "longitude": -Infinity}', ("b", None, None)),
        ('{"user_id": "b", "latitude": 1, "note": "\\ud800"}', ("b", 1, None)),
        ('{"user_id": "b", "latitude": 1, "note": ' + "[" * 100_000 + "]" * 100_000 + "}", (None, None, None)),
        ('{"user_id": "b", "latitude": 1, "note": ' + "9" * 5_000 + "}", (None, None, None)),
        ("[7]", (None, None, None)),
        ("7", (None, None, None)),
        ('{"user_id": "b", "latitude": 5', (None, None, None)),
        ('{"user_id": "b\r", "latitude": 5}', (None, None, None)),  # a bare CR inside a string is no JSON
        ('\r{"user_id":\r"b", "latitude": 5}\r', ("b", 5, None)),  # elsewhere it is a blank
    ],
)
def test_a_value_of_another_kind_is_missing(line: str, found: tuple[Any, ...], tmp_path: Path) -> None:
    """It may be one user's, so it ends no run, and the records around it stay as they are."""
    good = '{"user_id": 5, "latitude": 1, "longitude": 2}'
    read = rows(tmp_path / "log.ndjson", "\n".join([good, line, good]))
    assert read[0] == read[2] == {"user_id": "5", "latitude": 1, "longitude": 2}
    assert tuple(read[1].values()) == found


def test_a_column_that_no_record_has_is_missing(tmp_path: Path) -> None:
    (found,) = rows(tmp_path / "log.ndjson", '{"user_id": "a", "latitude": 1}')
    assert found == {"user_id": "a", "latitude": 1, "longitude": None}


@pytest.mark.parametrize("content", ["", "\n \n"])
def test_a_quiet_hour_has_no_rows(content: str, tmp_path: Path) -> None:
    assert rows(tmp_path / "log.ndjson", content) == []


def test_a_json_array_is_refused(tmp_path: Path) -> None:
    with pytest.raises(DataError) as refused:
        rows(tmp_path / "log.ndjson", '[{"user_id": "secret", "latitude": 1, "longitude": 2}]')
    assert "log.ndjson" in str(refused.value)
    assert "secret" not in str(refused.value)
