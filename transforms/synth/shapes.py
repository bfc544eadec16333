"""Shapes of the city model: distances, soft edges, smooth noise and hashes of lattice cells.

Lengths are in km, x from the west, y from the north. Arrays are float32[rows, columns].
"""

from __future__ import annotations

import math
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

Field = NDArray[np.float32]
CellIndex = NDArray[np.int32]  # a coordinate or a number of lattice cells
Point = tuple[float, float]

REACH_KM = 0.6  # larger distances to a line are cut to it


def bump(distance: Field, radius: float | Field) -> Field:
    """exp(-(distance / radius)^2): 1 at distance 0, nearly 0 at three radii."""
    ratio = distance / np.float32(radius) if isinstance(radius, float) else distance / radius
    height: Field = np.exp(-ratio * ratio)
    return height


def hill(x: Field, y: Field, centre: Point, radius: float) -> Field:
    """A `bump` of height 1 around a centre."""
    east, south = x - np.float32(centre[0]), y - np.float32(centre[1])
    height: Field = np.exp((east * east + south * south) * np.float32(-1 / radius**2))
    return height


def ramp(value: Field, width: float) -> Field:
    """A soft edge: 0 for value <= 0, 1 for value >= width, linear between."""
    share: Field = np.clip(value * np.float32(1 / width), 0, 1)
    return share


def line_distance(x: Field, y: Field, points: list[Point]) -> Field:
    """Distance to a polyline, at most REACH_KM."""
    nearest_squared = np.full(x.shape, REACH_KM**2, dtype=np.float32)
    top, bottom = float(y.min()) - REACH_KM, float(y.max()) + REACH_KM
    for (x0, y0), (x1, y1) in pairwise(points):
        if max(y0, y1) < top or min(y0, y1) > bottom:
            continue  # most lines are far from most strips
        length = math.hypot(x1 - x0, y1 - y0)
        ux, uy = np.float32((x1 - x0) / length), np.float32((y1 - y0) / length)
        east, south = x - np.float32(x0), y - np.float32(y0)
        along = east * ux + south * uy
        along -= np.clip(along, 0, np.float32(length))  # distance beyond an end
        across = east * uy - south * ux
        np.minimum(nearest_squared, along * along + across * across, out=nearest_squared)
    return np.sqrt(nearest_squared)


def rounded(points: list[Point]) -> list[Point]:
    """The polyline with its corners cut twice (Chaikin 1974). The ends stay."""
    for _ in range(2):
        cut = [
            (x0 + (x1 - x0) * share, y0 + (y1 - y0) * share)
            for (x0, y0), (x1, y1) in pairwise(points)
            for share in (0.25, 0.75)
        ]
        points = [points[0], *cut[1:-1], points[-1]]
    return points


def rectangle(x: Field, y: Field, centre: Point, size: Point, degrees: float) -> Field:
    """Distance of points to the border of a rotated rectangle, negative outside. size: width and height.

    Outside it is the larger distance along the rectangle's two axes. Off a corner the Euclidean distance is longer.
    """
    u, v = rotate(x - np.float32(centre[0]), y - np.float32(centre[1]), degrees)
    return np.minimum(np.float32(size[0] / 2) - np.abs(u), np.float32(size[1] / 2) - np.abs(v))


def rotate(x: Field, y: Field, degrees: float) -> tuple[Field, Field]:
    """Coordinates of points along axes that are rotated by an angle."""
    cosine, sine = np.float32(math.cos(math.radians(degrees))), np.float32(math.sin(math.radians(degrees)))
    return x * cosine + y * sine, y * cosine - x * sine


def lattice_hash(a: CellIndex, b: CellIndex, salt: CellIndex | int) -> Field:
    """A hash in [0, 1) of each lattice cell (a, b) and salt."""
    bits = a.astype(np.uint32) * np.uint32(0x9E3779B1)
    bits ^= b.astype(np.uint32) * np.uint32(0x85EBCA77)
    bits ^= np.asarray(salt).astype(np.uint32) * np.uint32(0xC2B2AE3D)
    bits ^= bits >> np.uint32(15)
    bits *= np.uint32(0x2C1B3C6D)
    bits ^= bits >> np.uint32(12)
    bits *= np.uint32(0x297A2D39)
    bits ^= bits >> np.uint32(15)
    return (bits >> np.uint32(8)).astype(np.float32) * np.float32(2.0**-24)


class SmoothNoise:
    """A smooth random field over a square raster, with mean about 0.

    Its standard deviation is about 1 for one octave and about 1.15 for several. The field is a sum of octaves. Each is
    a lattice of normal numbers, interpolated with cubic B-splines. The interpolation is separable, so rows of the field
    are a product of two small matrices.
    """

    def __init__(self, side: int, salt: int, knots: int, octaves: int) -> None:
        generator = np.random.Generator(np.random.PCG64(salt))
        self._parts: list[tuple[Field, Field]] = []
        for octave in range(octaves):
            splines = _splines(side, knots << octave)
            lattice = generator.standard_normal((splines.shape[1], splines.shape[1])).astype(np.float32)
            # 2.1 restores the variance that smoothing removes. Each octave has half the height of the one before.
            self._parts.append((splines, lattice @ splines.T * np.float32(2.1 * 0.5**octave)))

    def rows(self, first: int, last: int) -> Field:
        """Rows first .. last - 1 of the field, float32[last - first, side]."""
        field = self._parts[0][0][first:last] @ self._parts[0][1]
        for splines, columns in self._parts[1:]:
            field += splines[first:last] @ columns
        return field


def _splines(side: int, knots: int) -> Field:
    """Cubic B-splines on `knots` intervals, at the centres of `side` cells: float32[side, knots + 3]."""
    place = (np.arange(side) + 0.5) * (knots / side)
    interval = place.astype(np.int64)
    t = place - interval
    matrix = np.zeros((side, knots + 3), dtype=np.float32)
    row = np.arange(side)
    for offset, weight in enumerate(((1 - t) ** 3, 3 * t**3 - 6 * t**2 + 4, -3 * t**3 + 3 * t**2 + 3 * t + 1, t**3)):
        matrix[row, interval + offset] = weight / 6
    return matrix
