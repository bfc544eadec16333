"""Exported tables, hexagons and tiles: each value of a release in its place."""

from __future__ import annotations

import csv
import gzip
import io
import json
import math
import sys
import zipfile
from collections import defaultdict
from types import SimpleNamespace
from typing import Any

import mapbox_vector_tile
import numpy as np
import openpyxl
import pyarrow as pa
import pytest
import shapely
from pmtiles.reader import MemorySource, Reader, all_tiles
from pmtiles.tile import Compression, TileType

from sfumato.schemas.errors import RequestError
from sfumato.schemas.region import Grid, Region
from sfumato.transforms.export import excel_file
from sfumato.transforms.export.csv_file import write_csv
from sfumato.transforms.export.excel_file import write_xlsx
from sfumato.transforms.export.export_source import ExportSource
from sfumato.transforms.export.map_raster import MapLayer
from sfumato.transforms.export.pmtiles_file import write_pmtiles
from tests.jobs.export.conftest import MAPS

# --- CSV by kepler.gl's own rules, and the statement that lies beside it ---

# How kepler.gl 3 types a column of text, by its library type-analyzer 0.4: the names of points' columns end in one of
# its pairs, shapes begin as WKT does, and columns with an exponent in a number become text, which has no colours.


def read(source: ExportSource) -> list[dict[str, str]]:
    return list(csv.DictReader(io.StringIO(write_csv(source)[""].decode(), newline="")))


@pytest.mark.parametrize("kind", MAPS)
def test_values_are_read_back_to_the_last_digit(kind: str, sources: dict[str, ExportSource]) -> None:
    rows, layer = read(sources[kind]), sources[kind].layer
    for name in layer.table.column_names:
        expected = layer.table[name].to_pylist()
        if str(layer.table.schema.field(name).type) == "double":
            assert [float(row[name]) if row[name] else None for row in rows] == expected
    shapes = shapely.from_wkt([row["geometry"] for row in rows])
    assert shapely.equals_exact(shapes, layer.shapes, 1e-12).all()
    points = shapely.points([[float(row["longitude"]), float(row["latitude"])] for row in rows])
    assert shapely.intersects(layer.shapes, points).all()


def test_the_statement_describes_the_columns_of_the_file(sources: dict[str, ExportSource]) -> None:
    for kind in ("heatmap", "words"):
        files = write_csv(sources[kind])
        stated = json.loads(files[".statement.json"])
        assert list(stated["columns"]) == files[""].decode().splitlines()[0].split(",")
        assert stated["columns"]["count"]
        assert stated["licence"] == "CC-BY-4.0"


# --- workbooks read by openpyxl ---


def workbook(content: bytes) -> openpyxl.Workbook:
    return openpyxl.load_workbook(io.BytesIO(content))


def written(**columns: Any) -> bytes:
    """The workbook of a table."""
    source = SimpleNamespace(has_shapes=False, table=pa.table(columns), statement={"title": "Stops"})
    return write_xlsx(source)[""]  # type: ignore[arg-type]


@pytest.mark.parametrize("kind", [*MAPS, "words", "empty"])
def test_a_workbook_has_the_values_of_the_table(kind: str, sources: dict[str, ExportSource]) -> None:
    source = sources[kind]
    table = source.layer.table if source.has_shapes else source.table
    book = workbook(write_xlsx(source)[""])
    sheet = book["Table"]
    header, *rows = sheet.iter_rows(values_only=True)
    assert list(header) == table.column_names
    assert len(rows) == table.num_rows
    for place, name in enumerate(table.column_names):
        for row, expected in zip(rows, table[name].to_pylist(), strict=True):
            if isinstance(expected, float):  # a workbook has 16 digits
                assert row[place] == (pytest.approx(expected, rel=1e-15) if math.isfinite(expected) else None)
            else:
                assert row[place] == expected
    assert (sheet["A1"].font.bold, sheet.freeze_panes) == (True, "A2")
    assert sheet.auto_filter.ref == sheet.dimensions
    columns = dict(book["Columns"].iter_rows(min_row=2, values_only=True))
    assert list(columns) == table.column_names
    assert not {"geometry", "WKB"} & set(columns)
    assert write_xlsx(source) == write_xlsx(source)


def test_texts_of_a_workbook_are_never_formulas() -> None:
    texts = [
        "=1+1",
        "+1",
        "-1",
        "@SUM(A1)",
        "{=A1}",
        "http://a.org",
        'Zürich, "1,5"',
        "007",
        "_x0041_\x07",
        "\U0001f68b",
    ]
    content = written(**{"=name": texts, "open": [True, False, *[None] * 8], "hafas": [9021014000000001] * 10})
    sheet = workbook(content)["Table"]
    assert {cell.data_type for cell in sheet["A"]} <= {"s", "inlineStr"}
    assert [cell.value for cell in sheet["A"]][:9] == ["=name", *texts[:8]]
    assert not any(cell.hyperlink for cell in sheet["A"])
    assert [cell.value for cell in sheet["B"]] == ["open", True, False, *[None] * 8]
    assert sheet["C2"].value == "9021014000000001"  # all digits, which a number of Excel lacks


def test_a_workbook_does_not_depend_on_the_time() -> None:
    content = written(zone=["a", None], count=[1.5, math.nan])
    assert {part.date_time[0] for part in zipfile.ZipFile(io.BytesIO(content)).infolist()} == {1980}
    properties = workbook(content).properties
    assert properties.created == properties.modified == excel_file._CREATED


def test_what_excel_cannot_hold_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    longest = "x" * 32_767
    assert workbook(written(zone=[longest]))["Table"]["A2"].value == longest
    with pytest.raises(RequestError, match=r"^format: .*too long.*use --format csv"):
        written(zone=[longest + "x"])
    with pytest.raises(RequestError, match=r"^format: .* 1,048,575 rows.* 1,048,576; use --format csv"):
        written(zone=np.zeros(1_048_576, np.int8))
    monkeypatch.setitem(sys.modules, "xlsxwriter", None)
    with pytest.raises(RequestError, match=r"^format xlsx: .*pip install '\.\[export\]'"):
        written(zone=["a"])


# --- archives read by the PMTiles reader, and tiles by a decoder of Mapbox's vector tiles ---


def features_of(archive: bytes) -> dict[int, dict[str, dict[str, Any]]]:
    """Properties by zoom and cell."""
    found: dict[int, dict[str, dict[str, Any]]] = defaultdict(dict)
    for (zoom, _, _), content in all_tiles(MemorySource(archive)):
        for feature in mapbox_vector_tile.decode(gzip.decompress(content))["cells"]["features"]:
            properties = feature["properties"]
            assert feature["geometry"]["type"] in ("Polygon", "MultiPolygon")
            assert found[zoom].setdefault(properties["cell_id"], properties) == properties
    return found


@pytest.fixture(scope="module")
def archive(sources: dict[str, ExportSource]) -> bytes:
    return write_pmtiles(sources["heatmap"])[""]


@pytest.mark.slow
def test_the_header_says_what_the_tiles_are(archive: bytes, sources: dict[str, ExportSource]) -> None:
    reader = Reader(MemorySource(archive))
    header, metadata = reader.header(), reader.metadata()
    assert header["version"] == 3
    assert header["tile_type"] == TileType.MVT
    assert header["tile_compression"] == Compression.GZIP
    bounds = [header[name] / 1e7 for name in ("min_lon_e7", "min_lat_e7", "max_lon_e7", "max_lat_e7")]
    assert bounds == pytest.approx(sources["heatmap"].layer.bounds, abs=1e-6)
    (layer,) = metadata["vector_layers"]
    assert layer["id"] == "cells"
    assert layer["fields"]["cell_id"] == "String"
    assert layer["fields"]["count"] == "Number"
    zooms = {zoom for (zoom, _, _), _ in all_tiles(MemorySource(archive))}
    assert zooms == set(range(header["min_zoom"], header["max_zoom"] + 1))


@pytest.mark.slow
def test_every_zoom_has_every_cell(archive: bytes, sources: dict[str, ExportSource]) -> None:
    cells = sources["heatmap"].release.cells
    for features in features_of(archive).values():
        assert set(features) == set(cells["cell_id"])
        for _, cell in cells.iterrows():
            found = features[cell["cell_id"]]
            for name in ("count", "stddev", "users_low", "users_high", "density"):
                assert found.get(name) == (pytest.approx(cell[name]) if np.isfinite(cell[name]) else None)


@pytest.mark.parametrize("depth", [5, 12, 20])
def test_the_first_zoom_shows_the_smallest_cells(depth: int) -> None:
    grid = Grid(Region(3.0, 60.0, 3.2, 60.1), depth)
    end = np.array([0, grid.side - 1])
    shapes = shapely.box(*grid.bounds(end, end, np.full(2, depth)))
    layer = MapLayer("cells", pa.table({"cell_id": ["first", "last"], "depth": [depth] * 2}), shapes)
    release = SimpleNamespace(grid=grid, path="")
    content = write_pmtiles(SimpleNamespace(layer=layer, release=release, statement={"title": ""}))[""]  # type: ignore[arg-type]
    shown = features_of(content)
    assert len(shown) in range(1, 6)
    assert all(set(features) == {"first", "last"} for features in shown.values())
