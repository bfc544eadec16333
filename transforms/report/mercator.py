"""Web Mercator on a unit sphere, and quadtree cells painted into a raster in it. Pure."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import shapely
from numpy.typing import NDArray

from sfumato.schemas.views import Bounds, Layer, Path

MAX_LATITUDE = 85.0511287798066  # of a square world map
_POLE = 89.99


def mercator(latitude: NDArray[np.float64] | float) -> NDArray[np.float64]:
    """Northing in radians. Latitudes beyond the poles' rim are moved to it."""
    return np.asarray(np.arcsinh(np.tan(np.radians(np.clip(latitude, -_POLE, _POLE)))))


@dataclass(frozen=True)
class Frame:
    """A rectangle of a Web Mercator map as `width` x `height` pixels.

    Attributes:
        bounds: in degrees.
        width, height: pixels.
    """

    bounds: Bounds
    width: int
    height: int

    @classmethod
    def around(cls, region: Bounds, longer: int, margin: float = 0.0) -> Frame:
        """The frame of a region. Its longer side, margins included, has `longer` pixels.

        Args:
            region: parts of it beyond 85 degrees north or south are left out, unless nothing else is in it.
            longer: pixels.
            margin: how much wider the frame is on each side, as a share of the region's longer side.
        """
        rim = MAX_LATITUDE if region.south < MAX_LATITUDE and region.north > -MAX_LATITUDE else _POLE
        west, east = math.radians(region.west), math.radians(region.east)
        south, north = mercator(np.clip([region.south, region.north], -rim, rim)).tolist()
        spare = margin * max(east - west, north - south)
        west, east = max(west - spare, -math.pi), min(east + spare, math.pi)
        edge = float(mercator(rim))
        south, north = max(south - spare, -edge), min(north + spare, edge)
        scale = longer / max(east - west, north - south)
        width, height = (max(round(side * scale), 1) for side in (east - west, north - south))
        degrees = [math.degrees(one) for one in (west, math.atan(math.sinh(south)), east, math.atan(math.sinh(north)))]
        bounds = Bounds(west=degrees[0], south=degrees[1], east=degrees[2], north=degrees[3])
        return cls(bounds, width, height)

    @property
    def middle_latitude(self) -> float:
        """Latitude half way up the frame, for which its scale bar holds."""
        low, high = mercator(self.bounds.south), mercator(self.bounds.north)
        return math.degrees(math.atan(math.sinh((float(low) + float(high)) / 2)))

    def columns(self, longitude: NDArray[np.float64]) -> NDArray[np.float64]:
        """Pixels from the left edge, float64 of the input's shape."""
        return np.asarray((longitude - self.bounds.west) * (self.width / (self.bounds.east - self.bounds.west)))

    def rows(self, latitude: NDArray[np.float64]) -> NDArray[np.float64]:
        """Pixels from the upper edge, float64 of the input's shape."""
        low, high = (float(mercator(side)) for side in (self.bounds.south, self.bounds.north))
        return np.asarray((high - mercator(latitude)) * (self.height / (high - low)))

    def longitudes(self) -> NDArray[np.float64]:
        """Of the pixels' middles, float64[width]."""
        share = (np.arange(self.width) + 0.5) / self.width
        return np.asarray(self.bounds.west + share * (self.bounds.east - self.bounds.west))

    def latitudes(self) -> NDArray[np.float64]:
        """Of the pixels' middles, from the north, float64[height]."""
        low, high = (float(mercator(side)) for side in (self.bounds.south, self.bounds.north))
        share = (np.arange(self.height) + 0.5) / self.height
        return np.asarray(np.degrees(np.arctan(np.sinh(high - share * (high - low)))))


def _smallest(region: Bounds, frame: Frame, side: int) -> float:
    """Pixels of the shorter side of the smallest cell of a grid that lies in the frame as a whole."""
    wide = frame.width * (region.east - region.west) / (frame.bounds.east - frame.bounds.west) / side
    if wide < 0.1:
        return wide
    edges = frame.rows(np.linspace(region.north, region.south, side + 1))
    tall = np.diff(edges)[(edges[:-1] >= 0) & (edges[1:] <= frame.height)]
    return min(wide, float(tall.min(initial=wide)))


def cell_raster(layer: Layer, region: Bounds, frame: Frame, least: int = 1) -> NDArray[np.int64]:
    """The cell that is seen at each pixel: int64[height, width], rows of the layer; -1 where there is none.

    Deeper cells lie over higher ones. A cell that is narrower than `least` pixels is painted as a square of so many
    around its middle, so that no cell in the frame is lost, however small.
    """
    if layer.shapes is not None:
        return _shape_raster(layer.shapes, frame)
    level, x, y = (np.asarray(one, dtype=np.int64) for one in (layer.level, layer.x, layer.y))
    painted = np.full((frame.height, frame.width), -1, dtype=np.int64)
    u = (frame.longitudes() - region.west) / (region.east - region.west)
    v = (region.north - frame.latitudes()) / (region.north - region.south)
    columns, rows = np.flatnonzero((u >= 0) & (u < 1)), np.flatnonzero((v >= 0) & (v < 1))
    if not len(columns) or not len(rows):
        return painted
    inside = np.s_[rows[0] : rows[-1] + 1, columns[0] : columns[-1] + 1]
    for depth in np.unique(level).tolist():
        cells, side = np.flatnonzero(level == depth), 1 << depth
        if _smallest(region, frame, side) >= least:
            seen = np.full((side, side), -1, dtype=np.int64)
            seen[y[cells], x[cells]] = cells
            found = seen[(v[rows] * side).astype(np.int64)[:, None], (u[columns] * side).astype(np.int64)]
            painted[inside] = np.where(found >= 0, found, painted[inside])
            continue
        longitude = region.west + (x[cells] + 0.5) / side * (region.east - region.west)
        latitude = region.north - (y[cells] + 0.5) / side * (region.north - region.south)
        column, row = (np.floor(at).astype(np.int64) for at in (frame.columns(longitude), frame.rows(latitude)))
        held = (column >= columns[0]) & (column <= columns[-1]) & (row >= rows[0]) & (row <= rows[-1])
        for offset in range(least**2):
            down, right = offset // least - least // 2, offset % least - least // 2
            below = np.clip(row[held] + down, rows[0], rows[-1])
            painted[below, np.clip(column[held] + right, columns[0], columns[-1])] = cells[held]
    return painted


def _shape_raster(shapes: list[list[Path]], frame: Frame) -> NDArray[np.int64]:
    """The polygon at the middle of each pixel: int64[height, width]; -1 where there is none.

    A polygon that holds no such middle is painted at the pixel of its own middle, so that none is lost.
    """
    painted = np.full((frame.height, frame.width), -1, dtype=np.int64)
    column, row = np.arange(frame.width) + 0.5, np.arange(frame.height) + 0.5
    small = []
    for number, rings in enumerate(shapes):
        area = _even_odd(rings, frame)
        if area.is_empty:  # narrower than the view's coordinates are exact
            continue
        left, top, right, bottom = area.bounds
        columns = np.s_[max(math.floor(left), 0) : max(math.ceil(right), 0)]
        rows = np.s_[max(math.floor(top), 0) : max(math.ceil(bottom), 0)]
        x, y = np.meshgrid(column[columns], row[rows])
        shapely.prepare(area)
        held = shapely.contains_xy(area, x, y)
        painted[rows, columns][held] = number
        if not held.any():
            small.append((number, int((left + right) / 2), int((top + bottom) / 2)))
    for number, x, y in small:
        if 0 <= x < frame.width and 0 <= y < frame.height:
            painted[y, x] = number
    return painted


def _even_odd(rings: list[Path], frame: Frame) -> shapely.Geometry:
    """The area of rings in pixels: what lies in an odd number of them."""
    area = shapely.Polygon()
    for ring in rings:
        points = np.array(ring, dtype=np.float64)
        polygon = shapely.Polygon(np.stack([frame.columns(points[:, 0]), frame.rows(points[:, 1])], axis=1))
        area = shapely.symmetric_difference(area, shapely.make_valid(polygon))
    return area
