"""Answers straight from a heatmap: the cells of its tree, which are small where people are many."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from sfumato.schemas.ranges import BASE_DEPTH, Boxes
from sfumato.schemas.region import interleave
from sfumato.schemas.tree import Tree, node_levels, node_paths, node_positions
from sfumato.transforms.heatmap.raster import by_row, density, estimate_density
from sfumato.transforms.heatmap.state import Estimate
from sfumato.transforms.ranges.counts import centre_variance
from sfumato.transforms.ranges.model import Answers, Model
from sfumato.transforms.ranges.table import Table

_HALVINGS = 2  # levels below a cell on which it slopes (see `slopes`)
_MAX_LEVEL = 11  # of two base cells; people within finer ones are spread evenly over such
_MAX_SQUARES_LEVEL = 10  # of finer cells a box cuts so little that it does not matter how


class TreeModel(Model):
    """A heatmap's estimate. Cells below 0 count as 0, and slope towards their neighbours as in the heatmap's density.

    Its error is that of the cells' users and, where a box cuts cells, of users who are not spread evenly in them;
    squares are taken to be about somebody (`centre_variance`). It is a lower bound: errors of neighbouring cells go
    together, and an estimate holds only those of single cells.
    """

    KIND: ClassVar[str] = "tree"
    ERROR: ClassVar[str] = "lower bound"

    def __init__(self, estimate: Estimate):
        self.estimate = estimate
        shown = estimate if estimate.tree.depth <= _MAX_LEVEL else _coarse(estimate)
        tree, users = shown.tree, np.maximum(shown.counts, 0.0)
        level = min(tree.level + (_HALVINGS if shown.slope else 0), tree.depth)
        self._users = _table(estimate_density(shown, level) * users.sum())
        empty = users < 0.5
        noise = np.where(empty, np.maximum(shown.stddev, _surest(shown.stddev[~empty])), shown.stddev) ** 2
        entry_level = node_levels(tree.entries)
        cut = entry_level <= _MAX_SQUARES_LEVEL
        # A box that covers a share s of a cell has s^2 of the cell's variance, and s - s^2 of what is uneven in it.
        self._shown, self._counts, self._clumping = tree, users, _clumping(tree, users)
        uneven = np.where(cut, users + self._clumping * users**2, noise)
        self._uneven = _table(density(tree, uneven, level) * uneven.sum())
        self._squares = []
        for own in np.unique(entry_level[cut]).tolist():
            values = np.zeros(1 << 2 * own)
            here = entry_level == own
            values[node_paths(tree.entries[here])] = (noise - uneven)[here]
            self._squares.append(_table(by_row(values)))

    def answer(self, boxes: Boxes) -> Answers:
        """See Model.answer."""
        variance = self._uneven.sum(boxes)
        for squares in self._squares:
            variance += squares.sum_of_squares(boxes)
        cells, users = self._middles(boxes)
        variance += centre_variance(boxes, cells, users, self._clumping)
        return Answers(np.maximum(self._users.sum(boxes), 0.0), np.sqrt(np.maximum(variance, 0.0)))

    def _middles(self, boxes: Boxes) -> tuple[Boxes, NDArray[np.float64]]:
        """The tree's cells that hold the boxes' middles, and their users."""
        tree = self._shown
        fine = float(1 << tree.depth) / (1 << BASE_DEPTH)
        x, y = (np.clip(one * fine, 0, (1 << tree.depth) - 1).astype(np.uint32) for one in boxes.middles)
        entry = tree.index.owners(interleave(x, y))
        level, column, row = node_positions(tree.entries[entry])
        width = float(1 << BASE_DEPTH) / (1 << level)
        return Boxes(column * width, row * width, (column + 1) * width, (row + 1) * width), self._counts[entry]

    def arrays(self) -> dict[str, NDArray[Any]]:
        """See Model.arrays."""
        own = self.estimate
        return {"nodes": own.tree.nodes, "users": own.counts, "stddev": own.stddev}

    def metadata(self) -> dict[str, Any]:
        """See Model.facts."""
        return {"depth": self.estimate.tree.depth, "slope": self.estimate.slope}

    @classmethod
    def load(cls, arrays: Mapping[str, NDArray[Any]], metadata: Mapping[str, Any]) -> TreeModel:
        """See Model.load."""
        tree = Tree.of(int(metadata["depth"]), arrays["nodes"])
        users, stddev = arrays["users"], arrays["stddev"]
        if not np.array_equal(tree.nodes, arrays["nodes"]) or not len(tree.entries) == len(users) == len(stddev):
            raise ValueError("nodes and counts do not fit together")
        if not ((stddev >= 0).all() and 0 <= float(metadata["slope"]) <= 1):
            raise ValueError("deviations or a slope of none")
        return cls(Estimate(tree, users, stddev, slope=float(metadata["slope"])))


def _surest(stddev: NDArray[np.float64]) -> float:
    """The least error of a cell that seems empty, which an estimator may be certain of: at least one user.

    There it errs as where it is surest of somebody, of which these are the errors (the lower quartile, as measured on
    the taxi data).
    """
    return max(1.0, float(np.quantile(stddev, 0.25))) if len(stddev) else 1.0


def _coarse(estimate: Estimate) -> Estimate:
    """The estimate on a grid of _MAX_LEVEL: what lies deeper is added up at the deepest node that is left."""
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


def _table(values: NDArray[np.float64]) -> Table:
    """Of values float64[2^d, 2^d] over the whole field, row 0 in the north."""
    level = len(values).bit_length() - 1
    borders = np.arange(len(values) + 1, dtype=np.int64) << (BASE_DEPTH - level)
    return Table(borders, borders, values)


def _clumping(tree: Tree, users: NDArray[np.float64]) -> float:
    """How unevenly users are spread within cells, as `counts.clumping` says it, from the leaves of whole families."""
    parents, first, members = np.unique(tree.entries >> np.uint64(2), return_index=True, return_counts=True)
    first = first[(members == 4) & (parents > 0)]
    family = users[first[:, None] + np.arange(4)]  # NW, SW, NE, SE
    total = family.sum(axis=1)
    south, east = family[:, 1] + family[:, 3], family[:, 2] + family[:, 3]
    above = sum(float(((2 * half - total) ** 2 - total).sum()) for half in (south, east))
    below = 2 * float((total**2).sum())
    return min(max(above / below, 0.0), 1.0) if below > 0 else 0.0
