"""Counts of users in a field: exact by base cell, noisy by the cells of a grid, and their sums over any box. Pure.

Exact counts are private until a method has added noise. `CollectionSpec` holds what else a method knows.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sfumato.schemas.ranges import PSI, Boxes, Field, Sizes
from sfumato.schemas.region import deinterleave
from sfumato.transforms.privacy.additive_noise import LAPLACE, AdditiveNoise
from sfumato.transforms.privacy.keys import RunKey

_CELLS_AT_ONCE = 1 << 18  # of rows that are computed together, so that they stay in the processor's cache
_Located = tuple[NDArray[np.int64], NDArray[np.float64]]
_AT_ONCE = 1 << 16  # cells
_SPARSE_BITS = 4  # users for a sixteenth of the cells: from here on the array takes less time than sorting
MIN_CLUMPING = 0.3
"""The least clumping r of users inside a cell (see `clumping`). Measured (docs/explanation/ranges.md)."""
_COUNTS_PER_STREAM = 4096  # another number would give other noise for the same key
_WIDTH_CONSTANT = 46.0  # metres^(1/4)


class SummedAreaTable:
    """Cumulative sums of the cells of a grid. Between the corners of a cell they are bilinear.

    Args:
        x_edges, y_edges: int64[columns + 1] and int64[rows + 1], in base cells, rising from 0 to the field's side.
        values: float64[rows, columns], spread evenly inside each cell; or a function that computes them for a few rows
            of the grid at a time, so that they are never all in memory.

    >>> from sfumato.schemas.ranges import Boxes
    >>> table = SummedAreaTable(np.array([0, 2, 4]), np.array([0, 4]), np.array([[8.0, 80.0]]))
    >>> table.total, table.sum(Boxes(*np.array([[1.0], [0.0], [3.0], [2.0]])))
    (88.0, array([22.]))
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
        return float(self._sums[-1, -1])

    def sum(self, boxes: Boxes) -> NDArray[np.float64]:
        """Returns the sum over the part of each box that lies in the field: float64[q]."""
        across = self._x.locate(boxes.x0), self._x.locate(boxes.x1)
        return self._between((self._y.locate(boxes.y0), self._y.locate(boxes.y1)), across)

    def sum_of_squares(self, boxes: Boxes) -> NDArray[np.float64]:
        """Returns the sum over cells of the value times the squared share that the box covers: float64[q]."""
        return self._between(self._y.squared(boxes.y0, boxes.y1), self._x.squared(boxes.x0, boxes.x1))

    def _between(self, down: tuple[_Located, _Located], across: tuple[_Located, _Located]) -> NDArray[np.float64]:
        (top, bottom), (left, right) = down, across
        lower = self._corner(bottom, right) - self._corner(bottom, left)
        return np.asarray(lower - self._corner(top, right) + self._corner(top, left))

    def _corner(self, y: _Located, x: _Located) -> NDArray[np.float64]:
        """Returns the sum over the cells north-west of a point."""
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


class _Axis:
    def __init__(self, edges: NDArray[np.int64]):
        self._edges = edges.astype(np.float64)
        self._widths = np.diff(self._edges)
        side = int(edges[-1])
        # A table of the strip of every base cell is faster than a binary search.
        self._strip = np.repeat(np.arange(len(edges) - 1), np.diff(edges))
        self._last = side - 1

    def locate(self, at: NDArray[np.float64]) -> _Located:
        """Returns the strip that holds a coordinate, and the position in it, 0 to 1.

        Coordinates outside are clipped.
        """
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


@dataclass(frozen=True)
class ExactCounts:
    """The number of users of each occupied base cell. A user counts once, in one cell.

    Attributes:
        depth: of the `Grid` that the base cells belong to.
        codes: uint64[c], the occupied cells, sorted and distinct.
        users: int64[c], the users of each, at least 1.
    """

    depth: int
    codes: NDArray[np.uint64]
    users: NDArray[np.int64]

    @classmethod
    def from_codes(cls, depth: int, codes: NDArray[np.unsignedinteger]) -> ExactCounts:
        """Counts users, given the cell of each: uint64[n]."""
        return cls(depth, *np.unique(codes.astype(np.uint64), return_counts=True))

    @classmethod
    def sum(cls, parts: Iterable[ExactCounts]) -> ExactCounts:
        """Adds up parts of the same depth; there must be at least one."""
        counts = list(parts)
        codes, place = np.unique(np.concatenate([part.codes for part in counts]), return_inverse=True)
        users = np.zeros(len(codes), dtype=np.int64)
        np.add.at(users, place, np.concatenate([part.users for part in counts]))
        return cls(counts[0].depth, codes, users)

    def __reduce__(self) -> tuple[Any, ...]:
        narrow = (column.astype(np.min_scalar_type(column.max(initial=0))) for column in (self.codes, self.users))
        return _widened, (self.depth, *narrow)  # a third of the bytes between workers

    @property
    def side(self) -> int:
        """Returns the base cells along one side of the field."""
        return 1 << self.depth

    @cached_property
    def xy(self) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Returns the column from the west and row from the north of each cell, int64[c] each."""
        return deinterleave(self.codes)

    def blocks(self) -> Iterator[ExactCounts]:
        """Parts of the cells, in order, whose arrays stay in the processor's cache."""
        for start in range(0, len(self.codes), _AT_ONCE):
            yield ExactCounts(self.depth, self.codes[start : start + _AT_ONCE], self.users[start : start + _AT_ONCE])

    def on_grid(self, x_edges: NDArray[np.int64], y_edges: NDArray[np.int64]) -> NDArray[np.int64]:
        """Sums the users between edges that span the field: int64[rows, columns], row 0 in the north."""
        columns, rows = (np.repeat(np.arange(len(edges) - 1), np.diff(edges)) for edges in (x_edges, y_edges))
        counts = np.zeros((len(y_edges) - 1) * (len(x_edges) - 1), dtype=np.int64)
        for block in self.blocks():
            x, y = block.xy
            np.add.at(counts, rows[y] * (len(x_edges) - 1) + columns[x], block.users)
        return counts.reshape(len(y_edges) - 1, -1)


def _widened(depth: int, codes: NDArray[np.unsignedinteger], users: NDArray[np.unsignedinteger]) -> ExactCounts:
    return ExactCounts(depth, codes.astype(np.uint64), users.astype(np.int64))


class CellTally:
    """Adds up users by base cell: few as sorted codes, from a share of the cells on in one array of all cells."""

    def __init__(self, depth: int, *counts: ExactCounts):
        self._depth = depth
        self._field: NDArray[Any] | None = None  # [4^depth], users of every cell
        self._in_field = 0  # users
        self._codes: list[NDArray[np.int64]] = []  # of users that are not in the field yet
        self._counts = list(counts)  # of the same kind

    def add(self, part: NDArray[np.int64] | ExactCounts) -> None:
        """Adds users. part: the cell of each, int64[n], or counts."""
        if isinstance(part, ExactCounts):
            self._counts.append(part)
        else:
            self._codes.append(part)
        cells = 4**self._depth
        if sum(map(len, self._codes)) + sum(len(counts.codes) for counts in self._counts) > cells >> _SPARSE_BITS:
            self._in_field += sum(map(len, self._codes)) + sum(int(counts.users.sum()) for counts in self._counts)
            # No count can overflow.
            width: type[Any] = np.uint32 if self._in_field <= np.iinfo(np.uint32).max else np.int64
            field: NDArray[Any] = (
                np.zeros(cells, width) if self._field is None else self._field.astype(width, copy=False)
            )
            for codes in self._codes:
                np.add.at(field, codes, width(1))
            for counts in self._counts:
                field[counts.codes.view(np.int64)] += counts.users.astype(width)  # each cell once
            self._field, self._codes, self._counts = field, [], []

    def parts(self) -> list[ExactCounts]:
        """Returns counts that add up to all that was added; at least one."""
        few = ExactCounts.from_codes(self._depth, np.concatenate([np.empty(0, np.int64), *self._codes]).view(np.uint64))
        if self._field is None:
            return [*self._counts, few]
        occupied = np.flatnonzero(self._field)
        users = self._field[occupied].astype(np.int64)
        return [ExactCounts(self._depth, occupied.view(np.uint64), users), *self._counts, few]

    def compact(self) -> CellTally:
        """Returns a tally of the same users, without the array of all cells. It is pickled in far less time."""
        return CellTally(self._depth, self.total())

    def __reduce__(self) -> tuple[Any, ...]:
        return CellTally, (self._depth, self.total())

    def total(self) -> ExactCounts:
        parts = [part for part in self.parts() if len(part.codes)]
        return parts[0] if len(parts) == 1 else ExactCounts.sum(self.parts())


def add_noise(
    counts: NDArray[np.int64], cost: float, key: RunKey, label: str, kind: AdditiveNoise = LAPLACE
) -> NDArray[np.float64]:
    """Adds noise to each count, of any shape, at a cost in the unit of the noise; float64 of that shape.

    The result has this cost if adding or removing a user changes at most one count, by at most 1. The same key and
    label give the same noise, so a label must name one set of counts.
    """
    flat = counts.ravel()
    length = min(_COUNTS_PER_STREAM, max(flat.size, 1))
    streams = np.arange(-(-max(flat.size, 1) // length), dtype=np.uint64)
    noise = kind.draw(key, f"ranges {label}", streams, length, cost).ravel()
    return np.asarray(flat + noise[: flat.size], dtype=np.float64).reshape(counts.shape)


def strip_edges(side: int, width: float) -> NDArray[np.int64]:
    """Edges of equal strips across a field, rounded to whole base cells: int64[k + 1].

    side: of the field; width: of a strip, about; both in base cells.
    """
    strips = min(side, max(1, round(side / width)))
    return np.asarray(np.rint(np.arange(strips + 1) * (side / strips)).astype(np.int64))


def strip_at(edges: NDArray[np.int64], point: NDArray[np.float64]) -> NDArray[np.int64]:
    """Returns the strips between edges that hold coordinates: int64[q].

    Coordinates outside get the first or the last.
    """
    return np.asarray(np.clip(np.searchsorted(edges, point, "right") - 1, 0, len(edges) - 2))


@dataclass(frozen=True)
class NoisyGrid:
    """A grid that covers a field, with a noisy count of each cell.

    Attributes:
        x_edges, y_edges: int64[columns + 1] and int64[rows + 1], in base cells, from 0 to the field's side.
        users: float64[rows, columns]. The counts are unbiased, so they can be below 0.
        noise_stddev: standard deviation of the noise of each count.
    """

    x_edges: NDArray[np.int64]
    y_edges: NDArray[np.int64]
    users: NDArray[np.float64]
    noise_stddev: float

    @property
    def side(self) -> int:
        return int(self.x_edges[-1])

    def table(self, values: NDArray[np.float64] | None = None) -> SummedAreaTable:
        """Sums over boxes of the counts, or of other values of the cells."""
        return SummedAreaTable(self.x_edges, self.y_edges, self.users if values is None else values)


def check_edges(*axes: NDArray[np.integer[Any]]) -> None:
    """Raises ValueError unless edges from a file rise from 0 to the side of one square field."""
    for edges in axes:
        if edges.ndim != 1 or len(edges) < 2 or edges[0] != 0 or not (np.diff(edges) > 0).all():
            raise ValueError("edges must increase from 0")
    if len({edges[-1].item() for edges in axes}) > 1:
        raise ValueError("the field is no square")


def clumping(grid: NoisyGrid) -> float:
    """Returns how unevenly users are spread inside cells: r in [0, 1].

    Half a cell of c users has variance (c + r c^2) / 4: r = 0 is an even spread, r = 1 puts all users in one half. The
    estimate treats pairs of neighbouring cells as halves of one cell, and subtracts the variance of the noise.
    """
    noise, above, below = grid.noise_stddev**2, 0.0, 0.0
    for counts in (grid.users, grid.users.T):
        pairs = counts[:, : counts.shape[1] // 2 * 2].reshape(len(counts), -1, 2)
        total = pairs.sum(axis=2)
        above += float(((pairs[..., 0] - pairs[..., 1]) ** 2 - 2 * noise - total).sum())
        below += float((total**2 - 2 * noise).sum())
    return min(max(above / below, 0.0), 1.0) if below > 0 else 0.0


def centre_variance(boxes: Boxes, cells: Boxes, users: NDArray[np.float64], clumps: float) -> NDArray[np.float64]:
    """Returns the expected squared error of an answer that assumes a user at the centre of the box: float64[q].

    Queries are about places where a person is, so assume one user at the centre. The answer does not count that
    user: an error of 1, squared 1. A box that covers a small share s of a cell of c users is also likely to cover a
    clump around that user, and so more than c s users. Model: each halving of the cell gives one half (1 + d) / 2 of
    its users, where d is symmetric about 0 with variance r. A box of share s around a random user holds W c users, with
    E (W - s)^2 = s^(2 - b) - 2 s^(2 - a) + s^2, a = log2(1 + r), b = log2(1 + 3 r).
    This is 0 for r = 0, and (1 - s)^2 for r = 1, where all users are in one place.

    Args:
        boxes: the queries, q.
        cells: the cell that holds the centre of each, q.
        users: noisy counts of these cells, float64[q].
        clumps: r between cells, from `clumping`. The caller's variance already includes r (s - s^2) c^2. Nothing was
            counted inside cells, so there r is taken to be MIN_CLUMPING or more.
    """
    across = np.minimum(boxes.x1, cells.x1) - np.maximum(boxes.x0, cells.x0)
    down = np.minimum(boxes.y1, cells.y1) - np.maximum(boxes.y0, cells.y0)
    share = np.clip(np.maximum(across, 0) * np.maximum(down, 0) / cells.areas, 1e-12, 1.0)
    inside = max(clumps, MIN_CLUMPING)
    a, b = math.log2(1 + inside), math.log2(1 + 3 * inside)
    uneven = share ** (2 - b) - 2 * share ** (2 - a) + share**2 - clumps * (share - share**2)
    return np.asarray(1 + np.maximum(users, 0.0) ** 2 * np.maximum(uneven, 0.0))


@dataclass(frozen=True)
class CollectionSpec:
    """All that a method knows besides the exact counts. Everything here is public.

    Attributes:
        field: the base cells.
        users: the number of users, public or noisy; noise can take it below 0.
        cost: the whole budget, in the unit of the noise. Adding or removing one user changes the count of one base
            cell by 1.
        sizes: sides of the squares to be queried, in metres.
        noise_kind: its distribution.
    """

    field: Field
    users: float
    cost: float
    sizes: Sizes
    noise_kind: AdditiveNoise = LAPLACE

    @cached_property
    def epsilon(self) -> float:
        """The epsilon of as much Laplace noise as the whole budget buys."""
        return self.noise_kind.laplace_epsilon(self.cost)

    @property
    def smoothing(self) -> float:
        """Returns psi in users, at least 1: the denominator of relative errors is never smaller (paper 003, Section
        2.2).
        """
        return max(PSI * self.users, 1.0)

    @property
    def default_width(self) -> float:
        """Returns the default width of a cell in metres: 46 sqrt(s) L^(1/4) / (n epsilon)^0.45.

        s = sqrt(LOW HIGH) of the squares' sides and L = sqrt(area) of the region, both in metres. The result is
        clamped to what the field allows (`clamp_width`).

        Two errors compete. The noise of a square is that of its cells, s / (width epsilon) up to a constant. The
        other error comes from the cells that the square's border cuts: users can be anywhere in them. It grows with
        the width and with the density n / L^2. So fewer users or more noise call for wider cells, but by less than
        evenly spread users would need: real users cluster, and dense places are as dense on a map of a larger region.
        The powers and the constant are fitted to searches for the best width on synthetic maps and public data
        (`python -m benchmarks.param_select`), and rounded. Networks that learn from a grid are best at the same width.
        """
        users = max(self.users, 1.0)
        size = math.sqrt(self.sizes.low * self.sizes.high)
        length = math.sqrt(math.prod(self.field.metres))
        width = _WIDTH_CONSTANT * math.sqrt(size) * length**0.25 / (users * self.epsilon) ** 0.45
        return clamp_width(width, self.field)


def clamp_width(width: float, field: Field) -> float:
    """Returns the nearest possible width of cells in metres: from a base cell to the field's shorter side."""
    return min(max(width, max(field.cell_metres)), min(field.metres))
