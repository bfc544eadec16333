"""Algorithm 2 of paper 000 as published: a tree one level finer in each sub-query, its noise by Eqs. 5 to 9.

Source: Bagdasaryan et al. (2022), Towards sparse federated analytics: location heatmaps under distributed differential
privacy with secure aggregation. Its symbols: U users of the cohort, S clients of a shard, T entries of the tree; for k,
c and b of Eqs. 6, 7 and 9 see `Adaptive`.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from sfumato.schemas.tree import Tree
from sfumato.transforms.heatmap.rates import split_by_interval
from sfumato.transforms.heatmap.state import ALL_REMAINING, HeatmapState, Query
from sfumato.transforms.secagg.encodings import TreeEncoding

if TYPE_CHECKING:
    from sfumato.transforms.heatmap.methods.adaptive import Adaptive

_COLLAPSE_SHARE = 0.25  # a node at a quarter of the splitting threshold is collapsed (Algorithm 2, line 24)


class _Reading(NamedTuple):
    """A reading of Eq. 7, whose target is c U / T.

    Attributes:
        deviations: how many standard deviations of the aggregated noise c U / T is.
        divides: whether the variance is divided among the sums that carry noise.
    """

    deviations: float
    divides: bool


Target = Literal["corrected", "literal_factor", "printed"]
_TARGETS: dict[Target, _Reading] = {
    "corrected": _Reading(2.0, True),
    "literal_factor": _Reading(2.0, False),
    "printed": _Reading(1.0, False),
}


@dataclass(frozen=True)
class PaperSchedule:
    """The paper's sub-queries, and the ablations of its Table 3, by the options of the method adaptive."""

    options: Adaptive

    def max_rounds(self, depth: int) -> int:
        """The most sub-queries."""
        return self.options.max_sub_queries

    def next_query(self, state: HeatmapState, depth: int) -> Query | None:
        """The next sub-query; None when the run is complete."""
        if not state.results:
            first = state.prior.tree if state.prior is not None else Tree.uniform(depth, self.options.start_level)
            return self._query(state, first, is_last=False)
        if state.budget.remaining <= 0:
            return None
        stddev, last = state.noise_stddev(state.budget.remaining), state.results[-1].to_estimate()
        # Eq. 6 by the least noise that the next sub-query can have. Its own epsilon follows from its tree, and so is
        # not known yet. Algorithm 2, line 17, passes the last sub-query's target instead, which contradicts Eq. 6.
        by_noise = self.options.split_threshold * math.sqrt(state.categories) * stddev
        threshold = by_noise if self.options.split_count is None else self.options.split_count
        if (width := self.options.rate_width) is not None:
            tree = last.tree.refine(*split_by_interval(last, stddev, width, state.tail_sums, threshold))
        else:
            tree = update_tree(last.tree, last.counts, threshold)
        # A tree that was queried before does not get finer. The rest of the budget improves its counts.
        return self._query(state, tree, is_last=tree in [result.tree for result in state.results])

    def _query(self, state: HeatmapState, tree: Tree, *, is_last: bool) -> Query:
        encoding, budget = TreeEncoding(tree, state.categories), state.budget
        if self.options.sub_query_share is None:
            epsilon = target_epsilon(state, encoding.length, self.options.calibration, self.options.target)
            leaves_enough = self.options.expansion * epsilon <= budget.remaining  # Eq. 9
        else:
            epsilon = self.options.sub_query_share * budget.total
            leaves_enough = epsilon < budget.remaining  # the schedule adds a residual budget to the last sub-query
        is_last = is_last or not leaves_enough or len(state.results) + 1 == self.options.max_sub_queries
        return Query(encoding, ALL_REMAINING if is_last else epsilon)


def target_epsilon(state: HeatmapState, length: int, calibration: float, target: Target = "corrected") -> float:
    """The epsilon at which the aggregated noise of T = `length` entries is c U / T (Eqs. 7 and 8).

    Errata: c U / T is two standard deviations, and the printed factor sqrt(ceil(S / U)), which is 1 from U = S on,
    should divide the target by sqrt(ceil(U / S)). The authors' code has both: it calls
    `get_eps_from_two_std(c * sqrt(S / U) * U / T)` (google-research/federated, analytics/location_heatmaps).
    `corrected` does both. `literal_factor` takes the printed factor, so that every shard has the noise that the sum
    should have. `printed` also takes c U / T for one standard deviation.
    """
    reading = _TARGETS[target]
    stddev = calibration * state.cohort.users / length / reading.deviations
    # A user's weights sum to gamma, so the noise of a shard is drawn in units of 1 / gamma users.
    sums = state.noisy_sums if reading.divides else 1
    shard_stddev = stddev * state.gamma / math.sqrt(sums * state.cohort.noise_shape)
    return state.noise.cost(shard_stddev, state.sensitivity(length))


def update_tree(tree: Tree, counts: NDArray[np.float64], threshold: float) -> Tree:
    """Splits nodes above the threshold, in users, and collapses those at or below a quarter of it (Eq. 6)."""
    split = tree.entries[counts > threshold]
    collapse = tree.entries[counts <= _COLLAPSE_SHARE * threshold]
    return tree.refine(split, collapse)
