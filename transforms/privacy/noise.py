"""Exact discrete Laplace noise for many shards at once, and the sparse Polya shares around it.

A client's share of the noise is X - Y with X, Y Polya(alpha, beta) (paper 000, Section 4). Shares add up: n clients
give Polya(n alpha, beta) - Polya(n alpha, beta). A shard that lives has n alpha = 1 + delta, delta >= 0, and then

    Polya(1 + delta) - Polya(1 + delta)  =  [Geo - Geo]  +  [Polya(delta) - Polya(delta)],

the first bracket being the discrete Laplace distribution, which alone gives epsilon-differential privacy. So only the
first bracket has to be exact, and it is: integers compared with integer thresholds, no floating point. The second is
independent of it and of the data (more noise than was promised), drawn as a compound Poisson process.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from decimal import Decimal, localcontext
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray
from scipy.special import pdtr, pdtrik

from sfumato.transforms.privacy.keys import RunKey, random_words, random_words_16

# With this many thresholds the table stays in the cache; what lies beyond is drawn again, which loses nothing
# because the geometric distribution has no memory.
_MAX_THRESHOLDS = 1 << 12
_UNRESOLVED = np.int16(-1)
# Beyond these the thresholds' rounding (2^-64) would no longer be negligible beside the probabilities.
MIN_NOISE_EPSILON, MAX_NOISE_EPSILON = 1e-8, 30.0


@dataclass(frozen=True)
class GeometricTable:
    """P[G >= k] = beta^k as integer thresholds: G >= k if and only if a uniform 64-bit word is < thresholds[k - 1].

    thresholds: uint64[K], floor(2^64 beta^k) for k = 1..K, descending. guide: int16[65536], G for every value of the
    word's upper 16 bits, or -1 where these do not decide (including every word beyond the table).
    """

    thresholds: NDArray[np.uint64]
    guide: NDArray[np.int16]

    def lookup(self, words: NDArray[np.uint64]) -> NDArray[np.int64]:
        """How many thresholds lie above each word: int64[n]. K means: K or more."""
        size = len(self.thresholds)
        return size - np.searchsorted(self.thresholds[::-1], words, side="right")


@lru_cache(maxsize=64)
def geometric_table(epsilon: float, sensitivity: int = 1) -> GeometricTable:
    """The table for beta = exp(-epsilon / sensitivity), from 50-digit arithmetic.

    Raises ValueError where 64-bit thresholds could not tell neighbouring values apart as epsilon promises.
    """
    if not MIN_NOISE_EPSILON <= epsilon / sensitivity <= MAX_NOISE_EPSILON:
        raise ValueError(
            f"epsilon / sensitivity must lie in {MIN_NOISE_EPSILON}..{MAX_NOISE_EPSILON}, got {epsilon / sensitivity}"
        )
    with localcontext() as context:
        context.prec = 50
        beta = (-Decimal(epsilon) / sensitivity).exp()
        size = min(_MAX_THRESHOLDS, 1 + int(12 * sensitivity / Decimal(epsilon)))
        power, scale = Decimal(1), Decimal(1 << 64)
        values = []
        for _ in range(size):
            power *= beta
            values.append(int(power * scale))
    thresholds = np.array(values, dtype=np.uint64)
    table = GeometricTable(thresholds, np.empty(0, dtype=np.int16))
    first = np.arange(1 << 16, dtype=np.uint64) << np.uint64(48)
    largest = table.lookup(first)
    smallest = table.lookup(first | np.uint64((1 << 48) - 1))
    decided = (largest == smallest) & (largest < size)
    return GeometricTable(thresholds, np.where(decided, largest, _UNRESOLVED).astype(np.int16))


def geometric(
    key: RunKey, label: str, streams: NDArray[np.uint64], count: int, epsilon: float, sensitivity: int = 1
) -> NDArray[np.int64]:
    """Geometric variates P[G = k] = (1 - beta) beta^k: int64[len(streams), count], one row a stream.

    Row s depends on the key, the label and streams[s] alone.
    """
    table = geometric_table(epsilon, sensitivity)
    upper = random_words_16(key.subkey(label, "upper"), streams, count)
    values = table.guide[upper].astype(np.int64)
    row, column = np.nonzero(values < 0)
    if not len(row):
        return values
    size = len(table.thresholds)
    lower = random_words(key.subkey(label, "lower"), streams[row], column.astype(np.uint64))[:, 0]
    words = (upper[row, column].astype(np.uint64) << np.uint64(48)) | (lower >> np.uint64(16))
    values[row, column] = drawn = table.lookup(words)
    # Memoryless: given G >= K, G - K is geometric again.
    attempt = 0
    while (beyond := drawn == size).any():
        row, column = row[beyond], column[beyond]
        attempt += 1
        words = random_words(key.subkey(label, "beyond", attempt), streams[row], column.astype(np.uint64))[:, 0]
        drawn = table.lookup(words)
        values[row, column] += drawn
    return values


def discrete_laplace(
    key: RunKey, label: str, streams: NDArray[np.uint64], count: int, epsilon: float, sensitivity: int = 1
) -> NDArray[np.int64]:
    """Discrete Laplace noise of Eq. 4, P[Z = k] proportional to exp(-epsilon |k| / sensitivity).

    Returns int64[len(streams), count]; row s depends on the key, the label and streams[s] alone.
    """
    pairs = geometric(key, label, streams, 2 * count, epsilon, sensitivity)
    return pairs[:, :count] - pairs[:, count:]


@dataclass(frozen=True)
class NoiseEvents:
    """Non-zero noise, sparsely: value[e] is added at slot[e] of stream row[e]. int64[number of events] each."""

    row: NDArray[np.int64]
    slot: NDArray[np.int64]
    value: NDArray[np.int64]


def polya_difference_events(
    key: RunKey,
    label: str,
    streams: NDArray[np.uint64],
    shapes: NDArray[np.float64],
    slots: NDArray[np.int64],
    epsilon: float,
    sensitivity: int = 1,
) -> NoiseEvents:
    """Polya(shapes[s], beta) - Polya(shapes[s], beta) noise in each of slots[s] slots of every stream.

    Polya(a, beta) is a Poisson number, mean -a ln(1 - beta), of logarithmic(beta) variates; over many slots the
    variates of a stream are scattered uniformly. Events of one slot add up.
    """
    log_complement = math.log(-math.expm1(-epsilon / sensitivity))  # ln(1 - beta)
    means = -2 * shapes * slots * log_complement
    uniform = _unit(random_words(key.subkey(label, "events"), streams, np.zeros_like(streams))[:, 0])
    events = _poisson_quantile(uniform, means)
    row = np.repeat(np.arange(len(streams)), events)
    number = (np.arange(len(row)) - np.repeat(np.cumsum(events) - events, events)).astype(np.uint64)
    place = random_words(key.subkey(label, "place"), streams[row], number)
    size = random_words(key.subkey(label, "size"), streams[row], number)
    slot = np.minimum((_unit(place[:, 0]) * slots[row]).astype(np.int64), slots[row] - 1)
    sign = 1 - 2 * (place[:, 1] & np.uint64(1)).astype(np.int64)
    # Logarithmic variates from two uniforms: Kemp (1981), algorithm LK.
    q = -np.expm1(_unit(size[:, 0]) * log_complement)
    with np.errstate(divide="ignore"):
        value = 1 + (np.log(_unit(size[:, 1])) / np.log(q)).astype(np.int64)
    return NoiseEvents(row, slot, sign * value)


def _unit(words: NDArray[np.uint64]) -> NDArray[np.float64]:
    """Uniform floats in (0, 1]."""
    return ((words >> np.uint64(11)) + np.uint64(1)).astype(np.float64) * 2.0**-53


def _poisson_quantile(uniform: NDArray[np.float64], means: NDArray[np.float64]) -> NDArray[np.int64]:
    """Smallest k with P[Poisson(mean) <= k] >= uniform; 0 where the mean is 0."""
    safe = np.maximum(means, 1e-300)
    inner = np.minimum(uniform, 1 - 2.0**-53)
    guess = np.ceil(np.nan_to_num(pdtrik(inner, safe), nan=0.0))
    below = np.maximum(guess - 1, 0)
    quantile = np.where(pdtr(below, safe) >= inner, below, guess)
    return np.where(inner <= np.exp(-safe), 0, np.maximum(quantile, 0)).astype(np.int64)
