"""Noisy counts of the parts of a field: what a method collects, and all that it may look at from then on."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from sfumato.schemas.ranges import Boxes
from sfumato.transforms.ranges.table import Table, paint

LEAST_CLUMPING = 0.3
"""How unevenly users are spread inside cells at least, as `clumping` has it. Measured (docs/explanation/ranges.md)."""


def edges(side: int, cells: float) -> NDArray[np.int64]:
    """Edges of equal strips across a field, of about `cells` base cells each: int64[k + 1], rounded to whole cells."""
    strips = min(side, max(1, round(side / cells)))
    return np.asarray(np.rint(np.arange(strips + 1) * (side / strips)).astype(np.int64))


@dataclass(frozen=True)
class NoisyGrid:
    """A grid of a field, every cell of which was counted with noise.

    x_edges int64[columns + 1], y_edges int64[rows + 1]: in base cells, from 0 to the field's side. users:
    float64[rows, columns], unbiased and so below 0 too. noise_stddev: of each count.
    """

    x_edges: NDArray[np.int64]
    y_edges: NDArray[np.int64]
    users: NDArray[np.float64]
    noise_stddev: float

    @property
    def side(self) -> int:
        """Base cells along one side of the field."""
        return int(self.x_edges[-1])

    def table(self, values: NDArray[np.float64] | None = None) -> Table:
        """Sums over boxes of the counts, or of other values of the cells."""
        return Table(self.x_edges, self.y_edges, self.users if values is None else values)


def check_grid(grid: NoisyGrid) -> None:
    """Raises ValueError where edges and counts, as a file has them, are none of a grid."""
    shape = len(grid.y_edges) - 1, len(grid.x_edges) - 1
    rising = all(len(one) > 1 and one[0] == 0 and (np.diff(one) > 0).all() for one in (grid.x_edges, grid.y_edges))
    if not (rising and grid.users.shape == shape and grid.x_edges[-1] == grid.y_edges[-1]):
        raise ValueError("edges and counts do not fit together")
    if not (np.isfinite(grid.users).all() and 0 <= grid.noise_stddev < math.inf):
        raise ValueError("counts are no numbers")


@dataclass(frozen=True)
class Places:
    """Which of some numbered parts each cell of a grid of edges belongs to: number int32[rows, columns]."""

    x_edges: NDArray[np.int64]
    y_edges: NDArray[np.int64]
    number: NDArray[np.int32]

    def at(self, x: NDArray[np.float64], y: NDArray[np.float64]) -> NDArray[np.int32]:
        """The parts that hold points of the field: int32[q]."""
        column, row = (
            np.clip(np.searchsorted(edges, point, "right") - 1, 0, len(edges) - 2)
            for edges, point in ((self.x_edges, x), (self.y_edges, y))
        )
        return np.asarray(self.number[row, column])


@dataclass(frozen=True)
class Partition:
    """Rectangles that cover a field without overlap, each with its number of users as a method estimates it.

    x0, y0, x1, y1: int64[r], in base cells, half open. users: float64[r]. variance: float64[r], of the noise in them.
    """

    side: int
    x0: NDArray[np.int64]
    y0: NDArray[np.int64]
    x1: NDArray[np.int64]
    y1: NDArray[np.int64]
    users: NDArray[np.float64]
    variance: NDArray[np.float64]

    def table(self, values: NDArray[np.float64] | None = None) -> Table:
        """Sums over boxes of the users, or of other values of the rectangles, spread evenly inside each."""
        values = self.users if values is None else values
        return Table(*paint(self.side, self.x0, self.y0, self.x1, self.y1, values, spread=True))

    def places(self) -> Places:
        """Which rectangle is where."""
        numbers = np.arange(len(self.users), dtype=np.float64)
        x_edges, y_edges, painted = paint(self.side, self.x0, self.y0, self.x1, self.y1, numbers, spread=False)
        return Places(x_edges, y_edges, np.rint(painted).astype(np.int32))


def centre_variance(boxes: Boxes, cells: Boxes, users: NDArray[np.float64], clumps: float) -> NDArray[np.float64]:
    """What the users in the middle of boxes add to the variances of answers: float64[q].

    Squares are asked for where somebody is: take one user to be in the middle. The answer leaves them out: 1 squared.
    And a box that cuts a small share s out of a cell of c users cuts out the place where that user is, and more of the
    cell's users than c s are there. Let each halving of the cell pass on (1 + d) / 2 of its users to a half, d of mean
    0 and variance r. A box of share s about a random user then holds W c users with E (W - s)^2 = s^(2 - b) -
    2 s^(2 - a) + s^2, a = log2(1 + r), b = log2(1 + 3 r). At r = 0 this is 0, at r = 1, where all are in one place,
    (1 - s)^2.

    Args:
        boxes: that are asked about, q.
        cells: those that hold the boxes' middles, q.
        users: in these cells, as they were counted.
        clumps: r as `clumping` found it between cells, and as the caller has counted it in already, r (s - s^2) c^2.
            Inside cells nothing was counted; r is taken to be LEAST_CLUMPING there or more.
    """
    across = np.minimum(boxes.x1, cells.x1) - np.maximum(boxes.x0, cells.x0)
    down = np.minimum(boxes.y1, cells.y1) - np.maximum(boxes.y0, cells.y0)
    share = np.clip(np.maximum(across, 0) * np.maximum(down, 0) / cells.areas, 1e-12, 1.0)
    inside = max(clumps, LEAST_CLUMPING)
    a, b = math.log2(1 + inside), math.log2(1 + 3 * inside)
    uneven = share ** (2 - b) - 2 * share ** (2 - a) + share**2 - clumps * (share - share**2)
    return np.asarray(1 + np.maximum(users, 0.0) ** 2 * np.maximum(uneven, 0.0))


def clumping(grid: NoisyGrid) -> float:
    """How unevenly users are spread within cells: r in [0, 1], where half a cell of c users has variance (c + r c^2)/4.

    It is taken from pairs of neighbouring cells, as the halves of one, less what the noise does.
    """
    noise, above, below = grid.noise_stddev**2, 0.0, 0.0
    for one in (grid.users, grid.users.T):
        pairs = one[:, : one.shape[1] // 2 * 2].reshape(len(one), -1, 2)
        total = pairs.sum(axis=2)
        above += float(((pairs[..., 0] - pairs[..., 1]) ** 2 - 2 * noise - total).sum())
        below += float((total**2 - 2 * noise).sum())
    return min(max(above / below, 0.0), 1.0) if below > 0 else 0.0
