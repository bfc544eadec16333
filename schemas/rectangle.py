"""The region of a map: a rectangle in degrees."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from sfumato.schemas.errors import RequestError

if TYPE_CHECKING:  # requests have regions, and are made before NumPy is imported
    import numpy as np
    from numpy.typing import NDArray

MAX_DEPTH = 20
_LEAST_DEGREES = 1e-9  # a tenth of a millimetre
# Other orders in which borders are written, and where in each are west, south, east and north.
_ORDERS = {
    "EAST,SOUTH,WEST,NORTH": (2, 1, 0, 3),
    "SOUTH,WEST,NORTH,EAST": (1, 0, 3, 2),
    "WEST,EAST,SOUTH,NORTH": (0, 2, 1, 3),
    "SOUTH,NORTH,WEST,EAST": (2, 0, 3, 1),
    "WEST,NORTH,EAST,SOUTH": (0, 3, 2, 1),
    "NORTH,WEST,SOUTH,EAST": (1, 2, 3, 0),
}
_MUCH_SMALLER = 100  # times: the numbers are close in pairs, as they are in the other order
_CONTINENT = 100.0  # square degrees: of a smaller region, such as 9.9,10,11.9,12, the numbers may be close in pairs


@dataclass(frozen=True)
class Region:
    """A rectangle in degrees (WGS 84). Raises RequestError if it has no area or leaves the globe.

    >>> Region.parse("3.00,1.00,3.13,1.13")
    Region(west=3.0, south=1.0, east=3.13, north=1.13)
    """

    west: float
    south: float
    east: float
    north: float

    def __post_init__(self) -> None:
        for name in ("west", "south", "east", "north"):
            value = getattr(self, name)
            if not math.isfinite(value):
                raise RequestError(f"region: {name} must be a finite number of degrees, got {value}")
        if not _is_on_globe(self.west, self.south, self.east, self.north):
            raise RequestError(
                "region: must be WEST,SOUTH,EAST,NORTH with longitudes between -180 and 180, latitudes between -90 and "
                f"90, got {self}; to convert metres (in Python frame.to_crs(4326)) or to scale plain coordinates to "
                "degrees, see docs/how_to/your_logs.md"
            )
        if not _has_area(self.west, self.south, self.east, self.north):
            raise RequestError(
                "region: must be WEST,SOUTH,EAST,NORTH with west < east and south < north, at least "
                f"{_LEAST_DEGREES:g} degrees apart, got {self}"
            )

    @classmethod
    def parse(cls, text: str) -> Region:
        """Returns the region of `WEST,SOUTH,EAST,NORTH`. Raises RequestError also for another order of the numbers."""
        try:
            west, south, east, north = (float(part) for part in text.split(","))
        except ValueError:
            is_split = re.search(r"\d[;\s]+-?\d|^[^,]*\d[^,]*$", text)
            raise RequestError(
                "region: must be four numbers WEST,SOUTH,EAST,NORTH in degrees, such as 11.8,57.6,12.1,57.8, got "
                f"{text!r}{'; write commas, not spaces or semicolons' if is_split else ''}"
            ) from None
        meant = _other_order(west, south, east, north)
        if meant is None:
            return cls(west, south, east, north)
        least = max(meant[1]._square_degrees * _MUCH_SMALLER, _CONTINENT)
        if not _has_area(west, south, east, north) or (east - west) * (north - south) > least:
            raise RequestError(
                f"region: must be WEST,SOUTH,EAST,NORTH, got {text}: these are probably {meant[0]}; give "
                f"--region={meant[1]}"
            )
        return cls(west, south, east, north)

    @property
    def _square_degrees(self) -> float:
        return (self.east - self.west) * (self.north - self.south)

    def with_axes_swapped(self) -> Region | None:
        """Returns the region of the same numbers as SOUTH,WEST,NORTH,EAST; None if that is none."""
        borders = self.south, self.west, self.north, self.east
        return Region(*borders) if _has_area(*borders) else None

    def holds(self, longitude: NDArray[np.float64], latitude: NDArray[np.float64]) -> NDArray[np.bool_]:
        """Returns whether points are in the region, borders included: bool[n]. NaN is outside."""
        inside = (latitude >= self.south) & (latitude <= self.north)  # comparisons with NaN are false
        return inside & (longitude >= self.west) & (longitude <= self.east)

    def __str__(self) -> str:
        return f"{self.west:.10g},{self.south:.10g},{self.east:.10g},{self.north:.10g}"


def _other_order(west: float, south: float, east: float, north: float) -> tuple[str, Region] | None:
    """Returns the other order in which these numbers are the smallest region, and this region; None without one.

    Smallest, because a longitude that is paired with a latitude is rarely close to it.
    """
    numbers = west, south, east, north
    ordered = {name: [numbers[at] for at in places] for name, places in _ORDERS.items()}
    found = {name: Region(*borders) for name, borders in ordered.items() if _has_area(*borders)}
    return min(found.items(), key=lambda one: one[1]._square_degrees, default=None)


def _is_on_globe(west: float, south: float, east: float, north: float) -> bool:
    return west >= -180 and east <= 180 and south >= -90 and north <= 90


def _has_area(west: float, south: float, east: float, north: float) -> bool:
    """Returns whether these are borders of a region on the globe."""
    return _is_on_globe(west, south, east, north) and min(east - west, north - south) >= _LEAST_DEGREES


def region_from(stated: Mapping[str, Any]) -> Region:
    """Returns the region that a manifest states. Raises KeyError, TypeError or ValueError, such as RequestError."""
    return Region(*(float(stated[side]) for side in ("west", "south", "east", "north")))


PENUMBRA = Region(3.00, 1.00, 3.13, 1.13)
"""Where the invented city is: a square of 14.5 km in the Gulf of Guinea. It has no land."""
