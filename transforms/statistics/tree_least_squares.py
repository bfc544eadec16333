"""Least squares on a forest of noisy counts, each parent the sum of its children. Pure.

Level l of the forest has noisy counts y with variance s_l^2, or none. The estimate is the weighted least squares fit
under the constraint that each node is the sum of its children: the best linear unbiased one (Hay, Rastogi, Miklau,
Suciu, "Boosting the accuracy of differentially private histograms through consistency", PVLDB 3, 2010, Theorem 3, here
with a variance of its own for each level and any number of children).

Upward: with z_c and variances U_c of the children and S = sum of U_c, a node's own count and its children's sum give

    z = a y + (1 - a) sum z_c,    a = S / (S + s^2),    U = a^2 s^2 + (1 - a)^2 S.

Downward: the difference of the node's final estimate x and the sum of z_c is spread over the children by variance,

    x_c = z_c + (U_c / S) (x - sum z_c).

Errors. x = g z + (what is independent of z), with g = 1 for a node of the coarsest level. Let r = U_c / S and
b = g (1 - a). Then

    x_c = (1 - r + r b) z_c - r (1 - b) sum of the siblings' z + r g a y + r (what is independent of z).

All parts are independent, so the second and fourth cumulants of an error add up with the squares and fourth powers of
these factors. They give every node's variance, and the kurtosis that an interval needs.

Counts of nodes that are not negative, and measurements with a variance for each node, are the heatmap's:
`statistics/posterior`.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]


@dataclass(frozen=True)
class NoisyLevel:
    """Noisy counts of a level.

    Attributes:
        counts: float64[k, m], a row for each category of the m nodes; None if the level was not measured.
        variance: of the noise of each count.
        kurtosis: excess kurtosis of the noise of each count.
    """

    counts: Array | None
    variance: float = math.inf
    kurtosis: float = 0.0


@dataclass(frozen=True)
class LevelEstimate:
    """Estimates of a level.

    Attributes:
        counts: float64[k, m], by category and node.
        variance: float64[m], of each error, equal in all categories.
        kurtosis: float64[m], excess kurtosis of that error.
    """

    counts: Array
    variance: Array
    kurtosis: Array


def fit_counts(levels: Sequence[NoisyLevel], parents: Sequence[NDArray[np.int64]]) -> list[Array]:
    """Returns the counts of `fit_levels`, without their errors, which take most of its time."""
    z, cumulants, _ = _upward(levels, parents)
    return _downward(z, [variance for variance, _ in cumulants], parents)


def fit_levels(levels: Sequence[NoisyLevel], parents: Sequence[NDArray[np.int64]]) -> list[LevelEstimate]:
    """Returns the best linear unbiased estimates of all levels, in time linear in the nodes.

    Args:
        levels: from the finest to the coarsest. The finest has counts.
        parents: for each level but the coarsest, the index of each node's parent: int64[m].

    >>> children = NoisyLevel(np.array([[4.0, 8.0]]), variance=1.0)
    >>> parent = NoisyLevel(np.array([[15.0]]), variance=1.0)
    >>> below, above = fit_levels([children, parent], [np.array([0, 0])])
    >>> below.counts.round(6), above.counts.round(6)
    (array([[5., 9.]]), array([[14.]]))
    """
    z, cumulants, own = _upward(levels, parents)
    counts = _downward(z, [variance for variance, _ in cumulants], parents)
    top = cumulants[-1]
    found = [LevelEstimate(counts[-1], top[0], top[1] / top[0] ** 2)]
    gain, outside = np.ones(top.shape[1]), np.zeros_like(top)  # g, and the cumulants of what is independent of z
    for place in range(len(levels) - 2, -1, -1):
        parent, above, noisy = parents[place], own[place + 1], levels[place + 1]
        sums = _sums(cumulants[place], parent, len(gain))
        r = cumulants[place][0] / sums[0][parent]
        b = (gain * (1 - above))[parent]
        siblings = np.maximum(sums[:, parent] - cumulants[place], 0)
        noise = np.zeros(2) if noisy.counts is None else np.array([1, noisy.kurtosis * noisy.variance]) * noisy.variance
        powers = np.array([[2], [4]])
        new_outside = (
            (r * (1 - b)) ** powers * siblings
            + (r * (gain * above)[parent]) ** powers * noise[:, None]
            + r**powers * outside[:, parent]
        )
        gain, outside = 1 - r + r * b, new_outside
        total = gain**powers * cumulants[place] + outside
        found.append(LevelEstimate(counts[place], total[0], total[1] / total[0] ** 2))
    return found[::-1]


def _upward(
    levels: Sequence[NoisyLevel], parents: Sequence[NDArray[np.int64]]
) -> tuple[list[Array], list[Array], list[Array]]:
    """Returns each level's z, the second and fourth cumulants of its error, float64[2, m], and a."""
    finest = levels[0]
    assert finest.counts is not None
    size = finest.counts.shape[1]
    z = [finest.counts]
    cumulants = [np.full((2, size), [[finest.variance], [finest.kurtosis * finest.variance**2]])]  # second, fourth
    own: list[Array] = [np.zeros(size)]  # a, the weight of a node's own count
    for level, parent in zip(levels[1:], parents, strict=True):
        number = int(parent.max()) + 1 if level.counts is None else level.counts.shape[1]
        summed = _sums(z[-1], parent, number)
        second, fourth = _sums(cumulants[-1], parent, number)
        if level.counts is None:
            weight, value = np.zeros(number), summed
        else:
            weight = second / (second + level.variance)
            value = weight * level.counts + (1 - weight) * summed
            second = weight**2 * level.variance + (1 - weight) ** 2 * second
            fourth = weight**4 * level.kurtosis * level.variance**2 + (1 - weight) ** 4 * fourth
        z.append(value)
        own.append(weight)
        cumulants.append(np.stack([second, fourth]))
    return z, cumulants, own


def _downward(z: Sequence[Array], variances: Sequence[Array], parents: Sequence[NDArray[np.int64]]) -> list[Array]:
    """Returns each level's x from its z and U."""
    found = [z[-1]]
    for values, variance, parent in zip(z[-2::-1], variances[-2::-1], parents[::-1], strict=True):
        number = found[-1].shape[1]
        r = variance / np.bincount(parent, variance, number)[parent]
        found.append(values + r * (found[-1] - _sums(values, parent, number))[:, parent])
    return found[::-1]


def total_variance(weights: Array, variances: Sequence[float | None], parents: Sequence[NDArray[np.int64]]) -> float:
    """Returns the variance of a weighted sum of nodes' estimates, with the correlations that the fit makes.

    Given their parent's estimate x, the children's errors have the covariance diag(U) - U U' / S, and their means move
    with x in proportion to U / S. So a sum over children passes the weight sum w_c U_c / S on to their parent.

    Args:
        weights: float64[m], of the finest nodes. A coarser node is the sum of its finest ones.
        variances: of the noise of each level, from the finest; None for a level that was not measured.
        parents: see `fit_levels`.
    """
    assert variances[0] is not None
    upward = np.full(len(weights), variances[0])
    found = 0.0
    for own, parent in zip(variances[1:], parents, strict=True):
        number = int(parent.max()) + 1
        summed, moved = _sums(np.stack([upward, weights * upward]), parent, number)
        found += float(weights**2 @ upward - moved @ (moved / summed))
        weights, upward = moved / summed, summed if own is None else summed * own / (summed + own)
    return found + float(weights**2 @ upward)


def upward_variances(variances: Sequence[float], fan_outs: Sequence[float]) -> list[float]:
    """Returns each level's U where all nodes of a level have equally many children, from the finest level up.

    Args:
        variances: of the noise of each level, from the finest; infinite for a level that was not measured.
        fan_outs: numbers of children of the nodes of each level but the finest.
    """
    found = [variances[0]]
    for own, fan_out in zip(variances[1:], fan_outs, strict=True):
        found.append(1 / (1 / own + 1 / (fan_out * found[-1])))
    return found


def _sums(values: Array, parent: NDArray[np.int64], number: int) -> Array:
    """Sums over the children of each parent: float64[k, m] -> float64[k, number]."""
    return np.stack([np.bincount(parent, row, number) for row in values])
