"""A model that answers from a heatmap's estimate: the cells of its tree, which are small in dense places. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from sfumato.schemas.ranges import BASE_DEPTH, Boxes
from sfumato.schemas.region import by_row, interleave
from sfumato.schemas.tree import Tree, node_levels, node_paths, node_positions
from sfumato.transforms.heatmap.posterior.estimator import density, estimate_density
from sfumato.transforms.heatmap.state import Estimate
from sfumato.transforms.ranges.model import Answers, Model
from sfumato.transforms.ranges.noisy_counts import centre_variance
from sfumato.transforms.ranges.summed_area_table import SummedAreaTable

_SLOPE_LEVELS = 2  # levels below a cell at which its slope is drawn (see `slopes`)
_MAX_LEVEL = 11  # cells of 2 x 2 base cells; the users of finer cells are spread evenly over such a cell
_MAX_SQUARES_LEVEL = 10  # a box cuts so little of finer cells that their variance needs no exact shares


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
        """The tree's cells at the centres of boxes, and their users."""
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
    """The least error of a cell that is estimated as empty, at least one user.

    An estimator can state almost no error for such a cell. The real error is about that of the surest occupied cells.

    Args:
        stddev: errors of the occupied cells.

    Returns:
        The lower quartile of these errors, as measured on the taxi data.
    """
    return max(1.0, float(np.quantile(stddev, 0.25))) if len(stddev) else 1.0


def _coarse(estimate: Estimate) -> Estimate:
    """The estimate on a grid of _MAX_LEVEL: deeper cells are summed at their ancestor of that level."""
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
    """How unevenly users are spread inside cells (see `noisy_counts.clumping`), from groups of four sibling leaves."""
    parents, first, members = np.unique(tree.entries >> np.uint64(2), return_index=True, return_counts=True)
    first = first[(members == 4) & (parents > 0)]
    family = users[first[:, None] + np.arange(4)]  # NW, SW, NE, SE
    total = family.sum(axis=1)
    south, east = family[:, 1] + family[:, 3], family[:, 2] + family[:, 3]
    above = sum(float(((2 * half - total) ** 2 - total).sum()) for half in (south, east))
    below = 2 * float((total**2).sum())
    return min(max(above / below, 0.0), 1.0) if below > 0 else 0.0
