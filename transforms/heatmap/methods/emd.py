"""Sparse aggregation under the earth mover's distance, for few users (paper 001, Algorithms 1 and 2)."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Annotated, ClassVar, Literal

import numpy as np
from annotated_types import Interval
from numpy.typing import NDArray

from sfumato.schemas.errors import RequestError
from sfumato.schemas.tree import Tree, node_levels
from sfumato.transforms.heatmap.methods.adaptive import Adaptive
from sfumato.transforms.heatmap.methods.base import MIN_LEVEL_SHARE, Contribution, Method
from sfumato.transforms.heatmap.methods.emd_program import Cells, children, reconstruct
from sfumato.transforms.heatmap.state import ALL_REMAINING, Estimate, HeatmapState, Query
from sfumato.transforms.secagg.encodings import TreeEncoding

MAX_WIDTH = 4096  # up to here the program is solved in seconds
# A sub-query costs at least 1e-5 of the budget and 1e-8 of gamma (`schedule`): the finest level's share is above both.
_MIN_RATIO = 2  # of the cost of a level to the least cost of its noise


@dataclass(frozen=True)
class Emd(Method):
    """Measures the cells of each level that the reconstruction reads, and fits a map to them.

    The paper measures every cell of levels q..l. But RECONSTRUCT reads level i only at T_i, the children of the w cells
    selected on the level above. Here a level's sub-query is for T_i alone. Noise on a cell that is not read changes
    nothing, so the map has the same distribution as the paper's. Epsilons of sub-queries that depend on earlier results
    add up as those of fixed ones do. A vector has at most 4 w + 1 entries instead of 4^i. The additional entry is the
    root's: it counts the users outside T_i, costs as much as any other entry, and is not used.

    Attributes:
        emd_width: w: cells of each level that are refined; in the paper 20 (Section 4).
        emd_decay: g: epsilon of a level as a multiple of that of the level above, in theory above 1/2 and below 1, in
            the paper 1/sqrt(2).
        emd_fit: `all` fits the map to all cells of T_i, though only w of them are refined, which is better by nearly
            every measurement (docs/results/few_users.md). `refined` fits it to the refined cells, as the paper does.
    """

    NAME: ClassVar[str] = "emd"
    SENTENCE: ClassVar[str] = (
        f"{Adaptive.SENTENCE} The map is the one without negative counts that differs least from all noisy sums, where "
        "a large cell weighs more than a small one."
    )
    CONTRIBUTION: ClassVar[Contribution] = "all"

    emd_width: Annotated[int, Interval(ge=1, le=MAX_WIDTH)] = 20
    emd_decay: Annotated[float, Interval(ge=0.5, le=1)] = math.sqrt(0.5)
    emd_fit: Literal["all", "refined"] = "all"

    def check(self, depth: int) -> None:
        share = self.finest_share(depth)
        if share < MIN_LEVEL_SHARE:
            raise RequestError(
                f"emd_decay: {self.emd_decay} leaves the finest of {self.max_rounds(depth)} levels {share:.1g} of "
                f"epsilon, and {MIN_LEVEL_SHARE:g} is the least; give a larger one or a smaller depth"
            )

    def max_rounds(self, depth: int) -> int:
        """See Method.max_rounds: levels q..depth."""
        return depth - self.first_level(depth) + 1

    def next_query(self, state: HeatmapState, depth: int) -> Query | None:
        """See Method.next_query: Algorithm 2, lines 3 to 7."""
        measured = _measured(state)
        if len(measured) == self.max_rounds(depth):
            return None
        if measured:
            tree = Tree.of(depth, self.next_cells(measured, depth))
        else:
            self._check_gamma(state, depth)
            tree = Tree.uniform(depth, self.first_level(depth))
        share = self.share_of_rest(len(measured), depth)
        return Query(TreeEncoding(tree), ALL_REMAINING if share == 1 else share * state.budget.remaining)

    def decode(self, state: HeatmapState, depth: int) -> Estimate:
        """See Method.decode. stddev: of an entry, which is a cell's noisy count less those of its kept children."""
        kept, masses = self.solve(_measured(state))
        levels = [cells.nodes for cells in kept]
        tree = kept_tree(depth, levels)
        nodes = np.concatenate(levels)
        variances = [result.spent.noise_stddev**2 for result in state.results]
        variance = np.repeat(variances, [len(cells) for cells in levels])
        parent = np.searchsorted(nodes, nodes[len(levels[0]) :] >> np.uint64(2))
        summed = variance + np.bincount(parent, variance[len(levels[0]) :], len(nodes))
        return Estimate(tree, masses.counts, np.sqrt(summed[np.searchsorted(nodes, tree.entries)]))

    def first_level(self, depth: int) -> int:
        """q = floor(log2 sqrt w): the last level with at most w cells. Coarser levels are not measured (Section 4)."""
        return min(depth, (self.emd_width.bit_length() - 1) // 2)

    def share_of_rest(self, done: int, depth: int) -> float:
        """The next level's share of the budget that `done` levels have left.

        Level i then costs g^(i - q) / Z of the whole budget, and the first level 1 / Z (Section 3.3).
        """
        return 1 / math.fsum(self.emd_decay**below for below in range(self.max_rounds(depth) - done))

    def finest_share(self, depth: int) -> float:
        """g^(l - q) / Z: the finest level's share of the whole budget."""
        return self.share_of_rest(0, depth) * self.emd_decay ** (self.max_rounds(depth) - 1)

    def next_cells(self, measured: list[Cells], depth: int) -> NDArray[np.uint64]:
        """T_i: the children of the w largest cells of the level above; on the first level every cell."""
        if measured:
            return children(measured[-1].largest(self.emd_width).nodes)
        first = self.first_level(depth)
        return np.arange(1 << 2 * first, 2 << 2 * first, dtype=np.uint64)

    def solve(self, measured: list[Cells]) -> tuple[list[Cells], Cells]:
        """The last two lines of RECONSTRUCT: the cells where y is kept, and the masses of their remainders."""
        kept = measured if self.emd_fit == "all" else [cells.largest(self.emd_width) for cells in measured]
        return kept, reconstruct(kept)

    def _check_gamma(self, state: HeatmapState, depth: int) -> None:
        finest = self.finest_share(depth) * state.budget.remaining
        least = _MIN_RATIO * state.noise.min_cost(state.sensitivity(4 * self.emd_width + 1))
        if finest < least:
            raise RequestError(
                f"gamma: {state.gamma} is too large for the finest level's {state.noise.UNIT} {finest:.3g}: it must be "
                f"at least {least:.3g}; give a smaller gamma or depth, or a larger epsilon or emd_decay"
            )


def _measured(state: HeatmapState) -> list[Cells]:
    """The results as cells, level by level, without the root's entry."""
    measured = []
    for result in state.results:
        nodes = result.tree.entries
        is_cell = node_levels(nodes) == node_levels(nodes[-1:])
        measured.append(Cells(nodes[is_cell], result.counts[is_cell]))
    return measured


def kept_tree(depth: int, levels: list[NDArray[np.uint64]]) -> Tree:
    """The tree of kept cells. Its entries are the remainders; above the first level it is complete."""
    first = int(node_levels(levels[0][:1])[0])
    return Tree.of(depth, np.concatenate([Tree.uniform(depth, first).nodes, *levels]))
