"""Sparse aggregation under the earth mover's distance, for few users (paper 001, Algorithms 1 and 2).

The linear program turns noisy counts of a quadtree's cells into a map (Algorithm 2). Cells are nodes of `schemas.tree`,
level by level. The kept cells form a tree: all cells of the first level q, and below it only children of kept cells.
y(c) is the noisy count of a kept cell c, and 0 for all other cells (Section 2). With l the last level the program is

    min over s >= 0 of  sum over the cells c of levels q..l of  2^-level(c) |y(c) - s(c)|,

where s(c) is the mass of s in c. The norm of Algorithm 2, line 9, is over all cells, kept or not. The remainder of a
kept cell is the part that its kept children do not cover. Mass in a remainder costs the same wherever it lies there,
because its cells on all lower levels have y = 0. So each remainder is one variable, and its mass is spread uniformly.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from typing import Annotated, ClassVar, Literal

import numpy as np
import scipy
from annotated_types import Interval
from numpy.typing import NDArray

from sfumato.schemas.errors import RequestError
from sfumato.schemas.tree import Tree, node_levels
from sfumato.transforms.counting.methods.adaptive import Adaptive
from sfumato.transforms.counting.methods.base import MIN_LEVEL_SHARE, Method
from sfumato.transforms.counting.state import ALL_REMAINING, CountState, Estimate, Query
from sfumato.transforms.locations.users import Contribution
from sfumato.transforms.secagg.encodings import TreeEncoding
from sfumato.transforms.statistics.posterior.full_tree import children_of

Floats = NDArray[np.float64]

MAX_WIDTH = 4096  # up to here the program is solved in seconds
# A sub-query costs at least 1e-5 of the budget and 1e-8 of gamma (`sub_queries`): the finest share is above both.
_MIN_RATIO = 2  # of the cost of a level to the least cost of its noise


@dataclass(frozen=True)
class Emd(Method):
    """Measures the cells of each level that the reconstruction reads, and fits a map to them.

    The paper measures every cell of levels q..l. But RECONSTRUCT reads level i only at T_i, the children of the w cells
    selected on the level above. Here a level's sub-query is for T_i only. Noise on a cell that is not read changes
    nothing, so the map has the same distribution as the paper's. Epsilons of sub-queries that depend on earlier results
    add up as those of fixed ones do. A vector has at most 4 w + 1 entries instead of 4^i. The additional entry is the
    root's: it counts the users outside T_i, costs as much as any other entry, and is not used.
    """

    NAME: ClassVar[str] = "emd"
    SENTENCE: ClassVar[str] = (
        f"{Adaptive.SENTENCE} The map is the one without negative counts that differs least from all noisy sums, where "
        "a large cell weighs more than a small one."
    )
    CONTRIBUTION: ClassVar[Contribution] = "all"

    # w: cells of each level that are refined; in the paper 20 (Section 4).
    emd_width: Annotated[int, Interval(ge=1, le=MAX_WIDTH)] = 20
    # g: cost of a level as a multiple of that of the level above. In theory it lies in (1/2, 1); the paper takes
    # 1/sqrt(2).
    emd_decay: Annotated[float, Interval(ge=0.5, le=1)] = math.sqrt(0.5)
    # `all` fits the map to all cells of T_i, though only w of them are refined, which is better by nearly every
    # measurement (docs/results/few_users.md). `refined` fits it to the refined cells, as the paper does.
    emd_fit: Literal["all", "refined"] = "all"

    def check(self, depth: int) -> None:
        share = self.finest_share(depth)
        if share < MIN_LEVEL_SHARE:
            raise RequestError(
                f"emd_decay: {self.emd_decay} leaves the finest of {self.most_sub_queries(depth)} levels {share:.1g} "
                f"of epsilon, and {MIN_LEVEL_SHARE:g} is the least; give a larger one or a smaller depth"
            )

    def most_sub_queries(self, depth: int) -> int:
        """See Method.most_sub_queries: levels q..depth."""
        return depth - self.first_level(depth) + 1

    def next_query(self, state: CountState, depth: int) -> Query | None:
        """See Method.next_query: Algorithm 2, lines 3 to 7."""
        measured = _measured(state)
        if len(measured) == self.most_sub_queries(depth):
            return None
        if measured:
            tree = Tree.of(depth, self.next_cells(measured, depth))
        else:
            self._check_gamma(state, depth)
            tree = Tree.uniform(depth, self.first_level(depth))
        share = self.share_of_rest(len(measured), depth)
        return Query(TreeEncoding(tree), ALL_REMAINING if share == 1 else share * state.budget.remaining)

    def decode(self, state: CountState, depth: int) -> Estimate:
        """See Method.decode. stddev: of an entry, which is a cell's noisy count less those of its kept children."""
        kept, masses = self.solve(_measured(state))
        levels = [cells.nodes for cells in kept]
        tree = kept_tree(depth, levels)
        nodes = np.concatenate(levels)
        variances = [result.noise_stddev**2 for result in state.results]
        variance = np.repeat(variances, [len(cells) for cells in levels])
        parent = np.searchsorted(nodes, nodes[len(levels[0]) :] >> np.uint64(2))
        summed = variance + np.bincount(parent, variance[len(levels[0]) :], len(nodes))
        return Estimate(tree, masses.counts, np.sqrt(summed[np.searchsorted(nodes, tree.entries)]))

    def first_level(self, depth: int) -> int:
        """Returns q = floor(log2 sqrt w), the last level with at most w cells and the first measured one (Sec. 4)."""
        return min(depth, (self.emd_width.bit_length() - 1) // 2)

    def share_of_rest(self, done: int, depth: int) -> float:
        """Returns the next level's share of the budget that `done` levels have left.

        Level i then costs g^(i - q) / Z of the whole budget, and the first level 1 / Z (Section 3.3).
        """
        return 1 / math.fsum(self.emd_decay**below for below in range(self.most_sub_queries(depth) - done))

    def finest_share(self, depth: int) -> float:
        """Returns g^(l - q) / Z: the finest level's share of the whole budget."""
        return self.share_of_rest(0, depth) * self.emd_decay ** (self.most_sub_queries(depth) - 1)

    def next_cells(self, measured: list[Cells], depth: int) -> NDArray[np.uint64]:
        """Returns T_i: the children of the w largest cells of the level above; on the first level every cell."""
        if measured:
            return children_of(measured[-1].largest(self.emd_width).nodes)
        first = self.first_level(depth)
        return np.arange(1 << 2 * first, 2 << 2 * first, dtype=np.uint64)

    def solve(self, measured: list[Cells]) -> tuple[list[Cells], Cells]:
        """Returns the last two lines of RECONSTRUCT: the cells where y is kept, and the masses of their remainders."""
        kept = measured if self.emd_fit == "all" else [cells.largest(self.emd_width) for cells in measured]
        return kept, reconstruct(kept)

    def _check_gamma(self, state: CountState, depth: int) -> None:
        finest = self.finest_share(depth) * state.budget.remaining
        least = _MIN_RATIO * state.noise.kind.min_cost(state.sensitivity(4 * self.emd_width + 1))
        if finest < least:
            unit = state.noise.kind.UNIT
            raise RequestError(
                f"gamma: {state.gamma} is too large for the finest level's {unit} {finest:.3g}: it must be "
                f"at least {least:.3g}; give a smaller gamma or depth, or a larger epsilon or emd_decay"
            )


def _measured(state: CountState) -> list[Cells]:
    """Returns the results as cells, level by level, without the root's entry."""
    measured = []
    for result in state.results:
        nodes = result.tree.entries
        is_cell = node_levels(nodes) == node_levels(nodes[-1:])
        measured.append(Cells(nodes[is_cell], result.counts[is_cell]))
    return measured


def kept_tree(depth: int, levels: list[NDArray[np.uint64]]) -> Tree:
    """Returns the tree of kept cells. Its entries are the remainders; above the first level it is complete."""
    first = int(node_levels(levels[0][:1])[0])
    return Tree.of(depth, np.concatenate([Tree.uniform(depth, first).nodes, *levels]))


@dataclass(frozen=True)
class Cells:
    """Cells and their counts."""

    nodes: NDArray[np.uint64]  # uint64[n], ascending
    counts: Floats  # float64[n], in users

    def largest(self, width: int) -> Cells:
        """Returns the `width` cells of largest count. Among equal counts the first cells are kept."""
        kept = np.sort(np.argsort(-self.counts, kind="stable")[:width])
        return Cells(self.nodes[kept], self.counts[kept])


def reconstruct(levels: Sequence[Cells]) -> Cells:
    """Solves the program.

    The program has many solutions: an excess can be taken from either of two children at the same cost. A simplex
    solver returns an extreme one, which depends on the order of the cells. Here the solution is symmetric:

    1. HiGHS finds an optimal dual solution (the prices).
    2. By complementary slackness the prices bound the mass of each cell over all solutions.
    3. From the top down, each cell's mass is divided so that all its children lie at the same fraction between their
       bounds. So a rotated map gives the rotated result.

    Args:
        levels: the kept cells, coarse to fine. Each cell of the last level is its own remainder.

    Returns:
        The kept cells with a remainder, and the mass >= 0 of the remainder.

    Raises:
        RuntimeError: the solver failed. The program always has a solution.
    """
    program = _Program(levels)
    mass = program.even_masses(program.prices())
    mass_of_children = np.where(program.child_rows < 0, 0.0, mass[program.child_rows]).sum(axis=1)
    rows = program.remainder_rows
    return Cells(program.nodes[rows], np.maximum(mass - mass_of_children, 0.0)[rows])


class _Program:
    """The program for n kept cells, given coarse to fine.

    Rows are cells; columns are remainders, then excess and deficit of each cell. All costs are in units of 2^-l. They
    are integers, and so are the prices: the matrix is totally unimodular.
    """

    def __init__(self, levels: Sequence[Cells]):
        self.nodes = np.concatenate([cells.nodes for cells in levels])  # uint64[n], ascending
        self.target = np.concatenate([cells.counts for cells in levels])  # float64[n], their y
        level, below = node_levels(self.nodes), children_of(self.nodes)
        # float64[n], 2^(l - level). A user in the remainder of a cell costs 1 less: 2^-(level + 1) + ... + 2^-l.
        self.weight = 2.0 ** (level[-1] - level)
        row = np.minimum(np.searchsorted(self.nodes, below), len(self.nodes) - 1)
        # int64[n, 4], rows of each cell's children; -1 for a child that is not kept.
        self.child_rows = np.where(self.nodes[row] == below, row, -1).reshape(-1, 4)
        self.remainder_rows = np.flatnonzero((self.child_rows < 0).any(axis=1))  # of the cells with a remainder

    def prices(self) -> Floats:
        """Returns an optimal dual solution, float64[n] in -weight..weight: the cost's change for one more user in y."""
        matrix, cells, rows = self._covers, len(self.nodes), self.remainder_rows
        cell_rows = np.repeat(np.arange(cells), 2)
        signs = scipy.sparse.csr_array((np.tile([1.0, -1.0], cells), (cell_rows, np.arange(2 * cells))))
        solution = scipy.optimize.linprog(
            np.concatenate([self.weight[rows] - 1, np.repeat(self.weight, 2)]),
            A_eq=scipy.sparse.hstack([matrix, signs], format="csr"),
            b_eq=self.target,
            method="highs-ds",
        )
        if solution.status != 0:
            raise RuntimeError(f"the linear program of {cells} cells was not solved: {solution.message}")
        return np.asarray(np.rint(solution.eqlin.marginals))

    def even_masses(self, price: Floats) -> Floats:
        """Returns the mass of every cell, float64[n], evenly between the bounds that `prices` allow."""
        # Complementary slackness: a remainder that costs more than its prices is empty; any other has no upper bound.
        max_remainder = np.zeros(len(self.nodes))
        rows = self.remainder_rows
        max_remainder[rows] = np.where(self.weight[rows] - 1 > self._covers.T @ price, 0.0, np.inf)
        lower, upper = np.zeros(len(self.nodes)), np.zeros(len(self.nodes))
        for level in reversed(self._levels()):
            low, high = (_sum(bound)[:, 0] for bound in self._child_bounds(lower, upper, max_remainder, level))
            target = np.clip(self.target[level], low, high)
            # At the upper end of its range a price allows a mass below the target, at the lower end one above it.
            at_most_target, at_least_target = price[level] > -self.weight[level], price[level] < self.weight[level]
            lower[level] = np.where(at_least_target, target, low)
            upper[level] = np.where(at_most_target, target, high)
        mass = lower.copy()  # on the first level both bounds are equal: every slope there is odd, so none is 0
        for level in self._levels():
            child_rows, parent = self.child_rows[level], mass[level][:, None]
            low, high = self._child_bounds(lower, upper, max_remainder, level)
            high = np.maximum(low, np.minimum(high, parent - (_sum(low) - low)))
            low = np.minimum(high, np.maximum(low, parent - (_sum(high) - high)))
            width = high - low
            fraction = np.clip((parent - _sum(low)) / np.maximum(_sum(width), np.finfo(float).tiny), 0, 1)
            mass[child_rows[child_rows >= 0]] = (low + fraction * width)[child_rows >= 0]
        return mass

    def _child_bounds(self, lower: Floats, upper: Floats, max_remainder: Floats, level: slice) -> tuple[Floats, Floats]:
        """Returns bounds of the mass in each child of the cells of a level: float64[cells, 4] each."""
        rows = self.child_rows[level]
        return np.where(rows < 0, 0.0, lower[rows]), np.where(rows < 0, max_remainder[level, None], upper[rows])

    def _levels(self) -> list[slice]:
        """Returns the rows of each level's cells, coarse to fine."""
        borders = [0, *(np.flatnonzero(np.diff(self.weight)) + 1).tolist(), len(self.weight)]
        return [slice(first, last) for first, last in pairwise(borders)]

    @cached_property
    def _covers(self) -> scipy.sparse.csr_array:
        """[n, remainders]: 1 if the remainder lies in the cell, that is, in its own cell and all ancestors."""
        ancestor = self.nodes[self.remainder_rows]
        shape = len(self.nodes), len(ancestor)
        rows, columns = [], []
        while (kept := np.flatnonzero(ancestor >= self.nodes[0])).size:
            rows.append(np.searchsorted(self.nodes, ancestor[kept]))
            columns.append(kept)
            ancestor = ancestor >> np.uint64(2)
        row, column = np.concatenate(rows), np.concatenate(columns)
        return scipy.sparse.csr_array((np.ones(len(row)), (row, column)), shape=shape)


def _sum(children: Floats) -> Floats:
    """Sums over the children: float64[cells, 4] -> float64[cells, 1]."""
    return np.asarray(children.sum(axis=1, keepdims=True))
