"""Zones of real files, refusals, and the zone of each point against a search through all polygons."""

from __future__ import annotations

import csv
import json
import zipfile
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import geopandas
import numpy as np
import pyarrow as pa
import pyproj
import pytest
import shapely
from numpy.typing import NDArray
from shapely.affinity import rotate
from shapely.geometry import MultiPolygon, Point, Polygon, box
from shapely.geometry.base import BaseGeometry

from sfumato.pipelines.operations.starting import file_of_zones
from sfumato.schemas.errors import RequestError
from sfumato.transforms.geo.zone_file import areas_of_points, read_zones
from sfumato.transforms.geo.zone_raster import OUTSIDE, ZoneLocator
from sfumato.transforms.report.layers import zone_names
from tests.rejections import rejects
from tests.seeds import seeded_rng
from tests.unit.zones.polygons import (
    brute_force,
    voronoi,
    write_geojson,
    write_native_parquet,
    zones_of,
)

A, B, C = box(0, 0, 1, 1), box(1, 0, 2, 1), box(2, 0, 3, 1)
BOW_TIE = Polygon([(0, 0), (1, 1), (1, 0), (0, 1)])


def test_geopandas_files_are_read_unknown_systems_are_refused(tmp_path: Path) -> None:
    frame = geopandas.GeoDataFrame({"id": [7, 8]}, geometry=[A, B], crs="EPSG:4326")
    for name in ("a.parquet", "a.geojson"):
        write = frame.to_parquet if name.endswith("parquet") else frame.to_file
        write(tmp_path / name)
        assert read_zones(str(tmp_path / name), "id").ids == ("7", "8")
    frame.set_crs(None, allow_override=True).to_parquet(tmp_path / "c.parquet")
    with rejects("zones"):
        read_zones(str(tmp_path / "c.parquet"), "id")


UTM = pyproj.CRS("EPSG:32631").to_json_dict()


@pytest.mark.parametrize("crs", [None, UTM, "srid:32631", "projjson:utm", "srid:0"])
def test_shapes_of_parquets_own_type_are_read_in_degrees(tmp_path: Path, crs: Any) -> None:
    metres = crs not in (None, "EPSG:4326", "srid:0")
    frame = geopandas.GeoSeries([A, B], crs="EPSG:4326").to_crs(32631 if metres else 4326)
    path = write_native_parquet(tmp_path / "a.parquet", list(frame), {"id": [7, 8]}, crs, utm=json.dumps(UTM))
    with rejects("zones") if crs == "srid:0" else nullcontext():
        zones = read_zones(path, "id")
        assert zones.ids == ("7", "8")
        assert shapely.equals_exact(zones.geometries, np.array([A, B], dtype=object), 1e-6).all()


@pytest.mark.parametrize(
    ("name", "crs"),
    [("b.parquet", "EPSG:3857"), ("b.geojson", "EPSG:4326"), ("b.gpkg", "EPSG:3857"), ("b.shp", "EPSG:3857")],
)
def test_files_of_planners_are_read_in_degrees(tmp_path: Path, name: str, crs: str) -> None:
    frame = geopandas.GeoDataFrame({"id": [7, 8], "name": ["Sør", "東"]}, geometry=[A, B], crs="EPSG:4326").to_crs(crs)
    write = frame.to_parquet if name.endswith("parquet") else frame.to_file
    write(tmp_path / name)
    zones = read_zones(str(tmp_path / name), "id")
    assert zones.ids == ("7", "8")
    assert shapely.hausdorff_distance(zones.geometries, np.array([A, B], dtype=object)).max() < 1e-7
    assert read_zones(str(tmp_path / name), "name").ids == ("Sør", "東")


def test_a_shapefile_is_read_zipped_and_refused_in_parts(tmp_path: Path) -> None:
    geopandas.GeoDataFrame({"id": [7]}, geometry=[A], crs="EPSG:4326").to_file(tmp_path / "a.shp")
    with zipfile.ZipFile(tmp_path / "a.zip", "w") as packed:
        for part in tmp_path.glob("a.???"):
            if part.suffix != ".zip":
                packed.write(part, part.name)
    assert read_zones(str(tmp_path / "a.zip"), "id").ids == ("7",)
    (tmp_path / "a.prj").unlink()
    with rejects("zones"):
        read_zones(str(tmp_path / "a.shp"), "id")


@pytest.mark.parametrize("encoding", ["UTF-8", "ISO-8859-1"])
def test_names_of_a_shapefile_without_cpg_are_read(encoding: str, tmp_path: Path) -> None:
    frame = geopandas.GeoDataFrame({"id": ["Korsvägen"]}, geometry=[A], crs="EPSG:4326")
    frame.to_file(tmp_path / "a.shp", encoding=encoding)
    (tmp_path / "a.cpg").unlink()
    table = bytearray((tmp_path / "a.dbf").read_bytes())
    table[29] = 0  # the code page, which many programs leave out
    (tmp_path / "a.dbf").write_bytes(table)
    assert read_zones(str(tmp_path / "a.shp"), "id").ids == ("Korsvägen",)


@pytest.mark.filterwarnings("ignore:GPKG")  # by GDAL, about the damaged package
def test_a_package_of_two_layers_and_damaged_ones_are_refused(tmp_path: Path) -> None:
    frame = geopandas.GeoDataFrame({"id": [7]}, geometry=[A], crs="EPSG:4326")
    for layer in ("one", "two"):
        frame.to_file(tmp_path / "a.gpkg", layer=layer)
    (tmp_path / "b.gpkg").write_bytes(b"SQLite format 3\0" + bytes(100))
    (tmp_path / "c.zip").write_bytes(b"PK\x03\x04" + bytes(100))
    for name in ("a.gpkg", "b.gpkg", "c.zip"):
        with rejects("zones"):
            read_zones(str(tmp_path / name), "id")


def test_the_area_of_a_zone_is_that_on_the_sphere(tmp_path: Path) -> None:
    path = write_geojson(tmp_path / "a.geojson", [(box(10, 50, 11, 51), {"id": "x"})])
    degree = np.radians(1) * 6371.0088
    expected = degree * 6371.0088 * (np.sin(np.radians(51)) - np.sin(np.radians(50)))
    np.testing.assert_allclose(read_zones(path, "id").areas_km2, [expected], rtol=1e-9)


def test_levels_are_read_in_order_of_the_file(tmp_path: Path) -> None:
    shapes = [box(i, 0, i + 1, 1) for i in range(5)]
    names = [("b0", "t1", "x"), ("b1", "t0", "y"), ("b2", "t1", "x"), ("b3", "t2", "y"), ("b4", "t0", "y")]
    keys = ("block", "tract", "county")
    rows = [(shape, dict(zip(keys, one, strict=True))) for shape, one in zip(shapes, names, strict=True)]
    zones = read_zones(write_geojson(tmp_path / "a.geojson", rows), "block", keys)
    assert zones.level_names == keys
    assert zones.ids_of_levels[1:] == (("t1", "t0", "t2"), ("x", "y"))
    assert [level.parents.tolist() for level in zones.levels] == [[0, 1, 0, 2, 1], [0, 1, 1]]
    assert [one.tolist() for one in zones.ancestors] == [[0, 1, 2, 3, 4], [0, 1, 0, 2, 1], [0, 1, 0, 1, 1]]


def test_tracts_with_slivers_are_read(tmp_path: Path) -> None:
    """Coordinates rounded apart from each other overlap by slivers of at most 2e-4, which are allowed."""
    squares = [box(x / 100, y / 100, (x + 1) / 100, (y + 1) / 100) for x in range(14) for y in range(14)]
    offsets = seeded_rng(5).uniform(-2e-7, 2e-7, (len(squares), 2))
    moved = [
        shapely.transform(rotate(square, 30, origin=(0, 0)), lambda points, offset=offset: points + offset)
        for square, offset in zip(squares, offsets, strict=True)
    ]
    assert not shapely.coverage_is_valid(moved)
    path = write_geojson(tmp_path / "a.geojson", [(shape, {"id": i}) for i, shape in enumerate(moved)])
    assert len(read_zones(path, "id")) == len(squares)


@pytest.mark.parametrize(
    ("rows", "members", "message"),
    [
        ([], {}, "no zones"),
        ([(A, {"id": "1"}), (B, {"id": "1"})], {}, "id 1 occurs more than once; .* MultiPolygon"),
        ([(A, {"id": None})], {}, "feature 0 has None in id"),
        ([(A, {"id": True})], {}, "feature 0 has True in id"),
        ([(A, {"tract": "1"})], {}, "has no property or column 'id'; the file has tract"),
        ([(Point(0, 0), {"id": "1"})], {}, "id 1 has a Point"),
        ([(BOW_TIE, {"id": "knot"})], {}, r"id knot is not a valid polygon \(Self-int.*MultiPolygon with 2 parts"),
        ([(A, {"id": "1"}), (box(0.5, 0, 1.5, 1), {"id": "2"})], {}, "1 pair of zones overlaps, .*id 1 and 2 by 0.5"),
        ([(A, {"id": "1"}), (box(0.98, 0, 1.98, 1), {"id": "2"})], {}, "1 pair of zones overlaps, .* by 0.02"),
        ([(box(170, 0, 190, 10), {"id": "1"})], {}, "id 1 leaves the globe .*170 to 190.*antimeridian"),
        ([(box(500_000, 4e6, 500_100, 4.1e6), {"id": "1"})], {}, "leaves the globe.*convert"),
        ([(box(-179, 0, 179, 10), {"id": "1"})], {}, "id 1 spans more than 180 degrees .*antimeridian"),
        ([(A, {"id": "1"})], {"crs": {"type": "name", "properties": {"name": 1}}}, "coordinates in 1; convert"),
        ([(A, {"id": "1"})], {"crs": None}, "does not state its coordinate system"),
    ],
)  # fmt: skip
def test_a_file_that_cannot_be_used_is_refused(tmp_path: Path, rows: list, members: dict, message: str) -> None:
    """Each with its reason: people cannot see in a file of thousands of zones what is wrong with one."""
    path = write_geojson(tmp_path / "a.geojson", rows, **members)
    with pytest.raises(RequestError, match=f"^zones: .*{message}"):
        read_zones(path, "id")


def test_levels_that_do_not_nest_are_refused(tmp_path: Path) -> None:
    rows = [(A, {"b": "1", "t": "x", "c": "p"}), (B, {"b": "2", "t": "x", "c": "q"})]
    path = write_geojson(tmp_path / "a.geojson", rows)
    with pytest.raises(RequestError, match="t x is in c p and q"):
        read_zones(path, "b", ("b", "t", "c"))
    for option, levels in (("levels", ("t", "b")), ("levels", ("b", "b")), ("zones", ("b", "z"))):
        with rejects(option):
            read_zones(path, "b", levels)


STAR = Polygon([(0.5 + r * np.cos(a), 0.5 + r * np.sin(a)) for a, r in zip(
    np.linspace(0, 2 * np.pi, 40, endpoint=False), [0.5, 0.05] * 20, strict=True)])  # fmt: skip
COMB = shapely.union_all([box(0, 0, 1, 0.02), *(box(x, 0, x + 1e-4, 1) for x in np.linspace(0, 0.99, 100))])
HOLES = [box(x + 0.01, y + 0.01, x + 0.04, y + 0.04) for x in np.arange(0, 1, 0.05) for y in np.arange(0, 1, 0.05)]
LACE = shapely.difference(box(0, 0, 1, 1), shapely.union_all(HOLES))
FIJI = MultiPolygon([box(177, -19, 180, -16), box(-180, -19, -179, -16)])
CASES: dict[str, list[BaseGeometry]] = {
    "voronoi": voronoi(150, seed=1),
    "one square": [box(3.0, 1.0, 3.1, 1.1)],
    "squares with a shared border": [box(0, 0, 1, 1), box(1, 0, 2, 1), box(0, 1, 2, 2)],
    "star and what is around it": [STAR, shapely.difference(box(0, 0, 1, 1), STAR)],
    "comb thinner than a cell": [COMB],
    "lace of many holes": [LACE],
    "holes that are zones": [shapely.difference(box(0, 0, 1, 1), box(0.2, 0.2, 0.8, 0.8)), box(0.2, 0.2, 0.8, 0.8)],
    "a sliver of overlap": [box(0, 0, 1.0005, 1), box(1, 0, 2, 1)],
    "an overlap inside the second": [box(0.5, 0, 0.6, 1), box(0, 0, 1, 1)],
    "islands at the antimeridian": [FIJI, box(0, 0, 1, 1)],
    "tiny among large": [box(0, 0, 10, 10), box(10, 10, 10.0001, 10.0001)],
}


def points_for(shapes: list[BaseGeometry], seed: int) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Random points in and around the zones, their vertices, points on and just off their borders."""
    rng = seeded_rng(seed)
    west, south, east, north = shapely.total_bounds(shapes)
    vertices = shapely.get_coordinates(shapes)
    lines = shapely.get_parts(shapely.boundary(shapes))
    along = rng.random(20 * len(lines))
    on_line = shapely.get_coordinates(shapely.line_interpolate_point(np.repeat(lines, 20), along, normalized=True))
    near = on_line + rng.normal(0, 1e-9, on_line.shape)
    spread = rng.uniform([west - 0.1, south - 0.1], [east + 0.1, north + 0.1], (4000, 2))
    grid = np.stack(np.meshgrid(np.linspace(west, east, 33), np.linspace(south, north, 33)), axis=-1).reshape(-1, 2)
    longitude, latitude = np.concatenate([vertices, on_line, near, spread, grid]).T
    return longitude, latitude


@pytest.mark.parametrize("name", CASES)
def test_every_point_has_the_zone_of_a_brute_force_search(name: str) -> None:
    zones = zones_of(CASES[name])
    longitude, latitude = points_for(CASES[name], seed=3)
    expected = brute_force(zones, longitude, latitude)
    np.testing.assert_array_equal(ZoneLocator(zones).zone_of(longitude, latitude), expected)
    assert (expected >= 0).any()
    assert (expected == OUTSIDE).any()


def test_a_point_on_a_border_is_in_the_first_of_its_zones() -> None:
    shapes = [box(0, 0, 1, 1), box(1, 0, 2, 1)]
    x, y = np.array([1.0, 1.0, 1.0]), np.array([0.0, 0.5, 1.0])
    for order in (shapes, shapes[::-1]):
        assert ZoneLocator(zones_of(order)).zone_of(x, y).tolist() == [0, 0, 0]


STOPS = np.array([(13.4, 52.5), (13.401, 52.5), (13.5, 52.6), (13.5, 52.45)])


def write_stops(path: Path, names: list[str | None], crs: str = "EPSG:25833") -> str:
    frame = geopandas.GeoDataFrame({"id": [f"s{i}" for i in range(4)], "name": names}, geometry=shapely.points(STOPS))
    frame.set_crs("EPSG:4326").to_crs(crs).to_file(path)
    return str(path)


def test_points_with_a_radius_are_zones_of_what_is_nearest(tmp_path: Path) -> None:
    """The zone of random places near the stops, against distances on the sphere."""
    zones = read_zones(write_stops(tmp_path / "stops.shp", list("abcd")), "id", radius=400)
    rng = seeded_rng(11)
    places = STOPS[rng.integers(0, 4, 4000)] + rng.normal(0, 0.004, (4000, 2))
    longitude, latitude = np.radians(places).T
    x, y = np.radians(STOPS).T[:, :, None]
    half = np.sin((latitude - y) / 2) ** 2 + np.cos(latitude) * np.cos(y) * np.sin((longitude - x) / 2) ** 2
    metres = 2 * 6_371_008.8 * np.arcsin(np.sqrt(half))
    nearest, distance = metres.argmin(axis=0), metres.min(axis=0)
    second = np.partition(metres, 1, axis=0)[1]
    is_clear = (np.abs(distance - 400) > 8) & (second - distance > 1)  # 16 edges of a half circle reach 2% less
    found = brute_force(zones, *places.T)
    assert (found == np.where(distance < 400, nearest, -1))[is_clear].all()
    assert is_clear.mean() > 0.3
    assert {-1, 0, 1, 2, 3} == set(found.tolist())
    np.testing.assert_allclose(zones.points, STOPS, atol=1e-9)  # also where a circle is cut


def test_a_polygon_has_a_point_inside_it() -> None:
    bow = Polygon([(0, 0), (4, 0), (4, 4), (3, 4), (3, 1), (1, 1), (1, 4), (0, 4)])  # its centroid is outside
    zones = zones_of([bow, box(5, 0, 7, 2)])
    assert shapely.contains(zones.geometries, shapely.points(zones.points)).all()
    assert zones.points[1].tolist() == [6, 1]


def test_a_missing_file_has_a_near_name(tmp_path: Path) -> None:
    stops = write_stops(tmp_path / "stops.shp", list("abcd"))
    with pytest.raises(RequestError, match=r"cannot be read .*; did you mean stops\.shp\?$"):
        read_zones(stops.replace("stops", "stop"), "id", radius=400)
    with pytest.raises(RequestError, match=r"did you mean stops\.shp\?$"):  # no part of a shapefile is nearer
        read_zones(stops.replace(".shp", ".csv"), "id", radius=400)
    (tmp_path / "stops.dbf").unlink()
    with pytest.raises(RequestError, match=r"copy it next to the \.shp$"):
        read_zones(stops, "id", radius=400)


@pytest.mark.parametrize(
    ("name", "header", "mark", "start"),
    [
        ("stops.txt", "stop_id,stop_name,stop_lat,stop_lon", ",", "\ufeff"),  # GTFS, with the mark of many feeds
        ("stops.csv", "stop_id;stop_name;Latitude;lon_wgs84", ";", ""),
        ("stops.tsv", "stop_id\tstop_name\ty\tx", "\t", ""),
    ],
)
def test_stops_of_csv_are_those_of_geojson(tmp_path: Path, name: str, header: str, mark: str, start: str) -> None:
    rows = [("007", "Süd, Tor", 52.5, 13.4), ("8", "", 52.5, 13.401), ("A", 'the "Ost"', -52.6, -13.5)]
    with (path := tmp_path / name).open("w", encoding="utf-8", newline="") as file:
        file.write(f"{start}{header}\r\n\r\n")
        texts = [[str(one).replace(".", "," if mark == ";" else ".") for one in row] for row in rows]
        csv.writer(file, delimiter=mark).writerows([*texts, ["9", "a node without a place", "", ""]])
    features = [(Point(x, y), {"stop_id": one, "stop_name": label}) for one, label, y, x in rows]
    expected = read_zones(write_geojson(tmp_path / "a.geojson", features), "stop_id", (), "stop_name", 300)
    zones = read_zones(str(path), "stop_id", (), "stop_name", 300)
    assert (zones.digest, zones.labels) == (expected.digest, ("Süd, Tor", None, 'the "Ost"'))
    found = file_of_zones(str(path))  # as `sfumato inspect` and `refresh --init` name its columns
    assert dict(found.options) == {
        "zones": str(path),
        "id_column": "stop_id",
        "label_column": "stop_name",
        "radius": 300,
    }
    with rejects("zones"):
        read_zones(str(path), "stop_id")
    path.write_bytes(b"\xef\xbb\xbf \n" + (tmp_path / "a.geojson").read_bytes())  # whatever its name is
    assert read_zones(str(path), "stop_id", (), "stop_name", 300).digest == expected.digest


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"id,lat,lon",
        b"id,lat,name\n1,2,3",
        b"id,lat,lon\n1,2",
        b"id,lat,lon\n1,2,",
        b"id,lat,lon\n1,91,3",
        b"id,x,y\n1,392000,5820000",
        b"id,lat,lon\n1,nan,3",
        b"id,lat,lon\n\xfc,2,3",
    ],
)
def test_csv_without_places_is_refused(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "a.csv").write_bytes(content)
    with rejects("zones"):
        read_zones(str(tmp_path / "a.csv"), "id", radius=300)


def test_points_need_a_radius_and_polygons_take_none(tmp_path: Path) -> None:
    stops = write_stops(tmp_path / "stops.shp", list("abcd"))
    with pytest.raises(RequestError, match="--radius METRES"):
        read_zones(stops, "id")
    with rejects("zones"):
        read_zones(write_geojson(tmp_path / "a.geojson", [(A, {"id": "x"})]), "id", radius=100)
    with rejects("radius"):
        areas_of_points(np.array([Point(1, 1), Point(2, 2), Point(1, 1)]), 100, "abc")
    with rejects("radius"):
        areas_of_points(np.array([Point(1, 89)]), 100, "a")
    assert len(areas_of_points(np.array([Point(1, 1)]), 100, "a")) == 1


def test_labels_are_kept_and_change_no_digest(tmp_path: Path) -> None:
    stops = write_stops(tmp_path / "stops.shp", ["Süd", "Süd", None, "Ost"])
    zones = read_zones(stops, "id", label_column="name", radius=100)
    assert zones.labels == ("Süd", "Süd", None, "Ost")
    assert zones.digest == read_zones(stops, "id", radius=100).digest
    table = pa.table({"zone": zones.ids, "name": zones.labels})
    assert zone_names(table) == ["Süd (s0)", "Süd (s1)", "s2", "Ost"]
    assert zone_names(table.drop_columns("name")) == list(zones.ids)
    with rejects("label_column"):
        read_zones(stops, "id", label_column="nam", radius=100)
