"""Web Mercator on a unit sphere, and quadtree cells painted into a raster in it. Pure."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from sfumato.schemas.views import Bounds, Layer

MAX_LATITUDE = 85.0511287798066  # of a square world map
_POLE = 89.99


def mercator(latitude: NDArray[np.float64] | float) -> NDArray[np.float64]:
    """Northing in radians. Latitudes beyond the poles' rim are moved to it."""
    return np.asarray(np.arcsinh(np.tan(np.radians(np.clip(latitude, -_POLE, _POLE)))))


@dataclass(frozen=True)
class Frame:
    """A rectangle of a Web Mercator map, as `width` x `height` pixels.

    Attributes:
        bounds: in degrees.
        width, height: pixels.
    """

    bounds: Bounds
    width: int
    height: int

    @classmethod
    def around(cls, region: Bounds, longer: int, margin: float = 0.0) -> Frame:
        """The frame of a region whose longer side has so many pixels.

        Args:
            region: parts of it beyond 85 degrees north or south are left out, unless nothing else is in it.
            longer: pixels of the longer side.
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
        low, high = float(mercator(self.bounds.south)), float(mercator(self.bounds.north))
        return np.asarray((high - mercator(latitude)) * (self.height / (high - low)))

    def longitudes(self) -> NDArray[np.float64]:
        """Of the pixels' middles, float64[width]."""
        share = (np.arange(self.width) + 0.5) / self.width
        return np.asarray(self.bounds.west + share * (self.bounds.east - self.bounds.west))

    def latitudes(self) -> NDArray[np.float64]:
        """Of the pixels' middles, from the north, float64[height]."""
        low, high = float(mercator(self.bounds.south)), float(mercator(self.bounds.north))
        share = (np.arange(self.height) + 0.5) / self.height
        return np.asarray(np.degrees(np.arctan(np.sinh(high - share * (high - low)))))


def cell_raster(layer: Layer, region: Bounds, frame: Frame) -> NDArray[np.int64]:
    """The cell that is seen at each pixel: int64[height, width], rows of the layer; -1 where there is none.

    Deeper cells lie over higher ones. A cell without a pixel's middle in it is painted at the pixel of its own middle,
    so that no cell is lost, however small.
    """
    level, x, y = (np.asarray(one, dtype=np.int64) for one in (layer.level, layer.x, layer.y))
    painted = np.full((frame.height, frame.width), -1, dtype=np.int64)
    is_seen = np.zeros(len(level) + 1, dtype=bool)  # the last one stands for no cell
    u = (frame.longitudes() - region.west) / (region.east - region.west)
    v = (region.north - frame.latitudes()) / (region.north - region.south)
    columns, rows = np.flatnonzero((u >= 0) & (u < 1)), np.flatnonzero((v >= 0) & (v < 1))
    if not len(columns) or not len(rows):
        return painted
    inside = np.s_[rows[0] : rows[-1] + 1, columns[0] : columns[-1] + 1]
    finest = max(math.ceil(math.log2(max(len(columns), len(rows)))), 1)  # levels with cells of a pixel or more
    for depth in np.unique(level).tolist():
        cells, side = np.flatnonzero(level == depth), 1 << depth
        if depth <= finest:
            seen = np.full((side, side), -1, dtype=np.int64)
            seen[y[cells], x[cells]] = cells
            found = seen[(v[rows] * side).astype(np.int64)[:, None], (u[columns] * side).astype(np.int64)]
            painted[inside] = np.where(found >= 0, found, painted[inside])
            is_seen[found] = True
        lost = cells[~is_seen[cells]] if depth >= finest - 1 else cells[:0]
        if len(lost):
            longitude = region.west + (x[lost] + 0.5) / side * (region.east - region.west)
            latitude = region.north - (y[lost] + 0.5) / side * (region.north - region.south)
            column = np.clip(frame.columns(longitude).astype(np.int64), columns[0], columns[-1])
            row = np.clip(frame.rows(latitude).astype(np.int64), rows[0], rows[-1])
            painted[row, column] = lost
    return painted
