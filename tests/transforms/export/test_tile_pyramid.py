"""Tiles against mercator's own formulas, and every zoom against the whole map."""

from __future__ import annotations

import math

import numpy as np
import pyarrow as pa
import pytest
import shapely

from sfumato.transforms.export.export_source import ExportSource
from sfumato.transforms.export.map_layer import MapLayer
from sfumato.transforms.export.merged_cells import CellErrors
from sfumato.transforms.export.tile_pyramid import BUFFER, EXTENT, tile_position, tiles, zoom_layers
from tests.transforms.export.conftest import MAPS


def test_positions_are_those_of_web_mercator() -> None:
    """The formula of OpenStreetMap's "slippy map tilenames", written out for one place."""
    longitude, latitude, zoom = -74.0, 40.75, 12
    y = (1 - math.log(math.tan(math.radians(latitude)) + 1 / math.cos(math.radians(latitude))) / math.pi) / 2
    expected = (longitude + 180) / 360 * 2**zoom, y * 2**zoom
    found = tile_position(np.array([longitude]), np.array([latitude]), zoom)
    assert [float(one[0]) for one in found] == pytest.approx(expected)
    top = tile_position(np.zeros(2), np.array([90.0, -90.0]), 0)[1]
    assert top == pytest.approx([0, 1], abs=1e-9)


@pytest.mark.parametrize("kind", MAPS)
def test_every_zoom_accounts_for_the_whole_map(kind: str, sources: dict[str, ExportSource]) -> None:
    source = sources[kind]
    layer = source.layer
    shown = zoom_layers(layer, source.release.grid, CellErrors.of(source.release), nested=source.nested)
    assert [one.zoom for one in shown] == list(range(shown[0].zoom, shown[-1].zoom + 1))
    if kind in ("heatmap", "flat", "rates"):
        total = layer.table["count"].to_numpy().sum()
        for one in shown:
            assert one.layer.table["count"].to_numpy().sum() == pytest.approx(total)
            assert shapely.area(one.layer.shapes).sum() == pytest.approx(shapely.area(layer.shapes).sum())
        assert len(shown[0].layer.shapes) == 1
        assert shown[-1].layer.table.num_rows == layer.table.num_rows
    elif kind in ("hotspots", "histogram", "central"):
        depths = [set(one.layer.table["depth"].to_pylist()) for one in shown]
        assert all(len(one) == 1 for one in depths)
        assert set.union(*depths) == set(layer.table["depth"].to_pylist())
        assert [one.layer.table.num_rows for one in shown][-1] == sum(
            depth in depths[-1] for depth in layer.table["depth"].to_pylist()
        )
    else:
        assert all(one.layer is layer for one in shown)


def test_tiles_hold_each_shape_once_up_to_their_borders() -> None:
    rng = np.random.default_rng(2)
    x, y = rng.uniform(3, 3.2, 60), rng.uniform(1, 1.2, 60)
    size = rng.uniform(0.001, 0.06, 60)
    shapes = shapely.box(x, y, x + size, y + size)
    zoom = 11
    area = np.zeros(60)
    for column, row, inside, local in tiles(shapes, zoom):
        window = shapely.box(0, 0, EXTENT, EXTENT)
        assert (shapely.bounds(local) >= -BUFFER).all()
        assert (shapely.bounds(local) <= EXTENT + BUFFER).all()
        np.add.at(area, inside, shapely.area(shapely.intersection(local, window)))
        assert 0 <= column < 2**zoom
        assert 0 <= row < 2**zoom
    left, top = tile_position(x, y + size, zoom)
    right, bottom = tile_position(x + size, y, zoom)
    expected = (right - left) * (bottom - top) * EXTENT**2
    # Corners are rounded to units: an error of at most half a unit a side, in each tile.
    assert area == pytest.approx(expected, abs=4 * 4 * np.sqrt(expected).max())
    assert area == pytest.approx(expected, rel=0.05)


def test_a_shape_too_small_for_a_zoom_does_not_vanish() -> None:
    ((_, _, inside, local),) = tiles(np.array([shapely.box(3.0101, 1.0101, 3.01010001, 1.01010001)]), 9)
    assert inside.tolist() == [0]
    assert shapely.area(local[0]) >= 9


def test_lines_stay_lines_and_zones_without_a_quadtree_keep_every_row() -> None:
    """As flows and zones have them: no cell ids, any shapes."""
    lines = shapely.linestrings([[[3.0, 1.0], [3.1, 1.1]], [[3.05, 1.0], [3.0, 1.1]]])
    layer = MapLayer("flows", pa.table({"users": [5.0, 7.0]}), lines)
    shown = zoom_layers(layer, None, CellErrors(np.zeros(0, np.uint64), np.zeros(0), np.zeros(0), False), nested=False)
    for one in shown:
        seen = set()
        for _, _, inside, local in tiles(one.layer.shapes, one.zoom):
            seen |= set(inside.tolist())
            assert (shapely.get_dimensions(local) == 1).all()
        assert seen == {0, 1}
