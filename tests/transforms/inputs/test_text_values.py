"""Times and missing values of text, against Python's own parser."""

from __future__ import annotations

from datetime import UTC, datetime

import pyarrow as pa
import pytest

from sfumato.schemas.errors import DataError
from sfumato.schemas.locations import TIME_TYPE
from sfumato.transforms.inputs.text_values import from_text, largest_integer, to_times, usable_values

TEXTS = [
    "2026-11-20", "2026-11-20 10:00:00", "2026-11-20T10:00:00.25", "2026-11-20T10:00:00Z", "2026-11-20T10:00:00+02:00",
    "2026-11-20 10:00:00.123456-0530", "1969-12-31T23:59:59.5Z",
]  # fmt: skip


def expected(text: str) -> datetime:
    found = datetime.fromisoformat(text)
    return found.replace(tzinfo=UTC) if found.tzinfo is None else found


@pytest.mark.parametrize("texts", [*([text] for text in TEXTS), TEXTS])
def test_times_alone_and_mixed(texts: list[str]) -> None:
    found = to_times(pa.array([*texts, None]))
    assert found.type == TIME_TYPE
    assert found.to_pylist() == [*map(expected, texts), None]


def test_seconds_and_what_is_finer_than_a_microsecond() -> None:
    found = to_times(pa.array(["1795168800", "-1.5", "2026-11-20T10:00:00.123456789Z"])).cast(pa.int64()).to_pylist()
    assert found == [1_795_168_800_000_000, -1_500_000, 1_795_168_800_123_456]


def test_what_is_of_another_kind_is_not_quoted() -> None:
    for kind in (TIME_TYPE, pa.float64(), pa.bool_()):
        with pytest.raises(DataError, match=r"a\.csv: column 'x' must hold") as refused:
            from_text(pa.array(["secret"]), kind, "a.csv", "x")
        assert "secret" not in str(refused.value)
    assert from_text(pa.array(["", "a"]), pa.string(), "a.csv", "x").to_pylist() == [None, "a"]


def test_usable_values_are_those_of_from_text_and_missing_elsewhere() -> None:
    for kind, good in (
        (TIME_TYPE, [*TEXTS, "1795168800", "-1.5"]),
        (pa.float64(), ["1", "-2.5e3"]),
        (pa.bool_(), ["true", "0"]),
    ):
        texts = [one for text in good for one in (text, "secret", "", None)]
        expected = [
            one for value in from_text(pa.array(good), kind, "", "").to_pylist() for one in (value, None, None, None)
        ]
        assert usable_values(pa.array(texts), kind).to_pylist() == expected


def test_only_whole_numbers_have_a_largest_integer() -> None:
    assert largest_integer(pa.array([3.0, -520_000_000.0, None, float("nan")])) == 520_000_000
    assert largest_integer(pa.array([3.0, 520_000_000.5])) == 0
    assert largest_integer(pa.array([], pa.float64())) == 0
