"""Which rows of a map each zoom of a tile pyramid shows, and their shapes in tiles. Pure.

Coordinates of tiles are those of Web Mercator (OGC Two Dimensional Tile Matrix Set, WebMercatorQuad): x from the west,
y from the north, 2^zoom tiles along a side.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import shapely
from numpy.typing import NDArray

from sfumato.schemas.region import Grid
from sfumato.transforms.export.map_layer import MapLayer
from sfumato.transforms.export.merged_cells import CellErrors, merged_cells

EXTENT = 4096  # units along a tile's side
BUFFER = 64  # units that shapes reach beyond their tile, so that no border shows between tiles
_MIN_CELL = 64  # units of the smallest cell that a zoom shows: 4 pixels of a tile of 256
_MIN_SIDE = 4  # units of the smallest shape; a smaller one is drawn as such a square, so that it does not vanish
MAX_ZOOM = 22
_MAX_LATITUDE = 85.0511287798066  # of Web Mercator
_OWN_SHAPES = 6  # zooms of a map without levels, from the one that shows it in one tile


@dataclass(frozen=True)
class ZoomLayer:
    """What one zoom shows."""

    zoom: int
    layer: MapLayer


def zoom_layers(layer: MapLayer, grid: Grid | None, errors: CellErrors, *, nested: bool) -> list[ZoomLayer]:
    """The rows of each zoom, coarsest first. Every zoom accounts for every row of the map.

    - A heatmap's cells (`cell_id`, `count`) that are too small for a zoom are merged into nodes of the quadtree, whose
      `count` is the exact sum. Their intervals follow from the joint errors of the unbiased users.
    - Hot spots of several levels show at each zoom the finest level whose cells are large enough.
    - All other maps show all of their rows at each zoom.

    Args:
        layer: the map.
        grid: of a map of a quadtree's cells; None for others.
        errors: of the cells.
        nested: whether each row has all users of its node, so that rows may lie within each other.
    """
    columns = layer.table.column_names
    if grid is None or "cell_id" not in columns or layer.table.num_rows == 0:
        first = _one_tile_zoom(layer.bounds)
        return [ZoomLayer(zoom, layer) for zoom in range(first, min(first + _OWN_SHAPES, MAX_ZOOM) + 1)]
    depth = layer.table["depth"].to_numpy().astype(np.int64)
    first = _first_zoom(grid)
    last = min(first + int(depth.max()), MAX_ZOOM)
    merges = "leaf" not in columns and not nested and "count" in columns
    found = []
    for zoom in range(first, last + 1):
        level = zoom - first
        if merges and level < depth.max():
            found.append(ZoomLayer(zoom, merged_cells(layer, grid, level, errors)))
        elif nested:
            levels = np.unique(depth)
            shown = levels[levels <= level][-1] if (levels <= level).any() else levels[0]
            found.append(ZoomLayer(zoom, _rows(layer, depth == shown)))
        else:
            found.append(ZoomLayer(zoom, layer))
    return found


def _rows(layer: MapLayer, chosen: NDArray[np.bool_]) -> MapLayer:
    return MapLayer(layer.name, layer.table.filter(pa.array(chosen)), layer.shapes[chosen])


def _first_zoom(grid: Grid) -> int:
    """The first zoom at which the region is at least as large as the smallest cell that is shown."""
    region = grid.region
    west, north = tile_position(np.array([region.west]), np.array([region.north]), 0)
    east, south = tile_position(np.array([region.east]), np.array([region.south]), 0)
    units = min(float((east - west)[0]), float((south - north)[0])) * EXTENT
    return int(np.clip(math.ceil(math.log2(_MIN_CELL / max(units, 1e-12))), 0, MAX_ZOOM))


def _one_tile_zoom(bounds: tuple[float, float, float, float]) -> int:
    """The largest zoom at which a tile is at least as large as these bounds."""
    west, south, east, north = (np.array([one]) for one in bounds)
    left, top = tile_position(west, north, 0)
    right, bottom = tile_position(east, south, 0)
    size = max(float((right - left)[0]), float((bottom - top)[0]), 2.0**-MAX_ZOOM)
    return int(np.clip(math.floor(-math.log2(size)), 0, MAX_ZOOM))


def tile_position(
    longitude: NDArray[np.float64], latitude: NDArray[np.float64], zoom: int
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Positions in tiles of a zoom, float64[n] each: x from the west, y from the north."""
    scale = float(1 << zoom)
    sine = np.sin(np.radians(np.clip(latitude, -_MAX_LATITUDE, _MAX_LATITUDE)))
    return (longitude + 180) / 360 * scale, (0.5 - np.arctanh(sine) / (2 * math.pi)) * scale


def tiles(shapes: NDArray[np.object_], zoom: int) -> Iterator[tuple[int, int, NDArray[np.int64], NDArray[np.object_]]]:
    """The tiles of shapes at a zoom.

    Args:
        shapes: object[n], in degrees.
        zoom: of the tiles.

    Yields:
        Column and row of a tile, the indices of its shapes, and these shapes clipped to it, in units from its
        north-west corner, y to the south.
    """
    placed = shapely.transform(shapes, lambda points: np.stack(tile_position(points[:, 0], points[:, 1], zoom), axis=1))
    placed = _large_enough(placed, _MIN_SIDE / EXTENT)
    margin = BUFFER / EXTENT
    low_x, low_y, high_x, high_y = np.floor(shapely.bounds(placed) + margin * np.array([-1, -1, 1, 1])).T
    last = (1 << zoom) - 1
    index = shapely.STRtree(placed)
    columns = range(max(int(np.nanmin(low_x)), 0), min(int(np.nanmax(high_x)), last) + 1)
    rows = range(max(int(np.nanmin(low_y)), 0), min(int(np.nanmax(high_y)), last) + 1)
    for column in columns:
        for row in rows:
            window = (column - margin, row - margin, column + 1 + margin, row + 1 + margin)
            inside = np.sort(index.query(shapely.box(*window)))
            clipped = shapely.clip_by_rect(placed[inside], *window)
            kept = _same_dimension(clipped, placed[inside])
            if kept.any():
                corner = np.array([column, row])
                local = shapely.transform(clipped[kept], lambda points, at=corner: np.rint((points - at) * EXTENT))
                yield column, row, inside[kept], local


def _large_enough(placed: NDArray[np.object_], side: float) -> NDArray[np.object_]:
    """The shapes, with a square in place of each polygon that is smaller than it in both directions."""
    x0, y0, x1, y1 = shapely.bounds(placed).T
    small = (shapely.get_dimensions(placed) == 2) & (np.maximum(x1 - x0, y1 - y0) < side)
    x, y = (x0 + x1) / 2, (y0 + y1) / 2
    squares = shapely.box(x - side / 2, y - side / 2, x + side / 2, y + side / 2)
    return np.where(small, squares, placed)


def _same_dimension(clipped: NDArray[np.object_], whole: NDArray[np.object_]) -> NDArray[np.bool_]:
    """Whether a clipped shape is not empty, and still an area or a line as before."""
    same = shapely.get_dimensions(clipped) == shapely.get_dimensions(whole)
    return np.asarray(same & ~shapely.is_empty(clipped))
