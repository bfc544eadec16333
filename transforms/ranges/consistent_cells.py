"""A map of users from a noisy grid: no cell is below 0, and cells add up to the users of the region. Pure.

Noisy counts that are cut off at 0 add up to too much, and so do answers for squares around users, which are places with
more users than most. This map shares out the number of users, from the whole region down to single cells. A block's
four quarters get the block's users by a first guess, corrected by their noisy counts: much where a count is large
against its noise, little where it is not.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from sfumato.transforms.ranges.field_counts import NoisyGrid, SummedAreaTable

MAX_SIDE = 1024
"""The most cells along a side of the map. Finer grids are counted in blocks of cells."""
_STEPS = 12  # of Newton's method
_MAX_STEP, _MIN_TILT, _MAX_TILT = 4.0, -40.0, 4.0  # in logarithms of users


@dataclass(frozen=True)
class Shape:
    """A first guess of how users are spread over the parts of a grid's cells, each cut into k x k parts.

    Attributes:
        users: float64[k rows, k columns], 0 or more; they need not add up to anything.
        doubt: by how much a block's total may change each part, in [0, 1], of the same shape: with doubt 1 all of the
            parts of a block change by the same factor, and with doubt 0 a part is kept.
        x_edges, y_edges: of the parts, int64[k columns + 1] and int64[k rows + 1], in base cells.
    """

    users: NDArray[np.float64]
    doubt: NDArray[np.float64]
    x_edges: NDArray[np.int64]
    y_edges: NDArray[np.int64]


def consistent_table(grid: NoisyGrid, users: float | None, shape: Shape | None = None) -> SummedAreaTable:
    """Sums over boxes of a map that agrees with a noisy grid. Squares that tile the field sum to all users.

    users: number of users, public or noisy; None for the grid's own total, also used if it contradicts this number by
    more than three standard deviations. shape: the first guess; None for users spread evenly inside each block.
    """
    step = -(-max(grid.users.shape) // MAX_SIDE)
    rows, columns = (np.arange(0, length, step) for length in grid.users.shape)
    counts = np.add.reduceat(np.add.reduceat(grid.users, rows, axis=0), columns, axis=1)
    levels = math.ceil(math.log2(max(*counts.shape, 2)))
    side = 1 << levels
    pad = [(0, side - length) for length in counts.shape]
    base_cells = np.outer(
        *(np.diff(np.append(at, end)) for at, end in zip((rows, columns), grid.users.shape, strict=True))
    )
    pyramid = [(np.pad(counts, pad), np.pad(base_cells.astype(np.float64), pad))]
    for _ in range(levels):
        pyramid.append((_fours(pyramid[-1][0]), _fours(pyramid[-1][1])))
    total = float(grid.users.sum())
    if users is not None and abs(total - users) <= 3 * grid.noise_stddev * math.sqrt(grid.users.size):
        total = users
    totals = np.array([[max(total, 0.0)]])
    guess = None if shape is None else _Tilted(shape, grid.users.shape, step, levels)
    for level, (counted, covered) in enumerate(reversed(pyramid)):
        if level:
            expected = covered if guess is None else guess.blocks(level)
            totals = _divided(totals, expected, counted, grid.noise_stddev**2 * covered)
        if guess is not None:
            guess.fit(totals, level)
    if shape is not None and guess is not None:
        return SummedAreaTable(shape.x_edges, shape.y_edges, guess.users)
    x_edges, y_edges = np.append(grid.x_edges[columns], grid.side), np.append(grid.y_edges[rows], grid.side)
    return SummedAreaTable(x_edges, y_edges, totals[: len(rows), : len(columns)])


def _divided(
    totals: NDArray[np.float64],
    expected: NDArray[np.float64],
    counted: NDArray[np.float64],
    variance: NDArray[np.float64],
) -> NDArray[np.float64]:
    """Shares out the users of blocks, float64[n, n], to their quarters, float64[2n, 2n].

    A quarter's users are expected with a standard deviation as large as the expectation itself, and counted with noise
    of `variance`. Both are combined, and what is below 0 becomes 0. Then quarters are scaled to their block's total.
    """
    prior = _repeated(totals) * expected / np.maximum(_repeated(_fours(expected)), 1e-300)
    weight = prior**2 / np.maximum(prior**2 + variance, 1e-300)
    users = np.maximum(prior + weight * (counted - prior), 0.0)
    sums = _repeated(_fours(users))
    return np.where(sums > 0, users * _repeated(totals) / np.maximum(sums, 1e-300), prior)


class _Tilted:
    """The parts of a shape, times e^(tilt doubt), with a tilt of each block that makes its parts sum to its total."""

    def __init__(self, shape: Shape, grid_shape: tuple[int, ...], step: int, levels: int):
        """Makes the parts of a shape, all with the tilt 0.

        shape: the first guess. grid_shape: rows and columns of the grid, whose cells are cut into equal parts. step:
        the side of a smallest block, in cells.
        """
        self._shape, self._levels = shape, levels
        self._doubt = shape.doubt.ravel()
        # The smallest block of each row and column of parts.
        self._row, self._column = (
            np.arange(parts) // (parts // cells * step)
            for parts, cells in zip(shape.users.shape, grid_shape, strict=True)
        )
        self._tilt = np.zeros((1, 1))
        self._parts = shape.users.ravel()

    def blocks(self, level: int) -> NDArray[np.float64]:
        """Returns the sums of blocks, float64[2^level, 2^level], with the tilts of the blocks of the level above."""
        side = 1 << level
        return np.bincount(self._block(level), self._parts, side * side).reshape(side, side).astype(np.float64)

    def fit(self, totals: NDArray[np.float64], level: int) -> None:
        """Makes the parts of each block of a level sum to its total, float64[2^level, 2^level]."""
        block, logs = self._block(level), np.log(np.maximum(totals, 1e-9))

        def tilted() -> NDArray[np.float64]:
            return np.asarray(self._shape.users.ravel() * np.exp(self._tilt.ravel()[block] * self._doubt))

        def sums_of(parts: NDArray[np.float64]) -> NDArray[np.float64]:
            return np.bincount(block, parts, totals.size).reshape(totals.shape).astype(np.float64)

        if level:
            self._tilt = _repeated(self._tilt)
        for _ in range(_STEPS):
            parts = tilted()
            sums, slopes = sums_of(parts), sums_of(parts * self._doubt)
            gap = (logs - np.log(np.maximum(sums, 1e-300))) * sums / np.maximum(slopes, 1e-300)
            self._tilt = np.clip(self._tilt + np.clip(gap, -_MAX_STEP, _MAX_STEP), _MIN_TILT, _MAX_TILT)
        parts = tilted()
        sums, even = sums_of(parts), sums_of(np.ones(len(parts)))  # even: parts of a block, for blocks without users
        factor = np.where(sums > 0, totals / np.maximum(sums, 1e-300), 0.0).ravel()
        rest = np.where(sums > 0, 0.0, totals / np.maximum(even, 1)).ravel()
        self._parts = parts * factor[block] + rest[block]

    @property
    def users(self) -> NDArray[np.float64]:
        """Returns the users of the parts, of the shape's form."""
        return self._parts.reshape(self._shape.users.shape)

    def _block(self, level: int) -> NDArray[np.int64]:
        down, across = (at >> (self._levels - level) for at in (self._row, self._column))
        return np.asarray(((down << level)[:, None] + across).ravel())


def _fours(cells: NDArray[np.float64]) -> NDArray[np.float64]:
    """Sums of 2 x 2 cells."""
    half = len(cells) // 2
    return np.asarray(cells.reshape(half, 2, half, 2).sum(axis=(1, 3)))


def _repeated(blocks: NDArray[np.float64]) -> NDArray[np.float64]:
    """Returns the value of each block for its four quarters."""
    return np.repeat(np.repeat(blocks, 2, axis=0), 2, axis=1)
