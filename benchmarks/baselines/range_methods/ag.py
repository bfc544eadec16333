"""The adaptive grid: each cell of a coarse grid is divided by its noisy count (Qardaji, Yang, Li 2013: AG)."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Annotated, ClassVar

import numpy as np
from annotated_types import Interval
from numpy.typing import NDArray

from benchmarks.baselines.range_methods.partitions import Partition, PartitionMethod
from benchmarks.baselines.range_methods.two_passes import split_epsilon
from sfumato.transforms.privacy.keys import RunKey
from sfumato.transforms.privacy.mechanism import discrete_laplace_stddev
from sfumato.transforms.ranges.field_counts import CollectionSpec, ExactCounts, add_noise, strip_edges

_AT_ONCE = 1 << 16  # leaves, so that their arrays stay in the processor's cache


@dataclass(frozen=True)
class _Cuts:
    """How each cell of the coarse grid is divided into columns x rows leaves of about equal size.

    Attributes:
        left, top, width, height: of the cells, int64[cells], row by row, in base cells.
        columns, rows: of leaves, int64[cells], at most the width and the height, so that no leaf is empty.
    """

    left: NDArray[np.int64]
    top: NDArray[np.int64]
    width: NDArray[np.int64]
    height: NDArray[np.int64]
    columns: NDArray[np.int64]
    rows: NDArray[np.int64]

    @property
    def leaves(self) -> NDArray[np.int64]:
        """Leaves of each cell, int64[cells]."""
        return self.columns * self.rows

    @property
    def starts(self) -> NDArray[np.int64]:
        """The first leaf of each cell. Leaves are numbered cell by cell, and row by row in a cell."""
        return np.cumsum(self.leaves) - self.leaves

    def leaf(
        self, cell: NDArray[np.int64], x: NDArray[np.int64], y: NDArray[np.int64], starts: NDArray[np.int64]
    ) -> NDArray[np.int64]:
        """The leaf that holds base cell (x, y). Leaf column j begins at base column j width // columns."""
        column = ((x - self.left[cell] + 1) * self.columns[cell] - 1) // self.width[cell]
        row = ((y - self.top[cell] + 1) * self.rows[cell] - 1) // self.height[cell]
        return np.asarray(starts[cell] + row * self.columns[cell] + column)

    def partition(self, side: int, users: NDArray[np.float64], variance: NDArray[np.float64]) -> Partition:
        """The leaves' rectangles."""
        leaves, starts = self.leaves, self.starts
        x0, y0, x1, y1 = (np.empty(len(users), dtype=np.int32) for _ in range(4))
        for start in range(0, len(users), _AT_ONCE):
            leaf = np.arange(start, min(start + _AT_ONCE, len(users)))
            first, last = np.searchsorted(starts, leaf[[0, -1]], "right") - 1
            inside = np.minimum(starts[first : last + 1] + leaves[first : last + 1], leaf[-1] + 1)
            cell = np.repeat(np.arange(first, last + 1), np.diff(inside, prepend=start))
            columns, rows, width, height = self.columns[cell], self.rows[cell], self.width[cell], self.height[cell]
            row, column = np.divmod(leaf - starts[cell], columns)
            block = slice(start, start + _AT_ONCE)
            x0[block], x1[block] = (self.left[cell] + at * width // columns for at in (column, column + 1))
            y0[block], y1[block] = (self.top[cell] + at * height // rows for at in (row, row + 1))
        return Partition(side, x0, y0, x1, y1, users, variance)


@dataclass(frozen=True)
class AdaptiveGrid(PartitionMethod):
    """AG. Raises RequestError for options out of range."""

    NAME: ClassVar[str] = "ag"
    TEXT: ClassVar[str] = "a coarse grid whose cells are divided by their noisy counts"

    ag_share: Annotated[float, Interval(ge=0.01, le=0.99)] = 0.5
    ag_coarse: Annotated[float, Interval(ge=0.001, le=1000000.0)] = 10.0
    ag_fine: Annotated[float, Interval(ge=0.001, le=1000000.0)] = 5.0

    def collect(self, exact: ExactCounts, spec: CollectionSpec, key: RunKey) -> Partition:  # type: ignore[override]
        """See RangeMethod.collect. A user is in one cell and in one leaf, so the two counts add up to epsilon."""
        coarse_epsilon, fine_epsilon = split_epsilon(spec.epsilon, self.ag_share)
        m1 = max(10, math.ceil(math.sqrt(max(spec.users, 0.0) * spec.epsilon / self.ag_coarse) / 4))
        lines = strip_edges(exact.side, exact.side / m1)
        coarse = add_noise(exact.on_grid(lines, lines), coarse_epsilon, key, "ag coarse").ravel()
        cuts = self._cuts(lines, coarse, fine_epsilon)

        strip = np.repeat(np.arange(len(lines) - 1), np.diff(lines))
        leaf_users, starts = np.zeros(cuts.leaves.sum(), dtype=np.int64), cuts.starts
        for block in exact.blocks():
            x, y = block.xy
            np.add.at(leaf_users, cuts.leaf(strip[y] * (len(lines) - 1) + strip[x], x, y, starts), block.users)
        fine = add_noise(leaf_users, fine_epsilon, key, "ag fine")
        users, variance = self._inferred(cuts, coarse, fine, coarse_epsilon, fine_epsilon)
        return cuts.partition(exact.side, users, variance)

    def _cuts(self, lines: NDArray[np.int64], coarse: NDArray[np.float64], fine_epsilon: float) -> _Cuts:
        """Guideline 2: m2 = ceil(sqrt(N' (1 - alpha) epsilon / c2)) by cell, at least 1, at most its base cells."""
        m2 = np.ceil(np.sqrt(np.maximum(coarse, 0.0) * fine_epsilon / self.ag_fine)).astype(np.int64)
        strips, widths = len(lines) - 1, np.diff(lines)
        left, width = np.tile(lines[:-1], strips), np.tile(widths, strips)
        top, height = np.repeat(lines[:-1], strips), np.repeat(widths, strips)
        return _Cuts(left, top, width, height, np.clip(m2, 1, width), np.clip(m2, 1, height))

    def _inferred(
        self,
        cuts: _Cuts,
        coarse: NDArray[np.float64],
        fine: NDArray[np.float64],
        coarse_epsilon: float,
        fine_epsilon: float,
    ) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """Estimates of the leaves and their variances (constrained inference).

        A cell of k leaves has two estimates, v and the sum of its leaves u. Weighted by their inverse variances they
        make v' = w v + (1 - w) sum u, and v' - sum u = w (v - sum u) is shared by the leaves:
        u' = u + (w / k) (v - sum u), of variance s2^2 ((1 - w/k)^2 + (k - 1) (w/k)^2) + s1^2 (w/k)^2.
        """
        k = cuts.leaves
        w = coarse_epsilon**2 * k / (fine_epsilon**2 + coarse_epsilon**2 * k)
        share = w / k
        below = np.add.reduceat(fine, cuts.starts)
        s1, s2 = discrete_laplace_stddev(coarse_epsilon), discrete_laplace_stddev(fine_epsilon)
        variance = s2**2 * ((1 - share) ** 2 + (k - 1) * share**2) + s1**2 * share**2
        return fine + np.repeat(share * (coarse - below), k), np.repeat(variance, k)
