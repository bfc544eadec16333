"""Users of the nodes without shrinkage, and the joint distribution of their errors. Pure post-processing.

The posterior (`inference`) is nearer to the truth in most cells, but it is biased: it shrinks differences, and the
errors of neighbours add up. This module uses three sources instead:

- The last sub-query. Its noise is independent of its tree, so generalised least squares over its result is unbiased for
  each of its entries and for every sum of them.
- All noisy figures, for the root only. The weight of each does not depend on its noise.
- An earlier sub-query, for cells finer than the last tree's entries, because nothing else has measured them. These
  cells are scaled to their entry's users but remain biased: the noise that is in them decided where not to look again.
  `map_changes` does not test them.

A node is any square of the quadtree, a leaf is a node without children. An entry is what a sub-query counted: a node
less its descendants in the queried tree. A cell is an entry of the published map. A family is the four children of one
node. The joint distribution of the errors:

- Let s be the variance of a node's measurements (its own and its children's sum) before they are reconciled with its
  parent.
- Each error in a family is the share s / sum(s) of the parent's error, plus an error of the family's own with the
  covariance diag(s) - s s' / sum(s). The own errors of different families are uncorrelated.

Inside cells that no sub-query split, `learn_within_cells` learns the spread from the families of cells that were split.
Users are independent draws from a density. Where a node is split further, the density's shares of its children are a
quarter each, plus a contrast whose expected energy is rho, evenly in all three directions (`inference`). rho falls with
the users T of the family: log rho = a + b log(T / 100), at most log 0.74. Each level has its own a and b, which start
from those of the level above. Below the finest known level, the last a and b continue.

A family's measured energy has the expectation rho (T^2 - T) + 3/4 T + noise: the spread of the density, of a finite
sample, and of the privacy noise. Gamma quasi-likelihood gives a and b. It needs only the expectation to be right,
whatever the distribution of energies.

Sources: Hay et al. (2010), Boosting the accuracy of differentially private histograms through consistency, Theorem 3;
McCullagh and Nelder (1989), Generalized Linear Models, chapter 9 (quasi-likelihood).
"""

from __future__ import annotations

import itertools
import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from sfumato.schemas.known_digits import Z_95
from sfumato.schemas.tree import node_levels, node_paths
from sfumato.transforms.statistics.posterior.full_tree import FullTree, NodeMeasurements, add_up, by_family
from sfumato.transforms.statistics.posterior.inference import ROUGHNESS

# Users. True counts and noise are integers. With noise of a third of a user, coverage is 83% without this margin and
# 98% with it (benchmarks/coverage.py).
CONTINUITY = 0.3
Floats = NDArray[np.float64]
_LEVELS_BELOW = 12  # of a leaf; deeper levels are like the last
_USERS = 100.0  # T at which rho is exp(a)
_LARGEST_LOG = float(np.log(ROUGHNESS[-1]))
_FIRST_LAW = np.array([np.log(0.1), -0.4])
_CHANGE = np.array([0.5, 0.1])  # standard deviation of a and of b from one level to the next
_DISPERSION = 4.0  # of energies about their expectation, relative to independent normal contrasts
_STEPS = 12  # of Fisher scoring


@dataclass(frozen=True)
class UnbiasedCounts:
    """Users of a full tree's nodes without shrinkage; unbiased down to the entries of the last sub-query."""

    full: FullTree
    users: list[Floats]  # by level and node
    # By level and node, of the node's measurements before they are reconciled with its parent (s above). The root's
    # value is not used.
    measured_variance: list[Floats]
    total_variance: float  # of the error of the root's users. It takes the root's place in published columns.

    @classmethod
    def from_measurements(
        cls, full: FullTree, own: NodeMeasurements, root_users: float, root_variance: float
    ) -> UnbiasedCounts:
        """Returns the generalised least squares of measurements of nodes, all leaves among them, below a known root.

        root_users is from all noisy figures. The measurements enter it by their sum only, and the families' own errors
        do not depend on that sum.
        """
        measured = add_up(full, own)
        counts = [np.array([root_users])]
        for level in range(1, len(full.codes)):
            members, variance = by_family(measured.users[level]), by_family(measured.variance[level])
            missing = counts[level - 1][full.parents[level]] - members.sum(axis=1)
            counts.append((members + variance * (missing / variance.sum(axis=1))[:, None]).ravel())
        return cls(full, counts, measured.variance, root_variance)

    @classmethod
    def from_nodes(
        cls, nodes: NDArray[np.uint64], users: Floats, variance: Floats, depth: int | None = None
    ) -> UnbiasedCounts:
        """Reads published columns (TOTALS_SCHEMA) of the nodes of a full tree, sorted by level.

        variance: `total_variance` for the root, `measured_variance` for the other nodes. depth: of the finest grid;
        None for the level of the finest nodes.
        """
        levels = node_levels(nodes)
        at = np.searchsorted(levels, np.arange(int(levels[-1]) + 2))
        parts = [slice(first, last) for first, last in itertools.pairwise(at.tolist())]
        full = FullTree(len(parts) - 1 if depth is None else depth, tuple(node_paths(nodes[part]) for part in parts))
        return cls(full, [users[part] for part in parts], [variance[part] for part in parts], float(variance[0]))

    def scaled(self, factor: float) -> UnbiasedCounts:
        """Returns the counts times a factor."""
        users = [factor * one for one in self.users]
        variance = [factor**2 * one for one in self.measured_variance]
        return UnbiasedCounts(self.full, users, variance, factor**2 * self.total_variance)

    @property
    def leaf_users(self) -> Floats:
        """Returns the users of the leaves, in the order of the full tree's entries; may be negative."""
        return self.full.leaf_values(self.users)

    def node_variances(self) -> list[Floats]:
        """Returns the variance of each node's error, by level and node."""
        found = [np.array([self.total_variance])]
        for level in range(1, len(self.full.codes)):
            variance = by_family(self.measured_variance[level])
            share = variance / variance.sum(axis=1)[:, None]
            above = found[level - 1][self.full.parents[level]][:, None]
            found.append((share**2 * above + variance * (1 - share)).ravel())
        return found

    def leaf_variances(self) -> Floats:
        """Returns the variance of each leaf's error, in the order of the full tree's entries."""
        return self.full.leaf_values(self.node_variances())

    def total(self, weights: Floats) -> tuple[float, float]:
        """Returns the weighted sum of the leaves' users and its standard deviation, in users.

        weights: float64[leaves], in the order of the full tree's entries: 1 for a leaf that counts, 0 for others.
        """
        leaf = np.flatnonzero(weights)
        users, variance = self.node_totals(np.zeros_like(leaf), *self.full.leaf_nodes(leaf), weights[leaf], 1)
        return float(users[0]), math.sqrt(max(float(variance[0]), 0.0))

    def node_totals(
        self, group: NDArray[np.int64], level: NDArray[np.int64], node: NDArray[np.int64], weights: Floats, groups: int
    ) -> tuple[Floats, Floats]:
        """Returns many weighted sums of nodes at once, each of a few nodes, given by their nonzero weights.

        Args:
            group: int64[p], the sum that a weight belongs to, below `groups`.
            level, node: int64[p], the node's level and its index there. A node may occur more than once in a sum.
            weights: float64[p].
            groups: the number of sums.

        Returns:
            Users float64[groups] and the variances of their errors.
        """
        full, users, variance = self.full, np.zeros(groups), np.zeros(groups)
        none = np.zeros(0, dtype=np.int64)
        carried = (none, none, np.zeros(0))  # sums, nodes and weights that come from below
        for at in range(len(full.codes) - 1, -1, -1):
            here = level == at
            own = (group[here], node[here], weights[here])
            users += np.bincount(own[0], own[2] * self.users[at][own[1]], groups)
            of, nodes, weight = (np.concatenate(both) for both in zip(own, carried, strict=True))
            if at == 0:
                return users, variance + self.total_variance * np.bincount(of, weight, groups) ** 2
            measured = self.measured_variance[at]
            keys, same = np.unique(of * len(measured) + nodes, return_inverse=True)
            of, nodes = keys // len(measured), keys % len(measured)
            weight = np.bincount(same, weight, len(keys))
            summed = by_family(measured).sum(axis=1)
            keys, family = np.unique(of * len(summed) + nodes // 4, return_inverse=True)
            of, nodes_above = keys // len(summed), keys % len(summed)
            first = np.bincount(family, measured[nodes] * weight, len(keys))
            second = np.bincount(family, measured[nodes] * weight**2, len(keys))
            left = np.maximum(second - first**2 / summed[nodes_above], 0.0)
            variance += np.bincount(of, left, groups)
            carried = (of, full.parents[at][nodes_above], first / summed[nodes_above])
        raise AssertionError  # the root is level 0


def user_intervals(users: Floats, stddev: Floats) -> tuple[Floats, Floats]:
    """Returns the ends of 95% intervals of numbers of users, which are non-negative integers: float64 like `users`."""
    margin = Z_95 * stddev + CONTINUITY
    return np.maximum(users - margin, 0.0), np.maximum(users + margin, 0.0)


@dataclass(frozen=True)
class WithinCells:
    """The spread of users inside the n leaves of a full tree, in the order of its entries."""

    users: Floats  # float64[n], expected users, at least 0
    squared: Floats  # float64[n], expected square of the users
    # float64[n, levels], the expected rho of the families one level below the leaf, two levels, and so on.
    roughness: Floats
    node_users: list[Floats]  # by level and node, expected users; a node has the sum of its leaves
    # By level, of each family of measured nodes: the expected energy of its users' contrasts, without noise. The root's
    # level has none.
    energy: list[Floats]


def learn_within_cells(unbiased: UnbiasedCounts, expected: Floats, variance: Floats) -> WithinCells:
    """Learns the spread inside leaves from the families of their tree.

    expected: float64[leaves], posterior users; negative ones count as 0. variance: float64[leaves], of their errors.
    """
    full = unbiased.full
    positive = np.maximum(expected, 0.0)
    users = full.sums(full.by_level(positive))
    node_variance = unbiased.node_variances()
    law, laws = _FIRST_LAW, [_FIRST_LAW]  # by level of the parents
    energy = [np.zeros(0)]
    for level in range(1, len(full.codes)):
        parents = full.parents[level]
        measured = by_family(unbiased.measured_variance[level])
        part = measured / measured.sum(axis=1, keepdims=True)
        contrast = by_family(unbiased.users[level]) - unbiased.users[level - 1][parents][:, None] / 4
        noise = (measured * (1 - part)).sum(axis=1)
        noise += ((part - 0.25) ** 2).sum(axis=1) * node_variance[level - 1][parents]
        law = _fit(law, users[level - 1][parents], (contrast**2).sum(axis=1), noise)
        laws.append(law)
        many = users[level - 1][parents]
        energy.append(_rho(law, many) * np.maximum(many**2 - many, 0.0) + 0.75 * many)
    squared = positive**2 + np.maximum(variance, 0.0)
    return WithinCells(positive, squared, _roughness(1 + full.leaf_levels, positive, np.array(laws)), users, energy)


def _fit(before: Floats, users: Floats, energy: Floats, noise: Floats) -> Floats:
    """Returns the a and b of a level's families, float64[2], by Fisher scoring from those of the level above."""
    many = users > 1
    users, energy, noise = users[many], energy[many], noise[many]
    x = np.stack([np.ones_like(users), np.log(users / _USERS)])
    law = before
    for _ in range(_STEPS):
        rho = np.exp(np.minimum(law @ x, _LARGEST_LOG))
        signal = rho * (users**2 - users)
        expected = signal + 0.75 * users + noise
        weight = signal / expected
        score = x @ (weight * (energy - expected) / expected) / _DISPERSION - (law - before) / _CHANGE**2
        information = (x * weight**2) @ x.T / _DISPERSION + np.diag(1 / _CHANGE**2)
        law = law + np.clip(np.linalg.solve(information, score), -1, 1)
    return law


def _rho(law: Floats, users: Floats) -> Floats:
    """Returns the roughness of families of some users, float64[n], by laws float64[2] or float64[2, n]."""
    return np.asarray(np.exp(np.minimum(law[0] + law[1] * np.log(np.maximum(users, 1.0) / _USERS), _LARGEST_LOG)))


def _roughness(level: NDArray[np.int64], users: Floats, laws: Floats) -> Floats:
    """Returns rho of families of these levels and users, for each level further down: float64[n, _LEVELS_BELOW]."""
    found = []
    for step in range(_LEVELS_BELOW):
        law = laws[np.minimum(level + step, len(laws) - 1)]
        rho = _rho(law.T, users)
        users = users * (1 + 4 * rho) / 4  # of the child of an average user
        found.append(rho)
    return np.stack(found, axis=1)
