"""PrivTree: a quadtree that is split where noisy, ever more sceptical counts say so (Zhang, Xiao, Xie 2016).

A node of c users at level d is split where max(c - d delta, -delta) + noise > 0 (Algorithm 2, theta = 0), at any level
with noise of one and the same scale lambda = (2 beta - 1) / (beta - 1) / epsilon, fanout beta = 4.

Why it is private. The paper proves it for continuous Laplace noise and delta = lambda ln beta. Here noise is discrete
Laplace, P[Z = k] proportional to a^|k| with a = exp(-1 / lambda), and delta is rounded up to a whole number; so biased
counts are whole numbers x, and the proof goes through as printed. A user changes x by 1 in the nodes on her path alone.
Write r(x) = ln P[x + Z > 0] / P[x - 1 + Z > 0] for the loss of one split. Where x <= 1 both events are upper tails,
P[Z >= m] = a^m / (1 + a) for m >= 0, and r = 1 / lambda exactly. For x = 1 + j, j >= 1,
r = ln(1 + a^j (1 - a) / (1 + a - a^j)) <= a^j (1 - a) <= a^j / lambda, as 1 + a - a^j >= 1. Up her path x grows by
delta or more a level: the lowest split that she changes has x >= 1 - delta, the one above x >= 1, the next
x >= 1 + delta, and so on. Together they lose at most (2 + a^delta + a^(2 delta) + ...) / lambda, and with
a^delta <= 1 / beta that is (2 + 1 / (beta - 1)) / lambda = (2 beta - 1) / (beta - 1) / lambda = epsilon. Without her
no split is likelier, and of the leaves only the one on her path, by 1 / lambda at most. Ending at the base cells is no
decision.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from sfumato.schemas.region import deinterleave
from sfumato.transforms.heatmap.checks import check_within, option
from sfumato.transforms.privacy.keys import RunKey
from sfumato.transforms.privacy.mechanism import discrete_laplace_stddev
from sfumato.transforms.ranges.counts import Partition
from sfumato.transforms.ranges.methods.base import CollectionSpec, RangeMethod
from sfumato.transforms.ranges.noise import noisy
from sfumato.transforms.ranges.people import ExactCounts
from sfumato.transforms.ranges.split import split

FANOUT = 4
_CHILDREN = np.arange(FANOUT, dtype=np.uint64)


@dataclass(frozen=True)
class Splitting:
    """How nodes are told to split. rate: 1 / lambda. delta: what is taken off a count for each level, whole."""

    rate: float
    delta: int

    @classmethod
    def of(cls, epsilon: float) -> Splitting:
        """What makes the whole tree epsilon-differentially private."""
        rate = epsilon * (FANOUT - 1) / (2 * FANOUT - 1)
        return cls(rate, math.ceil(math.log(FANOUT) / rate))

    def biased(self, counts: NDArray[np.int64], level: int) -> NDArray[np.int64]:
        """The biased counts b(v) of nodes of one level."""
        return np.maximum(counts - level * self.delta, -self.delta)


@dataclass(frozen=True)
class PrivTree(RangeMethod):
    """Raises RequestError unless privtree_share lies between 0 and 1."""

    NAME: ClassVar[str] = "privtree"
    TEXT: ClassVar[str] = "a quadtree that is split where noisy counts say so"

    privtree_share: float = option(0.5, "the share of epsilon for the tree; its leaves are counted with the rest")

    def __post_init__(self) -> None:
        check_within("privtree_share", self.privtree_share, 0.01, 0.99)

    def collect(self, people: ExactCounts, wanted: CollectionSpec, key: RunKey) -> Partition:
        """See RangeMethod.collect. A user is in one leaf, so the tree and the counts add up to epsilon."""
        tree_epsilon, count_epsilon = split(wanted.epsilon, self.privtree_share)
        nodes, levels, counts = _grown(people, Splitting.of(tree_epsilon), key)
        users = noisy(counts, count_epsilon, key, "privtree leaves")
        x, y = deinterleave(nodes)
        width = np.int64(people.side) >> levels
        variance = np.full(len(users), discrete_laplace_stddev(count_epsilon) ** 2)
        return Partition(people.side, x * width, y * width, (x + 1) * width, (y + 1) * width, users, variance)


def _grown(
    people: ExactCounts, splitting: Splitting, key: RunKey
) -> tuple[NDArray[np.uint64], NDArray[np.int64], NDArray[np.int64]]:
    """The leaves: codes uint64[r] at their levels int64[r], and the exact users in them, int64[r]."""
    sums = np.concatenate([[0], np.cumsum(people.users)])
    nodes, leaves, levels, counts = np.zeros(1, dtype=np.uint64), [], [], []
    for level in range(people.depth + 1):
        beneath = np.uint64(2 * (people.depth - level))
        first, end = (np.searchsorted(people.codes, at << beneath) for at in (nodes, nodes + np.uint64(1)))
        held = sums[end] - sums[first]
        if level < people.depth:
            splits = noisy(splitting.biased(held, level), splitting.rate, key, f"privtree level {level}") > 0
        else:
            splits = np.zeros(len(nodes), dtype=np.bool_)
        leaves.append(nodes[~splits])
        levels.append(np.full(len(leaves[-1]), level))
        counts.append(held[~splits])
        nodes = (nodes[splits, None] * np.uint64(FANOUT) + _CHILDREN).ravel()
    return np.concatenate(leaves), np.concatenate(levels), np.concatenate(counts)
