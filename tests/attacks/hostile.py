"""What one user can write into a log: values for every column, and writers of every form of input.

`VALUES` are what a device may send. The writers are as those of a correct logger; `Raw` is put into the
file as it is, as a logger that quotes and escapes nothing would.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import quote

import h3
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import shapely

from sfumato.transforms.inputs.text_values import text_array
from tests.seeds import seeded_rng


@dataclass(frozen=True)
class Raw:
    """Bytes for CSV or JSON that no correct logger writes."""

    data: bytes


Row = dict[str, Any]
COLUMNS = ("user_id", "latitude", "longitude", "t", "kind", "value", "note")

_WORDS = """
    guest-7 now today NOW Today tomorrow yesterday midnight noon epoch NaT NaN nan NAN -nan inf Inf -inf +inf
    Infinity -Infinity infinity null NULL Null None none nil NA N/A n/a #N/A <NA> undefined missing unknown true
    True TRUE false False yes no on off k0 K0 other total everybody \\N \\0 -- - + . , ; | " "" ' ` ~ * ? % $ # @ !
    & && || () [] {} <> =1+1 @SUM(A1) -2+3 ../../etc/passwd C:\\x file:///x gs://x http://x
    <script>alert(1)</script> {{7*7}} ${x} %s %00 SELECT 0x1F 0b1 0o7 1e5 1E5 1e400 -1e400 1e-400 1.5.2 1,5 1_000 ١٢
    ７ ½ ² 1e 1d 1f 0 -0 00 007 +7 7. .7 7.0 7.5 -7 2147483647 2147483648 -2147483649 4294967296 9007199254740993
    9223372036854775807 9223372036854775808 -9223372036854775808 -9223372036854775809 18446744073709551615
    18446744073709551616 505000000 91 -91 180 181 -181 360 90.0000001 1795168800 1795168800000 -1 9e12 9e18
    2026-11-20 2026-11-20T10:00:00 2026-11-20T10:00:00Z 2026-11-20T10:00:00+14:00 2026-11-20T10:00:00+99:00
    2026-11-20T24:00:00 2026-11-20T10:00:60 2026-02-30 2026-13-01 0000-01-01 9999-12-31 99999-01-01 1600-01-01
    2262-04-12 2026-W47-5 2026-324 20261120 11/20/2026 20.11.2026 20-11-2026 Nov-20-2026 10:00 10:00:00 T10 2026
    2026-11 P1D PT1H 1/2 date('now') current_timestamp GETDATE()
""".split()  # noqa: SIM905
_TEXTS = [
    "", " ", "\t", "  7  ", " guest", "guest ", "a b", "a,b", "a;b", "a\tb", "a|b", 'a"b', '"a', 'a"', '"a"', '""',
    '"', "a\nb", "a\r\nb", "a\rb", "\n", "\r", "\r\n", "a\n", "\ra", "a\0b", "\0", "\x1a", "\x1b[31m", "\x7f",
    "\x85", "\u2028", "\u2029", "\ufeff", "\ufeffguest", "\u202eguest", "\u200b", "\u0301", "e\u0301", "\u00e9",
    "\U0001f600", "\ud800", "\udc00\ud800", "a\udfff", "\ufffe", "x" * 300, "7" * 5_000, "[" * 3_000,
    "\u4e2d" * 200, "20 November 2026", "1 2", "2026-11-20 10:00:00 UTC", "2026-11-20 10:00:00 Europe/Berlin",
    "2026-11-20  10:00", "1005,50.5,0.5,,k0,1,\n1006", 'x\n1005,50.5,0.5,,k0,1,\ny', '","', '"\n"', "k0\n",
    '{"user_id": 1005}', '"}\n{"user_id": 1005, "latitude": 50.5}',
]  # fmt: skip
_OBJECTS: list[Any] = [
    None, True, False, 0, -1, 7, 2**31, 2**53 + 1, 2**63 - 1, 2**63, -(2**63), 2**64 - 1, 2**64, 10**30, 10**4000,
    0.0, -0.0, 7.0, 7.5, 0.1, 5e-324, 1e308, 2.0**53, 2.0**63, 1e22, float("nan"), float("inf"), -float("inf"), [],
    [7], [[]], {}, {"a": 7}, {"user_id": 1005}, [None] * 50, b"\xff\xfe", b"\xed\xa0\x80", b"\xc0\x80", b"\x80abc",
]  # fmt: skip
_RAW = [
    b'"', b'"guest', b'guest"', b'gu"est', b'gu"es"t', b'"gu"est', b'""guest', b'"guest""', b"'", b"guest\rx",
    b"\r", b"\rguest", b"g\r1005,50.5,0.5,2026-11-20,k0,1,\r1006,50.5,0.5,2026-11-20,k0,1,", b"a,b", b",,,,,,,,",
    b"\\", b'\\"', b"\\u0000", b'"\\ud800"', b'"\\udc00\\ud800"', b'"\\u0000"', b'"\\x41"', b"NaN", b"-Infinity",
    b"1e999", b"-1e999", b"0" * 5_000, b"9" * 5_000, b"1" + b"0" * 400, b"0.1e-5", b"-", b"+7", b"07", b"0x7",
    b"tru", b"nul", b"[", b"]", b"{", b"}", b"[" * 100_000 + b"]" * 100_000,
    b'{"a":' * 50_000 + b"7" + b"}" * 50_000, b"[" * 100_000, b'{"a": 1, "a": 2}', b'7, "user_id": 1005',
    b'"guest", "latitude": 50.5, "user_id": 1005', b'"guest"} {"user_id": 1005}', b"//", b"/**/7", b'"\xff\xfe"',
    b"\xff", b"\xef\xbb\xbf7", b"\x00", b"[7", b'{"a"', b'"\\', b"7]", b"7}", b'"a"\r', b'"\ra"', b"\xc3",
]  # fmt: skip
VALUES: list[Any] = [*_WORDS, *_TEXTS, *_OBJECTS, *map(Raw, _RAW)]

_FLAT = b"\x01\x01\x00\x00\x00"
WKB: list[bytes | None] = [
    None, b"", b"\x01", _FLAT, _FLAT + b"\0" * 15, _FLAT + b"\0" * 17, b"\x02" + _FLAT[1:] + b"\0" * 16,
    b"\xff" * 21, shapely.to_wkb(shapely.Point()), shapely.to_wkb(shapely.Point(0.5, 50.5, 7)),
    shapely.to_wkb(shapely.box(0, 50, 1, 51)), shapely.to_wkb(shapely.Point(0.5, 50.5, 7), flavor="iso"),
    shapely.to_wkb(shapely.LineString([(0, 50), (1, 51)])), shapely.to_wkb(shapely.MultiPoint([(0.5, 50.5)])),
    shapely.to_wkb(shapely.GeometryCollection()),
    shapely.to_wkb(shapely.set_srid(shapely.Point(0.5, 50.5), 3857), include_srid=True),
    shapely.to_wkb(shapely.set_srid(shapely.Point(0.5, 50.5), 4326), include_srid=True, byte_order=0),
    shapely.to_wkb(shapely.Point(np.inf, 50.5)), shapely.to_wkb(shapely.Point(1e308, -1e308)), b"POINT (0.5 50.5)",
    b"\x01\x07\x00\x00\x00\x01\x00\x00\x00" * 50_000, b"\x01\x07\x00\x00\x00\xff\xff\xff\xff", b"\x00" * 21,
    b"\x01" * 29,
]  # fmt: skip
WKT: list[str | None] = [
    None, "", "POINT", "POINT EMPTY", "POINT(0.5 50.5)", "point z (0.5 50.5 7)", "POINT M (0.5 50.5 7)",
    "POINT (0.5)", "POINT (0.5, 50.5)", "POINT (nan 50.5)", "POINT (inf 50.5)", "POINT (1e999 50.5)",
    "POINT (0.5 50.5", "POINT 0.5 50.5)", "POINT (0.5 50.5) POINT (0.5 50.5)", "SRID=4326;POINT (0.5 50.5)",
    "SRID=3857;POINT (0.5 50.5)", "MULTIPOINT ((0.5 50.5))", "POLYGON ((0 50, 1 50, 1 51, 0 50))",
    "GEOMETRYCOLLECTION EMPTY", "GEOMETRYCOLLECTION (" * 50_000, "CURVEPOLYGON EMPTY",
    "GEOMETRYCOLLECTION (" * 20_000 + "POINT (0 50)" + ")" * 20_000, "0101000000", "01" * 21, "0" * 42,
    "0101000000" + "f" * 32, "POINT\n(0.5\n50.5)", "POINT\r(0.5\r50.5)", "'POINT (0.5 50.5)'", "POINT (0.5 50.5)\0",
    "POINT (" + "5" * 5_000 + " 50)",
]  # fmt: skip
CELLS: list[Any] = [
    None, "", "8928308280fffff", "88283472b5fffff", "0", "-1", "f" * 16, "f" * 17, "8828_3472_b5fffff",
    " 88283472b5fffff", "0x88283472b5fffff", "88283472B5FFFFF", "now", "x" * 5_000, "f" * 5_000, "\u0661", "a\nb",
]  # fmt: skip


def of_others(count: int = 24) -> list[Row]:
    """The records of other users, with quotes, blanks and text of several scripts in them.

    They lie further inside the region than an H3 cell reaches, so that the middle of each one's cell is inside too.
    """
    rng = seeded_rng(3)
    kinds = ["k0", "k1", "k2"]
    notes = ["", "plain", 'a "quoted", note', "zwölf", "7", "two\nlines", "[]"]
    return [
        {
            "user_id": [f"v-{number}", 1000 + number, f"u, {number}"][number % 3],
            "latitude": round(float(rng.uniform(50.02, 50.98)), 6),
            "longitude": round(float(rng.uniform(-0.98, 0.98)), 6),
            "t": ["2026-11-20T10:00:00Z", "2026-11-20 11:30:00.25", "1795168800", "2026-11-20T10:00:00+02:00"][
                number % 4
            ],
            "kind": kinds[number % 3],
            "value": round(float(rng.random()) * 90, 3),
            "note": notes[number % 7],
        }
        for number in range(count)
    ]


def of_guest(column: str, value: Any, rows: int = 1) -> list[Row]:
    """The records of one user, who writes a value into a column."""
    row = {"user_id": "guest-7", "latitude": 50.5, "longitude": 0.5, "t": "2026-11-20T10:00:00Z", "kind": "k0"}
    return [{**row, "value": 7.5, "note": "", column: value}] * rows


def placed(others: list[Row], guest: list[Row], place: str) -> list[Row]:
    """Puts a guest's rows among those of others: first, middle or last."""
    cut = {"first": 0, "middle": len(others) // 2, "last": len(others)}[place]
    return [*others[:cut], *guest, *others[cut:]]


def _csv_field(value: Any) -> bytes:
    if isinstance(value, Raw):
        return value.data
    if isinstance(value, bytes):
        raw = value
    elif isinstance(value, list | dict):
        raw = json.dumps(value).encode()
    else:
        raw = "" if value is None else str(value) if not isinstance(value, str) else value
        raw = raw.encode("utf-8", "surrogatepass") if isinstance(raw, str) else raw
    return b'"' + raw.replace(b'"', b'""') + b'"' if set(raw) & set(b'",\r\n') else raw


def csv_bytes(rows: list[Row], columns: tuple[str, ...] = COLUMNS, line_end: bytes = b"\n") -> bytes:
    """Returns CSV as RFC 4180 has it."""
    lines = [",".join(columns).encode(), *(b",".join(_csv_field(row[name]) for name in columns) for row in rows)]
    return line_end.join(lines) + line_end


def _json_value(value: Any) -> bytes:
    if isinstance(value, Raw):
        return value.data
    if isinstance(value, bytes):
        return b'"' + value.replace(b"\\", b"\\\\").replace(b'"', b'\\"') + b'"'
    return json.dumps(value).encode()


def ndjson_bytes(rows: list[Row], columns: tuple[str, ...] = COLUMNS) -> bytes:
    """Returns an object a line, as Python writes it. Every other row leaves out the fields without a value."""
    lines = []
    for number, row in enumerate(rows):
        names = [name for name in columns if number % 2 or row[name] is not None]
        lines.append(b"{" + b", ".join(b'"%s": %s' % (name.encode(), _json_value(row[name])) for name in names) + b"}")
    return b"\n".join(lines) + b"\n"


def write_csv(rows: list[Row], folder: Path) -> Path:
    return _written(folder / "log.csv", csv_bytes(rows))


def write_csv_with_cr_lf(rows: list[Row], folder: Path) -> Path:
    return _written(folder / "log.csv", csv_bytes(rows, line_end=b"\r\n"))


def write_ndjson(rows: list[Row], folder: Path) -> Path:
    return _written(folder / "log.ndjson", ndjson_bytes(rows))


def _written(path: Path, content: bytes) -> Path:
    path.write_bytes(content)
    return path


def _as_text(value: Any) -> str | bytes | None:
    return value if value is None or isinstance(value, str | bytes) else str(value)


def _as_number(value: Any) -> float | None:
    try:
        return None if isinstance(value, str | bytes | list | dict | Raw | bool) else float(value)
    except (TypeError, OverflowError):
        return None


def write_parquet(rows: list[Row], folder: Path) -> Path:
    """Declared types: text as it is, numbers where a value is one."""
    names = {"user_id": _as_text, "kind": _as_text, "note": _as_text, "t": _as_text}
    arrays = {
        name: text_array([None if isinstance(row[name], list | dict | Raw) else as_kind(row[name]) for row in rows])
        for name, as_kind in names.items()
    }
    numbers = {
        name: pa.array([_as_number(row[name]) for row in rows], pa.float64())
        for name in ("latitude", "longitude", "value")
    }
    seconds = [row["t"] if type(row["t"]) is int and abs(row["t"]) < 2**63 else 1_795_168_800 for row in rows]
    table = pa.table({**arrays, **numbers, "t": pa.array(seconds, pa.int64())})
    pq.write_table(table, folder / "log.parquet", row_group_size=17)
    return folder / "log.parquet"


def write_hive(rows: list[Row], folder: Path, column: str) -> Path:
    """Writes a folder for each value of a column."""
    place = folder / "logs"
    shutil.rmtree(place, ignore_errors=True)
    groups: dict[str, list[Row]] = {}
    for row in rows:
        groups.setdefault(
            quote(row[column] if isinstance(row[column], bytes) else str(row[column]), safe=""), []
        ).append(row)
    for value, own in groups.items():
        (place / f"{column}={value}").mkdir(parents=True)
        content = csv_bytes(own, tuple(name for name in COLUMNS if name != column))
        (place / f"{column}={value}" / "log.csv").write_bytes(content)
    return place


def with_geometry(rows: list[Row], others: Callable[[float, float], Any]) -> list[Row]:
    """Replaces the coordinates of rows without a geometry by one."""
    return [
        {**row, "geometry": row["geometry"] if "geometry" in row else others(row["longitude"], row["latitude"])}
        for row in rows
    ]


def write_geoparquet(rows: list[Row], folder: Path) -> Path:
    """Writes well-known binary as GeoParquet 1.1 has it."""
    rows = with_geometry(rows, lambda x, y: shapely.to_wkb(shapely.Point(x, y)))
    path = write_parquet(rows, folder)
    geo = {"version": "1.1.0", "primary_column": "geometry", "columns": {"geometry": {"encoding": "WKB"}}}
    table = pq.read_table(path).drop_columns(["latitude", "longitude"])
    table = table.append_column("geometry", pa.array([row["geometry"] for row in rows], pa.binary()))
    pq.write_table(table.replace_schema_metadata({"geo": json.dumps(geo)}), path, row_group_size=17)
    return path


_WITH_PLACE = ("user_id", "geometry", "t", "kind", "value", "note")


def write_wkt_csv(rows: list[Row], folder: Path) -> Path:
    rows = with_geometry(rows, lambda x, y: f"POINT ({x} {y})")
    return _written(folder / "log.csv", csv_bytes(rows, _WITH_PLACE))


def write_wkt_ndjson(rows: list[Row], folder: Path) -> Path:
    rows = with_geometry(rows, lambda x, y: f"POINT ({x} {y})")
    return _written(folder / "log.ndjson", ndjson_bytes(rows, _WITH_PLACE))


def write_cells(rows: list[Row], folder: Path) -> Path:
    rows = with_geometry(rows, lambda x, y: h3.latlng_to_cell(y, x, 8))
    return _written(folder / "log.csv", csv_bytes(rows, _WITH_PLACE))


WRITERS: dict[str, Callable[[list[Row], Path], Path]] = {
    "csv": write_csv,
    "csv, CR LF": write_csv_with_cr_lf,
    "ndjson": write_ndjson,
    "parquet": write_parquet,
}
