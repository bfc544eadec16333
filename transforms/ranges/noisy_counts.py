"""Noisy counts of the parts of a field: all that a method knows after its collection. Pure."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from sfumato.schemas.ranges import Boxes
from sfumato.transforms.privacy.additive_noise import LAPLACE, AdditiveNoise
from sfumato.transforms.privacy.keys import RunKey
from sfumato.transforms.ranges.summed_area_table import SummedAreaTable

MIN_CLUMPING = 0.3
"""The least clumping r of users inside a cell (see `clumping`). Measured (docs/explanation/ranges.md)."""
_COUNTS_PER_STREAM = 4096  # another number would give other noise for the same key


def add_noise(
    counts: NDArray[np.int64], cost: float, key: RunKey, label: str, kind: AdditiveNoise = LAPLACE
) -> NDArray[np.float64]:
    """Adds noise to each count.

    The result has this cost if adding or removing a user changes at most one count, by at most 1.

    Args:
        counts: of any shape.
        cost: the budget, in the unit of the noise.
        key: of the run.
        label: names the noise. The same key and label give the same noise, so a label must name one set of counts.
        kind: of the noise.

    Returns:
        The noisy counts, float64 of the same shape.
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
    """The strips between edges that hold coordinates: int64[q]. Coordinates outside get the first or the last."""
    return np.asarray(np.clip(np.searchsorted(edges, point, "right") - 1, 0, len(edges) - 2))


@dataclass(frozen=True)
class NoisyGrid:
    """A grid that covers a field, with a noisy count of each cell.

    Attributes:
        x_edges: int64[columns + 1], in base cells, from 0 to the field's side.
        y_edges: int64[rows + 1], likewise.
        users: float64[rows, columns]. The counts are unbiased, so they can be below 0.
        noise_stddev: standard deviation of the noise of each count.
    """

    x_edges: NDArray[np.int64]
    y_edges: NDArray[np.int64]
    users: NDArray[np.float64]
    noise_stddev: float

    @property
    def side(self) -> int:
        """Base cells along one side of the field."""
        return int(self.x_edges[-1])

    def table(self, values: NDArray[np.float64] | None = None) -> SummedAreaTable:
        """Sums over boxes of the counts, or of other values of the cells."""
        return SummedAreaTable(self.x_edges, self.y_edges, self.users if values is None else values)


def check_grid(grid: NoisyGrid) -> None:
    """Raises ValueError if a grid from a file is not valid: its edges, the shape of its counts, its numbers."""
    shape = len(grid.y_edges) - 1, len(grid.x_edges) - 1
    rising = all(
        len(edges) > 1 and edges[0] == 0 and (np.diff(edges) > 0).all() for edges in (grid.x_edges, grid.y_edges)
    )
    if not (rising and grid.users.shape == shape and grid.x_edges[-1] == grid.y_edges[-1]):
        raise ValueError("edges and counts do not fit together")
    if not (np.isfinite(grid.users).all() and 0 <= grid.noise_stddev < math.inf):
        raise ValueError("counts are no numbers")


def clumping(grid: NoisyGrid) -> float:
    """How unevenly users are spread inside cells: r in [0, 1].

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
    """The expected squared error of an answer that assumes a user at the centre of the box: float64[q].

    Queries are asked about places where somebody is, so assume one user at the centre. The answer does not count that
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
