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
    """A rectangle in degrees (WGS 84). Raises RequestError where it has no area or leaves the globe.

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
                f"region: {self} leaves the globe; longitudes lie in -180..180, latitudes in -90..90 (longitude first)"
                "; docs/how_to/your_logs.md says how to scale plain coordinates to degrees"
            )
        if not min(self.east - self.west, self.north - self.south) >= _LEAST_DEGREES:
            raise RequestError(
                "region: WEST,SOUTH,EAST,NORTH must have west < east and south < north, by "
                f"{_LEAST_DEGREES:g} degrees or more, got {self}"
            )

    @classmethod
    def parse(cls, text: str) -> Region:
        """Reads `WEST,SOUTH,EAST,NORTH`."""
        try:
            west, south, east, north = (float(part) for part in text.split(","))
        except ValueError:
            raise RequestError(
                f"region: expected four numbers WEST,SOUTH,EAST,NORTH in degrees, got {text!r}"
            ) from None
        return cls(west, south, east, north)

    def holds(self, longitude: NDArray[np.float64], latitude: NDArray[np.float64]) -> NDArray[np.bool_]:
        """Whether points are in the region, borders included: bool[n]. NaN is outside."""
        inside = (latitude >= self.south) & (latitude <= self.north)  # comparisons with NaN are false
        return inside & (longitude >= self.west) & (longitude <= self.east)

    def __str__(self) -> str:
        return f"{self.west:g},{self.south:g},{self.east:g},{self.north:g}"


def region_from(stated: Mapping[str, Any]) -> Region:
    """The region that a manifest states. Raises KeyError, TypeError or ValueError (of which RequestError is one)."""
    return Region(*(float(stated[side]) for side in ("west", "south", "east", "north")))
