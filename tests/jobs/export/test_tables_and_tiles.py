"""Exported tables, hexagons and tiles: each value of a release in its place."""

from __future__ import annotations

import csv
import gzip
import io
import json
from collections import defaultdict
from types import SimpleNamespace
from typing import Any

import mapbox_vector_tile
import numpy as np
import pyarrow as pa
import pytest
import shapely
from pmtiles.reader import MemorySource, Reader, all_tiles
from pmtiles.tile import Compression, TileType

from sfumato.schemas.region import Grid, Region
from sfumato.transforms.export.csv_file import write_csv
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
