"""The base of methods that query every level of the quadtree and publish one of them."""

from __future__ import annotations

from abc import abstractmethod

import numpy as np
from numpy.typing import NDArray

from sfumato.schemas.errors import RequestError
from sfumato.schemas.tree import Tree
from sfumato.transforms.heatmap.methods.base import MIN_LEVEL_SHARE, Method, check_uniform
from sfumato.transforms.heatmap.state import Estimate, HeatmapState, Query
from sfumato.transforms.secagg.encodings import Encoding, TreeEncoding


class Pyramid(Method):
    """One sub-query for each level 1..depth. The map is that of the level with the smallest estimated error.

    The paper chooses the level by the truth (Section 6.2: "the split that achieves the lowest MSE compared to the
    ground truth"). Only an evaluation can do that: `candidates` lists the levels' maps for it.
    """

    @abstractmethod
    def weights(self, depth: int) -> NDArray[np.float64]:
        """Each level's part of the budget, in proportion: float64[depth], level 1 first."""

    def encoding(self, depth: int, level: int) -> Encoding:
        """How clients encode a level: one entry for each cell."""
        return TreeEncoding(Tree.uniform(depth, level))

    def candidates(self, state: HeatmapState, depth: int) -> list[Estimate]:
        """The map of each level 1..depth, level 1 first: here the noisy counts themselves."""
        return [result.to_estimate() for result in state.results]

    def check(self, depth: int) -> None:
        check_uniform(self.NAME, "depth", depth)
        weights = self.weights(depth)
        if (share := weights.min() / weights.sum()) < MIN_LEVEL_SHARE:
            raise RequestError(
                f"depth: one of {depth} levels would get {share:.1g} of epsilon, less than {MIN_LEVEL_SHARE:g}; give a "
                "smaller depth or more even shares"
            )

    def max_rounds(self, depth: int) -> int:
        return depth

    def next_query(self, state: HeatmapState, depth: int) -> Query | None:
        """See Method.next_query. The levels share the budget that remains; the last spends all of it."""
        done = len(state.results)
        if done == depth:
            return None
        weights = self.weights(depth)[done:]
        share = 1.0 if len(weights) == 1 else float(weights[0] / weights.sum())
        return Query(self.encoding(depth, done + 1), share * state.budget.remaining)

    def decode(self, state: HeatmapState, depth: int) -> Estimate:
        """See Method.decode: the candidate of the chosen level."""
        candidates = self.candidates(state, depth)
        return candidates[self.choose(state, candidates)]

    def choose(self, state: HeatmapState, candidates: list[Estimate]) -> int:
        """The index of the candidate with the smallest estimated risk, from noisy counts alone."""
        cohort = state.cohort
        return int(np.argmin([estimated_risk(one, cohort.users, cohort.sampling_rate) for one in candidates]))


def estimated_risk(estimate: Estimate, users: float, sampling_rate: float) -> float:
    """The mean squared error of a level's density, less a constant of all levels: Mallows' C_p.

    A level has T cells c of area A each, N = A T being the finest cells, and counts y_c of mean U p_c and variance
    v_c, with U the users and p_c the truth's share of the cell. Its density is y_c / (U A) on each finest cell, its
    truth f_l is p_c / A, and f_l is the projection of the truth f: |f - f_l|^2 = |f|^2 - |f_l|^2. So

        E|y / (U A) - f|^2 = V + |f|^2 - |f_l|^2    and    E|y / (U A)|^2 = V + |f_l|^2,    V = sum_c v_c / (U^2 A),

    give an unbiased estimate of the error over N, less |f|^2 / N:

        R = (2 sum_c v_c - sum_c y_c^2) / (U^2 A N).

    v_c is the variance of the noise and of the sample. Each user is drawn with probability r from the population, which
    adds U p_c (1 - r), in all U (1 - r). This is an upper bound where users give distributions. `raster.density` then
    cuts at 0 and normalises, which is left out here. It reduces the error only of levels that are mostly noise. Their R
    is far above the smallest one anyway, and Stein's estimate with the cut has so large a variance that it picks them.
    """
    finest = 4.0**estimate.tree.depth
    variance = np.sum(estimate.stddev**2) + users * (1 - sampling_rate)
    return float(2 * variance - np.sum(estimate.counts**2)) * len(estimate.counts) / (users * finest) ** 2
