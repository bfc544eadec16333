"""The linear program that turns noisy counts of a quadtree's cells into a map (paper 001, Algorithm 2). Pure.

Cells are nodes of `schemas.tree`, level by level. The kept coordinates of y are counts of cells that form a tree: all
cells of the first level q, and below it only children of kept cells. With l the last level the program is

    min over s >= 0 of  sum over the cells c of levels q..l of  2^-level(c) |y(c) - s(c)|,

where s(c) is the mass of s in c, and y(c) = 0 for a cell that was not kept: the norm of Algorithm 2, line 9, is over
all coordinates, and y|S is 0 outside S (Section 2). So mass in the remainder of a kept cell, what its kept children
leave over, is paid for on every level below. Where in the remainder it lies makes no difference: a remainder is one
variable, and stands for a uniform spread.
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
    """Cells and a figure of each, in users. nodes: uint64[n], ascending; counts: float64[n]."""

    nodes: NDArray[np.uint64]
    counts: NDArray[np.float64]

    def largest(self, width: int) -> Cells:
        """The `width` cells of largest count; of equal ones those that come first."""
        kept = np.sort(np.argsort(-self.counts, kind="stable")[:width])
        return Cells(self.nodes[kept], self.counts[kept])


def children(nodes: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """The four children of every node: uint64[4 n]."""
    return ((nodes[:, None] << _TWO) | np.arange(4, dtype=np.uint64)).ravel()


def reconstruct(levels: Sequence[Cells]) -> Cells:
    """The kept cells that have a remainder, and its mass >= 0: of all solutions of the program the most even one.

    levels: the kept cells, coarse to fine. A cell of the last level is a remainder as a whole.

    There are many solutions (it costs the same to take an excess from one of two children or from the other), and a
    simplex solver ends in a corner. So HiGHS finds optimal prices; by complementary slackness they say which masses
    solutions may have; and from the top down every cell's mass is shared out so that all its children lie at the same
    fraction between the least and the most that solutions give them. The result turns when the map is turned.
    Raises RuntimeError where the solver gives up, for which there is no reason: the program has a solution.
    """
    program = _Program.of(levels)
    mass = program.even_masses(program.prices())
    kept = np.where(program.slots < 0, 0.0, mass[program.slots]).sum(axis=1)
    owner = program.owners
    return Cells(program.nodes[owner], np.maximum(mass - kept, 0.0)[owner])


@dataclass(frozen=True)
class _Program:
    """nodes: uint64[n], the kept cells, ascending; target: float64[n], their y; weight: float64[n], 2^(l - level).

    slots: int64[n, 4], the children of each cell as places in nodes, -1 for a child that was not kept.
    In units of 2^-l all costs are whole numbers, and so are the prices: the matrix is totally unimodular.
    """

    nodes: NDArray[np.uint64]
    target: NDArray[np.float64]
    weight: NDArray[np.float64]
    slots: NDArray[np.int64]

    @classmethod
    def of(cls, levels: Sequence[Cells]) -> _Program:
        nodes = np.concatenate([cells.nodes for cells in levels])
        level = node_levels(nodes)
        below = children(nodes)
        place = np.minimum(np.searchsorted(nodes, below), len(nodes) - 1)
        slots = np.where(nodes[place] == below, place, -1).reshape(-1, 4)
        return cls(nodes, np.concatenate([cells.counts for cells in levels]), 2.0 ** (level[-1] - level), slots)

    @property
    def owners(self) -> NDArray[np.int64]:
        """Cells that have a remainder: their places."""
        return np.flatnonzero((self.slots < 0).any(axis=1))

    @property
    def remainder_costs(self) -> NDArray[np.float64]:
        """float64[n]: a unit outside the kept cells is off by one on each level below: 2^-(i + 1) + ... + 2^-l."""
        return self.weight - 1

    def prices(self) -> NDArray[np.float64]:
        """float64[n]: what a unit more of y would cost, in -weight..weight; an optimal dual."""
        matrix, cells, owner = self._covers, len(self.nodes), self.owners
        every = np.arange(cells)
        signs = scipy.sparse.csr_array((np.tile([1.0, -1.0], cells), (np.repeat(every, 2), np.arange(2 * cells))))
        solution = scipy.optimize.linprog(
            np.concatenate([self.remainder_costs[owner], np.repeat(self.weight, 2)]),
            A_eq=scipy.sparse.hstack([matrix, signs], format="csr"),
            b_eq=self.target,
            method="highs-ds",
        )
        if solution.status != 0:
            raise RuntimeError(f"the linear program of {cells} cells was not solved: {solution.message}")
        return np.asarray(np.rint(solution.eqlin.marginals))

    def even_masses(self, price: NDArray[np.float64]) -> NDArray[np.float64]:
        """float64[n]: the mass in every cell, each between the least and the most that the prices allow."""
        # A remainder that costs more than its prices bring stays empty; any other may hold what it likes.
        open_ = np.zeros(len(self.nodes))
        open_[self.owners] = np.where(self.remainder_costs[self.owners] > self._covers.T @ price, 0.0, np.inf)
        least, most = np.zeros(len(self.nodes)), np.zeros(len(self.nodes))
        for level in reversed(self._levels()):
            low, high = (_sum(one)[:, 0] for one in self._children(least, most, open_, level))
            target = np.clip(self.target[level], low, high)
            # At an end of its range the price leaves one direction open, and else none.
            exact_or_less, exact_or_more = price[level] > -self.weight[level], price[level] < self.weight[level]
            least[level] = np.where(exact_or_more, target, low)
            most[level] = np.where(exact_or_less, target, high)
        mass = least.copy()  # on the first level they are equal: every slope there is odd, so none is 0
        for level in self._levels():
            slots, whole = self.slots[level], mass[level][:, None]
            low, high = self._children(least, most, open_, level)
            high = np.maximum(low, np.minimum(high, whole - (_sum(low) - low)))
            low = np.minimum(high, np.maximum(low, whole - (_sum(high) - high)))
            width = high - low
            fraction = np.clip((whole - _sum(low)) / np.maximum(_sum(width), np.finfo(float).tiny), 0, 1)
            mass[slots[slots >= 0]] = (low + fraction * width)[slots >= 0]
        return mass

    def _children(
        self, least: NDArray[np.float64], most: NDArray[np.float64], open_: NDArray[np.float64], level: slice
    ) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """Bounds of the mass in each child of the cells of a level: float64[cells, 4] twice."""
        slots = self.slots[level]
        return np.where(slots < 0, 0.0, least[slots]), np.where(slots < 0, open_[level, None], most[slots])

    def _levels(self) -> list[slice]:
        """The places of each level's cells, coarse to fine."""
        borders = [0, *(np.flatnonzero(np.diff(self.weight)) + 1).tolist(), len(self.weight)]
        return [slice(first, last) for first, last in pairwise(borders)]

    @cached_property
    def _covers(self) -> scipy.sparse.csr_array:
        """[n, remainders]: 1 where the remainder lies in the cell: its own, and all cells above."""
        ancestor = self.nodes[self.owners]
        rows, columns = [], []
        while (there := np.flatnonzero(ancestor >= self.nodes[0])).size:
            rows.append(np.searchsorted(self.nodes, ancestor[there]))
            columns.append(there)
            ancestor = ancestor >> _TWO
        row, column = np.concatenate(rows), np.concatenate(columns)
        return scipy.sparse.csr_array((np.ones(len(row)), (row, column)), shape=(len(self.nodes), len(self.owners)))


def _sum(children: NDArray[np.float64]) -> NDArray[np.float64]:
    """Over the children: float64[cells, 4] -> float64[cells, 1]."""
    return np.asarray(children.sum(axis=1, keepdims=True))
