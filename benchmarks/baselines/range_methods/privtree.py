"""PrivTree: a quadtree whose nodes are split by noisy counts, with a bias that grows with depth (Zhang et al. 2016).

A node of c users at level d is split where max(c - d delta, -delta) + noise > 0 (Algorithm 2, theta = 0). The noise has
the same scale at every level: lambda = (2 beta - 1) / (beta - 1) / epsilon, fanout beta = 4.

Why it is private. The paper proves it for continuous Laplace noise and delta = lambda ln beta. Here noise is discrete
Laplace, P[Z = k] proportional to a^|k| with a = exp(-1 / lambda), and delta is rounded up to an integer. So biased
counts are integers x, and the printed proof holds. A user changes x by 1, and only in the nodes on the path to their
cell. Let r(x) = ln P[x + Z > 0] / P[x - 1 + Z > 0] be the privacy loss of one split. For x <= 1 both events are upper
tails, P[Z >= m] = a^m / (1 + a) for m >= 0, and r = 1 / lambda exactly. For x = 1 + j, j >= 1,
r = ln(1 + a^j (1 - a) / (1 + a - a^j)) <= a^j (1 - a) <= a^j / lambda, because 1 + a - a^j >= 1. Going up the path, x
grows by delta or more at each level: the lowest split that the user changes has x >= 1 - delta, the one above x >= 1,
the next x >= 1 + delta, and so on. Their total loss is at most (2 + a^delta + a^(2 delta) + ...) / lambda. With
a^delta <= 1 / beta that is (2 + 1 / (beta - 1)) / lambda = (2 beta - 1) / (beta - 1) / lambda = epsilon. Removing the
user makes no split more likely. It makes only the leaf on the path more likely, by 1 / lambda at most. The tree always
ends at the base cells, so that is no decision.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Annotated, ClassVar

import numpy as np
from annotated_types import Interval
from numpy.typing import NDArray

from benchmarks.baselines.range_methods.partitions import Partition, PartitionMethod
from benchmarks.baselines.range_methods.two_passes import split_epsilon
from sfumato.schemas.region import deinterleave
from sfumato.transforms.privacy.keys import RunKey
from sfumato.transforms.privacy.mechanism import discrete_laplace_stddev
from sfumato.transforms.ranges.field_counts import CollectionSpec, ExactCounts, add_noise

FANOUT = 4
_CHILDREN = np.arange(FANOUT, dtype=np.uint64)


@dataclass(frozen=True)
class SplitRule:
    """The rule for splits.

    Attributes:
        rate: 1 / lambda, of the noise.
        delta: subtracted from a count for each level; an integer.
    """

    rate: float
    delta: int

    @classmethod
    def from_epsilon(cls, epsilon: float) -> SplitRule:
        """The rule that makes the whole tree epsilon-differentially private."""
        rate = epsilon * (FANOUT - 1) / (2 * FANOUT - 1)
        return cls(rate, math.ceil(math.log(FANOUT) / rate))

    def biased(self, counts: NDArray[np.int64], level: int) -> NDArray[np.int64]:
        """The biased counts b(v) of nodes of one level."""
        return np.maximum(counts - level * self.delta, -self.delta)


@dataclass(frozen=True)
class PrivTree(PartitionMethod):
    """Raises RequestError unless privtree_share is in [0.01, 0.99]."""

    NAME: ClassVar[str] = "privtree"
    TEXT: ClassVar[str] = "a quadtree whose nodes are split by noisy counts"

    privtree_share: Annotated[float, Interval(ge=0.01, le=0.99)] = 0.5

    def collect(self, exact: ExactCounts, spec: CollectionSpec, key: RunKey) -> Partition:  # type: ignore[override]
        """See RangeMethod.collect. A user is in one leaf, so the tree and the counts add up to epsilon."""
        tree_epsilon, count_epsilon = split_epsilon(spec.epsilon, self.privtree_share)
        nodes, levels, counts = _grow(exact, SplitRule.from_epsilon(tree_epsilon), key)
        users = add_noise(counts, count_epsilon, key, "privtree leaves")
        x, y = deinterleave(nodes)
        width = np.int64(exact.side) >> levels
        variance = np.full(len(users), discrete_laplace_stddev(count_epsilon) ** 2)
        return Partition(exact.side, x * width, y * width, (x + 1) * width, (y + 1) * width, users, variance)


def _grow(
    exact: ExactCounts, rule: SplitRule, key: RunKey
) -> tuple[NDArray[np.uint64], NDArray[np.int64], NDArray[np.int64]]:
    """Grows the tree. Returns its leaves: codes uint64[r], levels int64[r], exact users int64[r]."""
    sums = np.concatenate([[0], np.cumsum(exact.users)])
    nodes, leaves, levels, counts = np.zeros(1, dtype=np.uint64), [], [], []
    for level in range(exact.depth + 1):
        beneath = np.uint64(2 * (exact.depth - level))
        first, end = (np.searchsorted(exact.codes, at << beneath) for at in (nodes, nodes + np.uint64(1)))
        held = sums[end] - sums[first]
        if level < exact.depth:
            splits = add_noise(rule.biased(held, level), rule.rate, key, f"privtree level {level}") > 0
        else:
            splits = np.zeros(len(nodes), dtype=np.bool_)
        leaves.append(nodes[~splits])
        levels.append(np.full(len(leaves[-1]), level))
        counts.append(held[~splits])
        nodes = (nodes[splits, None] * np.uint64(FANOUT) + _CHILDREN).ravel()
    return np.concatenate(leaves), np.concatenate(levels), np.concatenate(counts)
