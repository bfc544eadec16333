"""DAWA on a Hilbert order: runs of cells that look even are counted as one (Li, Hay, Miklau 2014).

Places are the cells of a grid of at most 2^20 in Hilbert order. The first stage cuts the order into buckets
(`dawa_partition.py`), with a quarter of epsilon; a bucket's penalty is 1 / epsilon_2, the mean size of the noise in its
count. The second counts each bucket with Laplace noise, with the rest of epsilon.

Where this differs from the authors' program. The second stage is plain: it does not spread noise over a hierarchy for
the workload (their GreedyH), which squares of a few buckets have little use of. Buckets are aligned: 2^k cells from a
multiple of 2^k, which on the curve are squares and pairs of squares, so a bucket is one rectangle; theirs begin
anywhere. Their program draws half the noise in the costs that the argument in `dawa_partition.py` needs, none in those
of single cells, and raises costs to the penalty where noise takes them below. None of the three is covered by it, so
the noise here is the argument's, in every cost, and costs may fall as low as it takes them.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from sfumato.transforms.heatmap.checks import check_within, option
from sfumato.transforms.privacy.keys import RunKey
from sfumato.transforms.privacy.mechanism import discrete_laplace_stddev
from sfumato.transforms.ranges.counts import Partition
from sfumato.transforms.ranges.dawa_partition import cheapest
from sfumato.transforms.ranges.hilbert import hilbert_index, hilbert_xy
from sfumato.transforms.ranges.methods.base import CollectionSpec, RangeMethod
from sfumato.transforms.ranges.noise import noisy
from sfumato.transforms.ranges.people import ExactCounts
from sfumato.transforms.ranges.split import split

_DEPTH = 10  # 2^20 cells, as the papers have it


@dataclass(frozen=True)
class Dawa(RangeMethod):
    """Raises RequestError unless dawa_share lies between 0 and 1."""

    NAME: ClassVar[str] = "dawa"
    TEXT: ClassVar[str] = "runs of a Hilbert order in which cells look even"

    dawa_share: float = option(0.25, "the share of epsilon for the partition; its buckets are counted with the rest")

    def __post_init__(self) -> None:
        check_within("dawa_share", self.dawa_share, 0.01, 0.99)

    def collect(self, people: ExactCounts, wanted: CollectionSpec, key: RunKey) -> Partition:
        """See RangeMethod.collect. A user is in one bucket, so the partition and the counts add up to epsilon."""
        partition_epsilon, count_epsilon = split(wanted.epsilon, self.dawa_share)
        depth = min(_DEPTH, people.depth)
        finer = people.depth - depth
        x, y = people.xy
        counts = np.zeros(4**depth, dtype=np.int64)
        np.add.at(counts, hilbert_index(x >> finer, y >> finer, depth), people.users)

        starts, levels = cheapest(counts, partition_epsilon, 1 / count_epsilon, key)
        users = noisy(np.add.reduceat(counts, starts), count_epsilon, key, "dawa buckets")
        variance = np.full(len(users), discrete_laplace_stddev(count_epsilon) ** 2)

        # A bucket spans the squares of 4^(level // 2) cells that hold its first and its last cell.
        below = levels // 2
        ends = [hilbert_xy(at, depth) for at in (starts, starts + (1 << levels) - 1)]
        (x0, x1), (y0, y1) = ((first >> below, last >> below) for first, last in zip(*ends, strict=True))
        scale = below + finer
        low = np.minimum(x0, x1) << scale, np.minimum(y0, y1) << scale
        high = (np.maximum(x0, x1) + 1) << scale, (np.maximum(y0, y1) + 1) << scale
        return Partition(people.side, *low, *high, users, variance)
