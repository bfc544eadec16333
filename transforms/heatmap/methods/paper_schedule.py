"""Algorithm 2 of paper 000 as it stands: a tree one level finer at a time, its noise by Eqs. 5 to 9."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from sfumato.schemas.tree import Tree
from sfumato.transforms.heatmap.methods.trees import total_of, tree_of
from sfumato.transforms.heatmap.rates import split_by_interval
from sfumato.transforms.heatmap.state import EVERYTHING, HeatmapState, Question
from sfumato.transforms.privacy.mechanism import epsilon_for_stddev
from sfumato.transforms.secagg.encodings import TreeEncoding

if TYPE_CHECKING:
    from sfumato.transforms.heatmap.methods.adaptive import Adaptive

_COLLAPSE_SHARE = 0.25  # a node at a quarter of the splitting threshold is collapsed (Algorithm 2, line 24)

# How Eq. 7 is read: c U / T in standard deviations, and whether it is shared out over the sums that carry noise.
TARGETS = {"corrected": (2.0, True), "literal_factor": (2.0, False), "printed": (1.0, False)}


def ask(method: Adaptive, state: HeatmapState, depth: int) -> Question | None:
    """What to ask next; None when all is asked."""
    if not state.answers:
        first = state.prior.tree if state.prior is not None else Tree.uniform(depth, method.start_level)
        return _question(method, state, first, final=False)
    if state.budget.remaining <= 0:
        return None
    stddev, last = state.noise_stddev(state.budget.remaining), total_of(state.answers[-1])
    threshold = method.split_count or method.split_threshold * math.sqrt(state.categories) * stddev
    trees = [tree_of(answer) for answer in state.answers]
    if method.refine == "interval":
        nodes = split_by_interval(last, stddev, method.interval_width, state.noisy_sums, threshold)
        tree = last.tree.refine(*nodes)
    else:
        tree = update_tree(last.tree, last.counts, threshold)
    # A tree that has been asked before will not get finer: the rest of the budget buys its counts.
    return _question(method, state, tree, final=tree in trees)


def _question(method: Adaptive, state: HeatmapState, tree: Tree, *, final: bool) -> Question:
    encoding, budget = TreeEncoding(tree, state.categories), state.budget
    if method.sub_query_share is None:
        target = target_epsilon(state, encoding.length, method.calibration, method.target)
        enough = method.expansion * target <= budget.remaining  # Eq. 9
    else:
        target = method.sub_query_share * budget.total
        enough = target < budget.remaining
    final = final or not enough or len(state.answers) + 1 == method.max_sub_queries
    return Question(encoding, EVERYTHING if final else target)


def target_epsilon(state: HeatmapState, length: int, calibration: float, target: str = "corrected") -> float:
    """The epsilon at which the aggregated noise of `length` entries is c U / T (Eqs. 7 and 8).

    Errata: c U / T is two standard deviations (only so do the paper's vector length 340 and last epsilon 0.76 come
    out), and the printed factor sqrt(ceil(S / U)), which is 1 from U = S on, should divide the target by
    sqrt(ceil(U / S)). `corrected` does both; `literal_factor` takes the printed factor, so that every shard's noise is
    what the sum's should be; `printed` takes c U / T for one standard deviation as well.
    """
    deviations, noisy_sums = TARGETS[target]
    stddev = calibration * state.cohort.users / length / deviations
    shard_stddev = stddev * state.unit / math.sqrt(state.noisy_sums if noisy_sums else 1)
    return epsilon_for_stddev(shard_stddev, state.sensitivity(length))


def update_tree(tree: Tree, counts: NDArray[np.float64], threshold: float) -> Tree:
    """Splits what exceeds the threshold, in users, and collapses what is below a quarter of it (Eq. 6)."""
    split = tree.entries[counts > threshold]
    collapse = tree.entries[counts <= _COLLAPSE_SHARE * threshold]
    return tree.refine(split, collapse)
