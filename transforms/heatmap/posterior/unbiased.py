"""Users of the nodes without shrinkage, and the joint distribution of their errors. Pure post-processing.

The posterior (`infer`) is nearer to the truth in most cells, but it is biased: it shrinks differences, and its errors
add up where neighbours err alike. Earlier sub-queries are biased too where their noise decided what was split. The
noise of the last sub-query is independent of its tree. Generalised least squares over it alone is therefore unbiased
for every cell and for every sum of cells, whatever the map, and the errors' joint distribution is known:

- A node's measurements, its own and its children's sum, have the variance s before they are reconciled with its parent.
- A family's four errors are s / sum(s) of its parent's error each, and a part of its own with the covariance
  diag(s) - s s' / sum(s). The families' own parts are uncorrelated.

Cells finer than the last tree's entries have only an earlier sub-query's counts, reconciled with those entries.
Source: Hay et al. (2010), Boosting the accuracy of differentially private histograms through consistency, Theorem 3.
"""

from __future__ import annotations

import itertools
import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from sfumato.schemas.tree import node_levels, node_paths
from sfumato.transforms.heatmap.posterior.levels import FullTree, by_family
from sfumato.transforms.heatmap.posterior.measurements import Own, add_up

Z = 1.959964  # standard deviations on each side that hold 95% of a normal law
CONTINUITY = 0.3  # users: true counts are whole numbers, which intervals of few users would else miss too often


@dataclass(frozen=True)
class UnbiasedCounts:
    """Unbiased users of a full tree's nodes.

    users: by level and node. variance: by level and node, of the node's measurements before they are reconciled with
    its parent (s above). total_variance: of the error of the root's users.
    """

    full: FullTree
    users: list[NDArray[np.float64]]
    variance: list[NDArray[np.float64]]
    total_variance: float

    @classmethod
    def of(cls, full: FullTree, own: Own, users: float, users_variance: float) -> UnbiasedCounts:
        """Generalised least squares of the measurements, every leaf's among them, below a root that is known.

        Args:
            full: the tree.
            own: what its nodes were measured at.
            users: of the root, by all noisy figures: of these the measurements enter by their sum alone, which the
                families' own errors do not depend on.
            users_variance: of the error of `users`.
        """
        measured = add_up(full, own)
        counts = [np.array([users])]
        for level in range(1, len(full.codes)):
            members, variance = by_family(measured.users[level]), by_family(measured.variance[level])
            missing = counts[level - 1][full.parents[level]] - members.sum(axis=1)
            counts.append((members + variance * (missing / variance.sum(axis=1))[:, None]).ravel())
        return cls(full, counts, measured.variance, users_variance)

    @classmethod
    def of_nodes(
        cls, nodes: NDArray[np.uint64], users: NDArray[np.float64], variance: NDArray[np.float64]
    ) -> UnbiasedCounts:
        """From published columns: the nodes of a full tree, a 1 and then the path, level by level (TOTALS_SCHEMA)."""
        levels = node_levels(nodes)
        at = np.searchsorted(levels, np.arange(int(levels[-1]) + 2))
        parts = [slice(first, last) for first, last in itertools.pairwise(at.tolist())]
        full = FullTree(len(parts) - 1, tuple(node_paths(nodes[part]) for part in parts))
        return cls(full, [users[part] for part in parts], [variance[part] for part in parts], float(variance[0]))

    @property
    def of_cells(self) -> NDArray[np.float64]:
        """The users of the leaves, in the order of the full tree's entries; may be negative."""
        return self.full.of_leaves(self.users)

    def leaf_variances(self) -> NDArray[np.float64]:
        """The variance of each leaf's error, in the order of the full tree's entries."""
        found = [np.array([self.total_variance])]
        for level in range(1, len(self.full.codes)):
            variance = by_family(self.variance[level])
            share = variance / variance.sum(axis=1)[:, None]
            above = found[level - 1][self.full.parents[level]][:, None]
            found.append((share**2 * above + variance * (1 - share)).ravel())
        return self.full.of_leaves(found)

    def total(self, weights: NDArray[np.float64]) -> tuple[float, float]:
        """The weighted sum of the leaves' users and its standard deviation.

        Args:
            weights: float64[leaves], in the order of the full tree's entries: 1 for a leaf that counts, 0 for others.
        """
        full, found = self.full, 0.0
        below = full.by_level(weights)
        for level in range(len(full.codes) - 1, 0, -1):
            variance, weight = by_family(self.variance[level]), by_family(below[level])
            whole, weighted = variance.sum(axis=1), (variance * weight).sum(axis=1)
            found += float(((variance * weight**2).sum(axis=1) - weighted**2 / whole).sum())
            below[level - 1][full.parents[level]] = weighted / whole
        found += float(below[0][0]) ** 2 * self.total_variance
        return float(self.of_cells @ weights), math.sqrt(max(found, 0.0))


def interval(
    users: NDArray[np.float64], stddev: NDArray[np.float64]
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """The ends of 95% intervals of numbers of users, which are whole and not negative: float64 like `users`."""
    margin = Z * stddev + CONTINUITY
    return np.maximum(users - margin, 0.0), np.maximum(users + margin, 0.0)
