"""Models that answer from noisy counts, taken as spread evenly inside each part of the field. Pure.

A model makes its tables when it first answers. So a model that is only written or sent has none.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from functools import cached_property
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from sfumato.schemas.ranges import Boxes
from sfumato.transforms.ranges.consistent_cells import consistent_table
from sfumato.transforms.ranges.model import Answers, Model
from sfumato.transforms.ranges.noisy_counts import (
    NoisyGrid,
    centre_variance,
    check_grid,
    clumping,
    strip_at,
)
from sfumato.transforms.ranges.summed_area_table import SummedAreaTable


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
        grid, columns, noise = self.grid, self.grid.users.shape[1], self.grid.noise_stddev**2
        return SummedAreaTable(
            grid.x_edges, grid.y_edges, lambda rows: np.full((rows.stop - rows.start, columns), noise)
        )

    @cached_property
    def _uneven(self) -> SummedAreaTable:
        grid, noise, clumps = self.grid, self.grid.noise_stddev**2, self._clumping

        def uneven(rows: slice) -> NDArray[np.float64]:
            users = grid.users[rows]
            return np.asarray(np.maximum(users, 0.0) + clumps * np.maximum(users**2 - noise, 0.0))

        return SummedAreaTable(grid.x_edges, grid.y_edges, uneven)

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
