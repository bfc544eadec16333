"""Models that answer from noisy counts, taken as spread evenly inside each part of the field. Pure.

A model makes its tables when it first answers. So a model that is only written or sent has none.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from functools import cached_property
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from sfumato.schemas.ranges import Boxes
from sfumato.transforms.ranges.consistent_cells import MAX_SIDE, consistent_table
from sfumato.transforms.ranges.model import Answers, Model
from sfumato.transforms.ranges.noisy_counts import (
    NoisyGrid,
    PartIndex,
    Partition,
    centre_variance,
    check_grid,
    clumping,
    strip_at,
    strip_edges,
)
from sfumato.transforms.ranges.summed_area_table import SummedAreaTable, row_blocks


def grid_arrays(grid: NoisyGrid) -> dict[str, NDArray[Any]]:
    """A grid's arrays for a model's file."""
    return {"x_edges": grid.x_edges, "y_edges": grid.y_edges, "users": grid.users}


def grid_from_arrays(arrays: Mapping[str, NDArray[Any]], metadata: Mapping[str, Any]) -> NoisyGrid:
    """The inverse of `grid_arrays`. Raises KeyError, TypeError or ValueError for arrays that are not a grid."""
    grid = NoisyGrid(arrays["x_edges"], arrays["y_edges"], arrays["users"], float(metadata["noise_stddev"]))
    check_grid(grid)
    return grid


class GridModel(Model):
    """Sums of a noisy grid.

    Counts below 0 are used as they are: clipped at 0, the noise of empty cells would no longer cancel.

    The stated error covers the noise, the uneven spread of users in cells that the box cuts, and users at the centre
    of the box (`centre_variance`).

    Args:
        grid: the noisy grid.
        total: number of users, public or noisy, for additive answers; None for the grid's own total.
    """

    KIND: ClassVar[str] = "grid"

    def __init__(self, grid: NoisyGrid, total: float | None = None):
        self.grid = grid
        self.total = total

    @cached_property
    def _clumping(self) -> float:
        return clumping(self.grid)

    @cached_property
    def _users(self) -> SummedAreaTable:
        return self.grid.table()

    @cached_property
    def additive_table(self) -> SummedAreaTable:
        """See Model.additive_table. Cells are those of the grid, of at most 1024 a side (`consistent_table`)."""
        return consistent_table(self.grid, self.total)

    @cached_property
    def _noise(self) -> SummedAreaTable:
        columns, noise = self.grid.users.shape[1], self.grid.noise_stddev**2
        return self._table(lambda rows: np.full((rows.stop - rows.start, columns), noise))

    @cached_property
    def _uneven(self) -> SummedAreaTable:
        users, noise, clumps = self.grid.users, self.grid.noise_stddev**2, self._clumping
        return self._table(
            lambda rows: np.maximum(users[rows], 0.0) + clumps * np.maximum(users[rows] ** 2 - noise, 0.0)
        )

    def _table(self, values: Callable[[slice], NDArray[np.float64]]) -> SummedAreaTable:
        return SummedAreaTable.from_rows(self.grid.x_edges, self.grid.y_edges, values)

    def answer(self, boxes: Boxes) -> Answers:
        variance = self._noise.sum_of_squares(boxes) + self._uneven.sum(boxes) - self._uneven.sum_of_squares(boxes)
        x, y = boxes.middles
        column, row = strip_at(self.grid.x_edges, x), strip_at(self.grid.y_edges, y)
        left, top = self.grid.x_edges.astype(np.float64), self.grid.y_edges.astype(np.float64)
        cells = Boxes(left[column], top[row], left[column + 1], top[row + 1])
        variance += centre_variance(boxes, cells, self.grid.users[row, column], self._clumping)
        return Answers(np.maximum(self._users.sum(boxes), 0.0), np.sqrt(np.maximum(variance, 0.0)))

    def arrays(self) -> dict[str, NDArray[Any]]:
        return grid_arrays(self.grid)

    def metadata(self) -> dict[str, Any]:
        return {"noise_stddev": self.grid.noise_stddev, "total": self.total}

    @classmethod
    def load(cls, arrays: Mapping[str, NDArray[Any]], metadata: Mapping[str, Any]) -> GridModel:
        total = metadata.get("total")  # older files have none
        if total is not None and not math.isfinite(total := float(total)):
            raise ValueError("a total that is no number")
        return cls(grid_from_arrays(arrays, metadata), total)


class PartitionModel(Model):
    """Sums of a partition.

    The stated error is a lower bound. It covers the noise and the users at the centre of the box, where clumping is
    taken to be MIN_CLUMPING. A method stops splitting where noise hides how uneven a part is, so it cannot estimate
    more.
    """

    KIND: ClassVar[str] = "partition"
    ERROR: ClassVar[str] = "lower bound"

    def __init__(self, partition: Partition):
        self.partition = partition

    @cached_property
    def part_index(self) -> PartIndex:
        """Finds the rectangle at a point. Raises ValueError if rectangles overlap."""
        return self.partition.part_index()

    @cached_property
    def _users(self) -> SummedAreaTable:
        return self.partition.table(self.part_index)

    @cached_property
    def additive_table(self) -> SummedAreaTable:
        """See Model.additive_table. Of at most 1024 x 1024 cells those below 0 are 0; the others keep the total."""
        edges = strip_edges(self.partition.side, max(self.partition.side / MAX_SIDE, 1.0))

        def cells(rows: slice) -> NDArray[np.float64]:
            boxes = Boxes.between(edges, edges[rows.start : rows.stop + 1])
            return np.maximum(self._users.sum(boxes), 0.0).reshape(-1, len(edges) - 1)

        clipped = sum(float(cells(rows).sum()) for rows in row_blocks(len(edges) - 1, len(edges) - 1))
        scale = max(float(self.partition.users.sum()), 0.0) / max(clipped, 1e-300)
        return SummedAreaTable.from_rows(edges, edges, lambda rows: cells(rows) * scale)

    @cached_property
    def _variance(self) -> SummedAreaTable:
        return self.partition.table(self.part_index, self.partition.variance)

    def answer(self, boxes: Boxes) -> Answers:
        parts, centre = self.partition, self.part_index.at(*boxes.middles)
        cells = Boxes(*(edge[centre].astype(np.float64) for edge in (parts.x0, parts.y0, parts.x1, parts.y1)))
        variance = self._variance.sum(boxes)
        variance += centre_variance(boxes, cells, parts.users[centre], 0.0)
        return Answers(np.maximum(self._users.sum(boxes), 0.0), np.sqrt(np.maximum(variance, 0.0)))

    def arrays(self) -> dict[str, NDArray[Any]]:
        partition = self.partition
        rectangles = {name: getattr(partition, name).astype(np.uint16) for name in ("x0", "y0", "x1", "y1")}
        return {**rectangles, "users": partition.users, "variance": partition.variance}

    def metadata(self) -> dict[str, Any]:
        return {"side": self.partition.side}

    @classmethod
    def load(cls, arrays: Mapping[str, NDArray[Any]], metadata: Mapping[str, Any]) -> PartitionModel:
        x0, y0, x1, y1 = (arrays[name].astype(np.int32) for name in ("x0", "y0", "x1", "y1"))
        partition = Partition(int(metadata["side"]), x0, y0, x1, y1, arrays["users"], arrays["variance"])
        side = partition.side
        covered = int(((x1 - x0) * (y1 - y0)).sum(dtype=np.int64)) == side**2
        if not (covered and (x1 > x0).all() and (y1 > y0).all() and (x1 <= side).all() and (y1 <= side).all()):
            raise ValueError("the rectangles do not cover the field")
        if not (partition.variance >= 0).all():
            raise ValueError("variances below 0")
        model = cls(partition)
        model.part_index  # noqa: B018  (raises if rectangles overlap)
        return model
