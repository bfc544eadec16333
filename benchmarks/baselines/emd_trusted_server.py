"""Sparse aggregation under the earth mover's distance by a trusted curator, as in paper 001. A baseline of `Emd`."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from sfumato.schemas.errors import RequestError
from sfumato.schemas.tree import node_positions
from sfumato.transforms.heatmap.methods.emd import Emd, kept_tree
from sfumato.transforms.heatmap.methods.emd_program import Cells
from sfumato.transforms.heatmap.raster import density
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
    depth = max(len(sums), 1).bit_length() - 1
    if sums.shape != (1 << depth, 1 << depth):
        raise RequestError(f"sums: must be a square grid whose side is a power of two, got {sums.shape}")
    pyramid = [sums]
    while len(pyramid[-1]) > 1:
        rows = pyramid[-1][0::2] + pyramid[-1][1::2]
        pyramid.append(rows[:, 0::2] + rows[:, 1::2])
    budget, measured = Budget(epsilon), list[Cells]()
    for done in range(method.max_rounds(depth)):
        nodes = method.next_cells(measured, depth)
        spent = budget.affordable(method.share_of_rest(done, depth) * budget.remaining)
        budget = budget.charge(spent)
        level, x, y = node_positions(nodes)
        measured.append(Cells(nodes, pyramid[depth - level[0]][y, x] + noise(1 / spent, len(nodes))))
    kept, masses = method.solve(measured)
    return density(kept_tree(depth, [cells.nodes for cells in kept]), masses.counts)
