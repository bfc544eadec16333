"""The region of a map: a rectangle in degrees, or of a plane."""

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
MAX_COORDINATE = 1e15  # of a plane
_LEAST_DEGREES = 1e-9  # a tenth of a millimetre
_LEAST_SIDE = 1e-15  # of a plane: areas of its cells, and users per area, are numbers that a float holds
_LEAST_SHARE = 1e-9  # of a plane's largest coordinate: its cells have different borders at any depth


@dataclass(frozen=True)
class Region:
    """A rectangle in degrees (WGS 84). Raises RequestError where it has no area or leaves the globe."""

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
                "; `sfumato heatmap --axes X,Y` maps a plane with plain coordinates"
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


@dataclass(frozen=True)
class Plane(Region):
    """A rectangle of a plane with plain coordinates in any unit, such as a hall in metres or a screen in pixels.

    `west` and `east` are the ends of the first axis, `south` and `north` those of the second.

    Attributes:
        axes: their names, the columns of the logs.

    Raises:
        RequestError: the rectangle has no area, a coordinate is out of range, or the axes are not two different ones.
    """

    axes: tuple[str, str] = ("x", "y")

    def __post_init__(self) -> None:
        if len(self.axes) != 2 or self.axes[0] == self.axes[1] or not all(self.axes):
            raise RequestError(f"axes: name two different columns, such as x,y; got {','.join(self.axes)!r}")
        for name in ("west", "south", "east", "north"):
            if not abs(getattr(self, name)) <= MAX_COORDINATE:  # NaN is not, either
                raise RequestError(f"region: must be numbers of at most {MAX_COORDINATE:g}, got {self}")
        for low, high in ((self.west, self.east), (self.south, self.north)):
            if not high - low >= max(_LEAST_SHARE * max(abs(low), abs(high)), _LEAST_SIDE):
                raise RequestError(
                    f"region: X0,Y0,X1,Y1 must have X0 < X1 and Y0 < Y1, by {_LEAST_SIDE:g} and by {_LEAST_SHARE:g} of "
                    f"the largest coordinate or more, got {self}"
                )

    def __str__(self) -> str:
        sides = ",".join(f"{side:.15g}" for side in (self.west, self.south, self.east, self.north))
        return f"{sides} ({', '.join(self.axes)})"

    @classmethod
    def of(cls, value: Any, axes: tuple[str, ...]) -> Plane:
        """A plane of `X0,Y0,X1,Y1`, or of four numbers or a region. Raises RequestError."""
        if isinstance(value, Region):
            value = (value.west, value.south, value.east, value.north)
        parts = value.split(",") if isinstance(value, str) else value
        try:
            west, south, east, north = (float(part) for part in parts)
        except (TypeError, ValueError):
            raise RequestError(f"region: expected four numbers X0,Y0,X1,Y1, got {value!r}") from None
        return cls(west, south, east, north, tuple(map(str, axes)))  # type: ignore[arg-type]


def region_from(stated: Mapping[str, Any]) -> Region:
    """The region that a manifest states. Raises KeyError, TypeError or ValueError (of which RequestError is one)."""
    sides = [float(stated[side]) for side in ("west", "south", "east", "north")]
    return Plane.of(sides, tuple(stated["axes"])) if "axes" in stated else Region(*sides)


def check_globe(region: Region, what: str) -> None:
    """Raises RequestError if a region is of a plane. what: begins the message, with the option that is at fault."""
    if isinstance(region, Plane):
        axes = " and ".join(region.axes)
        raise RequestError(f"{what} needs longitudes and latitudes; this map is of a plane with the axes {axes}")
