"""The exact earth mover's distance between two densities on a grid, with L1 ground distance (paper 001, Section 2.1).

With L1 distance a transport plan is a flow along the grid's edges, 1 / side a step: 4 arcs a cell instead of a dense
side^2 x side^2 matrix. Its dual is to choose heights h, integers that differ by at most 1 between neighbours, of the
largest sum of b h, b the surplus of each cell. Heights are raised by 1 on the best set of cells, a minimum cut, until
no set gains anything. The cut's flow then sends every surplus to a deficit downhill only, so by complementary
slackness it is a cheapest plan and the sum of b h is its cost. Interpolated heights of a grid half as fine are near
the best ones, so a few cuts a level suffice: seconds where a general minimum-cost flow solver needs most of a minute.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

MAX_SIDE = 256
UNITS = 2.0**40  # of mass: heights stay below 2 side, so every sum is far below 2^63


def earth_mover(estimate: NDArray[np.float64], truth: NDArray[np.float64]) -> float:
    """The earth mover's distance, L1 between cells' centres on the unit square: 0 to below 2.

    estimate, truth: float64[side, side], >= 0, side a power of two, at most 256; each is scaled to sum 1. Masses are
    rounded to multiples of 2^-40, which shifts the distance by at most side / 2^41 (1.2e-10 at 256). Raises ValueError
    for other shapes, a larger grid or no mass. Needs OR-tools (the extra `bench`).
    """
    side = len(estimate)
    if estimate.shape != (side, side) or truth.shape != (side, side) or side < 1 or side & (side - 1):
        raise ValueError(f"estimate and truth must be [2^d, 2^d], got {estimate.shape} and {truth.shape}")
    if side > MAX_SIDE:
        raise ValueError(f"emd is for grids of up to {MAX_SIDE} x {MAX_SIDE} cells, got {side} x {side}")
    if not (estimate.sum() > 0 and truth.sum() > 0):
        raise ValueError("estimate and truth must hold some mass")
    surplus = round_masses(estimate / estimate.sum() - truth / truth.sum())
    return float((surplus * _best_heights(surplus)).sum()) / UNITS / side


def round_masses(difference: NDArray[np.float64]) -> NDArray[np.int64]:
    """Masses that sum to 0 as integers, in units of 2^-40, that sum to 0 exactly: float64[side, side] to int64.

    Sums along a snake through the grid are rounded, so each differs from the true one by half a unit. To undo that
    moves at most half a unit along each of side^2 - 1 steps of length 1 / side: less than side / 2 units in all.
    """
    snake = difference * UNITS
    snake[1::2] = snake[1::2, ::-1]
    floors = np.floor(snake).ravel()
    sums = np.rint(np.cumsum(snake.ravel() - floors))
    sums[-1] = -floors.sum()
    units = (floors + np.diff(sums, prepend=0)).astype(np.int64).reshape(difference.shape)
    units[1::2] = units[1::2, ::-1]
    return units


def _best_heights(surplus: NDArray[np.int64]) -> NDArray[np.int64]:
    """The heights of the largest sum of surplus times height, from the coarsest grid to the finest."""
    grids = [surplus]
    while len(grids[-1]) > 1:
        half = len(grids[-1]) // 2
        grids.append(grids[-1].reshape(half, 2, half, 2).sum(axis=(1, 3)))
    heights = np.zeros((1, 1), dtype=np.int64)
    for grid in grids[-2::-1]:
        heights = _refined(heights)
        while (raised := _best_set(grid, heights)) is not None:
            heights += raised
    return heights


def _refined(heights: NDArray[np.int64]) -> NDArray[np.int64]:
    """Heights on a grid twice as fine: twice the bilinear interpolation, rounded down.

    Neighbours still differ by at most 1: slopes halve as steps do, and rounding down keeps a difference within 1.
    """
    for _ in range(2):
        before, after = np.concatenate([heights[:1], heights[:-1]]), np.concatenate([heights[1:], heights[-1:]])
        fine = np.stack([3 * heights + before, 3 * heights + after], axis=1)
        heights = fine.reshape(2 * len(heights), -1).T
    return heights >> 3  # both axes have multiplied by 4; twice the height is left


def _best_set(surplus: NDArray[np.int64], heights: NDArray[np.int64]) -> NDArray[np.bool_] | None:
    """The cells bool[side, side] to raise by 1 for the largest gain, or None where nothing gains.

    A cell that is already 1 above a neighbour can only be raised with it. The best such set is a minimum cut between a
    source that feeds surpluses and a sink that drains deficits (Picard 1976).
    """
    from ortools.graph.python import max_flow

    cells, source, sink = surplus.size, surplus.size, surplus.size + 1
    mass = surplus.ravel()
    givers, takers = np.flatnonzero(mass > 0), np.flatnonzero(mass < 0)
    total = int(mass[givers].sum())
    high, low = _downhill(heights)
    solver = max_flow.SimpleMaxFlow()
    solver.add_arcs_with_capacity(np.full(len(givers), source), givers, mass[givers])
    solver.add_arcs_with_capacity(takers, np.full(len(takers), sink), -mass[takers])
    solver.add_arcs_with_capacity(high, low, np.full(len(high), total))
    if (status := solver.solve(source, sink)) != solver.OPTIMAL:
        raise RuntimeError(f"the maximum flow was not found: {status}")
    if solver.optimal_flow() == total:
        return None
    raised = np.zeros(cells + 2, dtype=np.bool_)
    raised[solver.get_source_side_min_cut()] = True
    return raised[:cells].reshape(surplus.shape)


def _downhill(heights: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Every step between neighbours that leads down by 1: (cells from, cells to), numbered row by row."""
    cells = np.arange(heights.size).reshape(heights.shape)
    high, low = [], []
    for number, height in ((cells, heights), (cells.T, heights.T)):
        drop = height[:-1] - height[1:]
        high += [number[:-1][drop == 1], number[1:][drop == -1]]
        low += [number[1:][drop == 1], number[:-1][drop == -1]]
    return np.concatenate(high), np.concatenate(low)
