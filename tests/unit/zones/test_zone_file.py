"""Zones of real files: what is read, and a clear answer to every file that cannot be used."""

from __future__ import annotations

from pathlib import Path

import geopandas
import numpy as np
import pytest
import shapely
from shapely.geometry import MultiPolygon, Point, Polygon, box

from sfumato.schemas.errors import RequestError
from sfumato.transforms.zones.zone_file import read_zones
from tests.rejections import rejects
from tests.seeds import seeded_rng
from tests.unit.zones.polygons import voronoi, write_geojson, write_geoparquet

A, B, C = box(0, 0, 1, 1), box(1, 0, 2, 1), box(2, 0, 3, 1)
BOW_TIE = Polygon([(0, 0), (1, 1), (1, 0), (0, 1)])


def test_geojson_and_geoparquet_hold_the_same_zones(tmp_path: Path) -> None:
    shapes = [A, shapely.difference(B, box(1.4, 0.4, 1.6, 0.6)), MultiPolygon([C, box(4, 0, 5, 1)])]
    rows = [(shape, {"tract": f"t{i}", "county": "c"}) for i, shape in enumerate(shapes)]
    one = read_zones(write_geojson(tmp_path / "a.geojson", rows, name="survey"), "tract")
    columns = {"tract": ["t0", "t1", "t2"], "county": ["c", "c", "c"]}
    two = read_zones(write_geoparquet(tmp_path / "a.parquet", shapes, columns), "tract")
    assert one.ids == two.ids == ("t0", "t1", "t2")
    assert shapely.equals_exact(one.geometries, np.array(shapes, dtype=object)).all()
    assert one.digest == two.digest
    assert (one.source, two.source) == ("survey", "a.parquet")
    assert (one.region.west, one.region.east) == (0, 5)


def test_a_file_of_geopandas_is_read_and_its_other_systems_are_refused(tmp_path: Path) -> None:
    frame = geopandas.GeoDataFrame({"id": [7, 8]}, geometry=[A, B], crs="EPSG:4326")
    for name in ("a.parquet", "a.geojson"):
        write = frame.to_parquet if name.endswith("parquet") else frame.to_file
        write(tmp_path / name)
        assert read_zones(str(tmp_path / name), "id").ids == ("7", "8")
    frame.to_crs("EPSG:3857").to_parquet(tmp_path / "b.parquet")
    with pytest.raises(RequestError, match=r"WGS 84 / Pseudo-Mercator.*convert it to longitude and latitude"):
        read_zones(str(tmp_path / "b.parquet"), "id")
    frame.set_crs(None, allow_override=True).to_parquet(tmp_path / "c.parquet")
    with pytest.raises(RequestError, match="does not say its coordinate system"):
        read_zones(str(tmp_path / "c.parquet"), "id")


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


def test_real_tracts_with_slivers_are_read(tmp_path: Path) -> None:
    """Coordinates rounded apart from each other overlap by slivers, which are allowed."""
    rng = seeded_rng(5)
    offsets = rng.normal(0, 1e-7, (200, 2))
    moved = [
        shapely.transform(shape, lambda points, offset=offset: points + offset)
        for shape, offset in zip(voronoi(200, seed=4), offsets, strict=True)
    ]
    assert not shapely.coverage_is_valid(moved)
    path = write_geojson(tmp_path / "a.geojson", [(shape, {"id": i}) for i, shape in enumerate(moved)])
    assert len(read_zones(path, "id")) == 200


@pytest.mark.parametrize(
    ("rows", "members", "message"),
    [
        ([], {}, "no polygons"),
        ([(A, {"id": "1"}), (B, {"id": "1"})], {}, "id 1 stands there more than once; .* MultiPolygon"),
        ([(A, {"id": None})], {}, "feature 0 has None in id"),
        ([(A, {"id": True})], {}, "feature 0 has True in id"),
        ([(A, {"id": ""})], {}, "feature 0 has '' in id"),
        ([(A, {"id": 1.5})], {}, "feature 0 has 1.5 in id"),
        ([(A, {"tract": "1"})], {}, "has no property or column 'id'; it has tract"),
        ([(A, {"id": "1"}), (None, {"id": "2"})], {}, "id 2 has no geometry"),
        ([(Point(0, 0), {"id": "1"})], {}, "id 1 has a Point"),
        ([(Polygon([(0, 0), (1, 1), (2, 2), (0, 0)]), {"id": "1"})], {}, "id 1"),
        ([(BOW_TIE, {"id": "knot"})], {}, r"id knot is not a valid polygon \(Self-int.*MultiPolygon of 2 parts"),
        ([(A, {"id": "1"}), (box(0.5, 0, 1.5, 1), {"id": "2"})], {}, "1 pair of zones overlap, .*id 1 and 2 by 0.5"),
        ([(A, {"id": "1"}), (box(0.2, 0.2, 0.4, 0.4), {"id": "2"})], {}, "id 1 and 2 by 1 of"),
        ([(box(170, 0, 190, 10), {"id": "1"})], {}, "id 1 leaves the globe .*170 to 190.*antimeridian"),
        ([(box(500_000, 4e6, 500_100, 4.1e6), {"id": "1"})], {}, "leaves the globe.*convert"),
        ([(box(0, 80, 1, 95), {"id": "1"})], {}, "leaves the globe.*longitude first"),
        ([(box(-179, 0, 179, 10), {"id": "1"})], {}, "id 1 spans more than 180 degrees .*antimeridian"),
        ([(A, {"id": "1"})], {"crs": {"type": "name", "properties": {"name": "EPSG:3857"}}}, "EPSG:3857; convert"),
        ([(A, {"id": "1"})], {"crs": None}, "does not say its coordinate system"),
    ],
)  # fmt: skip
def test_a_file_that_cannot_be_used_is_refused(tmp_path: Path, rows, members, message) -> None:  # type: ignore[no-untyped-def]
    path = write_geojson(tmp_path / "a.geojson", rows, **members)
    with pytest.raises(RequestError, match=f"^zones: .*{message}"):
        read_zones(path, "id")


def test_a_hole_and_what_fills_it_are_two_zones(tmp_path: Path) -> None:
    ring, core = shapely.difference(A, box(0.4, 0.4, 0.6, 0.6)), box(0.4, 0.4, 0.6, 0.6)
    path = write_geojson(tmp_path / "a.geojson", [(ring, {"id": "ring"}), (core, {"id": "core"})])
    assert read_zones(path, "id").ids == ("ring", "core")


def test_a_zone_that_is_cut_at_the_antimeridian_is_read(tmp_path: Path) -> None:
    path = write_geojson(
        tmp_path / "a.geojson", [(MultiPolygon([box(177, -19, 180, -16), box(-180, -19, -179, -16)]), {"id": "Fiji"})]
    )
    assert read_zones(path, "id").ids == ("Fiji",)


def test_levels_that_do_not_nest_are_refused(tmp_path: Path) -> None:
    rows = [(A, {"b": "1", "t": "x", "c": "p"}), (B, {"b": "2", "t": "x", "c": "q"})]
    path = write_geojson(tmp_path / "a.geojson", rows)
    with pytest.raises(RequestError, match="t x is in c p and q"):
        read_zones(path, "b", ("b", "t", "c"))
    with rejects("levels"):
        read_zones(path, "b", ("t", "b"))
    with rejects("levels"):
        read_zones(path, "b", ("b", "b"))
    with pytest.raises(RequestError, match="no property or column 'z'; it has b, t, c"):
        read_zones(path, "b", ("b", "z"))


def test_files_that_are_missing_or_no_zones_are_refused(tmp_path: Path) -> None:
    with rejects("zones"):
        read_zones(str(tmp_path / "gone.json"), "id")
    (tmp_path / "a.geojson").write_text("hello")
    with pytest.raises(RequestError, match="neither GeoJSON nor GeoParquet"):
        read_zones(str(tmp_path / "a.geojson"), "id")
