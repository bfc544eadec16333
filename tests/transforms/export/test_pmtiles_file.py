"""Archives read by the PMTiles reader, and tiles by a decoder of Mapbox's vector tiles."""

from __future__ import annotations

import gzip
from collections import defaultdict
from typing import Any

import mapbox_vector_tile
import pytest
from pmtiles.reader import MemorySource, Reader, all_tiles
from pmtiles.tile import Compression, TileType

from sfumato.transforms.export.export_source import ExportSource
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


def test_the_header_says_what_the_tiles_are(archive: bytes, sources: dict[str, ExportSource]) -> None:
    reader = Reader(MemorySource(archive))
    header, metadata = reader.header(), reader.metadata()
    assert header["version"] == 3
    assert header["tile_type"] == TileType.MVT
    assert header["tile_compression"] == Compression.GZIP
    bounds = [header[name] / 1e7 for name in ("min_lon_e7", "min_lat_e7", "max_lon_e7", "max_lat_e7")]
    assert bounds == pytest.approx(sources["heatmap"].layer.bounds, abs=1e-7)
    (layer,) = metadata["vector_layers"]
    assert layer["id"] == "cells"
    assert layer["fields"]["cell_id"] == "String"
    assert layer["fields"]["count"] == layer["fields"]["cells"] == "Number"
    zooms = {zoom for (zoom, _, _), _ in all_tiles(MemorySource(archive))}
    assert zooms == set(range(header["min_zoom"], header["max_zoom"] + 1))


def test_every_zoom_adds_up_to_the_release(archive: bytes, sources: dict[str, ExportSource]) -> None:
    cells = sources["heatmap"].release.cells
    shown = features_of(archive)
    for features in shown.values():
        assert sum(one["count"] for one in features.values()) == pytest.approx(cells["count"].sum())
        assert sum(one.get("cells", 1) for one in features.values()) == len(cells)
    finest = shown[max(shown)]
    assert set(finest) == set(cells["cell_id"])
    for _, cell in cells.iterrows():
        found = finest[cell["cell_id"]]
        for name in ("count", "stddev", "users_low", "users_high", "density"):
            assert found[name] == pytest.approx(cell[name])
    (whole,) = shown[min(shown)].values()
    assert whole["cell_id"] == "r"
    assert whole["users_low"] < whole["count"] < whole["users_high"]


def test_equal_releases_give_equal_bytes(archive: bytes, sources: dict[str, ExportSource]) -> None:
    assert write_pmtiles(sources["heatmap"])[""] == archive
