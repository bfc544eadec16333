"""Newline-delimited JSON: types as they are written, missing values, and what is refused."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from sfumato.schemas.errors import DataError, RequestError
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


def test_ids_keep_their_type_and_missing_values_are_missing(tmp_path: Path) -> None:
    text = '{"user_id": "2026-11-20", "latitude": 1, "longitude": 2.5, "more": {"deep": [1]}}\n\n'
    text += '{"longitude": null, "user_id": null, "latitude": 4}\n'
    assert rows(tmp_path / "log.ndjson", text) == [
        {"user_id": "2026-11-20", "latitude": 1.0, "longitude": 2.5},
        {"user_id": None, "latitude": 4.0, "longitude": None},
    ]
    (found,) = rows(tmp_path / "log.ndjson", '{"user_id": 7, "latitude": 1, "longitude": 2}')
    assert found["user_id"] == 7


@pytest.mark.parametrize(
    ("line", "found"),
    [
        ('{"user_id": 7, "latitude": 1, "longitude": 2}', (None, 1, 2)),
        ('{"user_id": "b", "latitude": "north", "longitude": true}', ("b", None, None)),
        ('{"user_id": "b", "latitude": [1], "longitude": {"a": 1}}', ("b", None, None)),
        ('{"user_id": "b", "latitude": 1e999, "longitude": 2, "longitude": 3}', ("b", None, 3)),
    ],
)
def test_a_value_of_another_kind_is_missing(line: str, found: tuple[Any, ...], tmp_path: Path) -> None:
    """It may be one user's, so it ends no run; the other values of its record stay."""
    text = '{"user_id": "a", "latitude": 1, "longitude": 2}\n' + line
    read = rows(tmp_path / "log.ndjson", text)
    assert read[0] == {"user_id": "a", "latitude": 1, "longitude": 2}
    assert tuple(read[1].values()) == found


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ('{"user_id": "a", "latitude": 1, "longitude": 2}\n{"user_id": "secret', "cannot be read as newline-delimited"),
        ('[{"user_id": "secret", "latitude": 1, "longitude": 2}]', "is one JSON array"),
        ('{"user_id": "secret", "latitude": "north", "longitude": 2}', "must hold degrees .* it holds string"),
        ('{"user_id": 1.5, "latitude": 1, "longitude": 2}', "must hold integers, strings or bytes"),
        ('{"user_id": "secret", "latitude": 1}', "no column 'longitude'"),
        ('{"user_id": "secret", "latitude": 1, "longitude": 2}\n[7]', "a line is no record"),
        ('{"user_id": "secret", "latitude": 1, "longitude": 2}\n{"latitude": "a"}\n7', "a line is no record"),
        ("user_id,latitude\n", "cannot be read as newline-delimited JSON"),
        ("", "holds no record"),
    ],
)
def test_what_is_no_record_is_refused_without_a_value_of_it(content: str, message: str, tmp_path: Path) -> None:
    with pytest.raises((DataError, RequestError), match=message) as refused:
        rows(tmp_path / "log.ndjson", content)
    assert "log.ndjson" in str(refused.value)
    assert "secret" not in str(refused.value)
