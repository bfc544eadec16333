"""Models that answer from noisy counts, taken as spread evenly inside each part of the field. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from sfumato.schemas.ranges import Boxes
from sfumato.transforms.ranges.model import Answers, Model
from sfumato.transforms.ranges.noisy_counts import (
    NoisyGrid,
    PartIndex,
    Partition,
    centre_variance,
    check_grid,
    clumping,
)


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
    """

    KIND: ClassVar[str] = "grid"

    def __init__(self, grid: NoisyGrid):
        self.grid = grid
        users, noise = np.maximum(grid.users, 0.0), grid.noise_stddev**2
        self._clumping = clumping(grid)
        uneven = users + self._clumping * np.maximum(grid.users**2 - noise, 0.0)
        self._users = grid.table()
        self._noise = grid.table(np.full(users.shape, noise))
        self._uneven = grid.table(uneven)
        self._cell_index = PartIndex(
            grid.x_edges, grid.y_edges, np.arange(users.size, dtype=np.int32).reshape(users.shape)
        )
        self._cells = Boxes.between(grid.x_edges, grid.y_edges)

    def answer(self, boxes: Boxes) -> Answers:
        variance = self._noise.sum_of_squares(boxes) + self._uneven.sum(boxes) - self._uneven.sum_of_squares(boxes)
        centre = self._cell_index.at(*boxes.middles)
        variance += centre_variance(boxes, self._cells.part(centre), self.grid.users.ravel()[centre], self._clumping)
        return Answers(np.maximum(self._users.sum(boxes), 0.0), np.sqrt(np.maximum(variance, 0.0)))

    def arrays(self) -> dict[str, NDArray[Any]]:
        return grid_arrays(self.grid)

    def metadata(self) -> dict[str, Any]:
        return {"noise_stddev": self.grid.noise_stddev}

    @classmethod
    def load(cls, arrays: Mapping[str, NDArray[Any]], metadata: Mapping[str, Any]) -> GridModel:
        return cls(grid_from_arrays(arrays, metadata))


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
        self.part_index = partition.part_index()
        self._users = partition.table(self.part_index)
        self._variance = partition.table(self.part_index, partition.variance)

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
        return cls(partition)
