"""A released model: it answers squares of the region, without data and without Beam. Pure.

`GridModel` answers from the noisy counts of a grid, `TreeModel` from a heatmap's estimate: the cells of its tree, which
are small in dense places.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from sfumato.schemas.errors import RequestError
from sfumato.schemas.ranges import BASE_DEPTH, LARGEST, SMALLEST, Boxes, Field
from sfumato.schemas.region import by_row, interleave
from sfumato.schemas.tree import Tree, node_levels, node_paths, node_positions
from sfumato.transforms.counting.estimator import density, estimate_density
from sfumato.transforms.counting.state import Estimate
from sfumato.transforms.ranges.consistent_cells import consistent_table
from sfumato.transforms.ranges.field_counts import (
    NoisyGrid,
    SummedAreaTable,
    centre_variance,
    check_edges,
    clumping,
    strip_at,
)

_SLOPE_LEVELS = 2  # levels below a cell at which its slope is drawn (see `slopes`)
_MAX_LEVEL = 11  # cells of 2 x 2 base cells; the users of finer cells are spread evenly over such a cell
_MAX_SQUARES_LEVEL = 10  # a box cuts so little of finer cells that their variance needs no exact shares


@dataclass(frozen=True)
class Answers:
    """Answers to q queries: users, float64[q], 0 or more.

    stddev: float64[q], the root mean square error of `users`, or a lower bound of it (see Model.ERROR).
    """

    users: NDArray[np.float64]
    stddev: NDArray[np.float64]


class Model(ABC):
    """Answers boxes of a field. `arrays` and `metadata` hold all of its state, and `load` restores it.

    Attributes:
        KIND: what a file calls this class.
        ERROR: what `stddev` of its answers is, `estimate` or `lower bound`.
    """

    KIND: ClassVar[str]
    ERROR: ClassVar[str] = "estimate"

    @abstractmethod
    def answer(self, boxes: Boxes) -> Answers:
        """Answers boxes that lie in the field."""

    @property
    def additive_table(self) -> SummedAreaTable | None:
        """Sums over boxes of the model's map of users, whose cells are at least 0; None if it has no such map."""
        return None

    def answer_additive(self, boxes: Boxes) -> Answers:
        """Answers boxes so that those that tile a larger box sum to its answer. Without a map, the same as `answer`.

        `stddev` is that of `answer`, for squares around users, and the difference of both answers.
        """
        answers, table = self.answer(boxes), self.additive_table
        if table is None:
            return answers
        users = np.maximum(table.sum(boxes), 0.0)  # less than 0 only by rounding
        return Answers(users, np.hypot(answers.stddev, answers.users - users))

    @abstractmethod
    def arrays(self) -> dict[str, NDArray[Any]]:
        """Returns the arrays of its state, by name."""

    def metadata(self) -> dict[str, Any]:
        """Returns the rest of its state, in JSON's types."""
        return {}

    @classmethod
    @abstractmethod
    def load(cls, arrays: Mapping[str, NDArray[Any]], metadata: Mapping[str, Any]) -> Model:
        """Returns the inverse of `arrays` and `metadata`.

        Raises KeyError, ValueError or TypeError for invalid state.
        """


@dataclass(frozen=True)
class RangeModel:
    """A model and its field, the region and its base cells.

    Attributes:
        method: the name of the method that made the model.
        epsilon: of the whole release.
        safe: whether the noise came from a secret key.
    """

    field: Field
    model: Model
    method: str
    epsilon: float
    safe: bool = True

    def answer(
        self,
        longitude: NDArray[np.float64],
        latitude: NDArray[np.float64],
        size: NDArray[np.float64],
        *,
        additive: bool = False,
    ) -> tuple[Answers, NDArray[np.float64]]:
        """Answers squares; centres are in degrees and sizes in metres, numbers or arrays of q.

        Returns the answers, and the share of each square's area inside the region, float64[q]. An answer is for the
        part inside. A square outside the region has 0 users. Raises RequestError if a centre or a size is out of range,
        or the model has no additive answers.

        additive: for squares anywhere, whose answers add up, such as tiles of a region; otherwise for squares around
        users.
        """
        longitude, latitude, size = np.broadcast_arrays(
            *(np.atleast_1d(np.asarray(argument, dtype=np.float64)) for argument in (longitude, latitude, size))
        )
        if not (np.isfinite(longitude).all() and (np.abs(latitude) <= 90).all()):
            raise RequestError("squares: longitudes must be finite degrees, and latitudes in -90..90 degrees")
        if not ((size >= SMALLEST) & (size <= LARGEST)).all():
            raise RequestError(f"squares: sizes must be metres, from {SMALLEST:g} to the Earth's circumference")
        squares = self.field.squares(longitude, latitude, size)
        inside = squares.clipped(self.field.side)
        share = inside.areas / squares.areas
        share = np.where(share > 1 - 1e-9, 1.0, share)  # less than 1 only by rounding
        if additive:
            self.check_additive()
        answers = self.model.answer_additive(inside) if additive else self.model.answer(inside)
        return Answers(np.where(share > 0, answers.users, 0.0), np.where(share > 0, answers.stddev, 0.0)), share

    def check_additive(self) -> None:
        """Raises RequestError if the model has no additive answers."""
        if self.model.additive_table is None:
            raise RequestError("additive: the paper's networks have no answers that add up; ask for one large square")


def checked_weights(
    arrays: Mapping[str, NDArray[Any]], shapes: Mapping[str, tuple[int, ...]]
) -> dict[str, NDArray[Any]]:
    """Returns the weights of networks by name.

    Raises ValueError if their form is wrong, KeyError if some are missing.
    """
    for name, shape in shapes.items():
        values = arrays[name]
        if values.shape != shape or values.dtype != np.float32 or not np.isfinite(values).all():
            raise ValueError("weights of another form")
    return {name: arrays[name] for name in shapes}


def grid_arrays(grid: NoisyGrid) -> dict[str, NDArray[Any]]:
    """Returns a grid's arrays for a model's file."""
    return {"x_edges": grid.x_edges, "y_edges": grid.y_edges, "users": grid.users}


def grid_from_arrays(arrays: Mapping[str, NDArray[Any]], metadata: Mapping[str, Any]) -> NoisyGrid:
    """Returns the inverse of `grid_arrays`. Raises KeyError, TypeError or ValueError for arrays that are not a grid."""
    x_edges, y_edges, users, noise = (
        arrays["x_edges"],
        arrays["y_edges"],
        arrays["users"],
        float(metadata["noise_stddev"]),
    )
    check_edges(x_edges, y_edges)
    if users.shape != (len(y_edges) - 1, len(x_edges) - 1):
        raise ValueError("edges and counts do not fit together")
    if not (np.isfinite(users).all() and 0 <= noise < math.inf):
        raise ValueError("counts are no numbers")
    return NoisyGrid(x_edges, y_edges, users, noise)


@dataclass(frozen=True, eq=False)
class GridModel(Model):
    """Sums of a noisy grid. It makes its tables when it first answers: a model that is only written or sent has none.

    Counts below 0 are used as they are: clipped at 0, the noise of empty cells would no longer cancel.

    The stated error covers the noise, the uneven spread of users in cells that the box cuts, and users at the centre
    of the box (`centre_variance`).

    total: number of users, public or noisy, for additive answers; None for the grid's own total.
    """

    KIND: ClassVar[str] = "grid"

    grid: NoisyGrid
    total: float | None = None

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


class TreeModel(Model):
    """Sums of a heatmap's estimate. Negative cells count as 0. Inside a cell the density slopes as in the heatmap.

    The stated error covers the error of the cells, the uneven spread of users in cells that the box cuts, and users at
    the centre of the box (`centre_variance`). It is a lower bound: errors of neighbouring cells are correlated, and an
    estimate holds only the errors of single cells.
    """

    KIND: ClassVar[str] = "tree"
    ERROR: ClassVar[str] = "lower bound"

    def __init__(self, estimate: Estimate):
        self.estimate = estimate
        shown = estimate if estimate.tree.depth <= _MAX_LEVEL else _coarse(estimate)
        tree, users = shown.tree, np.maximum(shown.counts, 0.0)
        level = min(tree.level + (_SLOPE_LEVELS if shown.slope else 0), tree.depth)
        self._users = _table(estimate_density(shown, level) * users.sum())
        empty = users < 0.5
        noise = np.where(empty, np.maximum(shown.stddev, _min_stddev(shown.stddev[~empty])), shown.stddev) ** 2
        entry_level = node_levels(tree.entries)
        cut = entry_level <= _MAX_SQUARES_LEVEL
        # A box that covers a share s of a cell has s^2 of the cell's variance, and s - s^2 of its uneven spread.
        self._shown, self._counts, self._clumping = tree, users, _clumping(tree, users)
        uneven = np.where(cut, users + self._clumping * users**2, noise)
        self._uneven = _table(density(tree, uneven, level) * uneven.sum())
        self._squares = []
        for cut_level in np.unique(entry_level[cut]).tolist():
            values = np.zeros(1 << 2 * cut_level)
            here = entry_level == cut_level
            values[node_paths(tree.entries[here])] = (noise - uneven)[here]
            self._squares.append(_table(by_row(values)))

    @property
    def additive_table(self) -> SummedAreaTable:
        """See Model.additive_table. A tree's answers add up already."""
        return self._users

    def answer(self, boxes: Boxes) -> Answers:
        variance = self._uneven.sum(boxes)
        for squares in self._squares:
            variance += squares.sum_of_squares(boxes)
        cells, users = self._centre_cells(boxes)
        variance += centre_variance(boxes, cells, users, self._clumping)
        return Answers(np.maximum(self._users.sum(boxes), 0.0), np.sqrt(np.maximum(variance, 0.0)))

    def _centre_cells(self, boxes: Boxes) -> tuple[Boxes, NDArray[np.float64]]:
        tree = self._shown
        fine = float(1 << tree.depth) / (1 << BASE_DEPTH)
        x, y = (np.clip(coordinate * fine, 0, (1 << tree.depth) - 1).astype(np.uint32) for coordinate in boxes.middles)
        entry = tree.index.owners(interleave(x, y))
        level, column, row = node_positions(tree.entries[entry])
        width = float(1 << BASE_DEPTH) / (1 << level)
        return Boxes(column * width, row * width, (column + 1) * width, (row + 1) * width), self._counts[entry]

    def arrays(self) -> dict[str, NDArray[Any]]:
        estimate = self.estimate
        return {"nodes": estimate.tree.nodes, "users": estimate.counts, "stddev": estimate.stddev}

    def metadata(self) -> dict[str, Any]:
        return {"depth": self.estimate.tree.depth, "slope": self.estimate.slope}

    @classmethod
    def load(cls, arrays: Mapping[str, NDArray[Any]], metadata: Mapping[str, Any]) -> TreeModel:
        tree = Tree.of(int(metadata["depth"]), arrays["nodes"])
        users, stddev = arrays["users"], arrays["stddev"]
        if not np.array_equal(tree.nodes, arrays["nodes"]) or not len(tree.entries) == len(users) == len(stddev):
            raise ValueError("nodes and counts do not fit together")
        if not ((stddev >= 0).all() and 0 <= float(metadata["slope"]) <= 1):
            raise ValueError("deviations or a slope out of range")
        return cls(Estimate(tree, users, stddev, slope=float(metadata["slope"])))


def _min_stddev(stddev: NDArray[np.float64]) -> float:
    """Returns the least error of a cell that is estimated as empty, at least one user, from the errors of the occupied
    cells.

    An estimator can state almost no error for such a cell. The real error is about that of the surest occupied cells:
    the lower quartile of their errors, as measured on the taxi data.
    """
    return max(1.0, float(np.quantile(stddev, 0.25))) if len(stddev) else 1.0


def _coarse(estimate: Estimate) -> Estimate:
    """Returns the estimate on a grid of _MAX_LEVEL: deeper cells are summed at their ancestor of that level."""
    tree = estimate.tree
    levels = node_levels(tree.entries)
    upper = Tree.of(_MAX_LEVEL, tree.nodes[node_levels(tree.nodes) <= _MAX_LEVEL])
    place = np.searchsorted(upper.entries, tree.entries)
    deep = levels > _MAX_LEVEL
    cells = node_paths(tree.entries[deep]) >> (2 * (levels[deep] - _MAX_LEVEL)).astype(np.uint64)
    place[deep] = upper.index.owners(cells)
    counts, variance = (
        np.bincount(place, values, len(upper.entries)).astype(np.float64)
        for values in (estimate.counts, estimate.stddev**2)
    )
    return Estimate(upper, counts, np.sqrt(variance), slope=estimate.slope)


def _table(values: NDArray[np.float64]) -> SummedAreaTable:
    """Sums of values float64[2^d, 2^d] of a uniform grid over the whole field, row 0 in the north."""
    level = len(values).bit_length() - 1
    edges = np.arange(len(values) + 1, dtype=np.int64) << (BASE_DEPTH - level)
    return SummedAreaTable(edges, edges, values)


def _clumping(tree: Tree, users: NDArray[np.float64]) -> float:
    """See `field_counts.clumping`; here from groups of four sibling leaves."""
    parents, first, members = np.unique(tree.entries >> np.uint64(2), return_index=True, return_counts=True)
    first = first[(members == 4) & (parents > 0)]
    family = users[first[:, None] + np.arange(4)]  # NW, SW, NE, SE
    total = family.sum(axis=1)
    south, east = family[:, 1] + family[:, 3], family[:, 2] + family[:, 3]
    above = sum(float(((2 * half - total) ** 2 - total).sum()) for half in (south, east))
    below = 2 * float((total**2).sum())
    return min(max(above / below, 0.0), 1.0) if below > 0 else 0.0
