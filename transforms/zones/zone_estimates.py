"""Users of zones of all levels, by constrained inference: a zone is exactly the sum of its parts. Pure.

The zones of all levels are a forest. Level l has noisy counts y with variance s_l^2, or none. The estimate is the
weighted least squares fit with the constraint that each zone is the sum of its children: the best linear unbiased one
(Hay, Rastogi, Miklau, Suciu, "Boosting the accuracy of differentially private histograms through consistency", PVLDB 3,
2010, Theorem 3, here with a variance of its own for each level and any number of children).

Upward: with z_c and variances U_c of the children and S = sum of U_c, a zone's own count and its children's sum give

    z = a y + (1 - a) sum z_c,    a = S / (S + s^2),    U = a^2 s^2 + (1 - a)^2 S.

Downward: the difference of the zone's final estimate x and the sum of z_c is spread over the children by variance,

    x_c = z_c + (U_c / S) (x - sum z_c).

Errors. x = g z + (what is independent of z), with g = 1 for a zone of the coarsest level. Let r = U_c / S and
b = g (1 - a). Then

    x_c = (1 - r + r b) z_c - r (1 - b) sum of the siblings' z + r g a y + r (what is independent of z).

All parts are independent, so the second and fourth cumulants of an error add up with the squares and fourth powers of
these factors. They give every zone's variance, and the kurtosis that its interval needs.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import scipy
from numpy.typing import NDArray

Array = NDArray[np.float64]
LEVEL = 0.95
_Z = float(scipy.special.ndtri((1 + LEVEL) / 2))
_LATTICE = 8  # sums of so many discrete Laplace variables have intervals of their own, which are exact


@dataclass(frozen=True)
class NoisyLevel:
    """The noisy counts of a level; `counts` is None where the level was not asked.

    Attributes:
        counts: float64[k, m], one row for each category.
        variance: of the noise of each count.
        kurtosis: excess kurtosis of the noise of each count.
    """

    counts: Array | None
    variance: float = math.inf
    kurtosis: float = 0.0


@dataclass(frozen=True)
class LevelEstimate:
    """The estimates of a level.

    Attributes:
        counts: float64[k, m], users by category.
        variance: float64[m], of the error of each of them, equal in all categories.
        kurtosis: float64[m], excess kurtosis of that error.
    """

    counts: Array
    variance: Array
    kurtosis: Array


def reconciled(levels: Sequence[NoisyLevel], parents: Sequence[NDArray[np.int64]]) -> list[LevelEstimate]:
    """The estimates of all levels by constrained inference; see the module.

    Args:
        levels: from the finest to the coarsest. The finest has counts.
        parents: for each level but the coarsest, the index of each zone's parent: int64[m].
    """
    finest = levels[0]
    assert finest.counts is not None
    size = finest.counts.shape[1]
    z = [finest.counts]
    cumulants = [np.full((2, size), [[finest.variance], [finest.kurtosis * finest.variance**2]])]  # second, fourth
    own: list[Array] = [np.zeros(size)]  # a, the weight of a zone's own count
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
    top = cumulants[-1]
    found = [LevelEstimate(z[-1], top[0], top[1] / top[0] ** 2)]
    gain, outside = np.ones(top.shape[1]), np.zeros_like(top)  # g, and the cumulants of what is independent of z
    for place in range(len(levels) - 2, -1, -1):
        parent, above, noisy = parents[place], own[place + 1], levels[place + 1]
        sums = _sums(cumulants[place], parent, len(gain))
        r = cumulants[place][0] / sums[0][parent]
        values = z[place] + r * (found[-1].counts - _sums(z[place], parent, len(gain)))[:, parent]
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
        found.append(LevelEstimate(values, total[0], total[1] / total[0] ** 2))
    return found[::-1]


def total_variance(weights: Array, variances: Sequence[float | None], parents: Sequence[NDArray[np.int64]]) -> float:
    """The variance of a weighted sum of zones' estimates, with the correlations that inference makes.

    Given their parent's estimate x, the children's errors have the covariance diag(U) - U U' / S, and their means move
    with x in proportion to U / S. So a sum over children passes the weight sum w_c U_c / S on to their parent.

    Args:
        weights: float64[m], of the finest zones. A coarser zone is the sum of its finest ones.
        variances: of the noise of each level, from the finest; None for a level that was not asked.
        parents: see `reconciled`.
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


def _sums(values: Array, parent: NDArray[np.int64], number: int) -> Array:
    """Sums over the children of each parent: float64[k, m] -> float64[k, number]."""
    return np.stack([np.bincount(parent, row, number) for row in values])


def margins(variance: Array, kurtosis: Array) -> Array:
    """Half the width of a 95% interval around an estimate: float64 of the input's shape.

    Cornish and Fisher's quantile with the fourth cumulant; errors are symmetric.
    """
    return np.asarray((_Z + (_Z**3 - 3 * _Z) / 24 * kurtosis) * np.sqrt(variance))


def laplace_kurtosis(epsilon: float) -> float:
    """Excess kurtosis of a discrete Laplace variable: 3 for a small epsilon, more for a large one."""
    decay = math.exp(-epsilon)
    return (1 + 4 * decay + decay**2) / (2 * decay)


def lattice_margins(epsilon: float, sums: NDArray[np.int64]) -> tuple[Array, Array]:
    """How far 95% intervals of integer counts reach below and above them, where few Laplace variables were added up.

    A symmetric interval of integers holds one discrete Laplace variable with 92.7% or 97.3% at epsilon 1. One that is
    longer by one at one side holds it with 95.0%. This is the shortest with at least 95%; of two, the one that reaches
    further below.

    Args:
        epsilon: of each variable.
        sums: int64[n], number of variables in the noise of each count.

    Returns:
        float64[n] each; NaN for more than 8 variables, where `margins` are as good.
    """
    below, above = np.full(len(sums), np.nan), np.full(len(sums), np.nan)
    decay = math.exp(-epsilon)
    reach = math.ceil(8 + 40 / epsilon)  # beyond it lies e^-40 of the mass
    one = decay ** np.abs(np.arange(-reach, reach + 1)) * (1 - decay) / (1 + decay)
    mass = one
    for number in range(1, _LATTICE + 1):
        chosen = sums == number
        if chosen.any():
            tail = np.cumsum(mass[::-1])[::-1][len(mass) // 2 :]  # P(Z >= 0), P(Z >= 1), ...
            least = int(np.argmax(2 * tail[1:] <= 1 - LEVEL))  # of a symmetric interval
            is_enough = least > 0 and tail[least] + tail[least + 1] <= 1 - LEVEL
            below[chosen], above[chosen] = least, least - is_enough
        mass = np.convolve(mass, one)
    return below, above
