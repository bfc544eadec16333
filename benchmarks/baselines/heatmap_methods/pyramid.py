"""The base of methods that query every level of the quadtree and choose a level for each subregion of their map."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from sfumato.schemas.errors import RequestError
from sfumato.schemas.tree import Tree
from sfumato.transforms.counting.estimator import sampling_of
from sfumato.transforms.counting.methods.base import MIN_LEVEL_SHARE, Method, check_uniform
from sfumato.transforms.counting.state import CountState, Estimate, Query
from sfumato.transforms.secagg.encodings import Encoding, TreeEncoding

# Sentences for the page of a release.
LEVELS = "It has one sub-query for each level of the grid, from a few large cells to many small ones."
BEST = (
    "The map has in each place the level that should err least, judged by the noisy sums: large cells blur, small ones "
    "drown in noise."
)


class Pyramid(Method):
    """One sub-query for each level 1..depth. The map has in each subregion the level that should err least.

    "The server then selects, for each subregion of the target area, the resolution whose result maximizes map accuracy,
    discarding data from the unused resolutions" (paper 000, Section 5.1). The server has noisy counts alone for that:
    see `choose_levels`. The paper's evaluation chooses one level for the whole map, by the truth (Section 6.2).
    `candidates` lists the levels' maps for it.
    """

    @abstractmethod
    def weights(self, depth: int) -> NDArray[np.float64]:
        """Each level's part of the budget, in proportion: float64[depth], level 1 first."""

    def encoding(self, depth: int, level: int) -> Encoding:
        """How clients encode a level: one entry for each cell."""
        return TreeEncoding(Tree.uniform(depth, level))

    def candidates(self, state: CountState, depth: int) -> list[Estimate]:
        """The map of each level 1..depth, level 1 first: here the noisy counts themselves."""
        return [result.to_estimate() for result in state.results]

    def check(self, depth: int) -> None:
        check_uniform(self.NAME, "depth", depth)
        weights = self.weights(depth)
        if (share := weights.min() / weights.sum()) < MIN_LEVEL_SHARE:
            raise RequestError(
                f"depth: one of {depth} levels would get {share:.1g} of epsilon, less than {MIN_LEVEL_SHARE:g}; give a "
                "smaller depth or more even shares"
            )

    def most_sub_queries(self, depth: int) -> int:
        return depth

    def next_query(self, state: CountState, depth: int) -> Query | None:
        """See Method.next_query. The levels share the budget that remains; the last spends all of it."""
        done = len(state.results)
        if done == depth:
            return None
        weights = self.weights(depth)[done:]
        share = 1.0 if len(weights) == 1 else float(weights[0] / weights.sum())
        return Query(self.encoding(depth, done + 1), share * state.budget.remaining)

    def decode(self, state: CountState, depth: int) -> Estimate:
        """See Method.decode: in each subregion one of the candidates."""
        levels = self.candidates(state, depth)
        return pruned(levels, choose_levels(self.independent(state, levels), levels, sampling_of(state)))

    def independent(self, state: CountState, levels: list[Estimate]) -> list[Estimate]:
        """Unbiased counts with independent noise, by which levels are chosen: here the candidates, `levels`."""
        return levels


def choose_levels(counted: Sequence[Estimate], shown: Sequence[Estimate], sampling: float) -> list[NDArray[np.bool_]]:
    """Chooses the cells that show their children: on each level those with the most users, above a threshold.

    A cell could be split by its own gain (see `gain_of_splits`). But that would pick the cells whose noise is largest.
    Their own counts, whose noise is another, decide instead: all cells of a level above a threshold are split, and the
    threshold is the one at which the sum of the gains of these cells, and of what is split below them, is largest.

    Args:
        counted: unbiased counts of the complete levels 1..depth, with independent noise.
        shown: the levels as they may be shown.
        sampling: the variance of a count for each of its users because they are a sample: 1 - sampling rate.

    Returns:
        For each level but the last, whether each of its cells shows its children where it is reached: bool[4^level].
    """
    below = np.zeros(len(counted[-1].counts))
    splits = []
    for level in reversed(range(len(counted) - 1)):
        upper, lower = shown[level : level + 2]
        added = 4 * float(lower.stddev[0]) ** 2 - float(upper.stddev[0]) ** 2 / 4
        gain = gain_of_splits(counted[level + 1], added, sampling) + below.reshape(-1, 4).sum(axis=1)
        values, place = np.unique(counted[level].counts, return_inverse=True)
        above = np.cumsum(np.bincount(place, gain)[::-1])[::-1]  # of all cells with at least this count
        best = int(above.argmax())
        split = counted[level].counts >= values[best] if above[best] > 0 else np.zeros(len(gain), dtype=bool)
        splits.append(split)
        below = np.where(split, gain, 0.0)
    return splits[::-1]


def gain_of_splits(counted: Estimate, added: float, sampling: float) -> NDArray[np.float64]:
    """Unbiased estimates of the squared error that is saved where a cell shows its children's counts.

    A cell of area A, in finest cells, with a count y of variance V, shows the density y / (U A), U the number of all
    users. Its children have area A / 4 and counts of variance v each. In units of 1 / U^2 the gain is

        (B - N - 3 / 2 (1 - r) S) / (A / 4),    B = sum y_i^2 - S^2 / 4 - 3 w,    N = 4 v - V / 4.

    B is the blur of the cell: the contrast of unbiased counts y_1..y_4 of its children, of sum S and of independent
    noise with variance w, less the noise's part. N is what the children's noise adds. The last term is what sampling at
    rate r adds to the contrast and to the error.

    Args:
        counted: y_1..y_4 of all families of a level, side by side.
        added: N, of the counts that are shown. They may be other ones.
        sampling: 1 - r.

    Returns:
        float64[families].
    """
    children = counted.counts.reshape(-1, 4)
    total = children.sum(axis=1)
    blur = (children**2).sum(axis=1) - total**2 / 4 - 3 * float(counted.stddev[0]) ** 2
    return np.asarray((blur - added - 1.5 * sampling * total) * len(counted.counts) / 4.0**counted.tree.depth)


def pruned(levels: Sequence[Estimate], splits: Sequence[NDArray[np.bool_]]) -> Estimate:
    """The map of several levels: from level 1 on, a cell shows its own count, or its children if it is split.

    Args:
        levels: the complete levels 1..depth.
        splits: as of `choose_levels`.
    """
    reached = np.ones(len(levels[0].counts), dtype=bool)
    nodes, counts, stddev = [], [], []
    for level, split in zip(levels, [*splits, np.zeros(len(levels[-1].counts), dtype=bool)], strict=True):
        shown = reached & ~split
        nodes.append(level.tree.entries[reached])
        counts.append(level.counts[shown])
        stddev.append(level.stddev[shown])
        reached = np.repeat(reached & split, 4)
    tree = Tree.of(levels[0].tree.depth, np.concatenate(nodes))
    return Estimate(tree, np.concatenate(counts), np.concatenate(stddev))
