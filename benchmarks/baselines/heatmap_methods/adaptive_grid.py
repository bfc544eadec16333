"""The adaptive grid (Qardaji et al. 2013; paper 000, Section 6.2): a coarse grid, then each cell divided by its count.

A grid has any number of cells a side, so its cells overlap those of the quadtree. Its lines follow the cells of level
min(depth, 12), so every rectangle consists of blocks of the quadtree.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from sfumato.schemas.region import deinterleave
from sfumato.schemas.requests.checks import check_integer, check_number
from sfumato.schemas.tree import Tree, node_positions
from sfumato.transforms.counting.methods.base import MAX_UNIFORM_LEVEL, Method
from sfumato.transforms.counting.state import ALL_REMAINING, CountState, Estimate, NoisyCounts, Query
from sfumato.transforms.locations.shards import ShardGroup
from sfumato.transforms.secagg.encodings import Encoding, parts_and_cells, tally

_MAX_GRID_SIDE = 256
_FOUR = np.arange(4, dtype=np.uint64)


@dataclass(frozen=True)
class GridEncoding(Encoding):
    """One entry for each rectangle of a grid of side x side cells, whose cell i is divided into n_i x n_i rectangles.

    Entries are in order of cells, and row by row in a cell.

    Attributes:
        depth: of the codes that clients hold.
        level: of the quadtree's cells that the rectangles consist of.
        side: cells a side.
        divisions: n_i, row by row from the north, each at most 2^level // side, so that no rectangle is empty.
    """

    depth: int
    level: int
    side: int
    divisions: tuple[int, ...]

    @property
    def length(self) -> int:  # type: ignore[override]
        """Rectangles."""
        return int(self.starts[-1])

    @cached_property
    def starts(self) -> NDArray[np.int64]:
        """The first entry of each cell, and the number of all entries: int64[side^2 + 1]."""
        return np.concatenate([[0], np.cumsum(np.square(self.divisions))])

    @cached_property
    def lines(self) -> NDArray[np.int64]:
        """The first line of each grid cell on an axis, in cells of the level: int64[side + 1]."""
        return -(-(np.arange(self.side + 1) << self.level) // self.side)

    def entries(self, x: NDArray[np.int64], y: NDArray[np.int64]) -> NDArray[np.int64]:
        """The entry of each cell (x, y) of the level, x from the west and y from the north: int64[n]."""
        column, row = (x * self.side) >> self.level, (y * self.side) >> self.level
        cell = row * self.side + column
        n = np.asarray(self.divisions)[cell]
        widths, first = np.diff(self.lines), self.lines
        inner_x = (x - first[column]) * n // widths[column]
        inner_y = (y - first[row]) * n // widths[row]
        return np.asarray(self.starts[cell] + inner_y * n + inner_x)

    def count(self, group: ShardGroup, block: slice) -> NDArray[np.int64]:
        shard, cells = parts_and_cells(group, block)
        return tally(shard, self._entries_at(cells), group, block, self.length)

    def entries_of(self, group: ShardGroup, block: slice) -> Iterator[NDArray[np.int64]]:
        _, cells = parts_and_cells(group, block)
        yield self._entries_at(cells)

    def _entries_at(self, cells: NDArray[np.uint64]) -> NDArray[np.int64]:
        return self.entries(*deinterleave(cells >> np.uint64(2 * (self.depth - self.level))))

    @cached_property
    def blocks(self) -> tuple[Tree, NDArray[np.int64]]:
        """The coarsest quadtree whose entries each lie in one rectangle, and that rectangle: int64[T]."""
        nodes, owners, found = np.ones(1, dtype=np.uint64), [], []
        for level in range(self.level + 1):
            found.append(nodes)
            _, x, y = node_positions(nodes)
            below = self.level - level
            first = self.entries(x << below, y << below)
            last = self.entries(((x + 1) << below) - 1, ((y + 1) << below) - 1)
            complete = first == last  # both corners are in one rectangle, and so is all between them
            owners.append(first[complete])
            nodes = ((nodes[~complete] << np.uint64(2))[:, None] | _FOUR).ravel()
        return Tree(self.depth, np.concatenate(found)), np.concatenate(owners)

    @property
    def shares(self) -> NDArray[np.float64]:
        """See Encoding.shares: each rectangle's share of the area."""
        tree, owner = self.blocks
        return np.bincount(owner, tree.areas) / 4.0**self.depth


@dataclass(frozen=True)
class AdaptiveGrid(Method):
    """The adaptive grid.

    A cell of N' users by the first, noisy count is divided n x n, with n = sqrt(N' (1 - alpha) epsilon / c2) rounded
    down. Of all roundings, this is nearest to the paper's communication and has the smallest error on its kind of map.

    Attributes:
        grid_side: cells a side of the first grid.
        grid_share: alpha, the first grid's share of epsilon.
        grid_constant: c2.
    """

    NAME: ClassVar[str] = "adaptive_grid"
    SENTENCE: ClassVar[str] = (
        "The first sub-query asks about a coarse grid. The second divides every cell by its noisy count, the more "
        "finely the more users it has. Both answers make the map; the surer one weighs more. The second grid's cells "
        "are cut into this map's squares, which share their users and noise by area."
    )

    grid_side: int = 10
    grid_share: float = 0.5
    grid_constant: float = 10.0

    def __post_init__(self) -> None:
        check_integer("grid_side", self.grid_side, 1, _MAX_GRID_SIDE)
        check_number("grid_share", self.grid_share, gt=0, lt=1)
        check_number("grid_constant", self.grid_constant, gt=0, lt=1e9)

    def check(self, depth: int) -> None:
        check_integer("grid_side", self.grid_side, 1, 1 << _level(depth))

    def most_sub_queries(self, depth: int) -> int:
        return 2

    def next_query(self, state: CountState, depth: int) -> Query | None:
        level, side = _level(depth), self.grid_side
        if not state.results:
            divisions = np.ones(side**2, dtype=np.int64)
            epsilon = self.grid_share * state.budget.remaining
        elif len(state.results) == 1:
            n = np.sqrt(np.maximum(state.results[0].counts, 0) * state.budget.remaining / self.grid_constant)
            divisions = np.clip(n.astype(np.int64), 1, (1 << level) // side)
            epsilon = ALL_REMAINING
        else:
            return None
        return Query(GridEncoding(depth, level, side, tuple(divisions.tolist())), epsilon)

    def decode(self, state: CountState, depth: int) -> Estimate:
        """See Method.decode: each rectangle's users, spread evenly over the blocks of the quadtree in it."""
        grid = _grid(state.results[-1])
        users, stddev = constrained(grid, *state.results)
        tree, owner = grid.blocks
        area = tree.areas.astype(np.float64)
        share = area / np.bincount(owner, area)[owner]
        return Estimate(tree, users[owner] * share, stddev[owner] * share)


def constrained(
    grid: GridEncoding, coarse: NoisyCounts, fine: NoisyCounts
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """The best linear unbiased estimate of every rectangle and its standard deviation: float64[length] each.

    A cell's own count and the sum of its k rectangles are weighted by inverse variance. The rectangles share the
    difference of that mean from their sum equally.

    Source: Qardaji et al. 2013, Section IV-B.
    """
    k = np.diff(grid.starts)
    coarse_variance, fine_variance = coarse.noise_stddev**2, fine.noise_stddev**2
    sums = np.add.reduceat(fine.counts, grid.starts[:-1])
    weight = k * fine_variance / (coarse_variance + k * fine_variance)  # of the cell's own count
    correction = weight * (coarse.counts - sums) / k
    # A rectangle's difference from its cell's mean is uncorrelated with the cell's sum, so their variances add up.
    variance = fine_variance * (1 - 1 / k) + weight * coarse_variance / k**2
    return fine.counts + np.repeat(correction, k), np.repeat(np.sqrt(variance), k)


def _grid(result: NoisyCounts) -> GridEncoding:
    if not isinstance(result.encoding, GridEncoding):
        raise TypeError(f"the counts are not of a grid but of {type(result.encoding).__name__}")
    return result.encoding


def _level(depth: int) -> int:
    return min(depth, MAX_UNIFORM_LEVEL)
