"""Logs as text, CSV and NDJSON: each line by itself, values by the role of their column, refusals without a value."""

from __future__ import annotations

import gzip
import json
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest

from sfumato.schemas.errors import DataError, RequestError
from sfumato.schemas.locations import TIME_TYPE, LocationColumns
from sfumato.schemas.log_layout import LogLayout
from sfumato.transforms.inputs import text_lines
from sfumato.transforms.inputs.data_frame import table_of
from sfumato.transforms.inputs.log_file import LogFile
from sfumato.transforms.inputs.log_reader import inspect_log, read_batches, slice_file
from sfumato.transforms.inputs.text_values import canonical_text, parsed, text_array, values_of

HEADER = "user_id,latitude,longitude\n"


def rows(
    path: Path,
    content: str | bytes,
    layout: LogLayout | None = None,
    **columns: Any,
) -> list[dict[str, Any]]:
    """The records that a job reads from a file of this content."""
    path.write_bytes(content.encode(errors="surrogatepass") if isinstance(content, str) else content)
    read = LocationColumns(**columns)
    log = LogFile(str(path), layout=layout or LogLayout())
    inspect_log(log, read)
    return [row for part in slice_file(log) for batch in read_batches(part, read) for row in batch.to_pylist()]


def columns_of(path: Path, content: bytes) -> list[pa.Array]:
    """The columns of these records, whose texts may be no UTF-8."""
    path.write_bytes(content)
    batches = [batch for part in slice_file(LogFile(str(path))) for batch in read_batches(part, LocationColumns())]
    return [pa.concat_arrays([batch.column(place) for batch in batches]) for place in range(3)]


def small(monkeypatch: pytest.MonkeyPatch, **sizes: int) -> None:
    """Chunks, records or slices of so many bytes, so that short files have several."""
    for name, size in sizes.items():
        monkeypatch.setattr(text_lines, f"{name.upper()}_BYTES", size)


@pytest.mark.parametrize(
    "content",
    [
        HEADER + "007,52.5,13.5\n",
        HEADER + "007,52.5,13.5",  # no line end
        HEADER.replace("\n", "\r\n") + "007,52.5,13.5\r\n\r\n",
        "\ufeff" + HEADER + '"007","52.5","13.5"\n',
        "note,longitude,user_id,note,latitude\n" + '"a, ""b""",13.5,007,x,52.5\n',  # names of unread columns repeat
        "longitude;user_id;latitude\n13.5;007;52.5\n",
    ],
)
def test_one_record_in_many_spellings(content: str, tmp_path: Path) -> None:
    (found,) = rows(tmp_path / "log.csv", content)
    assert found == {"user_id": "007", "latitude": 52.5, "longitude": 13.5}


def test_an_id_is_missing_where_it_is_empty_a_number_also_as_na(tmp_path: Path) -> None:
    """NA is the code of Namibia and may be an id; as a number it is what R writes for a missing one."""
    found = rows(tmp_path / "log.csv", HEADER + "NA,52.5,13.5\n,52.5,13.5\nnull,NA,\n")
    assert [(row["user_id"], row["latitude"], row["longitude"]) for row in found] == [
        ("NA", 52.5, 13.5), (None, 52.5, 13.5), ("null", None, None),
    ]  # fmt: skip


def test_gzip_of_several_members_is_read_to_its_end(tmp_path: Path) -> None:
    content = gzip.compress((HEADER + "a,1,2\n").encode()) + gzip.compress(b"b,3,4\n")
    assert [row["user_id"] for row in rows(tmp_path / "log.csv.gz", content)] == ["a", "b"]


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("log.csv", HEADER.encode("latin-1").replace(b"user", b"us\xe9r") + b"secret,1,2\n"),
        ("log.csv", (HEADER + "secret,1,2\n").encode("utf-16")),
        ("log.csv", (HEADER + "secret,1,2\n").replace("\n", "\r")),
        ("log.csv", "\n" + HEADER + "secret,1,2\n"),
        ("log.csv", "secret,52.5,13.5\n"),
        ("log.csv", HEADER.replace("\n", ",13.5\n") + "secret,1,2,3\n"),  # a record for a header, by its last column
        ("log.csv", "user_id,user_id,latitude,longitude\nsecret,2,3,4\n"),
        ("log.csv", b"secret,user_id" * 100_000),  # no line end
        ("log.ndjson", '[{"user_id": "secret", "latitude": 1, "longitude": 2}]'),
    ],
)
def test_what_is_no_csv_or_json_is_refused_without_its_values(name: str, content: Any, tmp_path: Path) -> None:
    with pytest.raises((DataError, RequestError)) as refused:
        rows(tmp_path / name, content)
    assert name in str(refused.value)
    assert "secret" not in str(refused.value)


@pytest.mark.parametrize(
    ("encoding", "stated"),
    [
        ("utf-16", "UTF-16"),
        ("utf-32", "UTF-32"),
        ("utf-16-le", "UTF-16LE"),
        ("utf-16-be", "UTF-16BE"),
        ("utf-32-le", "UTF-32LE"),
        ("utf-32-be", "UTF-32BE"),
    ],
)
def test_another_encoding_is_refused_with_its_command(encoding: str, stated: str, tmp_path: Path) -> None:
    with pytest.raises(DataError, match=f"iconv -f {stated} -t UTF-8"):
        rows(tmp_path / "log.csv", (HEADER + "secret,1,2\n").encode(encoding))


def test_ids_of_another_encoding_stay_different_users(tmp_path: Path) -> None:
    content = HEADER.encode() + b"J\xfcrgen,1,2\nJ\xf6rgen,3,4\n"  # Windows-1252
    ids, *_ = columns_of(tmp_path / "log.csv", content)
    assert ids.cast(pa.binary()).to_pylist() == [b"J\xfcrgen", b"J\xf6rgen"]


GOOD = 'a,1.5,2\n"b, ""q""","2",3\n\nc\u00e9, 3 ,4\r\n'
NOTHING = (None, None, None)


@pytest.mark.parametrize(
    ("line", "found"),
    [
        ("g,1\n", [NOTHING]),
        ("g,1,2,3\n", [NOTHING]),
        ("g\rv,5,6\rv,5,6\n", [NOTHING]),
        ("g\rv,5,6\n", [("g\rv", 5, 6)]),
        ('"g\nv,5,6\n",5,6\n', [("g\nv,5,6\n", 5, 6)]),
        ('"g\r\nv",5,6\r\n', [("g\r\nv", 5, 6)]),
        ('"g,5,6\n', [NOTHING]),
        ('g,5,"6\n', [NOTHING]),
        ("g's 6\",5,6\n", [("g's 6\"", 5, 6)]),
        ('{"a": "b"},5,6\n', [('{"a": "b"}', 5, 6)]),
        ('g"h,"5,6\n', [NOTHING]),
        ('"g"h,5,6\n', [("gh", 5, 6)]),
        ("g\0h,5,6\n", [("g\0h", 5, 6)]),
        ('"",5,6\n', [(None, 5, 6)]),
        ("g,+5,6e0\n", [("g", 5, 6)]),
        (" \n", [NOTHING]),
    ],
)
@pytest.mark.parametrize("place", ["first", "middle", "last"])
@pytest.mark.parametrize("chunk", [None, 40])
def test_a_line_is_read_by_itself(
    line: str, found: list[Any], place: str, chunk: int | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever it holds, the rows around it stay, and no line of it counts as another user's."""
    if chunk is not None:
        small(monkeypatch, chunk=chunk)
    content = {"first": line + GOOD, "middle": GOOD + line + GOOD, "last": GOOD + line}[place]
    good = [("a", 1.5, 2), ('b, "q"', 2, 3), ("c\u00e9", 3, 4)] * (2 if place == "middle" else 1)
    read = [tuple(row.values()) for row in rows(tmp_path / "log.csv", HEADER + content)]
    assert sorted(read, key=str) == sorted([*good, *found], key=str)


def test_a_value_that_is_not_utf8_is_a_value(tmp_path: Path) -> None:
    users, latitudes, _ = columns_of(tmp_path / "log.csv", HEADER.encode() + b"\xe9,1,2\nb,3\xff,4\n")
    assert users.cast("binary").to_pylist() == [b"\xe9", b"b"]
    assert latitudes.to_pylist() == [1, None]


@pytest.mark.parametrize("line", [b"g,caf\xc3\n", b"\xff\n", b"g,5,6,a\xff,b\n", b'g,5,6,"a\xff"\n'])
def test_a_torn_line_that_is_not_utf8_is_one_row(line: bytes, tmp_path: Path) -> None:
    users, *_ = columns_of(tmp_path / "log.csv", HEADER.encode() + b"a,1,2\n" + line + b"b,3,4\n")
    assert sorted(map(str, users.to_pylist())) == ["None", "a", "b"]


@pytest.mark.parametrize("suffix", ["csv", "ndjson"])
@pytest.mark.parametrize("long", [700, 1_100, 1_900])
def test_a_long_record_is_measured_whole(
    suffix: str, long: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whether it is too long does not depend on the bytes before it."""
    small(monkeypatch, chunk=1_000, max_record=1_000)
    head, record = HEADER.replace("\n", ",note\n"), "{},1,2,{}\n"
    if suffix == "ndjson":
        head, record = "", '{{"user_id": "{}", "latitude": 1, "longitude": 2, "note": "{}"}}\n'
    for shift in range(0, 900, 74):
        text = head + record.format("g", "x" * shift) + record.format("u", "y" * long) + record.format("v", "")
        users, *_ = columns_of(tmp_path / f"log.{suffix}", text.encode())
        assert sorted(map(str, users.to_pylist())) == (["None", "g", "v"] if long > 1_000 else ["g", "u", "v"])


@pytest.mark.parametrize(
    ("name", "content"), [("log.csv", ""), ("log.csv", HEADER), ("log.ndjson", ""), ("log.ndjson", "\n \n")]
)
def test_a_file_of_nothing_has_no_rows(name: str, content: str, tmp_path: Path) -> None:
    assert rows(tmp_path / name, content) == []


def test_a_line_that_is_too_long_is_one_row(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Slices do not begin inside it either, where the rest of it would be another record."""
    small(monkeypatch, chunk=64, max_record=300, slice=200)
    for length in range(2_000, 2_064, 7):
        read = rows(tmp_path / "log.csv", HEADER + "a,1,2\n" + "x" * length + ",1,2\nb,3,4\n" + "c,5,6\n" * 200)
        assert [str(row["user_id"]) for row in read if row["user_id"] != "c"] in (
            ["a", "None", "b"],
            ["None", "a", "b"],
        )


@pytest.mark.parametrize("damage", [3, 9, 40, None])
def test_gzip_that_ends_too_early_or_was_changed_is_damaged(damage: int | None, tmp_path: Path) -> None:
    packed = bytearray(gzip.compress((HEADER + "a,1,2\n" * 900).encode()))
    if damage is None:
        packed[-6] ^= 1  # of the checksum
    with pytest.raises(DataError, match="gzip data are damaged"):
        rows(tmp_path / "log.csv.gz", bytes(packed[: None if damage is None else -damage]))


def test_a_value_of_another_kind_is_missing(tmp_path: Path) -> None:
    """It may be one user's, so it ends no run; the other values of its row and column stay."""
    content = (
        HEADER.replace("\n", ",t\n") + "a,1,2,2026-11-20T10:00:00Z\nb,north,2,yesterday\nc,1e999,NA,1795168800.5\n"
    )
    first, second, third = rows(tmp_path / "log.csv", content, time="t")
    assert (first["latitude"], first["t"].hour) == (1, 10)
    assert (second["user_id"], second["latitude"], second["longitude"], second["t"]) == ("b", None, 2, None)
    assert (third["longitude"], third["t"].timestamp()) == (None, 1795168800.5)


@pytest.mark.parametrize("line_end", ["\n", "\r\n"])
def test_a_record_that_is_too_long_is_one_row(line_end: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The lines of its value are nobody's records, and the lines after a quote that nobody closes are."""
    small(monkeypatch, chunk=64, max_record=300, slice=200)
    others = [f"v{number},5,6,{line_end}" for number in range(60)]
    for length in range(30, 60, 7):
        for note in ('"' + "v1,7,8,\n" * length + '"', '"' + '""\n' * 3 * length + '"', '"' + "v1,7,8,\n" * length):
            lines = [*others[:20], f"g,1,2,{note}{line_end}", *others[20:]]
            read = rows(tmp_path / "log.csv", HEADER.replace("\n", f",note{line_end}") + "".join(lines))
            found = sorted((row["user_id"], row["latitude"]) for row in read if row["user_id"] is not None)
            forged = [("v1", 7.0)] * (length - 1) if not note.endswith('"') else []  # no CSV: a quote is left open
            assert [one for one in found if one[0] != "g" and one not in forged] == sorted(
                (f"v{number}", 5.0) for number in range(60)
            )


@pytest.mark.parametrize("chunk", [None, 40])
def test_a_byte_order_mark_is_of_the_file_only(
    chunk: int | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if chunk is not None:
        small(monkeypatch, chunk=chunk)
    read = rows(tmp_path / "log.csv", "\ufeff" + HEADER + "\ufeffa,1,2\n" * 9)
    assert {row["user_id"] for row in read} == {"\ufeffa"}


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
def test_a_json_value_of_another_kind_is_missing(line: str, found: tuple[Any, ...], tmp_path: Path) -> None:
    """It may be one user's, so it ends no run, and the records around it stay as they are."""
    good = '{"user_id": 5, "latitude": 1, "longitude": 2}'
    read = rows(tmp_path / "log.ndjson", "\n".join([good, line, good]))
    assert read[0] == read[2] == {"user_id": "5", "latitude": 1, "longitude": 2}
    assert tuple(read[1].values()) == found


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
    assert values_of(values, pa.float64(), LogLayout()).to_pylist() == numbers
    assert values_of(["\ud800"], pa.string(), LogLayout()).cast(pa.binary()).to_pylist() == [b"\xed\xa0\x80"]


def test_decimal_commas_are_read_where_the_option_says_so(tmp_path: Path) -> None:
    content = "user_id;latitude;longitude\n1;52,52;13,4\n2;-0,5;1\n"
    expected = [
        {"user_id": "1", "latitude": 52.52, "longitude": 13.4},
        {"user_id": "2", "latitude": -0.5, "longitude": 1.0},
    ]
    assert rows(tmp_path / "log.csv", content, LogLayout(decimal=",")) == expected
    with_text = rows(tmp_path / "log.csv", content + '3;1.234;"7,5"\n4;1.234,5;x\n', LogLayout(decimal=","))
    assert with_text[:2] == expected
    assert [row["latitude"] for row in with_text[2:]] == [None, None]  # thousands are no decimals
    assert [row["longitude"] for row in with_text[2:]] == [7.5, None]
    assert [row["latitude"] for row in rows(tmp_path / "log.csv", content)] == [None, None]


@pytest.mark.parametrize(
    ("order", "text", "expected"),
    [
        ("dmy", "27.11.2026 08:30", datetime(2026, 11, 27, 8, 30, tzinfo=UTC)),
        ("dmy", "7.1.2026 8:30:15", datetime(2026, 1, 7, 8, 30, 15, tzinfo=UTC)),
        ("dmy", "7/1/2026, 8:30", datetime(2026, 1, 7, 8, 30, tzinfo=UTC)),
        ("dmy", "07-01-2026", datetime(2026, 1, 7, tzinfo=UTC)),
        ("mdy", "1/7/2026 18:30", datetime(2026, 1, 7, 18, 30, tzinfo=UTC)),
        ("mdy", "11/27/2026 08:30", datetime(2026, 11, 27, 8, 30, tzinfo=UTC)),
        ("dmy", "2026-11-27T08:30:00+01:00", datetime(2026, 11, 27, 7, 30, tzinfo=UTC)),
        ("mdy", "27.11.2026 08:30", None),
        ("dmy", "7/1/2026 8:30 PM", datetime(2026, 1, 7, 20, 30, tzinfo=UTC)),
        ("mdy", "1/7/2026 12:05:06.5 a.m.", datetime(2026, 1, 7, 0, 5, 6, 500_000, tzinfo=UTC)),
        ("mdy", "1/7/2026 12 pm", datetime(2026, 1, 7, 12, tzinfo=UTC)),
        ("dmy", "2026-11-27 08:30\u202fAM", datetime(2026, 11, 27, 8, 30, tzinfo=UTC)),
        ("mdy", "1/7/2026 13:30 PM", None),
        ("mdy", "1/7/2026 0:30 AM", None),
        ("dmy", "31.2.2026 8:30 PM", None),
        ("dmy", "31.2.2026", None),
        ("dmy", "1.2.26", None),
    ],
)
def test_dates_are_read_in_the_order_of_the_option(
    order: str, text: str, expected: datetime | None, tmp_path: Path
) -> None:
    content = f"user_id;latitude;longitude;t\n1;52.5;13.4;{text}\n"
    layout = LogLayout(dates=order)
    (row,) = rows(tmp_path / "log.csv", content, layout, time="t")
    assert row["t"] == expected
    record = json.dumps({"user_id": 1, "latitude": 52.5, "longitude": 13.4, "t": text}) + "\n"
    assert rows(tmp_path / "log.ndjson", record, layout, time="t") == [row]
    frame = table_of(pd.DataFrame({"t": [text]}), LocationColumns(time="t"), replace(layout, columns=("t",)))
    assert frame["t"].cast(TIME_TYPE).to_pylist() == [expected]
