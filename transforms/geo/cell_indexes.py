"""Cells of the indexes that analysts join tables by: H3 and quadkeys (Bing tiles). Pure.

A name is the index's own text: an H3 index in hexadecimal, a quadkey of one digit 0..3 a level. Points and polygons
are in degrees (WGS 84), longitude first.

Sources: h3geo.org; Bing Maps Tile System (learn.microsoft.com).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import shapely
from numpy.typing import NDArray

from sfumato.schemas.errors import RequestError
from sfumato.schemas.region import EARTH_RADIUS_KM, Grid, Region, area_km2

Floats = NDArray[np.float64]
MAX_INDEX_CELLS = 1_000_000  # of a region's cells: more would make a table of a GB
_GLOBE_KM2 = 4 * math.pi * EARTH_RADIUS_KM**2
_QUADKEY_NORTH = 85.05112877980659  # degrees, where the square map of Web Mercator ends
_MAX_EDGE = 0.25  # degrees between two vertices: the great circle would be seen to differ from a longer straight line
_DIGITS = 9  # decimals of a degree, 0.1 mm, to which vertices are rounded so that neighbours share them


@dataclass(frozen=True)
class CellIndex:
    """One kind of index: its column in tables of cells, and its lowest and highest resolution.

    `area` is the mean area of its cells, square kilometres, at a resolution and at a latitude in degrees.
    """

    name: str
    coarsest: int
    finest: int
    area: Callable[[int, float], float]

    def resolution(self, km2: float, latitude: float) -> int:
        """Returns the resolution whose mean cell is nearest in ratio to an area, above 0, square kilometres.

        latitude: degrees. Cells of quadkeys are smaller far from the equator.
        """
        levels = range(self.coarsest, self.finest + 1)
        return min(levels, key=lambda level: abs(math.log(self.area(level, latitude) / km2)))


def _quadkey_area(level: int, latitude: float) -> float:
    narrowing = max(math.cos(math.radians(latitude)), 0.08)  # as at the edge of the square map
    return float((2 * math.pi * EARTH_RADIUS_KM * narrowing / 2**level) ** 2)


INDEXES = {
    index.name: index
    for index in (
        CellIndex("h3", 0, 15, lambda level, _: _GLOBE_KM2 / (2 + 120 * 7**level)),
        CellIndex("quadkey", 1, 23, _quadkey_area),
    )
}


def checked_index(kind: str, resolution: int) -> CellIndex:
    """Returns the index of this name. Raises RequestError for an unknown index or resolution."""
    if kind not in INDEXES:
        raise RequestError(f"index: must be one of {', '.join(INDEXES)}, got {kind!r}")
    index = INDEXES[kind]
    if not (isinstance(resolution, int | np.integer) and index.coarsest <= resolution <= index.finest):
        raise RequestError(
            f"{kind}: resolution must be a whole number between {index.coarsest} and {index.finest}, got {resolution}"
        )
    return index


def index_names(kind: str, resolution: int | NDArray[np.int64], longitude: Floats, latitude: Floats) -> NDArray[Any]:
    """Returns the index cells in which points lie: str[n].

    Args:
        kind: one of INDEXES.
        resolution: of the cells, for all points or int64[n] for each.
        longitude, latitude: float64[n], degrees. Quadkeys end at 85.05 degrees; points beyond lie in the last tile.

    Raises RequestError for an unknown index or resolution.
    """
    levels = np.broadcast_to(np.asarray(resolution, dtype=np.int64), longitude.shape)
    for level in np.unique(np.asarray(resolution)).tolist():
        checked_index(kind, level)
    if kind == "h3":
        from h3 import latlng_to_cell

        return np.array([*map(latlng_to_cell, latitude.tolist(), longitude.tolist(), levels.tolist())], dtype="U15")
    return _quadkey_texts(*_tiles(longitude, latitude, levels), levels)


def index_columns(
    grid: Grid, level: NDArray[np.int64], west: Floats, south: Floats, east: Floats, north: Floats
) -> dict[str, NDArray[Any]]:
    """Returns the columns INDEX_FIELDS of a table of a grid's nodes: str[n] by index.

    The resolution of a level is that whose mean cell is nearest in ratio to the region's area over 4^level.

    level: int64[n], of the nodes. west, south, east, north: float64[n], degrees.
    """
    area, middle = _area_km2(grid.region), (grid.region.south + grid.region.north) / 2
    columns = {}
    for name, index in INDEXES.items():
        by_level = np.array([index.resolution(area / 4**one, middle) for one in range(grid.depth + 1)])
        columns[name] = index_names(name, by_level[level], (west + east) / 2, (south + north) / 2)
    return columns


def _area_km2(region: Region) -> float:
    sides = (np.array([side]) for side in (region.west, region.south, region.east, region.north))
    return float(area_km2(*sides)[0])


def index_polygons(kind: str, names: Sequence[str] | NDArray[Any]) -> NDArray[np.object_]:
    """Returns the shapes of index cells by name: object[n] of polygons, multipolygons across the antimeridian.

    The edges of H3 cells are great circles. They are drawn as straight lines of at most a quarter of a degree,
    which are within 100 m of the circle below 80 degrees of latitude, and within a metre for edges of 2 km.
    """
    texts = [str(name) for name in names]
    if kind == "quadkey":
        return _quadkey_boxes(texts)
    import h3

    rings = [h3.cell_to_boundary(text) for text in texts]
    sizes = np.array([len(ring) for ring in rings], dtype=np.int64)
    flat = np.array([point for ring in rings for point in ring], dtype=np.float64).reshape(-1, 2)
    return _shapes(flat[:, 1], flat[:, 0], sizes)


def index_cells(kind: str, resolution: int, region: Region) -> tuple[NDArray[Any], NDArray[np.object_]]:
    """Returns the cells of an index that share area with a region.

    Returns names str[n], ascending, and their whole shapes object[n], which may leave the region.

    Raises RequestError for an unknown index or resolution, or more than MAX_INDEX_CELLS cells.
    """
    index = checked_index(kind, resolution)
    middle = (region.south + region.north) / 2
    cells = _area_km2(region) / index.area(resolution, middle)
    if cells > MAX_INDEX_CELLS:
        raise RequestError(
            f"{kind}: the region has about {cells:,.0f} cells of resolution {resolution}, more than "
            f"{MAX_INDEX_CELLS:,}; choose a lower resolution or a smaller region"
        )
    if kind == "h3":
        names = np.unique(_h3_cells_of(region, resolution))
    else:
        corners = np.array([region.west, region.east]), np.array([region.north, region.south])
        x, y = _tiles(*corners, np.full(2, resolution))
        across, down = np.meshgrid(np.arange(x[0], x[1] + 1), np.arange(y[0], y[1] + 1))
        names = np.unique(_quadkey_texts(across.ravel(), down.ravel(), np.full(across.size, resolution)))
    shapes = index_polygons(kind, names)
    box = shapely.box(region.west, region.south, region.east, region.north)
    shared = shapely.intersects(shapes, box) & ~shapely.touches(shapes, box)
    return names[shared], shapes[shared]


# --- quadkeys ---


def _tiles(longitude: Floats, latitude: Floats, levels: NDArray[np.int64]) -> tuple[NDArray[Any], NDArray[Any]]:
    """Returns columns from the west and rows from the north of the tiles of points: int64[n] each."""
    sine = np.sin(np.radians(np.clip(latitude, -_QUADKEY_NORTH, _QUADKEY_NORTH)))
    across, down = (longitude + 180) / 360, 0.5 - np.log((1 + sine) / (1 - sine)) / (4 * np.pi)
    side = np.int64(1) << levels
    x, y = (np.clip(np.floor(share * side).astype(np.int64), 0, side - 1) for share in (across, down))
    return x, y


def _quadkey_texts(x: NDArray[np.int64], y: NDArray[np.int64], levels: NDArray[np.int64]) -> NDArray[Any]:
    width = int(levels.max(initial=1))
    digits = np.zeros((len(x), width), dtype=np.uint8)  # NumPy drops the zero bytes at the end of a text
    for at in range(width):
        shift = np.maximum(levels - 1 - at, 0)
        digit = ((x >> shift) & 1) | (((y >> shift) & 1) << 1)
        digits[:, at] = np.where(at < levels, digit + ord("0"), 0)
    return digits.view(f"S{width}").ravel().astype(str)


def _quadkey_boxes(texts: list[str]) -> NDArray[np.object_]:
    x, y, levels = (np.zeros(len(texts), dtype=np.int64) for _ in range(3))
    for at, text in enumerate(texts):
        bits = f"{int(text, 4):b}".zfill(2 * len(text))
        levels[at], x[at], y[at] = len(text), int(bits[1::2], 2), int(bits[::2], 2)
    side = (np.int64(1) << levels).astype(np.float64)
    north, south = (np.degrees(np.arctan(np.sinh(np.pi * (1 - 2 * row / side)))) for row in (y, y + 1))
    # Tiles of the first and last row reach the poles, because points there count for them.
    north, south = np.where(y == 0, 90.0, north), np.where(y + 1 == side, -90.0, south)
    return np.asarray(shapely.box(x / side * 360 - 180, south, (x + 1) / side * 360 - 180, north))


# --- H3 ---


def _h3_cells_of(region: Region, level: int) -> NDArray[Any]:
    import h3

    found: set[str] = set()
    strips = np.linspace(region.west, region.east, 2 + int((region.east - region.west) / 90))  # H3 takes wide for round
    for west, east in zip(strips[:-1].tolist(), strips[1:].tolist(), strict=True):
        ring = [(region.south, west), (region.south, east), (region.north, east), (region.north, west)]
        shape = h3.LatLngPoly(ring)
        cells = set(h3.h3shape_to_cells_experimental(shape, level, contain="overlap"))
        near = cells or {h3.latlng_to_cell(*corner, level) for corner in ring}
        # H3 follows other lines between corners than great circles do: neighbours are looked at too.
        found |= cells.union(*(h3.grid_disk(cell, 1) for cell in near))
    return np.array(sorted(found), dtype=str)


# --- shapes ---


def _shapes(longitude: Floats, latitude: Floats, sizes: NDArray[np.int64]) -> NDArray[np.object_]:
    """Returns polygons of rings whose edges are great circles.

    longitude, latitude: float64[m], degrees, of all rings' vertices one after the other. sizes: int64[n], vertices of
    each ring.
    """
    longitude, latitude, sizes = _with_points_on_edges(longitude, latitude, sizes)
    ring = np.repeat(np.arange(len(sizes)), sizes)
    first = np.cumsum(sizes) - sizes
    following = np.arange(len(ring)) + 1
    following[np.cumsum(sizes) - 1] = first
    step = np.abs(longitude[following] - longitude)
    hard = np.bincount(ring, (step > 180) | (np.abs(latitude) > 90 - 1e-9), len(sizes)) > 0
    found = np.empty(len(sizes), dtype=object)
    points = np.column_stack([np.round(longitude, _DIGITS), np.round(latitude, _DIGITS)])
    plain = ~hard[ring]
    if plain.any():
        order = (np.cumsum(~hard) - 1)[ring[plain]]
        found[~hard] = shapely.polygons(shapely.linearrings(points[plain], indices=order))
    for at in np.flatnonzero(hard).tolist():
        found[at] = _unrolled(points[first[at] : first[at] + sizes[at]])
    return found


def _with_points_on_edges(
    longitude: Floats, latitude: Floats, sizes: NDArray[np.int64]
) -> tuple[Floats, Floats, NDArray[np.int64]]:
    """Returns the rings with further vertices on long edges, on the great circle between the edge's ends."""
    ends = np.cumsum(sizes)
    following = np.arange(len(longitude)) + 1
    following[ends - 1] = ends - sizes
    theta, phi = np.radians(longitude), np.radians(latitude)
    start = np.column_stack([np.cos(theta) * np.cos(phi), np.sin(theta) * np.cos(phi), np.sin(phi)])
    angle = 2 * np.arcsin(np.minimum(np.linalg.norm(start[following] - start, axis=1) / 2, 1))
    parts = np.maximum(np.ceil(np.degrees(angle) / _MAX_EDGE), 1).astype(np.int64)
    if parts.max(initial=1) == 1:
        return longitude, latitude, sizes
    edge = np.repeat(np.arange(len(parts)), parts)
    share = (np.arange(len(edge)) - (np.cumsum(parts) - parts)[edge]) / parts[edge]
    scale = np.maximum(np.sin(angle), 1e-300)[edge]
    before, after = np.sin((1 - share) * angle[edge]) / scale, np.sin(share * angle[edge]) / scale
    point = start[edge] * before[:, None] + start[following[edge]] * after[:, None]
    between = share > 0
    at = np.where(between, np.degrees(np.arctan2(point[:, 1], point[:, 0])), longitude[edge])
    up = np.where(between, np.degrees(np.arctan2(point[:, 2], np.hypot(point[:, 0], point[:, 1]))), latitude[edge])
    return at, up, np.add.reduceat(parts, ends - sizes)


def _unrolled(points: Floats) -> Any:
    """Returns the polygon of a ring that crosses the antimeridian or holds a pole: float64[k, 2] of degrees."""
    kept = []
    for at, (longitude, latitude) in enumerate(points.tolist()):
        if abs(latitude) > 90 - 1e-9:  # a pole has every longitude: from the one before it to the one after it
            pole = math.copysign(90.0, latitude)
            kept += [(points[at - 1][0], pole), (points[(at + 1) % len(points)][0], pole)]
        else:
            kept.append((longitude, latitude))
    ring = np.array(kept)
    steps = np.diff(ring[:, 0], append=ring[0, 0])
    steps -= 360 * np.round(steps / 360)
    ring[:, 0] = ring[0, 0] + np.concatenate([[0.0], np.cumsum(steps[:-1])])
    around = float(steps.sum())
    if abs(around) > 180:  # once round the globe: a pole is inside
        pole = math.copysign(90.0, ring[:, 1].mean())
        ends = [[ring[0, 0] + around, ring[0, 1]], [ring[0, 0] + around, pole], [ring[0, 0], pole]]
        ring = np.concatenate([ring, ends])
    whole = shapely.make_valid(shapely.polygons(ring))
    parts = [
        shapely.affinity.translate(shapely.intersection(whole, shapely.box(west, -90, west + 360, 90)), -180 - west)
        for west in (-540.0, -180.0, 180.0)
    ]
    polygons = [one for part in parts for one in shapely.get_parts(part) if shapely.get_dimensions(one) == 2]
    return shapely.union_all(polygons, grid_size=0.1**_DIGITS)  # parts of a polar cell have an edge in common
