"""The adaptive hierarchical histogram (paper 000, Algorithm 2): a quadtree refined where noise allows."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from sfumato.schemas.errors import RequestError
from sfumato.schemas.tree import Tree
from sfumato.transforms.heatmap.checks import check_between, check_whole, check_within, option
from sfumato.transforms.heatmap.methods.base import Method
from sfumato.transforms.heatmap.methods.trees import last_answer, tree_of
from sfumato.transforms.heatmap.state import EVERYTHING, Estimate, HeatmapState, Question
from sfumato.transforms.privacy.mechanism import epsilon_for_stddev
from sfumato.transforms.secagg.encodings import TreeEncoding

_COLLAPSE_SHARE = 0.25  # a node at a quarter of the splitting threshold is collapsed (Algorithm 2, line 24)

# How Eq. 7 is read: c U / T in standard deviations, and whether it is shared out over the sums that carry noise.
TARGETS = {"corrected": (2.0, True), "literal_factor": (2.0, False), "printed": (1.0, False)}


@dataclass(frozen=True)
class Adaptive(Method):
    """calibration: c of Eq. 7; expansion: b of Eq. 9; split_threshold: k of Eq. 6.

    target says how Eq. 7 is read (see `target_epsilon`). split_count and sub_query_share take the place of Eq. 6's
    threshold and of Eqs. 7 to 9: the ablations of the paper's Table 3.
    """

    NAME: ClassVar[str] = "adaptive"
    TEXT: ClassVar[str] = "a quadtree refined sub-query by sub-query (Bagdasaryan et al.)"

    calibration: float = option(0.1, "c: noise aimed at, as a share of the users an entry has on average")
    expansion: float = option(2.0, "b: a sub-query leaves at least (b - 1) times its own epsilon, or takes all")
    split_threshold: float = option(2.0, "k: a node is split above k standard deviations of the noise to come")
    target: str = option("corrected", f"how the paper's Eq. 7 is read: {', '.join(TARGETS)}")
    split_count: float | None = option(None, "split a node above so many users, whatever the noise; default: by k")
    sub_query_share: float | None = option(None, "spend this share of epsilon on every sub-query; default: by c and b")
    start_level: int = option(1, "level of the uniform tree that is asked first")
    max_sub_queries: int = option(10, "at most so many sub-queries; the last spends what is left")

    def __post_init__(self) -> None:
        check_between("calibration", self.calibration, 0, 100)
        check_within("expansion", self.expansion, 1, 1000)
        check_between("split_threshold", self.split_threshold, 0, 1000)
        check_whole("max_sub_queries", self.max_sub_queries, 1, 40)
        if self.target not in TARGETS:
            raise RequestError(f"target: must be one of {', '.join(TARGETS)}, got {self.target!r}")
        if self.split_count is not None:
            check_between("split_count", self.split_count, 0, 1e12)
        if self.sub_query_share is not None:
            check_within("sub_query_share", self.sub_query_share, 0.01, 1)

    def check(self, depth: int) -> None:
        """See Method.check."""
        check_whole("start_level", self.start_level, 0, min(depth, 8))

    def rounds(self, depth: int) -> int:
        """See Method.rounds."""
        return self.max_sub_queries

    def encode(self, state: HeatmapState, depth: int) -> Question | None:
        """See Method.encode: Eqs. 6 to 9."""
        if not state.answers:
            return self._ask(state, Tree.uniform(depth, self.start_level), final=False)
        if state.budget.remaining <= 0:
            return None
        threshold = self.split_count or self.split_threshold * state.noise_stddev(state.budget.remaining)
        trees = [tree_of(answer) for answer in state.answers]
        tree = update_tree(trees[-1], state.answers[-1].counts, threshold)
        # A tree that has been asked before will not get finer: the rest of the budget buys its counts.
        return self._ask(state, tree, final=tree in trees)

    def decode(self, state: HeatmapState, depth: int) -> Estimate:
        """See Method.decode: the last answer alone."""
        return last_answer(state)

    def _ask(self, state: HeatmapState, tree: Tree, *, final: bool) -> Question:
        encoding, budget = TreeEncoding(tree), state.budget
        if self.sub_query_share is None:
            target = target_epsilon(state, encoding.length, self.calibration, self.target)
            enough = self.expansion * target <= budget.remaining  # Eq. 9
        else:
            target = self.sub_query_share * budget.total
            enough = target < budget.remaining
        final = final or not enough or len(state.answers) + 1 == self.max_sub_queries
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
    return epsilon_for_stddev(stddev * state.unit / math.sqrt(state.noisy_sums if noisy_sums else 1), state.unit)


def update_tree(tree: Tree, counts: NDArray[np.float64], threshold: float) -> Tree:
    """Splits what exceeds the threshold, in users, and collapses what is below a quarter of it (Eq. 6)."""
    split = tree.entries[counts > threshold]
    collapse = tree.entries[counts <= _COLLAPSE_SHARE * threshold]
    return tree.refine(split, collapse)
