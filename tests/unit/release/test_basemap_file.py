"""Geography of files and of the world: what is taken, what is cut away, and what is refused with a clear message."""

from __future__ import annotations

import gzip
import io
import json
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import shapely

from sfumato.schemas.errors import RequestError
from sfumato.schemas.region import Region
from sfumato.schemas.views.map_views import Basemap, Geography, Place
from sfumato.transforms.release import basemap_file
from sfumato.transforms.release.basemap_file import MAX_BYTES, file_basemap, geography_bytes, place_of, world_basemap
from tests.rejections import rejects
from tests.seeds import seeded_rng

REGION = Region(3.0, 1.0, 3.2, 1.2)
SQUARE = [[3.05, 1.05], [3.1, 1.05], [3.1, 1.1], [3.05, 1.1], [3.05, 1.05]]
HOLE = [[3.06, 1.06], [3.08, 1.06], [3.08, 1.08], [3.06, 1.08], [3.06, 1.06]]


def feature(kind: str, coordinates: Any, **properties: Any) -> dict[str, Any]:
    return {"type": "Feature", "properties": properties, "geometry": {"type": kind, "coordinates": coordinates}}


def geojson(*features: Any, **members: Any) -> bytes:
    return json.dumps({"type": "FeatureCollection", "features": features, **members}).encode()


def read(*features: Any, region: Region = REGION, **members: Any) -> Basemap:
    return file_basemap("map.geojson", geojson(*features, **members), region)


POINT = feature("Point", [3.1, 1.1], name="Harbour")


def test_each_feature_becomes_what_its_shape_and_tags_say() -> None:
    made = read(
        feature("Polygon", [SQUARE, HOLE], natural="water"),
        feature("Polygon", [SQUARE], NATURAL="Island"),
        feature("Polygon", [SQUARE], name="Old town"),
        feature("MultiPolygon", [[SQUARE], [HOLE]], name="Two parts"),
        feature("Polygon", [SQUARE], building="yes"),
        feature("LineString", [[3.0, 1.0], [3.2, 1.2]], highway="primary", name="Main street"),
        feature("Point", [3.1, 1.1], name="Harbour", place="city"),
        feature("Point", [3.15, 1.1], label="Mill", rank=7),
        feature("Point", [3.12, 1.1]),
        {"type": "Feature", "properties": None, "geometry": None},
        {"type": "Feature", "properties": None, "geometry": {"type": "GeometryCollection", "geometries": [
            {"type": "LineString", "coordinates": [[3.0, 1.1], [3.2, 1.1]]}]}},
        source="City survey",
    )  # fmt: skip
    assert made.source == "City survey"
    assert [len(area) for area in made.water] == [2]
    assert set(made.water[0][1]) == {(3.06, 1.06), (3.08, 1.06), (3.08, 1.08), (3.06, 1.08)}
    assert len(made.land) == 1
    assert [(zone.name, len(zone.rings)) for zone in made.zones] == [("Old town", 1), ("Two parts", 2)]
    assert len(made.lines) == 3  # a street, an outline, and the line of the collection
    assert [(place.name, place.rank) for place in made.places] == [("Harbour", 0), ("Mill", 7)]


def test_a_bare_geometry_and_a_single_feature_are_geojson_too() -> None:
    line = {"type": "LineString", "coordinates": [[3.0, 1.0], [3.2, 1.2]]}
    assert file_basemap("a/b/coast.json", json.dumps(line).encode(), REGION).lines == [[(3.0, 1.0), (3.2, 1.2)]]
    made = file_basemap("gs://b/coast.json", json.dumps(POINT).encode(), REGION)
    assert made.places[0].name == "Harbour"
    assert file_basemap("a/b/coast.json", json.dumps(POINT).encode(), REGION).source == "coast.json"


def test_what_lies_beyond_the_margin_is_not_published() -> None:
    made = read(
        feature("LineString", [[-50, 1.1], [50, 1.1]]),
        feature("Polygon", [[[-9, -9], [9, -9], [9, 9], [-9, 9], [-9, -9]]], natural="water"),
        feature("Point", [3.21, 1.1], name="Just outside"),
        feature("Point", [3.3, 1.1], name="Elsewhere"),
        feature("Polygon", [[[5, 5], [6, 5], [6, 6], [5, 5]]], name="Far zone"),
    )
    points = np.array([*made.lines[0], *made.water[0][0]])
    np.testing.assert_allclose([points.min(axis=0), points.max(axis=0)], [[2.98, 0.98], [3.22, 1.22]])
    assert [place.name for place in made.places] == ["Just outside"]
    assert made.zones == []
    assert "Elsewhere" not in made.model_dump_json()


def test_shapes_are_simplified_to_what_a_page_can_show() -> None:
    angle = np.linspace(0, 2 * np.pi, 20_001)
    circle = np.stack([3.1 + 0.05 * np.cos(angle), 1.1 + 0.05 * np.sin(angle)], axis=1)
    tiny = (circle - circle.mean(axis=0)) / 1e4 + circle.mean(axis=0)
    made = read(
        feature("Polygon", [circle.tolist()], natural="water"), feature("Polygon", [tiny.tolist()], water="lake")
    )
    assert len(made.water) == 1
    (ring,) = made.water[0]
    assert 40 < len(ring) < 400
    off = np.hypot(*(np.array(ring) - [3.1, 1.1]).T) - 0.05
    assert np.abs(off).max() < 0.2 / 2048
    assert max(len(repr(one).split(".")[1]) for point in ring for one in point) <= 5


def test_of_many_places_the_most_important_stay() -> None:
    many = [feature("Point", [3.1, 1.1], name=f"p{i}", rank=i % 90) for i in range(2000)]
    made = read(*many)
    assert len(made.places) == 500
    assert {place.rank for place in made.places} == set(range(22))  # 20 ranks of 23 places, the others of 22


def test_a_broken_polygon_is_mended() -> None:
    bow_tie = [[3.05, 1.05], [3.15, 1.15], [3.15, 1.05], [3.05, 1.15], [3.05, 1.05]]
    made = read(feature("Polygon", [bow_tie], natural="water"))
    assert sum(shapely.Polygon(area[0]).area for area in made.water) == pytest.approx(0.005, rel=0.01)


def test_names_do_nothing_but_be_read() -> None:
    made = read(feature("Point", [3.1, 1.1], name="  x\u202ey\n "), feature("Point", [3.1, 1.1], name="z" * 5000))
    assert "\u202e" not in made.places[0].name
    assert len(made.places[1].name) <= 200


@pytest.mark.parametrize(
    "content",
    [
        b"", b"\xff\xfe\x00", b"[" * 100_000, b"[1, 2]", b'{"type": 3}', b'{"type": "FeatureCollection"}',
        b'{"type": "FeatureCollection", "features": 5}', b"PAR1 and nothing more", geojson(),
        geojson({"type": "Feature", "geometry": None}),
        geojson(POINT, 7),
        geojson(POINT, {"type": "Feature"}),
        geojson(feature("Heap", [1, 2])),
        geojson(feature("Polygon", [[[3, 1]]])),
        geojson(feature("LineString", [["a", "b"], [1, 2]])),
        geojson(feature("Point", [float("nan"), 1], name="x")),
        geojson({"type": "Feature", "geometry": POINT["geometry"], "properties": [1]}),
        geojson(feature("Point", [9.5, 1.5], name="x")),  # elsewhere
        geojson(feature("Point", [3.1, 1.1])),  # without a name
        geojson(feature("Point", [344_000, 122_000], name="x")),  # in metres
        geojson(POINT, crs={"type": "name", "properties": {"name": "EPSG:3857"}}),
        geojson(POINT, crs={"type": "link"}),
        geojson(POINT, crs=5),
    ],
)  # fmt: skip
def test_bad_geojson_is_refused(content: bytes) -> None:
    with rejects("basemap"):
        file_basemap("map.geojson", content, REGION)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (geojson(feature("Point", [9.5, 1.5], name="x")), r"nothing to draw in the region .*; it spans 9\.5,1\.5,9\.5"),
        (geojson(feature("Point", [344_000, 122_000], name="x")), "not in degrees .*344,000.*EPSG:4326"),
        (geojson(POINT, crs={"type": "name", "properties": {"name": "EPSG:3857"}}), "nothing to draw in the region"),
    ],
)
def test_a_file_of_another_place_is_told_from_a_damaged_one(content: bytes, message: str) -> None:
    with pytest.raises(RequestError, match=message):
        file_basemap("map.geojson", content, REGION)


@pytest.mark.parametrize(
    "name", ["urn:ogc:def:crs:OGC:1.3:CRS84", "urn:ogc:def:crs:EPSG::4326", "EPSG:4326", "OGC:CRS84"]
)
def test_longitude_and_latitude_may_be_named(name: str) -> None:
    assert read(POINT, crs={"type": "name", "properties": {"name": name}}).places


@pytest.mark.slow
def test_what_is_too_much_for_a_page_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    draws = seeded_rng(3).uniform([3.0, 1.0], [3.2, 1.2], (40_000, 2))
    lines = [feature("LineString", pair.tolist()) for pair in draws.reshape(-1, 2, 2)]
    with rejects("basemap"):
        read(*lines)
    assert len(read(*lines[:5000]).model_dump_json()) < MAX_BYTES


# --- GeoParquet ---

WGS84 = {"type": "GeographicCRS", "name": "WGS 84", "id": {"authority": "EPSG", "code": 4326}}
UTM = {"type": "ProjectedCRS", "name": "WGS 84 / UTM zone 31N", "id": {"authority": "EPSG", "code": 32631}}


def parquet(shapes: list[Any], about: Any = None, **columns: list[Any]) -> bytes:
    described = {"encoding": "WKB", "geometry_types": []}
    about = (
        {"version": "1.1.0", "primary_column": "shape", "columns": {"shape": described | (about or {})}}
        if about is None or isinstance(about, dict)
        else about
    )
    table = pa.table({"shape": pa.array(shapes, pa.binary()), **columns})
    metadata = {} if about == "none" else {b"geo": json.dumps(about).encode()}
    file = io.BytesIO()
    pq.write_table(table.replace_schema_metadata(metadata), file)
    return file.getvalue()


def test_geoparquet_is_read_with_its_names() -> None:
    shapes = [shapely.to_wkb(shapely.Polygon(SQUARE)), None, shapely.to_wkb(shapely.Point(3.1, 1.1))]
    made = file_basemap("zones.parquet", parquet(shapes, NAME=["Old town", "x", "Harbour"], other=[1, 2, 3]), REGION)
    assert made.source == "zones.parquet"
    assert [zone.name for zone in made.zones] == ["Old town"]
    assert [place.name for place in made.places] == ["Harbour"]
    assert file_basemap("z", parquet(shapes[:1]), REGION).lines  # without any property
    assert file_basemap("z", parquet(shapes[:1], {"crs": WGS84}), REGION).lines


def test_a_heatmaps_own_cells_are_a_basemap(tmp_path: Path) -> None:
    """The GeoParquet that this package writes is one that it reads."""
    from sfumato.schemas.release import CELLS_SCHEMA

    shape = shapely.to_wkb(shapely.Polygon(SQUARE))
    kinds = {pa.string(): "r1", pa.binary(): shape}
    row = {field.name: [kinds.get(field.type, 1)] for field in CELLS_SCHEMA}
    file = io.BytesIO()
    pq.write_table(pa.table(row, schema=CELLS_SCHEMA), file)
    assert file_basemap("cells.parquet", file.getvalue(), REGION).lines


@pytest.mark.parametrize(
    "content",
    [
        parquet([shapely.to_wkb(shapely.Point(0, 0))], "none"),
        parquet([], [1]),
        parquet([], {"encoding": "point"}),
        parquet([], {"crs": UTM}),
        parquet([], {"crs": None}),
        parquet([b"no shape"]),
        parquet([]),
        parquet([shapely.to_wkb(shapely.Point(3, 1))])[:-40] + b"PAR1",
    ],
)
def test_bad_geoparquet_is_refused(content: bytes) -> None:
    with rejects("basemap"):
        file_basemap("zones.parquet", content, REGION)


# --- the world ---


def test_only_large_regions_show_the_world() -> None:
    assert world_basemap(Region(2, 49, 6.99, 52)) is None
    assert world_basemap(Region(2, 49, 7, 52)) is not None
    assert world_basemap(Region(2, 48, 3, 53)) is not None


def test_the_world_has_coasts_borders_and_cities_where_they_are() -> None:
    made = world_basemap(Region(-12, 35, 30, 60))
    assert made is not None
    assert made.source.startswith("Natural Earth")
    land = shapely.union_all([shapely.make_valid(shapely.Polygon(area[0], area[1:])) for area in made.land])
    for name in ("Paris", "London", "Madrid", "Rome"):
        place = next(one for one in made.places if one.name == name)
        assert land.contains(shapely.Point(place.longitude, place.latitude))
    assert not land.contains(shapely.Point(-8, 46))  # the Bay of Biscay
    pyrenees = shapely.MultiLineString(made.lines).distance(shapely.Point(0.7, 42.75))
    assert pyrenees < 0.2
    assert len(made.model_dump_json()) < MAX_BYTES


def test_no_coast_jumps_over_the_antimeridian() -> None:
    made = world_basemap(Region(-180, -90, 180, 90))
    assert made is not None
    steps = [np.abs(np.diff(np.array(ring)[:, 0])) for area in made.land for ring in area]
    edge = [np.abs(np.array(ring)[:-1, 1]) > 89 for area in made.land for ring in area]  # Antarctica's southern edge
    assert max(float(np.where(at, 0, step).max()) for step, at in zip(steps, edge, strict=True)) < 20
    land = shapely.union_all([shapely.make_valid(shapely.Polygon(area[0], area[1:])) for area in made.land])
    assert all(land.contains(shapely.Point(*one)) for one in ((179, 67), (-179, 67.5), (0, -85), (177.9, -17.8)))
    assert len(made.model_dump_json()) < MAX_BYTES


def test_the_shipped_file_is_small_and_states_its_source() -> None:
    path = Path(basemap_file.__file__).with_name("world_map.json.gz")
    assert path.stat().st_size <= 300_000
    assert "public domain" in json.loads(gzip.decompress(path.read_bytes()))["source"]


@pytest.mark.parametrize(
    ("region", "name"),
    [
        (Region(-122.5, 37.7, -122.3, 37.9), "San Francisco"),
        (Region(0.1, 0.1, 0.2, 0.2), None),  # the sea
        (Region(-125, 30, -110, 45), None),  # too large for the name of a city
    ],
)
def test_a_region_is_named_after_its_foremost_place(region: Region, name: str | None) -> None:
    assert place_of(region, None) == name
    if name is not None:
        assert Geography.of({"basemap.json": geography_bytes(region, None, None) or b""}).place == name
        inside = Place(name="Sunset", longitude=-122.45, latitude=37.75, rank=3)
        away = Place(name="Elsewhere", longitude=0, latitude=0, rank=0)
        assert place_of(region, Basemap(source="Survey", places=[away, inside])) == "Sunset"


def test_what_is_published_can_be_read_again() -> None:
    assert geography_bytes(REGION, None, None) is None
    tiles = "https://tile.example.org/{z}/{x}/{y}.png"
    made = read(POINT)
    for basemap, pattern in ((made, None), (None, tiles), (made, tiles)):
        content = geography_bytes(REGION, basemap, pattern)
        assert content is not None
        again = Geography.of({"basemap.json": content})
        assert (again.basemap, again.tiles) == (basemap, pattern)
        assert content == geography_bytes(REGION, basemap, pattern)
    assert Geography.of({}) == Geography()
    world = geography_bytes(Region(0, 40, 10, 50), None, None)
    assert world is not None
    with pytest.raises(ValueError, match="tiles: must be"):
        Geography.of({"basemap.json": b'{"tiles": "javascript:alert(1)"}'})
