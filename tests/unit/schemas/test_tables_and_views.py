"""What columns, forms of numbers, charts, tile servers and the timeline accept, and what they refuse."""

from __future__ import annotations

import json
import math
from dataclasses import asdict, replace
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from sfumato.schemas.charts import Curve, Quantile, RangeAnswer, readable
from sfumato.schemas.errors import RequestError
from sfumato.schemas.locations import MAX_CATEGORIES, Auxiliary, LocationColumns
from sfumato.schemas.moments import (
    BITS_SCHEMA,
    MOMENTS_SCHEMA,
    BitMeans,
    FixedPoint,
    MomentEstimate,
    ValueColumns,
    moment_cells_schema,
)
from sfumato.schemas.places import Places
from sfumato.schemas.release import CELLS_SCHEMA
from sfumato.schemas.requests.request_base import parts_of
from sfumato.schemas.rotation import Rotation
from sfumato.schemas.tile_server import tile_host
from sfumato.schemas.timeline import DatedRelease, PlaceChange, Spending
from tests.rejections import rejects

BASE = {"user_id": pa.int64(), "latitude": pa.float64(), "longitude": pa.float64()}


def auxiliary(column: str, categories: str | None) -> Auxiliary:
    """As a request makes it of its options."""
    return Auxiliary(column, assumed=True) if categories is None else Auxiliary(column, parts_of(categories))


def check(columns: LocationColumns, **types: pa.DataType) -> None:
    assert columns.check(pa.schema([*BASE.items(), *types.items()]), "f.parquet") == {}


@pytest.mark.parametrize(
    ("depth", "categories", "bits", "dtype"),
    [
        (1, 1, 2, "uint32"),
        (16, 1, 32, "uint32"),
        (15, 3, 32, "uint32"),
        (15, 4, 32, "uint32"),
        (15, 5, 33, "uint64"),
        (16, 2, 33, "uint64"),
        (20, 16, 44, "uint64"),
    ],
)
def test_places_have_as_many_bits_as_they_need(depth: int, categories: int, bits: int, dtype: str) -> None:
    places = Places(depth, categories)
    assert (places.bits, places.dtype, int(places.mask)) == (bits, dtype, 2**bits - 1)
    last = (categories - 1) << 2 * depth | 4**depth - 1
    assert last.bit_length() == bits or categories == 1


def test_columns_are_named_once_and_the_first_three_are_the_plain_ones() -> None:
    assert LocationColumns().names() == ["user_id", "latitude", "longitude"]
    many = LocationColumns(weight="latitude", auxiliary=Auxiliary("ill"))
    assert many.names() == ["user_id", "latitude", "longitude", "ill"]
    assert many.names_beside_coordinates() == ["user_id", "latitude", "ill"]
    assert (many.has_weights, many.categories, many.dwell_limit) == (True, 2, None)
    assert LocationColumns(time="t", max_dwell=5).dwell_limit == 5


@pytest.mark.parametrize("kind", [pa.float32(), pa.int16(), pa.uint64(), pa.dictionary(pa.int8(), pa.float64())])
def test_weights_are_numbers(kind: pa.DataType) -> None:
    check(LocationColumns(weight="w"), w=kind)


@pytest.mark.parametrize("kind", [pa.timestamp("ms"), pa.timestamp("ns", tz="UTC"), pa.int64(), pa.float64()])
def test_times_are_timestamps_or_seconds(kind: pa.DataType) -> None:
    check(LocationColumns(time="t"), t=kind)


@pytest.mark.parametrize(
    ("auxiliary", "kind"),
    [
        (Auxiliary("a"), pa.bool_()),
        (auxiliary("a", None), pa.bool_()),
        (Auxiliary("a", ("true", "false")), pa.bool_()),
        (auxiliary("a", None), pa.uint8()),
        (auxiliary("a", "0, 1,2"), pa.int32()),
        (auxiliary("a", "-1,7"), pa.int64()),
        (auxiliary("a", "a,b,c"), pa.string()),
        (auxiliary("a", "false,true"), pa.large_string()),
        (auxiliary("a", "a,b"), pa.dictionary(pa.int32(), pa.string())),
    ],
)
def test_categories_that_fit(auxiliary: Auxiliary, kind: pa.DataType) -> None:
    check(LocationColumns(auxiliary=auxiliary), a=kind)


@pytest.mark.parametrize(
    ("categories", "kind", "message"),
    [
        (None, pa.string(), r"holds string; give its values as --categories a,b,c \(they are published.*is private"),
        (None, pa.float64(), "must hold booleans, integers or text of a few values, it holds double"),
        (None, pa.timestamp("s"), "must hold booleans, integers or text"),
        ("a,b", pa.int64(), "its categories are whole numbers, or false,true for 0 and 1; give --categories 0,1,2"),
        ("0,01", pa.int64(), "whole numbers"),
        ("0,18446744073709551616", pa.int64(), "whole numbers"),
        ("well,ill", pa.bool_(), "holds booleans, whose categories are false,true; got 'well,ill'"),
        ("false,true,maybe", pa.bool_(), "booleans"),
    ],
)
def test_categories_that_do_not_fit_the_column(categories: str | None, kind: pa.DataType, message: str) -> None:
    with pytest.raises(RequestError, match=message) as error:
        check(LocationColumns(auxiliary=auxiliary("status", categories)), status=kind)
    assert str(error.value).startswith("f.parquet: column 'status' ")


@pytest.mark.parametrize(
    ("categories", "message"),
    [
        ("", "categories: one of them is empty"),
        ("a,,b", "categories: one of them is empty, in 'a,,b'"),
        ("a", "categories: give 2 to 16, got 'a'"),
        ("a,b, a", "categories: 'a' is there twice"),
        (",".join(map(str, range(MAX_CATEGORIES + 1))), "categories: too many, 17; there may be 16"),
    ],
)
def test_lists_that_cannot_be(categories: str, message: str) -> None:
    with pytest.raises(RequestError, match=message):
        auxiliary("a", categories)
    assert len(auxiliary("a", ",".join(map(str, range(MAX_CATEGORIES)))).categories) == MAX_CATEGORIES


@pytest.mark.parametrize(
    ("columns", "types", "message"),
    [
        (LocationColumns(weight="w"), {}, "no column 'w'; set --weight_column to one of"),
        (LocationColumns(time="t"), {}, "no column 't'; set --time_column to one of"),
        (LocationColumns(auxiliary=Auxiliary("a")), {}, "no column 'a'; set --auxiliary to one of"),
        (LocationColumns(weight="w"), {"w": pa.string()}, "column 'w' must hold weights as numbers, it holds string"),
        (LocationColumns(weight="w"), {"w": pa.bool_()}, "must hold weights as numbers"),
        (LocationColumns(time="t"), {"t": pa.string()}, "column 't' must hold timestamps, or seconds as numbers"),
        (LocationColumns(time="t"), {"t": pa.date32()}, "must hold timestamps"),
    ],
)
def test_columns_of_weights_and_times_are_checked(columns: LocationColumns, types: dict, message: str) -> None:
    with pytest.raises(RequestError, match=message):
        check(columns, **types)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"weight": "w", "time": "t"}, "weight_column, time_column: .*'w'.*'t'; give one"),
        ({"auxiliary": Auxiliary("user_id")}, "auxiliary: 'user_id' is the column of user ids"),
        *(({"max_dwell": bad}, "max_dwell: must be a finite number of seconds > 0") for bad in (0, -1, math.nan)),
        ({"max_dwell": math.inf}, "max_dwell"),
    ],
)
def test_columns_that_do_not_go_together(changes: dict, message: str) -> None:
    with pytest.raises(RequestError, match=message):
        LocationColumns(**changes)
    with rejects("auxiliary"):
        Auxiliary("")


def test_a_misspelt_column_is_named_with_the_nearest() -> None:
    schema = pa.schema([("user_id", pa.int64()), ("latitude", pa.float64()), ("longitude", pa.float64())])
    with pytest.raises(RequestError, match="no column 'latitud'; did you mean latitude\\?; set --latitude_column"):
        LocationColumns(latitude="latitud").check(schema, "f")


@pytest.mark.parametrize(
    ("form", "step", "low", "high"),
    [
        (FixedPoint(), 1.0, 0.0, 65535.0),
        (FixedPoint(8, 2), 0.25, 0.0, 63.75),
        (FixedPoint(3, -4), 16.0, 0.0, 112.0),
        (FixedPoint(8, 0, "shift", 100.0), 1.0, -100.0, 155.0),
        (FixedPoint(8, 0, "shift", -100.0), 1.0, 100.0, 355.0),
        (FixedPoint(8, 1, "split"), 0.5, -127.5, 127.5),
        (FixedPoint(52, 52), 2.0**-52, 0.0, 1 - 2.0**-52),
        (FixedPoint(52, -52, "split"), 2.0**52, -(2.0**104) + 2.0**52, 2.0**104 - 2.0**52),
        (FixedPoint(1), 1.0, 0.0, 1.0),
    ],
)
def test_steps_and_ranges(form: FixedPoint, step: float, low: float, high: float) -> None:
    assert (form.step, form.low, form.high) == (step, low, high)
    assert math.copysign(1, form.low) == (-1 if low < 0 else 1)  # no negative zero in a manifest


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"bits": 0}, "bits: must lie in 1..52, got 0"),
        ({"bits": 53}, "bits: must lie in 1..52, got 53"),
        ({"bits": -1}, "bits: must lie in 1..52, got -1"),
        ({"bits": True}, "bits: must lie in 1..52, got True"),
        ({"bits": math.nan}, "bits: must lie in 1..52, got nan"),
        ({"fraction_bits": 53}, "fraction_bits: must lie in -52..52, got 53"),
        ({"fraction_bits": -53}, "fraction_bits: must lie in -52..52, got -53"),
        ({"fraction_bits": False}, "fraction_bits: must lie in -52..52, got False"),
        ({"fraction_bits": math.nan}, "fraction_bits: must lie in -52..52, got nan"),
        ({"signed": "shift", "offset": math.nan}, "signed: shift:OFFSET needs a finite number, got nan"),
        ({"signed": "shift", "offset": math.inf}, "signed: shift:OFFSET needs a finite number, got inf"),
        ({"offset": 3.0}, "signed: shift:OFFSET needs a finite number, got 3.0"),
        ({"signed": "split", "offset": 3.0}, "signed: shift:OFFSET needs a finite number, got 3.0"),
    ],
)
def test_forms_that_cannot_be_are_refused(arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(RequestError, match=message):
        FixedPoint(**arguments)


@pytest.mark.parametrize("arguments", [{"bits": 4.5}, {"fraction_bits": 0.5}, {"signed": "both"}])
def test_forms_of_other_types_are_refused(arguments: dict[str, Any]) -> None:
    with pytest.raises(RequestError):
        FixedPoint(**arguments)


SCHEMA = pa.schema(
    {
        "user_id": pa.string(),
        "speed": pa.float32(),
        "city": pa.dictionary(pa.int32(), pa.string()),
        "latitude": pa.float64(),
        "longitude": pa.float64(),
        "big": pa.uint64(),
        "words": pa.list_(pa.string()),
    }
)


def test_columns_to_read_and_their_kinds() -> None:
    columns = ValueColumns("speed", group="city", latitude="latitude", longitude="longitude")
    assert columns.names() == ["user_id", "speed", "city", "latitude", "longitude"]
    assert columns.check(SCHEMA, "f") == {"speed": "floating-point numbers", "city": "text"}
    rows = ValueColumns("latitude", user_id=None, latitude="latitude", longitude="longitude")
    assert rows.names() == ["latitude", "longitude"]  # each once
    assert rows.check(SCHEMA, "f") == {"latitude": "floating-point numbers"}


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"column": "user_id"}, "column: 'user_id' is the column of user ids"),
        ({"column": "x", "group": "user_id"}, "group_by: 'user_id' is the column of user ids, or that of the values"),
        ({"column": "x", "group": "x"}, "group_by: 'x' is the column of user ids, or that of the values"),
    ],
)
def test_columns_that_are_two_things_are_refused(arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(RequestError, match=message):
        ValueColumns(**arguments)


def test_half_a_place_is_refused() -> None:
    with pytest.raises(RequestError):
        ValueColumns("x", latitude="latitude")


@pytest.mark.parametrize(
    ("columns", "message"),
    [
        (ValueColumns("height"), "f: no column 'height'; set --column to one of: user_id, speed"),
        (ValueColumns("city"), "f: column 'city' holds string, and must hold integers or floating-point numbers"),
        (ValueColumns("words"), "f: column 'words' .* must hold integers or floating-point numbers"),
        (ValueColumns("big"), "f: column 'big' holds uint64, and must hold integers"),
        (ValueColumns("speed", user_id="id"), "f: no column 'id'; set --user_id_column to one of"),
        (ValueColumns("speed", group="town"), "f: no column 'town'; set --group_by to one of"),
        (ValueColumns("speed", group="latitude"), "f: column 'latitude' holds double, and must hold categories"),
        (ValueColumns("speed", latitude="lat", longitude="longitude"), "f: no column 'lat'"),
        (ValueColumns("speed", latitude="city", longitude="longitude"), "f: column 'city' must hold degrees"),
    ],
)
def test_columns_that_are_not_there_or_hold_something_else_are_refused(columns: ValueColumns, message: str) -> None:
    with pytest.raises(RequestError, match=message):
        columns.check(SCHEMA, "f")


@pytest.mark.parametrize("name", ["mean", "stddev", "reports", "squashed", "read_probability"])
def test_a_value_for_every_bit(name: str) -> None:
    three = {key: np.zeros(3) for key in ("weight", "mean", "stddev", "reports", "squashed", "read_probability")}
    BitMeans("value", **three)
    with pytest.raises(ValueError, match=f"{name}: must hold one value for each of the 3 bits"):
        BitMeans("value", **{**three, name: np.zeros(2)})


def test_tables_have_the_fields_of_what_they_hold() -> None:
    assert MOMENTS_SCHEMA.names == list(MomentEstimate.__dataclass_fields__)
    assert BITS_SCHEMA.names == list(BitMeans.__dataclass_fields__)
    assert not any(field.nullable for field in (*MOMENTS_SCHEMA, *BITS_SCHEMA))


def test_cells_have_every_statistic_beside_the_place() -> None:
    schema = moment_cells_schema(["mean", "moment:3"])
    assert schema.names[:6] == ["cell_id", "depth", "west", "south", "east", "north"]
    assert schema.names[6:11] == ["mean_value", "mean_stddev", "mean_low", "mean_high", "mean_clients"]
    assert schema.names[11:16] == [f"moment:3_{name[5:]}" for name in schema.names[6:11]]
    drawn = [f"mean_{name}" for name in ("shrunk", "shrunk_stddev", "differs", "simultaneous_low", "simultaneous_high")]
    assert schema.names[16:] == [*drawn, "h3", "quadkey", "geometry"]
    assert schema.metadata == CELLS_SCHEMA.metadata  # GeoParquet


CURVE = Curve(np.array([0.0, 1.0]), np.array([0.2, 1.0]), np.array([0.1, 0.9]), np.array([0.3, 1.1]))


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("value", np.array([1.0, 0.0])),
        ("value", np.array([0.0, math.inf])),
        ("share", np.array([0.2, 1.2])),
        ("share", np.array([0.2])),
        ("low", np.array([0.25, 0.9])),
        ("high", np.array([0.3, 0.95])),
        ("high", np.array([0.3, math.nan])),
    ],
)
def test_curves_without_sense_are_refused(name: str, value: object) -> None:
    with pytest.raises(ValueError, match=r"^(value|share|low|high|low, high): must"):
        replace(CURVE, **{name: value})


@pytest.mark.parametrize("values", [(1.1, 1, 0, 2), (math.nan, 1, 0, 2), (0.5, 3, 0, 2), (0.5, math.nan, 0, 2)])
def test_quantiles_without_sense_are_refused(values: tuple[float, ...]) -> None:
    with pytest.raises(ValueError, match=r"^(share|value): must"):
        Quantile(*values)


@pytest.mark.parametrize(
    "values",
    [
        (1, 1, 5, 1, 3, 7), (2, 1, 5, 1, 3, 7), (0, math.inf, 5, 1, 3, 7), (0, 1, -5, 1, 0, 7),
        (0, 1, 5, math.nan, 3, 7),
        (0, 1, 5, 1, 6, 7), (0, 1, 5, 1, 3, 4), (0, 1, 5, 1, -1, 7), (0, 1, 5, 1, 3, math.inf),
    ],
)  # fmt: skip
def test_ranges_without_sense_are_refused(values: tuple[float, ...]) -> None:
    with pytest.raises(ValueError, match=r"^(low|users|stddev|users_low|users_high): must"):
        RangeAnswer(*values)


@pytest.mark.parametrize(
    ("name", "shown"),
    [
        ("plain café 東京", "plain café 東京"),
        ("a\tb\nc\x00", "a␉b␊c␀"),
        ("\u202egnp.exe", "⟨U+202E⟩gnp.exe"),
        ("zero\u200bwidth", "zero⟨U+200B⟩width"),
        ("half\ud800", "half⟨U+D800⟩"),
        (" both  ", "␣both␣␣"),
        ("  ", "␣␣"),
        ("", ""),
        ("<b>&amp;", "<b>&amp;"),  # markup is no matter here: names are only ever text
        ("x" * 500, "x" * 199 + "…"),
    ],
)
def test_names_do_nothing_but_be_read(name: str, shown: str) -> None:
    assert readable(name) == shown
    readable(name).encode()


@pytest.mark.parametrize(
    ("tiles", "host"),
    [
        ("https://tile.example.org/{z}/{x}/{y}.png", "https://tile.example.org"),
        ("https://maps.city-hall.gov:8443/wmts?layer=a&z={z}&col={x}&row={y}", "https://maps.city-hall.gov:8443"),
        ("https://a.b/{z}/{x}/{y}{r}.png", "https://a.b"),
        ("http://localhost:8080/{z}/{x}/{y}.png", "http://localhost:8080"),
        ("http://127.0.0.1/{z}/{y}/{x}", "http://127.0.0.1"),
    ],
)
def test_a_tile_servers_host_is_what_a_page_may_load_from(tiles: str, host: str) -> None:
    assert tile_host(tiles) == host


@pytest.mark.parametrize(
    "tiles",
    [
        "",
        "tile.example.org/{z}/{x}/{y}.png",
        "http://tile.example.org/{z}/{x}/{y}.png",  # anybody on the way would see what is looked at
        "https://{s}.example.org/{z}/{x}/{y}.png",
        "https://*.example.org/{z}/{x}/{y}.png",
        "https://example/{z}/{x}/{y}.png",
        "https://tile.example.org/{z}/{x}.png",
        "https://tile.example.org/{z}/{x}/{y}/{y}.png",
        "https://tile.example.org/{z}/{x}/{y}/{q}.png",
        "https://user:word@tile.example.org/{z}/{x}/{y}.png",
        "https://tile.example.org; script-src *;/{z}/{x}/{y}.png",
        "https://tile.example.org/{z}/{x}/{y}.png; script-src *",
        'https://tile.example.org/{z}/{x}/{y}.png"><script>',
        "https://tile.example.org/{z}/{x}/{y}.png\n",
        "https://tile.example.org /{z}/{x}/{y}.png",
        "https://tile.example.org:1234567/{z}/{x}/{y}.png",
        "https://tile.example.org:١/{z}/{x}/{y}.png",
        "javascript:alert('{z}{x}{y}')",
        "file:///{z}/{x}/{y}.png",
    ],
)
def test_what_could_widen_the_pages_policy_is_refused(tiles: str) -> None:
    with pytest.raises(ValueError, match=r"^tiles: must be the address of a tile server"):
        tile_host(tiles)


MANIFEST: dict[str, Any] = {
    "release_id": "bay-2026-11-20",
    "job": "heatmap",
    "created": "2026-11-21T03:00:00+00:00",
    "privacy": {
        "epsilon": 0.5,
        "delta": 0.0,
        "population": {"users": 1234.5},
        "randomness": {"source": "key file", "safe": True},
    },
    "parameters": {"warm_start": {"release_id": "bay-2026-11-19", "epsilon": 0.5}},
}


def night(**changes: Any) -> DatedRelease:
    return replace(DatedRelease.from_manifest("2026-11-20", "releases/2026-11-20", MANIFEST, "maps/a.js"), **changes)


def changed(**privacy: Any) -> dict[str, Any]:
    return MANIFEST | {"privacy": MANIFEST["privacy"] | privacy}


def test_a_night_says_what_its_manifest_says() -> None:
    assert night() == DatedRelease(
        date="2026-11-20",
        release_id="bay-2026-11-20",
        folder="releases/2026-11-20",
        job="heatmap",
        epsilon=0.5,
        delta=0.0,
        users=1234.5,
        created="2026-11-21T03:00:00+00:00",
        warm_start="bay-2026-11-19",
        map="maps/a.js",
        safe=True,
    )
    assert night().map == "maps/a.js"


def test_what_a_manifest_does_not_say_is_not_made_up() -> None:
    bare = DatedRelease.from_manifest("2026-11-20", "x", changed(population=None) | {"parameters": {}})
    assert (bare.users, bare.warm_start, bare.map) == (None, None, None)
    assert DatedRelease.from_manifest("2026-11-20", "x", changed(population={"users": None})).users is None
    assert (
        DatedRelease.from_manifest("2026-11-20", "x", changed(population={"users": -3.0})).users == 0
    )  # a count with noise
    assert not DatedRelease.from_manifest("2026-11-20", "x", changed(randomness={"source": "seed"})).safe


@pytest.mark.parametrize("missing", ["release_id", "job", "created", "privacy"])
def test_a_manifest_without_a_promise_is_refused(missing: str) -> None:
    manifest = {name: value for name, value in MANIFEST.items() if name != missing}
    with pytest.raises(RequestError, match="releases/2026-11-20: cannot be shown on the timeline"):
        DatedRelease.from_manifest("2026-11-20", "releases/2026-11-20", manifest)


@pytest.mark.parametrize("privacy", [{"epsilon": None}, {"epsilon": float("nan")}, {"delta": -1.0}, {"randomness": []}])
def test_a_promise_that_makes_no_sense_is_refused(privacy: dict[str, Any]) -> None:
    with pytest.raises(RequestError, match="cannot be shown on the timeline"):
        DatedRelease.from_manifest("2026-11-20", "x", changed(**privacy))


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("date", "2026-02-30"),
        ("date", "20 November"),
        ("folder", "../elsewhere"),
        ("folder", "/etc"),
        ("folder", "javascript:alert(1)"),
        ("folder", 'a"onclick="x'),
        ("map", "https://example.org/a.js"),
        ("map", "maps/../../a.js"),
        ("map", ""),
        ("epsilon", float("inf")),
        ("users", float("nan")),
    ],
)
def test_a_night_refuses(field: str, value: Any) -> None:
    with pytest.raises(ValueError, match=field if field != "date" else "date|day|month"):
        night(**{field: value})


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("epsilon", 0.0),
        ("epsilon", float("nan")),
        ("delta", 1.0),
        ("days", 0),
        ("spent", [("2026-11-20", float("nan"))]),
        ("spent", [("2026-11-20", 1.0), ("2026-11-19", 1.0)]),
        ("spent", [("2026-11-20", 1.0), ("2026-11-20", 1.0)]),
        ("spent", [("yesterday", 1.0)]),
    ],
)
def test_a_limit_refuses(field: str, value: Any) -> None:
    with pytest.raises(ValueError, match=field if field != "spent" else "spent|date"):
        replace(Spending(10.0, 0.0, 365, [("2026-11-20", 1.0)]), **{field: value})


NIGHTS: dict[str, Any] = {
    "night": "2026-11-20",
    "rests_on": ["2026-10-01:2026-11-03", "2026-11-05:2026-11-20"],
    "started_from": "bay-2026-11-19",
    "started_anew": None,
    "changes": [{"cell_ids": ["r0213"], "users": 2100.0, "low": 1500.0, "high": 2700.0, "expected": 150.0}],
    "parameters": {"drift": 0.02},
}


def rotated(**entries: Any) -> DatedRelease:
    rotation = {"cohort": 7, "cohorts": 30}
    manifest = changed(rotation=rotation) | {"nights": NIGHTS | entries}
    return DatedRelease.from_manifest("2026-11-20", "x", manifest)


def test_a_night_among_others_says_its_cohort_what_it_rests_on_and_what_changed() -> None:
    found = rotated(started_anew="The depth changed from 8 to 7.")
    assert found.rotation == Rotation(7, 30)
    assert found.rests_on == ("2026-10-01:2026-11-03", "2026-11-05:2026-11-20")
    assert found.started_anew == "The depth changed from 8 to 7."
    assert found.changes == (PlaceChange(("r0213",), 2100.0, 1500.0, 2700.0, 150.0),)
    assert (night().rotation, night().rests_on, night().started_anew, night().changes) == (None, None, None, None)


@pytest.mark.parametrize("one", [night(), rotated(), replace(rotated(changes=[]), rotation=Rotation(7, 30, "0" * 32))])
def test_a_night_is_read_from_json_as_it_was_written(one: DatedRelease) -> None:
    assert DatedRelease.from_json(json.loads(json.dumps(asdict(one)))) == one


@pytest.mark.parametrize(
    "entries",
    [
        {"rests_on": ["yesterday"]},
        {"rests_on": ["2026-11-05:2026-11-20", "2026-10-01:2026-11-03"]},
        {"rests_on": ["2026-11-01:2026-11-05", "2026-11-05:2026-11-20"]},
        {"rests_on": 7},
        {"changes": [{"cell_ids": ["r0213"]}]},
        {"changes": [NIGHTS["changes"][0] | {"cell_ids": ["r4"]}]},
        {"changes": [NIGHTS["changes"][0] | {"cell_ids": ['r"onclick="x']}]},
        {"changes": [NIGHTS["changes"][0] | {"users": float("nan")}]},
        {"changes": [NIGHTS["changes"][0] | {"low": 3000.0}]},
        {"changes": None},
    ],
)
def test_entries_on_nights_that_make_no_sense_are_refused(entries: dict[str, Any]) -> None:
    with rejects("x"):
        rotated(**entries)


@pytest.mark.parametrize("rotation", [{"cohort": 31, "cohorts": 30}, {"cohort": 1}, {"cohort": 1, "cohorts": 0}, []])
def test_a_cohort_that_makes_no_sense_is_refused(rotation: Any) -> None:
    manifest = changed(rotation=rotation or {"cohort": 0, "cohorts": 30})
    with pytest.raises(RequestError, match="cannot be shown on the timeline"):
        DatedRelease.from_manifest("2026-11-20", "x", manifest)


@pytest.mark.parametrize(
    ("epsilon", "spent", "left"), [(1.0, 1.0, 0.0), (0.3, 0.1, 0.2), (1.0, 0.0, 1.0), (1.0, 1.2, 0.0)]
)
def test_what_a_limit_leaves_has_no_rounding_errors(epsilon: float, spent: float, left: float) -> None:
    assert Spending(epsilon, 0.0, 30, []).left(spent) == left
