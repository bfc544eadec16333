"""A distribution from a hierarchy of noisy counts: constrained inference over a tree of bins. Pure.

Every level counts all users by bins of one width and adds discrete Laplace noise once (Hay, Rastogi, Miklau and Suciu,
PVLDB 2010). A user is in one bin of each level, so L levels cost epsilon / L each under adding or removing one user.
The weighted least squares estimate agrees on all levels, see `statistics/tree_least_squares.py`.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import scipy
from numpy.typing import NDArray

from sfumato.schemas.charts import Curve, RangeAnswer
from sfumato.transforms.histogram.curve import DEVIATIONS, banded
from sfumato.transforms.histogram.number_bins import NumberBins
from sfumato.transforms.privacy.keys import RunKey
from sfumato.transforms.privacy.mechanism import discrete_laplace_stddev
from sfumato.transforms.privacy.noise import discrete_laplace
from sfumato.transforms.quantiles.exponential_draw import SpreadUsers
from sfumato.transforms.statistics.tree_least_squares import NoisyLevel, fit_counts, upward_variances

Array = NDArray[np.float64]

_PLACES = 1009  # a prime: they are at all distances from the borders of coarse bins
MAX_BITS = 20  # the tree holds every bin


@dataclass(frozen=True)
class HierarchyNoise:
    """The noise of a hierarchy, from public figures alone.

    Attributes:
        bits: the finest level has 2^bits bins.
        levels: bits of each level, ascending; the last is `bits`.
        epsilon: of all levels together.
    """

    bits: int
    levels: tuple[int, ...]
    epsilon: float

    @property
    def level_epsilon(self) -> float:
        """The epsilon of each level."""
        return self.epsilon / len(self.levels)

    @property
    def _fan_outs(self) -> list[int]:
        return [1 << (low - high) for high, low in itertools.pairwise((0, *self.levels))]

    @property
    def variances(self) -> list[float]:
        """Of the upward estimate of a node of each level, in users^2."""
        return upward_variances([self.own_variance] * len(self.levels), self._fan_outs[:0:-1])[::-1]

    @property
    def own_variance(self) -> float:
        """Of each noisy count, in users^2."""
        return discrete_laplace_stddev(self.level_epsilon) ** 2

    def covariance(self, low: Array, high: Array) -> Array:
        """Of the estimated users below two values, in users^2.

        The total has the variance of all nodes of the first level. A node's total is independent of how its children
        divide it, so each node above both values adds a term of its own.

        Args:
            low: float64[n], values in finest bins, 0..2^bits.
            high: float64[n], values of at least `low`.
        """
        size = float(1 << self.bits)
        found = low * high / size**2 * self._fan_outs[0] * self.variances[0]
        for fan_out, variance in zip(self._fan_outs, self.variances, strict=True):
            if size == 1 << self.bits:
                (inside, above), same = (low / size, high / size), np.ones(np.shape(low), bool)
            else:
                (inside, above), same = (low / size % 1, high / size % 1), low // size == high // size
            (child, part), (child_above, part_above) = np.divmod(inside * fan_out, 1), np.divmod(above * fan_out, 1)
            both = child + np.where(child == child_above, part * part_above, part)
            found = found + np.where(same, variance * (both - fan_out * inside * above), 0.0)
            size /= fan_out
        return found

    def rank_stddev(self, share: float) -> float:
        """Root mean square error of a quantile's rank, in users, over places of the quantile all over the range."""
        place = np.linspace(0, 1 << self.bits, _PLACES, endpoint=False)
        end = np.full(_PLACES, float(1 << self.bits))
        variance = (
            self.covariance(place, place)
            - 2 * share * self.covariance(place, end)
            + share**2 * self.covariance(end, end)
        )
        return float(np.sqrt(variance.mean()))


@dataclass(frozen=True, eq=False)
class NoisyHierarchy:
    """A distribution over a range, uniform within each bin.

    Attributes:
        noise: of its counts.
        below: float64[2^bits + 1], estimated users below each border, ascending from 0.
        scale: the bins.
    """

    noise: HierarchyNoise
    below: Array
    scale: NumberBins

    @property
    def users(self) -> float:
        """Estimated users in the whole range."""
        return float(self.below[-1])

    def curve(self, bits: int) -> Curve:
        """The distribution function at the borders of 2^bits bins, with its 95% band. It needs users above 0."""
        last = 1 << self.noise.bits
        at = np.arange(0, last + 1, last >> bits)
        share, place, end = self.below[at] / self.users, at.astype(float), np.full(len(at), float(last))
        covariance = self.noise.covariance
        variance = covariance(place, place) - 2 * share * covariance(place, end) + share**2 * covariance(end, end)
        margin = DEVIATIONS * np.sqrt(np.maximum(variance, 0)) / self.users
        return banded(self.scale.at(at), share, share - margin, share + margin)

    def answer(self, low: float, high: float) -> RangeAnswer:
        """Returns the estimated users with values in [low, high); parts of a bin count in proportion.

        The interval holds all of the users of a bin that an end cuts, because they may have one value. The bins of a
        release are not cut: its ranges' ends are edges of the scale.
        """
        last = 1 << self.noise.bits
        ends = self.scale.place(np.array([low, high]))
        before, after = np.interp(ends, np.arange(last + 1), self.below)
        covariance = self.noise.covariance(ends[[0, 1, 0]], ends[[0, 1, 1]])
        stddev = float(np.sqrt(max(covariance[0] + covariance[1] - 2 * covariance[2], 0.0)))
        users, margin = float(after - before), DEVIATIONS * stddev
        inner = self.below[np.floor(ends[1]).astype(int)] - self.below[np.ceil(ends[0]).astype(int)]
        outer = self.below[np.ceil(ends[1]).astype(int)] - self.below[np.floor(ends[0]).astype(int)]
        least, most = max(float(inner) - margin, 0.0), float(outer) + margin
        return RangeAnswer(low, high, users, stddev, least, most)


def measure_hierarchy(users: SpreadUsers, noise: HierarchyNoise, key: RunKey) -> list[NDArray[np.int64]]:
    """The noisy counts of every level, int64[2^level] each. Each level draws its noise once."""
    leaves = np.zeros(1 << noise.bits, np.int64)
    leaves[users.bins] = users.counts
    noisy = []
    for level in noise.levels:
        stream = np.array([level], dtype=np.uint64)
        drawn = discrete_laplace(key, "quantile hierarchy", stream, 1 << level, noise.level_epsilon)[0]
        noisy.append(leaves.reshape(1 << level, -1).sum(axis=1) + drawn)
    return noisy


def fit_hierarchy(noisy: Sequence[NDArray[np.int64]], noise: HierarchyNoise, scale: NumberBins) -> NoisyHierarchy:
    """The least squares estimate from the noisy counts of `measure_hierarchy`, made to ascend from 0."""
    levels = [NoisyLevel(counts[None].astype(np.float64), noise.own_variance) for counts in reversed(noisy)]
    pairs = itertools.pairwise(reversed(noise.levels))
    parents = [np.arange(1 << finer) >> (finer - coarser) for finer, coarser in pairs]
    (nodes,) = fit_counts(levels, parents)[0]
    cumulative = np.append(0.0, np.cumsum(nodes))
    ascending = scipy.optimize.isotonic_regression(cumulative).x
    total = max(float(cumulative[-1]), 0.0)
    return NoisyHierarchy(noise, np.append(np.append(0.0, np.clip(ascending[1:-1], 0, total)), total), scale)
