"""The grid of a region's quadtree, and the codes of its cells.

A grid of depth d has 2^d x 2^d cells of equal size in degrees. A cell's code is its quadtree
path: two bits a level, the x (east) bit before the y (south) bit, as in the example of paper 000, Section 5.6
(x = 1100, y = 0101 gives 10/11/00/01). So 00 is the north-west quadrant, 01 the south-west, 10 the north-east and 11
the south-east. x counts from the west, y from the north.
"""

from __future__ import annotations

import gzip
import json
import math
from collections.abc import Sequence
from dataclasses import dataclass
from importlib import resources
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from sfumato.schemas.errors import RequestError
from sfumato.schemas.rectangle import MAX_DEPTH as MAX_DEPTH
from sfumato.schemas.rectangle import Region as Region

CLOSE = 200.0  # metres between points: errors of position move many users from one to the other
EARTH_RADIUS_KM = 6371.0088


class Locator(Protocol):
    """A map from locations to codes: the cells of a grid, or the zones of a list."""

    @property
    def depth(self) -> int:
        """Codes are below 4^depth."""

    def locate(
        self, longitude: NDArray[np.float64], latitude: NDArray[np.float64]
    ) -> tuple[NDArray[np.bool_], NDArray[np.uint64]]:
        """Returns which points have a code, bool[n], and their codes, uint64[m]. NaN has no code. In degrees."""


@dataclass(frozen=True)
class Grid:
    """The 2^depth x 2^depth cells over a region. Raises RequestError for a depth outside 1..20.

    >>> grid = Grid(Region(0.0, 0.0, 4.0, 4.0), depth=2)
    >>> grid.side
    4
    >>> grid.codes(np.array([0.5, 3.5]), np.array([3.5, 0.5]))
    array([ 0, 15], dtype=uint64)
    """

    region: Region
    depth: int

    def __post_init__(self) -> None:
        if not (isinstance(self.depth, int) and 1 <= self.depth <= MAX_DEPTH):
            raise RequestError(f"depth: must be a whole number between 1 and {MAX_DEPTH}, got {self.depth}")

    @property
    def side(self) -> int:
        """Cells along one side."""
        return 1 << self.depth

    def locate(
        self, longitude: NDArray[np.float64], latitude: NDArray[np.float64]
    ) -> tuple[NDArray[np.bool_], NDArray[np.uint64]]:
        """Returns which points are in the region, bool[n], and the codes of their cells. See Locator."""
        inside = self.region.holds(longitude, latitude)
        if not inside.all():
            longitude, latitude = longitude[inside], latitude[inside]
        return inside, self.codes(longitude, latitude)

    def codes(self, longitude: NDArray[np.float64], latitude: NDArray[np.float64]) -> NDArray[np.uint64]:
        """Returns codes of the cells of points, uint64[n]. The points must be in the region, borders included."""
        region, side = self.region, self.side
        x = (longitude - region.west) * (side / (region.east - region.west))
        y = (region.north - latitude) * (side / (region.north - region.south))
        last = np.uint32(side - 1)
        # The eastern and southern borders belong to the last cell.
        return interleave(np.minimum(x.astype(np.uint32), last), np.minimum(y.astype(np.uint32), last))

    def bounds(
        self, x: NDArray[np.int64], y: NDArray[np.int64], level: NDArray[np.int64]
    ) -> tuple[NDArray[np.float64], NDArray[np.float64], NDArray[np.float64], NDArray[np.float64]]:
        """Returns west, south, east and north in degrees, float64[n] each, of cells (x, y) at the given tree levels."""
        region = self.region
        width = (region.east - region.west) / (1 << level)
        height = (region.north - region.south) / (1 << level)
        return (
            region.west + x * width,
            region.north - (y + 1) * height,
            region.west + (x + 1) * width,
            region.north - y * height,
        )


def ground_metres(region: Region) -> tuple[float, float]:
    """Returns the width at the middle latitude and the height of a region, in metres."""
    degree = math.radians(1) * EARTH_RADIUS_KM * 1000
    middle = math.cos(math.radians((region.north + region.south) / 2))
    return (region.east - region.west) * degree * middle, (region.north - region.south) * degree


def great_circle_km(
    x: NDArray[np.float64], y: NDArray[np.float64], longitude: float, latitude: float
) -> NDArray[np.float64]:
    """Returns the distance from a place in degrees to each of others on the sphere, float64[n], in kilometres.

    x, y: longitudes and latitudes of the others, float64[n], in radians.
    """
    east, north = math.radians(longitude), math.radians(latitude)
    cosine = np.sin(y) * math.sin(north) + np.cos(y) * math.cos(north) * np.cos(x - east)
    return np.asarray(EARTH_RADIUS_KM * np.arccos(np.minimum(cosine, 1.0)), dtype=np.float64)


def world_map() -> dict[str, Any]:
    """Returns the map that ships here: source, land, borders, and places (name, x, y, rank), the largest first."""
    content = resources.files(__package__).joinpath("world_map.json.gz").read_bytes()
    return dict(json.loads(gzip.decompress(content)))


def area_km2(
    west: NDArray[np.float64], south: NDArray[np.float64], east: NDArray[np.float64], north: NDArray[np.float64]
) -> NDArray[np.float64]:
    """Returns the areas of rectangles in degrees on the sphere, in square kilometres."""
    bands = np.sin(np.radians(north)) - np.sin(np.radians(south))
    return np.asarray(EARTH_RADIUS_KM**2 * np.radians(east - west) * bands)


def _spread(values: NDArray[np.uint32]) -> NDArray[np.uint64]:
    """Moves bit i of each 20-bit value to bit 2 i."""
    spread: NDArray[np.uint64] = _SPREAD_10[values & np.uint32(0x3FF)].astype(np.uint64)
    if len(values) and int(values.max()) > 0x3FF:
        spread |= _SPREAD_10[values >> np.uint32(10)].astype(np.uint64) << np.uint64(20)
    return spread


_SPREAD_10 = np.array([int(f"{number:b}", 4) for number in range(1 << 10)], dtype=np.uint32)  # bit i at bit 2 i


def interleave(x: NDArray[np.uint32], y: NDArray[np.uint32]) -> NDArray[np.uint64]:
    """Returns the codes, uint64[n], of the cells (x, y): alternating bits of x and y, x first.

    >>> interleave(np.array([0, 1, 0, 1], np.uint32), np.array([0, 0, 1, 1], np.uint32))
    array([0, 2, 1, 3], dtype=uint64)
    """
    return (_spread(x) << np.uint64(1)) | _spread(y)


def deinterleave(codes: NDArray[np.uint64]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Returns (x, y), int64[n] each: the inverse of `interleave`."""
    return _gather(codes >> np.uint64(1)), _gather(codes)


def _gather(codes: NDArray[np.uint64]) -> NDArray[np.int64]:
    """Moves bit 2 i to bit i and drops the odd bits."""
    bits = codes.astype(np.uint64) & np.uint64(0x5555555555555555)
    masks = 0x3333333333333333, 0x0F0F0F0F0F0F0F0F, 0x00FF00FF00FF00FF, 0x0000FFFF0000FFFF, 0x00000000FFFFFFFF
    for step, mask in enumerate(masks):
        bits = (bits | (bits >> np.uint64(1 << step))) & np.uint64(mask)
    return bits.astype(np.int64)


def by_row(values: NDArray[Any]) -> NDArray[Any]:
    """Arranges values by code, [4^d], as a raster, [2^d, 2^d], row 0 in the north, column 0 in the west."""
    side = 1 << ((len(values).bit_length() - 1) // 2)
    axis, zero = np.arange(side, dtype=np.uint32), np.zeros(side, dtype=np.uint32)
    return np.asarray(values[interleave(axis, zero)[None, :] | interleave(zero, axis)[:, None]])


@dataclass(frozen=True)
class Places:
    """The layout of places: bin << (2 depth) | code of the cell. So a bin's places are contiguous.

    depth: of the grid, which has 2^depth x 2^depth cells. bins: of each cell, by category or by slot; 1 without either.

    >>> places = Places(depth=10, bins=3)
    >>> places.bits, places.dtype
    (22, dtype('uint32'))
    """

    depth: int
    bins: int = 1

    @property
    def bin_bits(self) -> int:
        """Bits of the bin: 0 if there is one."""
        return (self.bins - 1).bit_length()

    @property
    def bits(self) -> int:
        return 2 * self.depth + self.bin_bits

    @property
    def mask(self) -> np.uint64:
        """Returns the bits of a place, all set."""
        return np.uint64((1 << self.bits) - 1)

    @property
    def dtype(self) -> np.dtype[Any]:
        """Returns the smaller of uint32 and uint64 that holds a place."""
        return np.dtype(np.uint32 if self.bits <= 32 else np.uint64)


def inner_points(shapes: NDArray[np.object_]) -> NDArray[np.object_]:
    """Returns a point inside each shape, in its middle if that is inside, as that of a circle is: object[n].

    shapes: object[n], shapely Polygons and MultiPolygons.
    """
    import shapely  # slow to load, and the other functions of this module do without

    middles = shapely.centroid(shapes)
    return np.asarray(np.where(shapely.contains(shapes, middles), middles, shapely.point_on_surface(shapes)))


def close_points(
    longitude: NDArray[np.float64], latitude: NDArray[np.float64], names: Sequence[str], most: int
) -> tuple[int, str] | None:
    """Returns how many points in degrees have another within CLOSE metres, and the closest pairs; None if none have.

    names: of the points. most: pairs, as in `North Square and Station (87 m apart)`.
    """
    import shapely  # slow to load, and the other functions of this module do without

    x, y = np.radians(longitude), np.radians(latitude)
    places = shapely.points(1000 * EARTH_RADIUS_KM * np.stack([x * np.cos(y.mean()), y], axis=1))
    pairs, metres = shapely.STRtree(places).query_nearest(places, CLOSE, return_distance=True, exclusive=True)
    if not len(metres):
        return None
    apart = {tuple(sorted(pair)): one for pair, one in zip(pairs.T.tolist(), metres.tolist(), strict=True)}
    closest = sorted(apart.items(), key=lambda one: one[1])[:most]
    texts = [f"{names[first]} and {names[second]} ({one:.0f} m apart)" for (first, second), one in closest]
    return len(np.unique(pairs[0])), ", ".join(texts)
