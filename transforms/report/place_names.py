"""Names of places by a map's geography, as its page writes them: `Old Town, 880 m west of Harbour`. Pure."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import shapely

from sfumato.schemas.region import EARTH_RADIUS_KM
from sfumato.schemas.views.map_views import Basemap
from sfumato.transforms.report.numbers import coordinates, length

_NEAR = 0.015  # of the extent of all names: a place within it is "near", one farther has its distance and direction
_DIRECTIONS = ("north", "north-east", "east", "south-east", "south", "south-west", "west", "north-west")


class PlaceNames:
    """The names of a basemap; of None, or one without names, places have only their coordinates."""

    def __init__(self, basemap: Basemap | None):
        places, zones = ([], []) if basemap is None else (basemap.places, basemap.zones)
        self._names = [place.name for place in places]
        self._places = np.array([(place.longitude, place.latitude) for place in places]).reshape(-1, 2)
        # The rings of a zone, those of its holes among them, are even-odd.
        self._zones = [(zone.name, [shapely.Polygon(ring) for ring in zone.rings]) for zone in zones]
        corners = np.concatenate([self._places, *(ring.exterior.coords for _, rings in self._zones for ring in rings)])
        extent = _way(corners.min(axis=0).tolist(), corners.max(axis=0).tolist())[0] if len(corners) else 0.0
        self._near = max(_NEAR * extent, 1.0)

    def of(self, latitude: float, longitude: float, size: float) -> str:
        """Returns the name of a place, with its coordinates. size: of its cell's shorter side, in degrees."""
        near, where = self.near(latitude, longitude), coordinates(latitude, longitude, size)
        return f"{near} ({where})" if near else where

    def near(self, latitude: float, longitude: float) -> str:
        """Returns the name of a place; empty where the basemap has none."""
        point = shapely.Point(longitude, latitude)
        parts = [name for name, rings in self._zones if sum(ring.contains(point) for ring in rings) % 2][:1]
        ways = [_way(place, (longitude, latitude)) for place in self._places.tolist()]
        if ways:
            nearest = min(range(len(ways)), key=lambda i: ways[i][0])
            metres, direction = ways[nearest]
            far = f"{length(float(f'{metres:.2g}'))} {direction} of"
            parts.append(f"{'near' if metres <= self._near else far} {self._names[nearest]}")
        return ", ".join(parts)


def _way(start: Sequence[float], end: Sequence[float]) -> tuple[float, str]:
    """Returns the metres from one place to another, and in which of eight directions it lies. Places: x, y."""
    east = math.radians(end[0] - start[0]) * math.cos(math.radians((start[1] + end[1]) / 2))
    north = math.radians(end[1] - start[1])
    eighth = round(math.atan2(east, north) / (math.pi / 4))
    return 1000 * EARTH_RADIUS_KM * math.hypot(east, north), _DIRECTIONS[eighth % 8]
