"""The region of a map: a rectangle in degrees."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from sfumato.schemas.errors import RequestError

if TYPE_CHECKING:  # requests have regions, and are made before NumPy is imported
    import numpy as np
    from numpy.typing import NDArray

MAX_DEPTH = 20
_LEAST_DEGREES = 1e-9  # a tenth of a millimetre


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
        if not (self.west >= -180 and self.east <= 180 and self.south >= -90 and self.north <= 90):
            raise RequestError(
                "region: must be WEST,SOUTH,EAST,NORTH with longitudes between -180 and 180, latitudes between -90 and "
                f"90, got {self}; to scale plain coordinates to degrees, see docs/how_to/your_logs.md"
            )
        if not min(self.east - self.west, self.north - self.south) >= _LEAST_DEGREES:
            raise RequestError(
                "region: must be WEST,SOUTH,EAST,NORTH with west < east and south < north, at least "
                f"{_LEAST_DEGREES:g} degrees apart, got {self}"
            )

    @classmethod
    def parse(cls, text: str) -> Region:
        """Returns the region of `WEST,SOUTH,EAST,NORTH`."""
        try:
            west, south, east, north = (float(part) for part in text.split(","))
        except ValueError:
            raise RequestError(f"region: must be four numbers WEST,SOUTH,EAST,NORTH in degrees, got {text!r}") from None
        return cls(west, south, east, north)

    def holds(self, longitude: NDArray[np.float64], latitude: NDArray[np.float64]) -> NDArray[np.bool_]:
        """Returns whether points are in the region, borders included: bool[n]. NaN is outside."""
        inside = (latitude >= self.south) & (latitude <= self.north)  # comparisons with NaN are false
        return inside & (longitude >= self.west) & (longitude <= self.east)

    def __str__(self) -> str:
        return f"{self.west:g},{self.south:g},{self.east:g},{self.north:g}"


def region_from(stated: Mapping[str, Any]) -> Region:
    """Returns the region that a manifest states. Raises KeyError, TypeError or ValueError, such as RequestError."""
    return Region(*(float(stated[side]) for side in ("west", "south", "east", "north")))
