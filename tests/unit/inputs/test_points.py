"""Points and cells against Shapely and H3, each form of well-known binary, and reference systems that are refused."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import h3
import numpy as np
import pyarrow as pa
import pytest
import shapely

from sfumato.schemas.errors import RequestError
from sfumato.schemas.log_layout import CellColumn
from sfumato.transforms.inputs.log_file import LogFile
from sfumato.transforms.inputs.parquet_log import open_parquet_log
from sfumato.transforms.inputs.points import centres_of, check_cells, check_points, points_of
from tests.log_forms import geoparquet, points, records
from tests.rejections import rejects
from tests.seeds import seeded_rng
from tests.unit.zones.polygons import write_native_parquet

RNG = seeded_rng(5)
LONGITUDES, LATITUDES = RNG.uniform(-180, 180, 50), RNG.uniform(-85, 85, 50)
SHAPES = shapely.points(LONGITUDES, LATITUDES)


def degrees(column: pa.Array) -> tuple[list[Any], list[Any]]:
    latitude, longitude = points_of(column)
    return latitude.to_pylist(), longitude.to_pylist()


@pytest.mark.parametrize(
    "column",
    [
        pa.array(shapely.to_wkb(SHAPES)),
        pa.array(shapely.to_wkb(SHAPES), pa.large_binary()),
        pa.array(shapely.to_wkb(SHAPES), pa.binary_view()),
        pa.array(shapely.to_wkb(SHAPES)).dictionary_encode(),
        pa.array(shapely.to_wkb(SHAPES, byte_order=0)),  # big-endian
        pa.array(shapely.to_wkb(shapely.set_srid(SHAPES, 4326), include_srid=True)),
        pa.array(shapely.to_wkb(shapely.points(LONGITUDES, LATITUDES, 7.0))),
        pa.array(shapely.to_wkb(SHAPES, hex=True)),
        pa.array([text.lower() for text in shapely.to_wkb(SHAPES, hex=True)]),
        pa.array(shapely.to_wkb(shapely.set_srid(SHAPES, 4326), include_srid=True, hex=True)),
        pa.array([f"POINT ({x} {y})" for x, y in zip(LONGITUDES, LATITUDES, strict=True)]),  # all digits
        pa.StructArray.from_arrays([pa.array(LONGITUDES), pa.array(LATITUDES)], ["x", "y"]),
    ],
    ids=["WKB", "large", "view", "dictionary", "big-endian", "SRID", "Z", "hex", "lower", "hex SRID", "WKT", "struct"],
)
def test_every_form_of_a_point(column: pa.Array) -> None:
    assert degrees(column) == (LATITUDES.tolist(), LONGITUDES.tolist())
    assert degrees(column.slice(7, 11)) == (LATITUDES[7:18].tolist(), LONGITUDES[7:18].tolist())


@pytest.mark.parametrize("form", ["WKB", "hex", "mixed"])
def test_what_is_no_point_has_no_place(form: str) -> None:
    raw = [None, *shapely.to_wkb(SHAPES[:2]), b"no point", shapely.to_wkb(shapely.box(0, 0, 1, 1))]
    column = pa.array(raw[:3] if form == "WKB" else raw)
    if form == "hex":
        column = pa.array([None if one is None else one.hex() for one in raw[:3]])
    latitude, _ = degrees(column)
    assert latitude == [None, *LATITUDES[:2].tolist(), None, None][: len(column)]


@pytest.mark.parametrize("order", [0, 1])
def test_a_point_with_another_srid_has_no_place(order: int) -> None:
    """Some tools state the reference system at each point alone."""
    srids = np.where(np.arange(50) % 2, 4326, 3857)
    column = pa.array(shapely.to_wkb(shapely.set_srid(SHAPES, srids), include_srid=True, byte_order=order))
    latitude, longitude = degrees(column)
    assert (latitude[1::2], longitude[1::2]) == (LATITUDES[1::2].tolist(), LONGITUDES[1::2].tolist())
    assert latitude[::2] == longitude[::2] == [None] * 25


@pytest.mark.parametrize(
    ("stated", "is_read"),
    [
        ({}, True),
        ({"crs": {"name": "WGS 84", "id": {"authority": "EPSG", "code": 4326}}}, True),
        ({"crs": {"name": "WGS 84 (CRS84)", "id": {"authority": "OGC", "code": "CRS84"}}}, True),
        ({"geometry_types": ["Point", "Polygon"]}, True),
        ({"geometry_types": ["Point Z"]}, True),
        ({"crs": {"name": "OSGB36", "id": {"authority": "EPSG", "code": 27700}}}, False),
        ({"crs": None}, False),
        ({"encoding": "multipoint"}, False),
    ],
)
def test_geoparquet_says_what_it_holds(stated: dict[str, Any], is_read: bool, tmp_path: Path) -> None:
    table = records(20)
    path = str(geoparquet(table, pa.array(shapely.to_wkb(points(table))), tmp_path / "log.parquet", **stated))
    with open_parquet_log(LogFile(path), {}) as file, nullcontext() if is_read else pytest.raises(RequestError):
        check_points(file.schema, "geometry", path)


@pytest.mark.parametrize(("crs", "is_read"), [(None, True), ("EPSG:4326", True), ("EPSG:27700", False)])
def test_a_column_of_parquets_own_type_says_its_system(crs: str | None, is_read: bool, tmp_path: Path) -> None:
    path = write_native_parquet(tmp_path / "log.parquet", list(SHAPES), {"user_id": range(50)}, crs)
    with (
        open_parquet_log(LogFile(path), {}) as file,
        nullcontext() if is_read else pytest.raises(RequestError),
    ):
        check_points(file.schema, "geometry", path)


@pytest.mark.parametrize(
    "check",
    [
        lambda file: check_points(pa.schema([("geometry", pa.float64())]), "geometry", file),
        lambda file: check_cells(pa.schema([("cell", pa.int64())]), CellColumn("cell", "quadkey", 9), file),
    ],
)
def test_a_column_of_another_type_holds_no_places(check: Callable[[str], object]) -> None:
    with pytest.raises(RequestError) as caught:
        check("a.parquet")
    assert caught.value.file == "a.parquet"


# --- cells ---


@pytest.mark.parametrize("resolution", [0, 8, 15])
@pytest.mark.parametrize("form", [str, int])
def test_the_centre_of_an_h3_cell(resolution: int, form: type) -> None:
    cells = [h3.latlng_to_cell(*place, resolution) for place in zip(LATITUDES, LONGITUDES, strict=True)]
    other = h3.latlng_to_cell(1, 1, (resolution + 1) % 16)
    values: list[Any] = [None, other, *cells]
    if form is int:
        column = pa.array([None if one is None else int(one, 16) for one in values], pa.uint64())
    else:
        column = pa.array([*values, "no cell"])
    latitude, longitude = centres_of(column, CellColumn("cell", "h3", resolution))
    found = list(zip(latitude.to_pylist(), longitude.to_pylist(), strict=True))
    assert found[:2] == [(None, None)] * 2
    assert found[2:52] == [h3.cell_to_latlng(cell) for cell in cells]
    assert all(one == (None, None) for one in found[52:])


def test_the_centre_of_a_quadkey() -> None:
    """Of Microsoft's description of the tile system: the tile 3, 5 at level 3 is 213."""
    latitude, longitude = centres_of(pa.array(["213", "21", None, "2x3"]), CellColumn("cell", "quadkey", 3))
    assert longitude.to_pylist() == [-22.5, None, None, None]  # the middle of columns 3/8 to 4/8 of the world
    north, south = (np.degrees(np.arctan(np.sinh(np.pi * (1 - 2 * row / 8)))) for row in (5, 6))
    assert south < latitude[0].as_py() < north
    mercator = np.degrees(np.arctan(np.sinh(np.pi * (1 - 2 * 5.5 / 8))))
    assert latitude[0].as_py() == pytest.approx(mercator, abs=1e-12)


@pytest.mark.parametrize("text", ["h3", "h3:16", "quadkey:0", "s2:4", "h3:x", ""])
def test_cells_need_an_index_and_a_resolution(text: str) -> None:
    with rejects("cell_index"):
        CellColumn.parse("cell", text)
