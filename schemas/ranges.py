"""Range queries: squares on a map, the field of base cells, and the tables of queries and results.

A field is a region divided into the 2^depth x 2^depth base cells of a `Grid`. x counts from the west, y from the north.
All counts are by base cell. Boxes are in base cells.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from sfumato.schemas.errors import RequestError
from sfumato.schemas.region import EARTH_RADIUS_KM, Grid, ground_metres

PSI = 0.001  # share of all users; the smallest denominator of relative errors (paper 003, Sections 2.2 and 6.1.3)
SMALLEST, LARGEST = 0.001, 2000 * math.pi * EARTH_RADIUS_KM
"""Sides of squares in metres: from a millimetre, the resolution of degrees, to the Earth's circumference."""
BASE_DEPTH = 12  # 4096 x 4096 base cells: in a city of 20 km, 5 m each
QUERY_COLUMNS = ("x", "y", "size")  # longitude and latitude of the square's centre, its side in metres
RANGE_ANSWERS_SCHEMA = pa.schema([
    pa.field(name, pa.float64(), nullable=False) for name in (*QUERY_COLUMNS, "users", "stddev", "inside")
])  # fmt: skip
"""Queries with their results. users: in the part of the square inside the region, 0 or more. stddev: estimated root
mean square error of `users` in squares around people, or a lower bound of it (see `answers_schema`). inside: share of
the square's area inside the region."""


def answers_schema(error: str) -> pa.Schema:
    """Returns RANGE_ANSWERS_SCHEMA with what `stddev` is, `estimate` or `lower bound`, in the metadata of its field."""
    place = RANGE_ANSWERS_SCHEMA.get_field_index("stddev")
    return RANGE_ANSWERS_SCHEMA.set(place, RANGE_ANSWERS_SCHEMA.field(place).with_metadata({"error": error}))


@dataclass(frozen=True)
class Boxes:
    """Rectangles x0 <= x < x1, y0 <= y < y1 in base cells, float64[q] each; x from the west, y from the north."""

    x0: NDArray[np.float64]
    y0: NDArray[np.float64]
    x1: NDArray[np.float64]
    y1: NDArray[np.float64]

    def __len__(self) -> int:
        return len(self.x0)

    @property
    def areas(self) -> NDArray[np.float64]:
        """Returns the boxes' areas, in base cells: float64[q]."""
        return np.asarray((self.x1 - self.x0) * (self.y1 - self.y0))

    @property
    def middles(self) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """Returns x and y of their centres, float64[q] each."""
        return (self.x0 + self.x1) / 2, (self.y0 + self.y1) / 2

    def clipped(self, side: int) -> Boxes:
        """Returns the boxes clipped to the field. A box outside gets the area 0."""
        return Boxes(*(np.clip(edge, 0.0, float(side)) for edge in (self.x0, self.y0, self.x1, self.y1)))

    def part(self, at: slice | NDArray[np.integer]) -> Boxes:
        """Returns the boxes at some indices."""
        return Boxes(self.x0[at], self.y0[at], self.x1[at], self.y1[at])

    @classmethod
    def between(cls, x_edges: NDArray[Any], y_edges: NDArray[Any]) -> Boxes:
        """Returns the cells between edges, row by row from the north."""
        y0, x0 = (one.ravel() for one in np.meshgrid(y_edges[:-1], x_edges[:-1], indexing="ij"))
        y1, x1 = (one.ravel() for one in np.meshgrid(y_edges[1:], x_edges[1:], indexing="ij"))
        return cls(*(one.astype(np.float64) for one in (x0, y0, x1, y1)))

    @classmethod
    def around(
        cls, x: NDArray[np.float64], y: NDArray[np.float64], width: NDArray[np.float64], height: NDArray[np.float64]
    ) -> Boxes:
        """Rectangles of these sizes with these centres."""
        return cls(x - width / 2, y - height / 2, x + width / 2, y + height / 2)


@dataclass(frozen=True)
class Field:
    """The base cells of a region, and their sizes in metres at the region's middle latitude."""

    grid: Grid

    @property
    def side(self) -> int:
        return self.grid.side

    @property
    def cell_metres(self) -> tuple[float, float]:
        """Returns the width and height of a base cell."""
        width, height = self.metres
        return width / self.side, height / self.side

    @property
    def metres(self) -> tuple[float, float]:
        """Returns the width and height of the region."""
        return ground_metres(self.grid.region)

    def squares(
        self, longitude: NDArray[np.float64], latitude: NDArray[np.float64], size: NDArray[np.float64]
    ) -> Boxes:
        """Squares with these centres, in degrees, and sides, in metres. They may reach beyond the region."""
        region, (width, height) = self.grid.region, self.cell_metres
        x = (longitude - region.west) * (self.side / (region.east - region.west))
        y = (region.north - latitude) * (self.side / (region.north - region.south))
        return Boxes.around(x, y, size / width, size / height)


@dataclass(frozen=True)
class Sizes:
    """Sides of the squares of future queries, in metres. Raises RequestError unless 0 < low < high."""

    low: float
    high: float

    def __post_init__(self) -> None:
        if not (0 < self.low < self.high < math.inf):
            raise RequestError(f"sizes: give LOW,HIGH in metres with 0 < LOW < HIGH, got {self.low:g},{self.high:g}")

    @classmethod
    def parse(cls, text: str) -> Sizes:
        """Reads `LOW,HIGH`."""
        try:
            low, high = (float(part) for part in text.split(","))
        except ValueError:
            raise RequestError(f"sizes: give two numbers LOW,HIGH in metres, got {text!r}") from None
        return cls(low, high)

    def check(self, field: Field) -> None:
        """Raises RequestError if squares of these sizes do not fit into the region, or are smaller than a base cell."""
        if self.high > min(field.metres):
            raise RequestError(
                f"sizes: a square of {self.high:g} m does not fit into the region of "
                f"{field.metres[0]:,.0f} x {field.metres[1]:,.0f} m"
            )
        if self.low < max(field.cell_metres):
            raise RequestError(
                f"sizes: {self.low:g} m is less than a base cell of so large a region, {max(field.cell_metres):.2g} m; "
                "give larger squares or a smaller region"
            )

    def spread(self, models: int) -> NDArray[np.float64]:
        """Returns the middles of `models` equal parts of the range, float64[models] (paper 003, Algorithm 1)."""
        return np.asarray(self.low + (self.high - self.low) / models * (np.arange(models) + 0.5))
