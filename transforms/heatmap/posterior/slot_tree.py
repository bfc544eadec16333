"""The tree of the sub-query that counts by slot: as fine as profiles over the slots can be seen. Pure."""

from __future__ import annotations

import numpy as np

from sfumato.schemas.tree import Tree
from sfumato.transforms.heatmap.posterior.estimator import posterior_of
from sfumato.transforms.heatmap.posterior.full_tree import FullTree, children_of
from sfumato.transforms.heatmap.state import HeatmapState

SPLIT_SNR = 32.0  # users of a node that is split, in deviations of one slot's noise times the root of the slots


def slot_tree(state: HeatmapState, stddev: float, max_entries: int) -> Tree:
    """The full tree whose inner nodes have SPLIT_SNR times the noise of a profile, by the posterior of all slots.

    It has nodes of the earlier sub-queries' trees alone, so a cell of the map is never coarser than its node here.

    Args:
        state: with the results without slots.
        stddev: of the noise of one slot's count, in users.
        max_entries: of the vector, over all slots.
    """
    posterior = posterior_of(state)
    full, threshold = posterior.full, SPLIT_SNR * stddev * state.slots**0.5
    while True:
        codes = [full.codes[0]]
        for level in range(len(full.codes) - 1):
            place = np.searchsorted(full.codes[level], codes[level])
            split = ~full.leaves[level][place] & (posterior.users[level][place] > threshold)
            if not split.any():
                break
            codes.append(children_of(codes[level][split]))
        tree = FullTree(full.depth, tuple(codes)).tree
        if len(tree.entries) * state.slots <= max_entries:
            return tree
        threshold *= 1.25
