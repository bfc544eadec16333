"""Values of text, against Python's own parsers, and each by itself."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from sfumato.schemas.locations import TIME_TYPE
from sfumato.transforms.inputs.text_values import canonical_text, parsed, text_array, values_of

TIMES = [
    "2026-11-20", "2026-11-20 10:00:00", "2026-11-20T10:00:00.25", "2026-11-20T10:00:00Z", "2026-11-20T10:00:00+02:00",
    "2026-11-20 10:00:00.123456-0530", "1969-12-31T23:59:59.5Z", "2024-02-29", "2000-02-29", "2026-11-20T10:00",
]  # fmt: skip
NO_TIMES = [
    "now", "today", "NOW", "tomorrow", "midnight", "NaT", "2026-02-29", "2100-02-29", "2026-04-31", "2026-11-20T24:00",
    "2026-11-20T10:00:60", "20-11-2026", "11/20/2026", "2026-W47-5", "12:00", "9e12",
    "-1e300", "2026-11-20T10:00:00 UTC",
]  # fmt: skip
NUMBERS = ["1", "-2.5e3", "+5", " 7\t", ".5", "5.", "1E-5", "0", "-0", "1e308", "0" * 400 + "1"]
NO_NUMBERS = [
    "inf", "-Infinity", "nan", "NaN", "1e400", "9" * 5000, "0x10", "1_000", "1,5", "\u0661", "true", "1 2", "e5", "--1",
]  # fmt: skip
HOSTILE = [*NO_TIMES, *NO_NUMBERS, "guest-7", "NULL", "NA", b"\xff\xfe1", b"\xed\xa0\x80", "a\0b", "a\rb", "\u202e7"]
KINDS = {"time": TIME_TYPE, "number": pa.float64(), "integer": pa.int64(), "flag": pa.bool_(), "text": pa.string()}


def expected(text: str) -> datetime:
    found = datetime.fromisoformat(text)
    return found.replace(tzinfo=UTC) if found.tzinfo is None else found


@pytest.mark.parametrize("texts", [*([text] for text in TIMES), TIMES])
def test_times_alone_and_mixed(texts: list[str]) -> None:
    found = parsed(pa.array([*texts, None]), TIME_TYPE)
    assert found.type == TIME_TYPE
    assert found.to_pylist() == [*map(expected, texts), None]


def test_seconds_and_finer_than_microseconds() -> None:
    texts = ["1795168800", "-1.5", "2026-11-20T10:00:00.123456789Z", "9999-12-31 23:59:59.999999999", "1e3"]
    found = parsed(pa.array(texts), TIME_TYPE).cast(pa.int64()).to_pylist()
    assert found == [1_795_168_800_000_000, -1_500_000, 1_795_168_800_123_456, 253_402_300_799_999_999, 1_000_000_000]


def test_numbers_are_pythons_and_finite() -> None:
    assert parsed(pa.array(NUMBERS), pa.float64()).to_pylist() == [float(text) for text in NUMBERS]
    assert parsed(pa.array(["7", "7.0", "-9000000000000000001", "7.5", "1e30"]), pa.int64()).to_pylist() == [
        7, 7, None, None, None,
    ]  # fmt: skip


@pytest.mark.parametrize(("texts", "kind"), [(NO_TIMES, TIME_TYPE), (NO_NUMBERS, pa.float64()), (["yes"], pa.bool_())])
def test_words_of_a_parser_are_missing(texts: list[str], kind: pa.DataType) -> None:
    assert parsed(pa.array(texts), kind).to_pylist() == [None] * len(texts)


@pytest.mark.parametrize("kind", KINDS.values(), ids=list(KINDS))
def test_no_value_decides_how_another_is_parsed(kind: pa.DataType) -> None:
    texts = [*TIMES, *NUMBERS, *HOSTILE, "true", "False", "1"]
    alone = [parsed(text_array([text]), kind).cast(pa.binary() if kind == pa.string() else kind)[0] for text in texts]
    for guest in HOSTILE:
        column = parsed(text_array([*texts, guest]), kind)
        column = column.cast(pa.binary()) if kind == pa.string() else column
        assert [one.as_py() for one in alone] == column.to_pylist()[:-1], guest


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (7, "7"), (7.0, "7"), (np.int64(7), "7"), (np.float64(7), "7"), (-0.0, "0"), (7.5, "7.5"), (True, "true"),
        (np.bool_(False), "false"), ("7", "7"), (2**70, str(2**70)), (2.0**60, repr(2.0**60)), (None, None),
        ([7], None), ({}, None), (float("nan"), None), (float("inf"), None), (10**5000, None), (1j, None),
    ],
    ids=lambda value: None if isinstance(value, str) else type(value).__name__,
)  # fmt: skip
def test_ids_have_one_text_in_every_format(value: Any, text: str | None) -> None:
    assert canonical_text(value) == text


def test_objects_of_json_and_frames() -> None:
    values = [1, 2.5, True, "3", " 4", 2**70, 10**400, None, [1], {}, float("nan"), "x", np.float32(0.5), "\ud800"]
    numbers = [1.0, 2.5, None, 3.0, 4.0, 2.0**70, None, None, None, None, None, None, 0.5, None]
    assert values_of(values, pa.float64()).to_pylist() == numbers
    assert values_of(["\ud800"], pa.string()).cast(pa.binary()).to_pylist() == [b"\xed\xa0\x80"]
