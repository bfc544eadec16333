"""The linear program that turns noisy counts of a quadtree's cells into a map (paper 001, Algorithm 2). Pure.

Cells are nodes of `schemas.tree`, level by level. The kept cells form a tree: all cells of the first level q, and below
it only children of kept cells. y(c) is the noisy count of a kept cell c, and 0 for all other cells (Section 2). With l
the last level the program is

    min over s >= 0 of  sum over the cells c of levels q..l of  2^-level(c) |y(c) - s(c)|,

where s(c) is the mass of s in c. The norm of Algorithm 2, line 9, is over all cells, kept or not. The remainder of a
kept cell is the part that its kept children do not cover. Mass in a remainder costs the same wherever it lies there,
because its cells on all lower levels have y = 0. So each remainder is one variable, and its mass is spread uniformly.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise

import numpy as np
import scipy
from numpy.typing import NDArray

from sfumato.schemas.tree import node_levels

_TWO = np.uint64(2)


@dataclass(frozen=True)
class Cells:
    """Cells and their counts.

    Attributes:
        nodes: uint64[n], ascending.
        counts: float64[n], in users.
    """

    nodes: NDArray[np.uint64]
    counts: NDArray[np.float64]

    def largest(self, width: int) -> Cells:
        """The `width` cells of largest count. Among equal counts the first cells are kept."""
        kept = np.sort(np.argsort(-self.counts, kind="stable")[:width])
        return Cells(self.nodes[kept], self.counts[kept])


def children(nodes: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """The four children of every node: uint64[4 n]."""
    return ((nodes[:, None] << _TWO) | np.arange(4, dtype=np.uint64)).ravel()


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
    program = _Program.from_levels(levels)
    mass = program.even_masses(program.prices())
    mass_of_children = np.where(program.child_rows < 0, 0.0, mass[program.child_rows]).sum(axis=1)
    rows = program.remainder_rows
    return Cells(program.nodes[rows], np.maximum(mass - mass_of_children, 0.0)[rows])


@dataclass(frozen=True)
class _Program:
    """The program for n kept cells. Rows are cells; columns are remainders, then excess and deficit of each cell.

    All costs are in units of 2^-l. They are integers, and so are the prices: the matrix is totally unimodular.

    Attributes:
        nodes: uint64[n], the kept cells, ascending.
        target: float64[n], their y.
        weight: float64[n], 2^(l - level).
        child_rows: int64[n, 4], rows of each cell's children; -1 for a child that is not kept.
    """

    nodes: NDArray[np.uint64]
    target: NDArray[np.float64]
    weight: NDArray[np.float64]
    child_rows: NDArray[np.int64]

    @classmethod
    def from_levels(cls, levels: Sequence[Cells]) -> _Program:
        """The program for the kept cells, coarse to fine."""
        nodes = np.concatenate([cells.nodes for cells in levels])
        level = node_levels(nodes)
        below = children(nodes)
        row = np.minimum(np.searchsorted(nodes, below), len(nodes) - 1)
        child_rows = np.where(nodes[row] == below, row, -1).reshape(-1, 4)
        return cls(nodes, np.concatenate([cells.counts for cells in levels]), 2.0 ** (level[-1] - level), child_rows)

    @property
    def remainder_rows(self) -> NDArray[np.int64]:
        """Rows of the cells with a remainder."""
        return np.flatnonzero((self.child_rows < 0).any(axis=1))

    @property
    def remainder_costs(self) -> NDArray[np.float64]:
        """float64[n]: the cost of one user in the remainder of a cell of level i, 2^-(i + 1) + ... + 2^-l."""
        return self.weight - 1

    def prices(self) -> NDArray[np.float64]:
        """An optimal dual solution, float64[n] in -weight..weight: the change of the cost for one more user in y."""
        matrix, cells, rows = self._covers, len(self.nodes), self.remainder_rows
        cell_rows = np.repeat(np.arange(cells), 2)
        signs = scipy.sparse.csr_array((np.tile([1.0, -1.0], cells), (cell_rows, np.arange(2 * cells))))
        solution = scipy.optimize.linprog(
            np.concatenate([self.remainder_costs[rows], np.repeat(self.weight, 2)]),
            A_eq=scipy.sparse.hstack([matrix, signs], format="csr"),
            b_eq=self.target,
            method="highs-ds",
        )
        if solution.status != 0:
            raise RuntimeError(f"the linear program of {cells} cells was not solved: {solution.message}")
        return np.asarray(np.rint(solution.eqlin.marginals))

    def even_masses(self, price: NDArray[np.float64]) -> NDArray[np.float64]:
        """The mass of every cell, float64[n], evenly between the bounds that the prices allow.

        price: float64[n], of `prices`.
        """
        # Complementary slackness: a remainder that costs more than its prices is empty; any other has no upper bound.
        max_remainder = np.zeros(len(self.nodes))
        rows = self.remainder_rows
        max_remainder[rows] = np.where(self.remainder_costs[rows] > self._covers.T @ price, 0.0, np.inf)
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

    def _child_bounds(
        self, lower: NDArray[np.float64], upper: NDArray[np.float64], max_remainder: NDArray[np.float64], level: slice
    ) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """Bounds of the mass in each child of the cells of a level: float64[cells, 4] each."""
        rows = self.child_rows[level]
        return np.where(rows < 0, 0.0, lower[rows]), np.where(rows < 0, max_remainder[level, None], upper[rows])

    def _levels(self) -> list[slice]:
        """The rows of each level's cells, coarse to fine."""
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
            ancestor = ancestor >> _TWO
        row, column = np.concatenate(rows), np.concatenate(columns)
        return scipy.sparse.csr_array((np.ones(len(row)), (row, column)), shape=shape)


def _sum(children: NDArray[np.float64]) -> NDArray[np.float64]:
    """Over the children: float64[cells, 4] -> float64[cells, 1]."""
    return np.asarray(children.sum(axis=1, keepdims=True))
