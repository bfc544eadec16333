"""Spatial decomposition (Cormode et al. 2012): all levels at geometric budgets, and their least-squares tree."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from benchmarks.baselines.heatmap_methods.pyramid import BEST, LEVELS, Pyramid
from sfumato.schemas.errors import RequestError
from sfumato.transforms.counting.state import CountState, Estimate


@dataclass(frozen=True)
class SpatialDecomposition(Pyramid):
    """budget_doubling: epsilon doubles every so many levels towards the leaves; below 0 towards the root.

    3 is the geometric budget of Cormode et al., 2^(i/3) for level i. Paper 000 names it, but says that "higher levels"
    get more (Section 6.2). That is -3, and the better choice for a single level of an even map.
    """

    NAME: ClassVar[str] = "spatial_decomposition"
    SENTENCE: ClassVar[str] = (
        f"{LEVELS} Then all levels are made to agree: every cell holds the sum of the four inside it, and the surer a "
        f"count, the more it weighs. {BEST}"
    )

    budget_doubling: float = 3.0

    def __post_init__(self) -> None:
        if not 0.5 <= abs(self.budget_doubling) < math.inf:
            raise RequestError(f"budget_doubling: must be a number >= 0.5 or <= -0.5, got {self.budget_doubling}")

    def weights(self, depth: int) -> NDArray[np.float64]:
        return np.asarray(2.0 ** (np.arange(depth) / self.budget_doubling))

    def candidates(self, state: CountState, depth: int) -> list[Estimate]:
        """See Pyramid.candidates: the levels of the consistent tree."""
        raw = super().candidates(state, depth)
        levels = consistent_levels([(one.counts, float(one.stddev[0]) ** 2) for one in raw])
        return [
            Estimate(one.tree, counts, np.full(len(counts), variance**0.5))
            for one, (counts, variance) in zip(raw, levels, strict=True)
        ]

    def independent(self, state: CountState, levels: list[Estimate]) -> list[Estimate]:
        """See Pyramid.independent: the noisy counts. A consistent cell has a part of its children's noise."""
        return super().candidates(state, len(levels))


def consistent_levels(
    levels: list[tuple[NDArray[np.float64], float]],
) -> list[tuple[NDArray[np.float64], float]]:
    """The best linear unbiased estimates of all levels of complete quadtrees from noisy counts of all of them.

    Args:
        levels: (counts float64[4 n], variance of each), from the top level to the finest, children side by side.

    Returns:
        The same of the estimates. Each node is the sum of its children.

    Source: Cormode et al. 2012, Section 5, for a variance that is any function of the level. O(nodes).
    """
    # Upwards: a node's own count and the sum of its children's, weighted by inverse variance.
    counts, variance = levels[-1]
    below = [(counts, variance)]
    for own, own_variance in reversed(levels[:-1]):
        weight = 4 * variance / (own_variance + 4 * variance)
        counts, variance = weight * own + (1 - weight) * counts.reshape(-1, 4).sum(axis=1), weight * own_variance
        below.append((counts, variance))
    # Downwards: siblings share the correction of their sum equally. Their differences from their mean are uncorrelated
    # with their sum, so the variances of the two parts add up.
    best = [below.pop()]
    while below:
        parents, parent_variance = best[-1]
        children, variance = below.pop()
        groups = children.reshape(-1, 4)
        groups = groups + (parents - groups.sum(axis=1))[:, None] / 4
        best.append((groups.ravel(), variance * 3 / 4 + parent_variance / 16))
    return best
