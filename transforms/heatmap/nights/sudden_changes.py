"""Places whose users differ tonight from what the nights before lead to expect. Pure.

Every node that tonight's tree measured is tested at once. Under the null hypothesis the difference D of the measured
and the expected users is the sum of independent errors: of the expectation (normal), of the cohort (c times a Poisson
number, less its mean), and of the noise (as many Laplace variables as the node has entries). With K the sum of their
cumulant functions, Chernoff's bound is P(|D| >= x) <= 2 exp(K(t) - t x) for every t > 0. So D is beyond

    x = min over t of (K(t) + log(2 m / alpha)) / t

with a probability of at most alpha / m. A level with m nodes has an equal share of the family-wise error rate.

Changed nodes lie within each other. The node whose D is largest against its x comes first. Its D is then taken from
that of its ancestors, its descendants are explained, and so on. A crowd rarely fits a node, so the neighbours of the
nodes that were found are tested again, at a family-wise rate of their own.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from sfumato.schemas.region import deinterleave
from sfumato.schemas.tree import node_levels, node_paths

Floats = NDArray[np.float64]
FAMILY_WISE_ERROR = 0.05
_MAX_CHANGES = 64  # of one night
_STEPS = np.geomspace(0.3, 12.0, 40)  # values of t, over 1 / standard deviation


@dataclass(frozen=True)
class NodeErrors:
    """What is known of n nodes tonight, level by level.

    Attributes:
        node: uint64[n], ascending: a leading 1 and the path.
        measured, expected: float64[n], users.
        expected_variance: float64[n], of the error of `expected`.
        noise: float64[n], variance of the noise of `measured`.
        entries: float64[n], whose noises add up to that of the node.
        cohort: variance that `measured` has for each user because a cohort was queried: c - 1.
        tested: bool[n], whether the node may be found.
    """

    node: NDArray[np.uint64]
    measured: Floats
    expected: Floats
    expected_variance: Floats
    noise: Floats
    entries: Floats
    cohort: float
    tested: NDArray[np.bool_]

    def only(self, rows: NDArray[np.int64]) -> NodeErrors:
        """The errors of some nodes."""
        columns = (self.node, self.measured, self.expected, self.expected_variance, self.noise, self.entries)
        return NodeErrors(*(column[rows] for column in columns), self.cohort, self.tested[rows])

    def margins(self, log_inverse: Floats) -> Floats:
        """Bounds of |measured - expected| that hold with a probability of 1 - exp(-log_inverse) each: float64[n]."""
        users = np.maximum(self.expected, 0.5)
        sampled = self.cohort * users
        noise = np.maximum(self.noise, 1e-12)
        total = self.expected_variance + sampled + noise
        jump = self.cohort + 1  # a queried user counts as so many
        best = np.full(len(total), np.inf)
        for step in _STEPS:
            t = step / np.sqrt(total)
            inside = t**2 * noise / (2 * self.entries)
            cumulant = self.expected_variance * t**2 / 2
            cumulant += sampled / jump**2 * (np.expm1(np.minimum(jump * t, 50.0)) - jump * t)
            cumulant -= self.entries * np.log1p(-np.minimum(inside, 0.999999))
            bound = (cumulant + log_inverse) / t
            best = np.where((inside < 0.999) & (jump * t < 50), np.minimum(best, bound), best)
        return best


@dataclass(frozen=True)
class FoundChange:
    """A changed node.

    Attributes:
        row: of the node.
        excess: measured less expected users.
        margin: half the width of the simultaneous 95% interval of tonight's users.
    """

    row: int
    excess: float
    margin: float


def find_sudden_changes(errors: NodeErrors) -> list[FoundChange]:
    """Finds the changed nodes, none of which lies within another, the clearest first."""
    level = node_levels(errors.node)
    tests = np.bincount(level[errors.tested], minlength=int(level.max()) + 1)
    rate = FAMILY_WISE_ERROR / max(int((tests > 0).sum()), 1)
    rows = np.flatnonzero(errors.tested)
    difference = errors.measured - errors.expected
    deviation = np.sqrt(errors.expected_variance + errors.cohort * np.maximum(errors.expected, 0.5) + errors.noise)
    rows = rows[np.abs(difference[rows]) > 2 * deviation[rows]]  # the others cannot be found
    log_inverse = np.log(2 * tests[level] / rate + 1)
    margin = np.full(len(level), np.inf)
    margin[rows] = errors.only(rows).margins(log_inverse[rows])
    found = _greedy(errors.node, level, difference, margin, [])
    if found:
        near = np.setdiff1d(_neighbours(errors.node, level, found), found)
        near = near[errors.tested[near]]
        if len(near):
            again = np.full(len(level), np.inf)
            again[near] = errors.only(near).margins(np.full(len(near), math.log(2 * len(near) / FAMILY_WISE_ERROR)))
            found = _greedy(errors.node, level, difference, again, found)
    if not found:
        return []
    chosen = errors.only(np.array(found))
    users = np.maximum(chosen.measured, chosen.expected)
    alone = NodeErrors(
        chosen.node, chosen.measured, users, 0 * users, chosen.noise, chosen.entries, chosen.cohort, chosen.tested
    )
    half = alone.margins(log_inverse[found])
    return [FoundChange(row, float(difference[row]), float(one)) for row, one in zip(found, half, strict=True)]


def _greedy(
    node: NDArray[np.uint64], level: NDArray[np.int64], difference: Floats, margin: Floats, found: list[int]
) -> list[int]:
    """Adds nodes to those that were found, while one's difference is beyond its margin, the clearest first."""
    found, left, open_ = list(found), difference.copy(), np.ones(len(node), dtype=bool)
    for row in found:
        _explain(node, level, left, open_, row)
    while len(found) < _MAX_CHANGES:
        score = np.where(open_, np.abs(left) / margin, 0.0)
        row = int(score.argmax())
        if score[row] <= 1:
            break
        found.append(row)
        _explain(node, level, left, open_, row)
    return found


def _explain(
    node: NDArray[np.uint64], level: NDArray[np.int64], left: Floats, open_: NDArray[np.bool_], row: int
) -> None:
    """Takes a node's difference from that of its ancestors, and closes them, the node and its descendants."""
    value = left[row]
    for above in range(int(level[row])):
        place = int(np.searchsorted(node, node[row] >> np.uint64(2 * (int(level[row]) - above))))
        left[place] -= value
        open_[place] = False
    below = np.maximum(level - level[row], 0).astype(np.uint64)
    open_[(level >= level[row]) & (node >> (np.uint64(2) * below) == node[row])] = False


def _neighbours(node: NDArray[np.uint64], level: NDArray[np.int64], found: list[int]) -> NDArray[np.int64]:
    """The rows of the nodes of the same size around some nodes."""
    x, y = (axis.astype(np.int64) for axis in deinterleave(node_paths(node)))
    near = np.zeros(len(node), dtype=bool)
    for row in found:
        near |= (level == level[row]) & (abs(x - x[row]) <= 1) & (abs(y - y[row]) <= 1)
    return np.flatnonzero(near)
