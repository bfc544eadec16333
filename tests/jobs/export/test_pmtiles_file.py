"""Archives read by the PMTiles reader, and tiles by a decoder of Mapbox's vector tiles."""

from __future__ import annotations

import gzip
from collections import defaultdict
from types import SimpleNamespace
from typing import Any

import mapbox_vector_tile
import numpy as np
import pyarrow as pa
import pyogrio
import pytest
import shapely
from pmtiles.reader import MemorySource, Reader, all_tiles
from pmtiles.tile import Compression, TileType

from sfumato.schemas.region import Grid, Region
from sfumato.transforms.export.export_source import ExportSource
from sfumato.transforms.export.map_raster import MapLayer
from sfumato.transforms.export.pmtiles_file import write_pmtiles


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


def test_gdal_reads_the_tiles_and_fields(archive: bytes, sources: dict[str, ExportSource]) -> None:
    frame = pyogrio.read_dataframe(archive)  # the last zoom; a cell on a border is in several tiles
    assert set(frame["cell_id"]) == set(sources["heatmap"].release.cells["cell_id"])
    assert frame.crs.to_epsg() == 3857
    assert frame.to_crs(4326).total_bounds == pytest.approx(sources["heatmap"].layer.bounds, abs=1e-4)


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


@pytest.mark.slow
def test_equal_releases_give_equal_bytes(archive: bytes, sources: dict[str, ExportSource]) -> None:
    assert write_pmtiles(sources["heatmap"])[""] == archive
