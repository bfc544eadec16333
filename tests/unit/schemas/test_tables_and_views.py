"""What columns, forms of numbers, charts, tile servers and the timeline accept, and what they refuse."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import pyarrow as pa
import pytest

from sfumato.schemas.charts import readable
from sfumato.schemas.errors import RequestError
from sfumato.schemas.locations import MAX_CATEGORIES, Auxiliary, LocationColumns
from sfumato.schemas.moments import FixedPoint, ValueColumns
from sfumato.schemas.region import Places
from sfumato.schemas.requests.request_base import parts_of
from sfumato.schemas.rotation import Rotation
from sfumato.schemas.timeline import DatedRelease, PlaceChange
from sfumato.schemas.views.view_parts import tile_host
from tests.rejections import rejects
from tests.unit.schemas.cases import each

BASE = {"user_id": pa.int64(), "latitude": pa.float64(), "longitude": pa.float64()}


def with_categories(categories: str | None) -> LocationColumns:
    """Columns as a request makes them of its options."""
    own = Auxiliary("c", assumed=True) if categories is None else Auxiliary("c", parts_of(categories))
    return LocationColumns(auxiliary=own)


@pytest.mark.parametrize(
    ("depth", "categories", "bits", "dtype"),
    [
        (16, 1, 32, "uint32"),
        (15, 4, 32, "uint32"),
        (15, 5, 33, "uint64"),
        (20, 16, 44, "uint64"),
    ],
)
def test_places_have_as_many_bits_as_they_need(depth: int, categories: int, bits: int, dtype: str) -> None:
    places = Places(depth, categories)
    assert (places.bits, places.dtype, int(places.mask)) == (bits, dtype, 2**bits - 1)
    last = (categories - 1) << 2 * depth | 4**depth - 1
    assert last.bit_length() == bits or categories == 1


def test_columns_are_named_once_the_plain_ones_first() -> None:
    assert LocationColumns().names() == ["user_id", "latitude", "longitude"]
    many = LocationColumns(weight="latitude", auxiliary=Auxiliary("ill"))
    assert many.names() == ["user_id", "latitude", "longitude", "ill"]
    assert many.names_beside_coordinates() == ["user_id", "latitude", "ill"]
    assert (many.has_weights, many.categories, many.dwell_limit) == (True, 2, None)
    assert LocationColumns(time="t", max_dwell=5).dwell_limit == 5


@pytest.mark.parametrize(
    ("columns", "kind"),
    each(
        {
            LocationColumns(weight="c"): (
                pa.float32(),
                pa.int16(),
                pa.uint64(),
                pa.dictionary(pa.int8(), pa.float64()),
            ),
            LocationColumns(time="c"): (pa.timestamp("ms"), pa.timestamp("ns", tz="UTC"), pa.int64(), pa.float64()),
            LocationColumns(auxiliary=Auxiliary("c")): (pa.bool_(),),
            with_categories(None): (pa.bool_(), pa.uint8()),
            with_categories("true,false"): (pa.bool_(),),
            with_categories("0, 1,2"): (pa.int32(),),
            with_categories("-1,7"): (pa.int64(),),
            with_categories("a,b,c"): (pa.string(),),
            with_categories("false,true"): (pa.large_string(),),
            with_categories("a,b"): (pa.dictionary(pa.int32(), pa.string()),),
        }
    ),
)
def test_check_accepts_every_type_that_fits(columns: LocationColumns, kind: pa.DataType) -> None:
    assert columns.check(pa.schema([*BASE.items(), ("c", kind)]), "f.parquet") == {}


@pytest.mark.parametrize(
    ("columns", "changes"),
    each(
        {
            with_categories(None): [{"c": kind} for kind in (pa.string(), pa.float64(), pa.timestamp("s"))],
            with_categories("a,b"): ({"c": pa.int64()},),
            with_categories("0,01"): ({"c": pa.int64()},),
            with_categories("0,18446744073709551616"): ({"c": pa.int64()},),
            with_categories("well,ill"): ({"c": pa.bool_()},),
            with_categories("false,true,maybe"): ({"c": pa.bool_()},),
            LocationColumns(auxiliary=Auxiliary("c")): ({},),
            LocationColumns(weight="c"): ({}, {"c": pa.string()}, {"c": pa.bool_()}),
            LocationColumns(time="c"): ({}, {"c": pa.string()}, {"c": pa.date32()}),
            LocationColumns(): (
                {"user_id": None},
                {"latitude": None},
                {"user_id": pa.float64()},
                {"longitude": pa.string()},
            ),
        }
    ),
)
def test_check_refuses_columns_by_name_and_type(columns: LocationColumns, changes: dict) -> None:
    types = {**BASE, **changes}
    schema = pa.schema([(name, kind) for name, kind in types.items() if kind is not None])
    with pytest.raises(RequestError) as caught:
        columns.check(schema, "f.parquet")
    assert "f.parquet" in str(caught.value)


@pytest.mark.parametrize("categories", ["", "a,,b", "a", "a,b, a", ",".join(map(str, range(MAX_CATEGORIES + 1)))])
def test_lists_of_categories_that_cannot_be_are_refused(categories: str) -> None:
    with rejects("categories"):
        with_categories(categories)
    assert with_categories(",".join(map(str, range(MAX_CATEGORIES)))).categories == MAX_CATEGORIES


@pytest.mark.parametrize(
    ("changes", "option"),
    [
        ({"weight": "w", "time": "t"}, "weight_column, time_column"),
        ({"auxiliary": Auxiliary("user_id")}, "auxiliary"),
        *(({"max_dwell": bad}, "max_dwell") for bad in (0, -1, math.nan, math.inf)),
    ],
)
def test_columns_that_do_not_go_together_are_refused(changes: dict, option: str) -> None:
    with rejects(option):
        LocationColumns(**changes)
    with rejects("auxiliary"):
        Auxiliary("")


@pytest.mark.parametrize(
    ("form", "step", "low", "high"),
    [
        (FixedPoint(), 1.0, 0.0, 65535.0),
        (FixedPoint(8, 2), 0.25, 0.0, 63.75),
        (FixedPoint(8, 0, "shift", -100.0), 1.0, 100.0, 355.0),
        (FixedPoint(8, 1, "split"), 0.5, -127.5, 127.5),
        (FixedPoint(52, -52, "split"), 2.0**52, -(2.0**104) + 2.0**52, 2.0**104 - 2.0**52),
        (FixedPoint(1), 1.0, 0.0, 1.0),
    ],
)
def test_steps_and_ranges(form: FixedPoint, step: float, low: float, high: float) -> None:
    assert (form.step, form.low, form.high) == (step, low, high)
    assert math.copysign(1, form.low) == (-1 if low < 0 else 1)  # no negative zero in a manifest


@pytest.mark.parametrize(
    ("option", "arguments"),
    each(
        {
            "bits": [{"bits": bad} for bad in (0, 53, -1, True, math.nan, 4.5)],
            "fraction_bits": [{"fraction_bits": bad} for bad in (53, -53, False, math.nan, 0.5)],
            "signed": [
                *({"signed": "shift", "offset": bad} for bad in (math.nan, math.inf)),
                *({"offset": 3.0}, {"signed": "split", "offset": 3.0}, {"signed": "both"}),
            ],
        }
    ),
)
def test_forms_of_numbers_that_cannot_be_are_refused(option: str, arguments: dict[str, Any]) -> None:
    with rejects(option):
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
    ("arguments", "option"),
    [
        ({"column": "user_id"}, "column"),
        ({"column": "x", "group": "user_id"}, "group_by"),
        ({"column": "x", "group": "x"}, "group_by"),
        ({"column": "x", "latitude": "latitude"}, "latitude_column, longitude_column"),
    ],
)
def test_value_columns_of_two_roles_are_refused(arguments: dict[str, Any], option: str) -> None:
    with rejects(option):
        ValueColumns(**arguments)


@pytest.mark.parametrize(
    "columns",
    [
        *(ValueColumns(name) for name in ("height", "city", "words", "big")),
        ValueColumns("speed", user_id="id"),
        *(ValueColumns("speed", group=name) for name in ("town", "latitude")),
        *(ValueColumns("speed", latitude=name, longitude="longitude") for name in ("lat", "city")),
    ],
)
def test_value_columns_refuse_what_is_missing_or_of_another_type(columns: ValueColumns) -> None:
    with pytest.raises(RequestError) as caught:
        columns.check(SCHEMA, "f.parquet")
    assert "f.parquet" in str(caught.value)


@pytest.mark.parametrize(
    ("name", "shown"),
    [
        ("plain café 東京", "plain café 東京"),
        ("a\tb\nc\x00", "a␉b␊c␀"),
        ("\u202egnp.exe", "⟨U+202E⟩gnp.exe"),
        ("half\ud800", "half⟨U+D800⟩"),
        (" both  ", "␣both␣␣"),
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
        ("http://localhost:8080/{z}/{x}/{y}.png", "http://localhost:8080"),
    ],
)
def test_a_tile_servers_host_is_what_a_page_may_load_from(tiles: str, host: str) -> None:
    assert tile_host(tiles) == host


@pytest.mark.parametrize(
    "tiles",
    [
        "",
        "http://tile.example.org/{z}/{x}/{y}.png",  # anybody on the way would see what is looked at
        "https://{s}.example.org/{z}/{x}/{y}.png",
        "https://tile.example.org/{z}/{x}.png",
        "https://user:word@tile.example.org/{z}/{x}/{y}.png",
        "https://tile.example.org; script-src *;/{z}/{x}/{y}.png",
        'https://tile.example.org/{z}/{x}/{y}.png"><script>',
        "https://tile.example.org/{z}/{x}/{y}.png\n",
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


CHANGE = {"cell_ids": ["r0213"], "users": 2100.0, "low": 1500.0, "high": 2700.0, "expected": 150.0}
NIGHTS: dict[str, Any] = {
    "night": "2026-11-20",
    "rests_on": ["2026-10-01:2026-11-03", "2026-11-05:2026-11-20"],
    "started_from": "bay-2026-11-19",
    "started_anew": None,
    "changes": [CHANGE],
    "parameters": {"drift": 0.02},
}


def rotated(**entries: Any) -> DatedRelease:
    """A night among others, of a cohort."""
    manifest = changed(rotation={"cohort": 7, "cohorts": 30}) | {"nights": NIGHTS | entries}
    return DatedRelease.from_manifest("2026-11-20", "x", manifest)


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


def test_what_a_manifest_does_not_say_is_not_made_up() -> None:
    bare = DatedRelease.from_manifest("2026-11-20", "x", changed(population=None) | {"parameters": {}})
    assert (bare.users, bare.warm_start, bare.map) == (None, None, None)
    assert DatedRelease.from_manifest("2026-11-20", "x", changed(population={"users": None})).users is None
    assert (
        DatedRelease.from_manifest("2026-11-20", "x", changed(population={"users": -3.0})).users == 0
    )  # a count with noise
    assert not DatedRelease.from_manifest("2026-11-20", "x", changed(randomness={"source": "seed"})).safe


def test_a_night_of_counts_has_the_users_of_its_admission() -> None:
    admission = {"users": 3_769.0, "noise_stddev": 141.0}
    counted = {"results": {"published": 30, "estimated_users": 3_769.0}}
    found = DatedRelease.from_manifest("2026-11-20", "x", changed(population=None, admission=admission) | counted)
    assert (found.users, found.users_stddev) == (3_769.0, 141.0)
    sampled = changed(population=None, admission={**admission, "sampling_rate": 0.1}) | counted
    assert DatedRelease.from_manifest("2026-11-20", "x", sampled).users is None


@pytest.mark.parametrize("missing", ["release_id", "job", "created", "privacy"])
def test_manifests_without_a_promise_are_refused(missing: str) -> None:
    with rejects("x"):
        DatedRelease.from_manifest("2026-11-20", "x", {name: MANIFEST[name] for name in MANIFEST if name != missing})


@pytest.mark.parametrize(
    ("name", "value"),
    each(
        {
            "epsilon": (None, math.nan),
            "delta": (-1.0,),
            "randomness": ([],),
            "rotation": [{"cohort": one, "cohorts": of} for one, of in ((31, 30), (1, 0), (0, 30))] + [{"cohort": 1}],
        }
    ),
)
def test_promises_without_sense_are_refused(name: str, value: Any) -> None:
    with rejects("x"):
        DatedRelease.from_manifest("2026-11-20", "x", changed(**{name: value}))


@pytest.mark.parametrize(
    ("name", "value"),
    each(
        {
            "rests_on": (
                *(["yesterday"], ["2026-11-05:2026-11-20", "2026-10-01:2026-11-03"]),
                *(["2026-11-01:2026-11-05", "2026-11-05:2026-11-20"], 7),
            ),
            "changes": (
                *([{"cell_ids": ["r0213"]}], None),
                *([CHANGE | {"cell_ids": [name]}] for name in ("r4", 'r"onclick="x')),
                *([CHANGE | change] for change in ({"users": math.nan}, {"low": 3000.0})),
            ),
        }
    ),
)
def test_nights_without_sense_are_refused(name: str, value: Any) -> None:
    with rejects("x"):
        rotated(**{name: value})


def test_a_night_among_others_states_its_cohort_and_changes() -> None:
    found = rotated(started_anew="The depth changed from 8 to 7.")
    assert found.rotation == Rotation(7, 30)
    assert found.rests_on == ("2026-10-01:2026-11-03", "2026-11-05:2026-11-20")
    assert found.started_anew == "The depth changed from 8 to 7."
    assert found.changes == (PlaceChange(("r0213",), 2100.0, 1500.0, 2700.0, 150.0),)
    assert (night().rotation, night().rests_on, night().started_anew, night().changes) == (None, None, None, None)
