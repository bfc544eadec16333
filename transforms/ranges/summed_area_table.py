"""Summed-area tables: sums over any box of values that are spread evenly inside the cells of a grid. Pure."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from sfumato.schemas.ranges import Boxes


class SummedAreaTable:
    """Cumulative sums of the cells of a grid. Between the corners of a cell they are bilinear.

    Args:
        x_edges: int64[columns + 1], strictly increasing from 0 to the field's side, in base cells.
        y_edges: int64[rows + 1], likewise.
        values: float64[rows, columns], spread evenly inside each cell.
    """

    def __init__(self, x_edges: NDArray[np.int64], y_edges: NDArray[np.int64], values: NDArray[np.float64]):
        self._x, self._y = _Axis(x_edges), _Axis(y_edges)
        rows, columns = values.shape
        sums = np.zeros((rows + 1, columns + 1))
        np.cumsum(values, axis=0, out=sums[1:, 1:])
        np.cumsum(sums[1:, 1:], axis=1, out=sums[1:, 1:])
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


def paint_rectangles(
    side: int,
    x0: NDArray[np.int64],
    y0: NDArray[np.int64],
    x1: NDArray[np.int64],
    y1: NDArray[np.int64],
    values: NDArray[np.float64],
    spread: bool,
) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.float64]]:
    """Turns values of rectangles into values of the grid of all their edges.

    The rectangles must cover the field without overlap.

    Args:
        side: of the field, in base cells.
        x0, y0, x1, y1: of the rectangles, int64[r] each, half open.
        values: float64[r].
        spread: whether a value is divided among the rectangle's cells by area; otherwise each cell gets the value.

    Returns:
        The edges in x and in y, int64, and the values, float64[rows, columns].
    """
    x_edges, y_edges = np.unique(np.append(x0, side)), np.unique(np.append(y0, side))
    density = values / ((x1 - x0) * (y1 - y0)) if spread else values
    # Each rectangle adds its density at one corner and subtracts it after each side; two cumulative sums fill it in.
    painted = np.zeros((len(y_edges) + 1, len(x_edges) + 1))
    left, right = np.searchsorted(x_edges, x0), np.searchsorted(x_edges, x1)
    top, bottom = np.searchsorted(y_edges, y0), np.searchsorted(y_edges, y1)
    for row, column, sign in ((top, left, 1), (top, right, -1), (bottom, left, -1), (bottom, right, 1)):
        np.add.at(painted, (row, column), sign * density)
    painted = painted.cumsum(axis=0).cumsum(axis=1)[: len(y_edges) - 1, : len(x_edges) - 1]
    areas = np.diff(y_edges)[:, None] * np.diff(x_edges)[None, :] if spread else 1
    return x_edges, y_edges, painted * areas
