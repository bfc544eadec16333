"""Partitions: rectangles of any sizes with estimated users, which the adaptive grid, PrivTree and DAWA collect."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from sfumato.schemas.ranges import Boxes
from sfumato.transforms.ranges.consistent_cells import MAX_SIDE
from sfumato.transforms.ranges.field_counts import (
    CollectionSpec,
    SummedAreaTable,
    centre_variance,
    row_blocks,
    strip_at,
    strip_edges,
)
from sfumato.transforms.ranges.methods import RangeMethod
from sfumato.transforms.ranges.model import Answers, Model

_CELLS_AT_ONCE = 1 << 18  # rectangles, so that their arrays stay in the processor's cache


@dataclass(frozen=True)
class PartIndex:
    """Finds the part of a field at a point. part[row, column]: the part that holds the cell between these edges."""

    x_edges: NDArray[np.int64]
    y_edges: NDArray[np.int64]
    part: NDArray[np.int32]

    def at(self, x: NDArray[np.float64], y: NDArray[np.float64]) -> NDArray[np.int32]:
        """The parts that hold points of the field: int32[q]."""
        return np.asarray(self.part[strip_at(self.y_edges, y), strip_at(self.x_edges, x)])


@dataclass(frozen=True)
class Partition:
    """Rectangles that cover a field without overlap, each with an estimated number of users.

    Attributes:
        side: of the field, in base cells.
        x0, y0, x1, y1: integers [r], in base cells, half open.
        users: float64[r].
        variance: float64[r], of the noise in `users`.
    """

    side: int
    x0: NDArray[np.integer[Any]]
    y0: NDArray[np.integer[Any]]
    x1: NDArray[np.integer[Any]]
    y1: NDArray[np.integer[Any]]
    users: NDArray[np.float64]
    variance: NDArray[np.float64]

    def table(self, index: PartIndex, values: NDArray[np.float64] | None = None) -> SummedAreaTable:
        """Sums over boxes of the users, or of other values of the rectangles, spread evenly inside each.

        index: of this partition.
        """
        values = self.users if values is None else values
        density = values / ((self.x1 - self.x0) * (self.y1 - self.y0))
        heights, widths = np.diff(index.y_edges)[:, None], np.diff(index.x_edges)

        def spread(rows: slice) -> NDArray[np.float64]:
            found = density[index.part[rows]]
            found *= heights[rows]
            found *= widths
            return np.asarray(found)

        return SummedAreaTable(index.x_edges, index.y_edges, spread)

    def part_index(self) -> PartIndex:
        """Finds the rectangle at a point. Raises ValueError if rectangles overlap."""
        return PartIndex(*paint_rectangles(self.side, self.x0, self.y0, self.x1, self.y1))


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
        return SummedAreaTable(edges, edges, lambda rows: cells(rows) * scale)

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


@dataclass(frozen=True)
class PartitionMethod(RangeMethod):
    """A method whose noisy counts are a Partition."""

    def model(self, counts: Any, spec: CollectionSpec, trained: Sequence[Any]) -> Model:
        """See RangeMethod.model."""
        return PartitionModel(counts)


def paint_rectangles(
    side: int,
    x0: NDArray[np.integer[Any]],
    y0: NDArray[np.integer[Any]],
    x1: NDArray[np.integer[Any]],
    y1: NDArray[np.integer[Any]],
) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int32]]:
    """Finds the rectangle that covers each cell of the grid of all their edges.

    Args:
        side: of the field, in base cells.
        x0, y0, x1, y1: of the rectangles, integers [r] each, half open. They must cover the field without overlap.

    Returns:
        The edges in x and in y, int64, and the rectangle of each cell, int32[rows, columns].

    Raises:
        ValueError: rectangles overlap, so that a cell got a number that is no rectangle's.
    """
    x_edges, y_edges = _distinct(x0, side), _distinct(y0, side)
    columns = len(x_edges) + 1
    column, row = (np.searchsorted(edges, np.arange(side + 1)) for edges in (x_edges, y_edges))
    # Each rectangle adds its number at one corner and subtracts it after each side; two cumulative sums fill it in.
    # They may wrap around on the way, and the results are exact.
    painted = np.zeros((len(y_edges) + 1) * columns, dtype=np.int32)
    for start in range(0, len(x0), _CELLS_AT_ONCE):
        block = slice(start, start + _CELLS_AT_ONCE)
        number = np.arange(start, min(start + _CELLS_AT_ONCE, len(x0)), dtype=np.int32)
        left, right = column[x0[block]], column[x1[block]]
        top, bottom = row[y0[block]] * columns, row[y1[block]] * columns
        for corner, sign in ((top + left, 1), (top + right, -1), (bottom + left, -1), (bottom + right, 1)):
            np.add.at(painted, corner, np.int32(sign) * number)
    part = painted.reshape(-1, columns)[: len(y_edges) - 1, : len(x_edges) - 1]
    least, most = 0, 0
    for at, each in enumerate(part):
        np.cumsum(each, out=each)
        if at:
            each += part[at - 1]
        least, most = min(least, int(each.min(initial=0))), max(most, int(each.max(initial=0)))
    if part.size and not 0 <= least <= most < len(x0):
        raise ValueError("rectangles overlap")
    return x_edges, y_edges, part


def _distinct(starts: NDArray[np.integer[Any]], side: int) -> NDArray[np.int64]:
    """The distinct starts and the side, ascending."""
    found = np.zeros(side + 1, dtype=bool)
    found[starts] = True
    found[side] = True
    return np.flatnonzero(found)
