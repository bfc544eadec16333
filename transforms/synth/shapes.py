"""The drawing kit of the city model: distances, soft edges, smooth noise and hashes of lattice cells.

Lengths are kilometres; x counts from the west, y from the north; arrays are float32[rows, columns].
"""

from __future__ import annotations

import math
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

Field = NDArray[np.float32]
Labels = NDArray[np.int32]
Point = tuple[float, float]

REACH_KM = 0.6  # beyond it, distance to a line no longer matters


def bump(distance: Field, radius: float | Field) -> Field:
    """exp(-(distance / radius)^2): 1 at distance 0, all but 0 at three radii."""
    ratio = distance / np.float32(radius) if isinstance(radius, float) else distance / radius
    height: Field = np.exp(-ratio * ratio)
    return height


def hill(x: Field, y: Field, centre: Point, radius: float) -> Field:
    """A round bump of height 1 about a centre; radius in km."""
    east, south = x - np.float32(centre[0]), y - np.float32(centre[1])
    height: Field = np.exp((east * east + south * south) * np.float32(-1 / radius**2))
    return height


def ramp(value: Field, width: float) -> Field:
    """0 for value <= 0, 1 for value >= width, linear between: an edge without steps from cell to cell."""
    share: Field = np.clip(value * np.float32(1 / width), 0, 1)
    return share


def line_distance(x: Field, y: Field, points: list[Point]) -> Field:
    """Distance to a polyline in km, float32[rows, columns]; 0.6 stands for all that is farther."""
    nearest = np.full(x.shape, REACH_KM**2, dtype=np.float32)
    top, bottom = float(y.min()) - REACH_KM, float(y.max()) + REACH_KM
    for (x0, y0), (x1, y1) in pairwise(points):
        if max(y0, y1) < top or min(y0, y1) > bottom:
            continue  # most lines are far from most strips
        length = math.hypot(x1 - x0, y1 - y0)
        ux, uy = np.float32((x1 - x0) / length), np.float32((y1 - y0) / length)
        east, south = x - np.float32(x0), y - np.float32(y0)
        along = east * ux + south * uy
        along -= np.clip(along, 0, np.float32(length))  # how far beyond an end
        across = east * uy - south * ux
        np.minimum(nearest, along * along + across * across, out=nearest)
    return np.sqrt(nearest)


def rounded(points: list[Point]) -> list[Point]:
    """The polyline with its corners cut twice (Chaikin 1974), so that it reads as a curve. The ends stay."""
    for _ in range(2):
        cut = [
            (x0 + (x1 - x0) * share, y0 + (y1 - y0) * share)
            for (x0, y0), (x1, y1) in pairwise(points)
            for share in (0.25, 0.75)
        ]
        points = [points[0], *cut[1:-1], points[-1]]
    return points


def rectangle(x: Field, y: Field, centre: Point, size: Point, degrees: float) -> Field:
    """How deep a point lies in a rotated rectangle of that width and height, in km (negative outside)."""
    u, v = rotate(x - np.float32(centre[0]), y - np.float32(centre[1]), degrees)
    return np.minimum(np.float32(size[0] / 2) - np.abs(u), np.float32(size[1] / 2) - np.abs(v))


def rotate(x: Field, y: Field, degrees: float) -> tuple[Field, Field]:
    """Coordinates of the points in axes that are turned by so many degrees."""
    cosine, sine = np.float32(math.cos(math.radians(degrees))), np.float32(math.sin(math.radians(degrees)))
    return x * cosine + y * sine, y * cosine - x * sine


def lattice_hash(a: Labels, b: Labels, salt: Labels | int) -> Field:
    """A number in [0, 1) for each lattice cell (a, b) and salt: the same for the whole cell, float32."""
    words = a.astype(np.uint32) * np.uint32(0x9E3779B1)
    words ^= b.astype(np.uint32) * np.uint32(0x85EBCA77)
    words ^= np.asarray(salt).astype(np.uint32) * np.uint32(0xC2B2AE3D)
    words ^= words >> np.uint32(15)
    words *= np.uint32(0x2C1B3C6D)
    words ^= words >> np.uint32(12)
    words *= np.uint32(0x297A2D39)
    words ^= words >> np.uint32(15)
    return (words >> np.uint32(8)).astype(np.float32) * np.float32(2.0**-24)


class SmoothNoise:
    """Smooth random fields over a square raster, of mean about 0 and standard deviation about 1.

    A field is a sum of octaves; each is a lattice of normal numbers, interpolated with cubic B-splines. The
    interpolation is separable, so rows of the field are a product of two small matrices.
    """

    def __init__(self, side: int, salt: int, knots: int, octaves: int) -> None:
        generator = np.random.Generator(np.random.PCG64(salt))
        self._parts: list[tuple[Field, Field]] = []
        for octave in range(octaves):
            splines = _splines(side, knots << octave)
            lattice = generator.standard_normal((splines.shape[1], splines.shape[1])).astype(np.float32)
            # 2.1 undoes the smoothing's loss of variance; an octave has half the height of the one before.
            self._parts.append((splines, lattice @ splines.T * np.float32(2.1 * 0.5**octave)))

    def rows(self, first: int, last: int) -> Field:
        """Rows first .. last - 1 of the field, float32[last - first, side]."""
        field = self._parts[0][0][first:last] @ self._parts[0][1]
        for splines, columns in self._parts[1:]:
            field += splines[first:last] @ columns
        return field


def _splines(side: int, knots: int) -> Field:
    """Cubic B-splines on `knots` intervals, at the middles of `side` cells: float32[side, knots + 3]."""
    place = (np.arange(side) + 0.5) * (knots / side)
    interval = place.astype(np.int64)
    t = place - interval
    matrix = np.zeros((side, knots + 3), dtype=np.float32)
    row = np.arange(side)
    for offset, weight in enumerate(((1 - t) ** 3, 3 * t**3 - 6 * t**2 + 4, -3 * t**3 + 3 * t**2 + 3 * t + 1, t**3)):
        matrix[row, interval + offset] = weight / 6
    return matrix
