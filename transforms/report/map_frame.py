"""A rectangle of a Web Mercator map, in pixels. Pure."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from sfumato.schemas.views.view_parts import Bounds

MAX_LATITUDE = 85.0511287798066  # of a square world map
_POLE = 89.99


def mercator(latitude: NDArray[np.float64] | float) -> NDArray[np.float64]:
    """Returns northing in radians. Latitudes beyond the poles' rim are moved to it."""
    return np.asarray(np.arcsinh(np.tan(np.radians(np.clip(latitude, -_POLE, _POLE)))))


def _latitude(northing: float) -> float:
    return math.atan(math.sinh(northing))


@dataclass(frozen=True)
class Frame:
    """A rectangle of a Web Mercator map, in degrees, as `width` x `height` pixels."""

    bounds: Bounds
    width: int
    height: int

    @classmethod
    def around(cls, region: Bounds, longer: int, margin: float = 0.0) -> Frame:
        """Returns the frame of a region. Its longer side, margins included, has `longer` pixels.

        Parts of the region beyond 85 degrees north or south are left out, unless nothing else is in it. margin: how
        much wider the frame is on each side, as a share of the region's longer side.
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
        west, south, east, north = map(math.degrees, (west, _latitude(south), east, _latitude(north)))
        return cls(Bounds(west=west, south=south, east=east, north=north), width, height)

    @property
    def middle_latitude(self) -> float:
        """Returns latitude half way up the frame, for which its scale bar holds."""
        low, high = mercator(self.bounds.south), mercator(self.bounds.north)
        return math.degrees(_latitude((float(low) + float(high)) / 2))

    def columns(self, longitude: NDArray[np.float64]) -> NDArray[np.float64]:
        """Returns pixels from the left edge, float64 of the input's shape."""
        return np.asarray((longitude - self.bounds.west) * (self.width / (self.bounds.east - self.bounds.west)))

    def rows(self, latitude: NDArray[np.float64]) -> NDArray[np.float64]:
        """Returns pixels from the upper edge, float64 of the input's shape."""
        low, high = (float(mercator(side)) for side in (self.bounds.south, self.bounds.north))
        return np.asarray((high - mercator(latitude)) * (self.height / (high - low)))

    def pixels(self, points: list[tuple[float, float]]) -> NDArray[np.float64]:
        """Returns the pixels of points of longitude and latitude: float64[n, 2]."""
        at = np.array(points, dtype=np.float64)
        return np.stack([self.columns(at[:, 0]), self.rows(at[:, 1])], axis=1)


class DegreeFrame(Frame):
    """A frame in which all degrees of latitude are equal, as on axes of degrees."""

    def rows(self, latitude: NDArray[np.float64]) -> NDArray[np.float64]:
        b = self.bounds
        return np.asarray((b.north - latitude) * (self.height / (b.north - b.south)))
