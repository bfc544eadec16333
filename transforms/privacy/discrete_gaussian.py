"""Exact discrete Gaussian noise, P[Z = k] proportional to exp(-k^2 / (2 sigma^2)) (Canonne, Kamath, Steinke 2020).

A table of 128-bit thresholds draws a block of `width` consecutive integers, a power of two that is 1 up to sigma = 128.
A block's weight is that of its integer m nearest to 0. A uniform integer x of the block is then kept with probability
exp(-(x^2 - m^2) / (2 sigma^2)), which is above 0.83; otherwise block and integer are drawn again. So integers x come
out in proportion to exp(-x^2 / (2 sigma^2)).

How exact. The table ends at 10 sigma; the discrete Gaussian is beyond with a probability below 1e-21. Within, every
block's probability is above 2^-81 and is rounded to a multiple of 2^-128. A block's integers are kept with a
probability that is a float, exact within a factor 1 +- 2^-48. So every P[Z = k] is exact within e^+-2^-46, and the
privacy loss exceeds that of the discrete Gaussian by at most 2^-44 (6e-14) for each entry that a user changes, and
1e-21 that adds to delta. All arithmetic is on integers, or additions, multiplications and divisions of floats, which
are the same on every machine.

`mechanism.py` has the formulas of the guarantee.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from dataclasses import dataclass
from decimal import Decimal, localcontext
from functools import lru_cache
from itertools import accumulate

import numpy as np
import scipy
from numpy.typing import NDArray

from sfumato.transforms.privacy.keys import RunKey, random_bits, random_bits_16
from sfumato.transforms.privacy.mechanism import check_sigma
from sfumato.transforms.statistics.bisection import bisect_integers

_REACH = 10  # of the table, in sigma
_MAX_TABLE_SIGMA = 128
_UNRESOLVED = np.int16(-1)
# Sums over the integers are short enough up to this sigma. Beyond, sums and integrals agree to 1e-6.
_MAX_SUMMED_SIGMA = 1000


@dataclass(frozen=True)
class BlockTable:
    """The distribution of the block: block i has been drawn if i thresholds are at most a uniform 128-bit number."""

    first: int  # number of the lowest block. Block b holds the integers from b * width to (b + 1) * width - 1
    width: int
    thresholds: tuple[int, ...]  # 2^128 P[block < first + i] for i = 1, 2, ..., rounded down, ascending
    upper: NDArray[np.uint64]  # the upper 64 bits of the thresholds
    guide: NDArray[np.int16]  # [65536], i by a number's upper 16 bits; -1 where these do not decide

    def lookup(self, upper: NDArray[np.uint64], lower: NDArray[np.uint64]) -> NDArray[np.int64]:
        """Returns i for 128-bit numbers, whose halves are uint64[n] each: int64[n]."""
        found = np.searchsorted(self.upper, upper, side="left")
        # A threshold with the same upper half: the lower half decides. This is rare, so Python's integers do.
        for at in np.flatnonzero(found != np.searchsorted(self.upper, upper, side="right")):
            found[at] = bisect_right(self.thresholds, (int(upper[at]) << 64) | int(lower[at]))
        return found


@lru_cache(maxsize=64)
def block_table(sigma: float) -> BlockTable:
    """Returns the table of a sigma, computed with 60 digits. Raises ValueError if sigma is out of range."""
    check_sigma(sigma)
    width = 1
    while sigma / width > _MAX_TABLE_SIGMA:
        width *= 2
    reach = math.floor(_REACH * sigma)
    first = -((reach + width - 1) // width)
    blocks = range(first, reach // width + 1)
    with localcontext() as context:
        context.prec = 60
        scale = -1 / (2 * Decimal(sigma) ** 2)
        weights = [(int(one) ** 2 * scale).exp() for one in _nearest(np.array(blocks), width)]
        total = sum(weights)
        sums = accumulate(weights[:-1])
        thresholds = tuple(int(one * (1 << 128) / total) for one in sums)
    upper = np.array([one >> 64 for one in thresholds], dtype=np.uint64)
    starts = np.arange(1 << 16, dtype=np.uint64) << np.uint64(48)
    lowest = np.searchsorted(upper, starts, side="left")
    highest = np.searchsorted(upper, starts | np.uint64((1 << 48) - 1), side="right")
    guide = np.where(lowest == highest, lowest, _UNRESOLVED).astype(np.int16)
    return BlockTable(first, width, thresholds, upper, guide)


def _nearest(blocks: NDArray[np.int64], width: int) -> NDArray[np.int64]:
    """Returns the absolute value of each block's integer that is nearest to 0."""
    return np.where(blocks >= 0, blocks * width, -(blocks + 1) * width + 1)


def discrete_gaussian(
    key: RunKey, label: str, streams: NDArray[np.uint64], count: int, sigma: float
) -> NDArray[np.int64]:
    """Draws discrete Gaussian noise, int64[s, count], of at most 10.1 sigma in size. See `noise.geometric`.

    sigma: the distribution's parameter, 0.1..1e9; its standard deviation is close to it (`discrete_variance`).
    """
    table = block_table(sigma)
    words = random_bits_16(key.subkey(label, "gaussian", "upper"), streams, count)
    found = np.take(table.guide, words).astype(np.int64)
    undecided = np.flatnonzero(found.ravel() < 0)
    if len(undecided):
        row, column = undecided // count, undecided % count
        rest = random_bits(key.subkey(label, "gaussian", "lower"), streams[row], column.astype(np.uint64))
        upper = (words[row, column].astype(np.uint64) << np.uint64(48)) | (rest[:, 0] >> np.uint64(16))
        found[row, column] = table.lookup(upper, rest[:, 1])
    if table.width == 1:
        return found + table.first
    values = np.empty_like(found)
    row, column = (index.ravel() for index in np.indices(found.shape))
    drawn, attempt = found.ravel(), 0
    while len(row):
        place = streams[row], column.astype(np.uint64)
        inner = random_bits(key.subkey(label, "gaussian", "inner", attempt), *place)
        integers, kept = _keep(table, drawn, inner, sigma)
        values[row[kept], column[kept]] = integers[kept]
        row, column, attempt = row[~kept], column[~kept], attempt + 1
        again = random_bits(key.subkey(label, "gaussian", "again", attempt), streams[row], column.astype(np.uint64))
        drawn = table.lookup(again[:, 0], again[:, 1])
    return values


def _keep(
    table: BlockTable, drawn: NDArray[np.int64], inner: NDArray[np.uint64], sigma: float
) -> tuple[NDArray[np.int64], NDArray[np.bool_]]:
    """Returns a uniform integer of each drawn block, int64[n], and whether it is kept, bool[n]."""
    blocks = drawn + table.first
    integers = blocks * table.width + (inner[:, 1] & np.uint64(table.width - 1)).astype(np.int64)
    nearest, size = _nearest(blocks, table.width), np.abs(integers)
    exponent = ((size - nearest) * (size + nearest)).astype(np.float64) / (2 * sigma * sigma)  # at most 0.18
    probability = np.ones(len(exponent))
    for power in range(12, 0, -1):  # exp(-exponent) by its series: one rounding rule, unlike exp, on every machine
        probability = 1 - exponent / power * probability
    return integers, (inner[:, 0] >> np.uint64(11)).astype(np.float64) < probability * 2.0**53


@lru_cache(maxsize=64)
def _summed(sigma: float) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Returns P[Z = k] and P[Z >= k] for k = 0..40 sigma + 1 (beyond, both are below 1e-300)."""
    k = np.arange(math.ceil(40 * sigma) + 2)
    weights = np.exp(-((k / sigma) ** 2) / 2)
    weights /= 2 * weights[:0:-1].sum() + 1
    return weights, weights[::-1].cumsum()[::-1]


def discrete_gaussian_survival(sigma: float, k: NDArray[np.int64]) -> NDArray[np.float64]:
    """Returns P[Z >= k] for integers k of any shape.

    Above sigma = 1000 it is the normal distribution's tail from k - 1/2, which is above the sum for k > sigma
    because the density is convex there: by less than a factor 1 + 1e-5 to 10 sigma.
    """
    if sigma > _MAX_SUMMED_SIGMA:
        return np.asarray(scipy.special.ndtr((0.5 - k) / sigma))
    tails = _summed(sigma)[1]
    distance = np.where(k >= 1, k, 1 - k)
    tail = np.where(distance < len(tails), tails[np.minimum(distance, len(tails) - 1)], 0.0)
    return np.asarray(np.where(k >= 1, tail, 1 - tail))


def discrete_gaussian_quantile(sigma: float, probability: float) -> int:
    """Returns the smallest k with P[Z > k] <= probability, for a probability in (1e-300, 1)."""
    end = math.ceil(40 * sigma) + 1

    def exceeds(k: int) -> bool:
        return bool(discrete_gaussian_survival(sigma, np.array(k + 1)) > probability)

    return 1 + bisect_integers(exceeds, -end - 1, end)


def discrete_variance(sigma: float) -> float:
    """Returns the exact variance of the discrete Gaussian, which is at most sigma^2.

    From sigma = 4 on the two differ by less than a float's last place (Poisson's summation formula).
    """
    if sigma >= 4:
        return sigma * sigma
    weights = _summed(sigma)[0]
    return float(2 * (np.arange(len(weights)) ** 2 * weights).sum())
