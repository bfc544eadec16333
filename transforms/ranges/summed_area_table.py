"""Summed-area tables: sums over any box of values that are spread evenly inside the cells of a grid. Pure."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from sfumato.schemas.ranges import Boxes

_CELLS_AT_ONCE = 1 << 18  # of rows that are computed together, so that they stay in the processor's cache


class SummedAreaTable:
    """Cumulative sums of the cells of a grid. Between the corners of a cell they are bilinear.

    Args:
        x_edges: int64[columns + 1], strictly increasing from 0 to the field's side, in base cells.
        y_edges: int64[rows + 1], likewise.
        values: float64[rows, columns], spread evenly inside each cell; or a function that computes them for a few rows
            of the grid at a time, so that they are never all in memory.
    """

    def __init__(
        self,
        x_edges: NDArray[np.int64],
        y_edges: NDArray[np.int64],
        values: NDArray[np.float64] | Callable[[slice], NDArray[np.float64]],
    ):
        values_of = values if callable(values) else values.__getitem__
        self._x, self._y = _Axis(x_edges), _Axis(y_edges)
        rows, columns = len(y_edges) - 1, len(x_edges) - 1
        sums = np.empty((rows + 1, columns + 1))
        sums[0], sums[:, 0] = 0.0, 0.0
        down = np.zeros(columns)
        for block in row_blocks(rows, columns):
            for row, each in enumerate(values_of(block), block.start + 1):
                down += each
                np.cumsum(down, out=sums[row, 1:])
        self._sums = sums

    @property
    def total(self) -> float:
        """The sum over the whole field."""
        return float(self._sums[-1, -1])

    def sum(self, boxes: Boxes) -> NDArray[np.float64]:
        """The sum over the part of each box that lies in the field: float64[q]."""
        across = self._x.locate(boxes.x0), self._x.locate(boxes.x1)
        down = self._y.locate(boxes.y0), self._y.locate(boxes.y1)
        return self._between(down, across)

    def sum_of_squares(self, boxes: Boxes) -> NDArray[np.float64]:
        """Each cell's value times the square of the share that the box covers, summed over cells: float64[q]."""
        across = self._x.squared(boxes.x0, boxes.x1)
        down = self._y.squared(boxes.y0, boxes.y1)
        return self._between(down, across)

    def _between(self, down: tuple[_Located, _Located], across: tuple[_Located, _Located]) -> NDArray[np.float64]:
        (top, bottom), (left, right) = down, across
        lower = self._corner(bottom, right) - self._corner(bottom, left)
        return np.asarray(lower - self._corner(top, right) + self._corner(top, left))

    def _corner(self, y: _Located, x: _Located) -> NDArray[np.float64]:
        """The sum over the cells north-west of a point."""
        (row, down), (column, across) = y, x
        columns = self._sums.shape[1]
        flat, at = self._sums.ravel(), row * columns + column
        upper = flat[at] * (1 - across) + flat[at + 1] * across
        at += columns
        return np.asarray(upper * (1 - down) + (flat[at] * (1 - across) + flat[at + 1] * across) * down)


def row_blocks(rows: int, columns: int) -> list[slice]:
    """Slices of rows of a grid, each of as many as are computed together."""
    step = max(_CELLS_AT_ONCE // max(columns, 1), 1)
    return [slice(start, min(start + step, rows)) for start in range(0, rows, step)]


_Located = tuple[NDArray[np.int64], NDArray[np.float64]]


class _Axis:
    """Edges along one side of a field."""

    def __init__(self, edges: NDArray[np.int64]):
        self._edges = edges.astype(np.float64)
        self._widths = np.diff(self._edges)
        side = int(edges[-1])
        # A table of the strip of every base cell is faster than a binary search.
        self._strip = np.repeat(np.arange(len(edges) - 1), np.diff(edges))
        self._last = side - 1

    def locate(self, at: NDArray[np.float64]) -> _Located:
        """The strip that holds a coordinate, and the position in it, 0 to 1. Coordinates outside are clipped."""
        inside = np.clip(at, 0.0, self._edges[-1])
        strip = self._strip[np.minimum(inside.astype(np.int64), self._last)]
        return strip, (inside - self._edges[strip]) / self._widths[strip]

    def squared(self, low: NDArray[np.float64], high: NDArray[np.float64]) -> tuple[_Located, _Located]:
        """Positions whose differences weigh each strip by the square of its share between low and high."""
        (first, into), (last, upto) = self.locate(low), self.locate(high)
        same = first == last
        begin = np.where(same, 0.0, 1 - (1 - into) ** 2)
        end = np.where(same, (upto - into) ** 2, upto**2)
        return (first, begin), (last, end)
