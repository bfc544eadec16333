"""Sparse aggregation under the earth mover's distance by a trusted curator, as in paper 001. A baseline of `Emd`."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from sfumato.schemas.errors import RequestError
from sfumato.schemas.tree import node_positions
from sfumato.transforms.counting.estimator import density
from sfumato.transforms.counting.methods.emd import Cells, Emd, kept_tree
from sfumato.transforms.privacy.budget import Budget


def emd_aggregate(
    sums: NDArray[np.float64], epsilon: float, method: Emd, noise: Callable[[float, int], NDArray[np.float64]]
) -> NDArray[np.float64]:
    """DPSPARSEEMDAGG of the paper, with a trusted curator that holds the exact sums. Measures only cells that are read.

    Args:
        sums: of the users' distributions, float64[side, side], side a power of two, row 0 in the north.
        epsilon: of the whole map.
        method: the options.
        noise: (scale, n) -> n Laplace variates of that scale.

    Returns:
        The density, of the shape of `sums`.

    Raises:
        RequestError: another shape, or a bad epsilon.
    """
    pyramid = _pyramid(sums)
    depth = len(pyramid) - 1
    budget, measured = Budget(epsilon), list[Cells]()
    for done in range(method.most_sub_queries(depth)):
        nodes = method.next_cells(measured, depth)
        spent = budget.affordable(method.share_of_rest(done, depth) * budget.remaining)
        budget = budget.charge(spent)
        measured.append(_measured(pyramid, nodes, spent, noise))
    kept, masses = method.solve(measured)
    return density(kept_tree(depth, [cells.nodes for cells in kept]), masses.counts)


def analysed_aggregate(
    sums: NDArray[np.float64], epsilon: float, method: Emd, noise: Callable[[float, int], NDArray[np.float64]]
) -> NDArray[np.float64]:
    """The same as analysed in the paper's Section 3: the levels above q are measured too, with weights of their own.

    Level i of 0..l costs g^|i - q| / Z of epsilon; the proof takes g = 0.8 (`emd_decay`). The experiments of Section 4
    start at level q. For arguments and result see `emd_aggregate`.
    """
    pyramid = _pyramid(sums)
    depth = len(pyramid) - 1
    shares = method.emd_decay ** np.abs(np.arange(depth + 1.0) - method.first_level(depth))
    measured = list[Cells]()
    for spent in (epsilon * shares / shares.sum()).tolist():
        nodes = method.next_cells(measured, depth) if measured else np.ones(1, np.uint64)
        measured.append(_measured(pyramid, nodes, spent, noise))
    kept, masses = method.solve(measured)
    return density(kept_tree(depth, [cells.nodes for cells in kept]), masses.counts)


def _pyramid(sums: NDArray[np.float64]) -> list[NDArray[np.float64]]:
    """The sums of the cells of every level, from the finest to the root. Raises RequestError for another shape."""
    depth = max(len(sums), 1).bit_length() - 1
    if sums.shape != (1 << depth, 1 << depth):
        raise RequestError(f"sums: must be a square grid whose side is a power of two, got {sums.shape}")
    pyramid = [sums]
    while len(pyramid[-1]) > 1:
        rows = pyramid[-1][0::2] + pyramid[-1][1::2]
        pyramid.append(rows[:, 0::2] + rows[:, 1::2])
    return pyramid


def _measured(
    pyramid: list[NDArray[np.float64]],
    nodes: NDArray[np.uint64],
    epsilon: float,
    noise: Callable[[float, int], NDArray[np.float64]],
) -> Cells:
    """Noisy counts of nodes of one level."""
    level, x, y = node_positions(nodes)
    return Cells(nodes, pyramid[len(pyramid) - 1 - level[0]][y, x] + noise(1 / epsilon, len(nodes)))
