"""Exact discrete Laplace noise for many shards at once, and the sparse Polya shares around it.

A client's share of the noise is X - Y with X, Y Polya(alpha, beta) (paper 000, Section 4). Shares add up: n clients
give Polya(n alpha, beta) - Polya(n alpha, beta). A shard with enough survivors has n alpha = 1 + delta, delta >= 0:

    Polya(1 + delta) - Polya(1 + delta)  =  [Geo - Geo]  +  [Polya(delta) - Polya(delta)].

The first bracket is the discrete Laplace distribution, which gives epsilon-differential privacy. So only the
first bracket must be exact. It is drawn by comparing integers with integer thresholds, without floating point. The
second bracket is independent of the first and of the data. It is drawn as a compound Poisson process, and only adds to
the noise.

How exact. Epsilon guarantees P[Z = k] <= e^epsilon P[Z = k + sensitivity]. Thresholds are rounded down to multiples of
2^-64, so a probability p is exact within a factor 1 +- 2^-64 / p. A geometric variate is made of independent draws: low
digits, each value with a probability above 2^-12.4 (factor 1 +- 2^-51), and a top table whose values have probabilities
above 2^-26 (1 +- 2^-38). A draw lies beyond the table with a probability P > e^-13, and is then drawn again: a factor
1 +- 2^-64 / P each time, below 2^-38 in all unless this happens 2^26 P times (probability below e^-1900). So every
P[G = k] is exact within e^+-2^-37. P[Z = k] is a sum of products of two of these, and the guarantee compares two such
sums. The privacy loss is therefore at most epsilon + 2^-35 (3e-11) if epsilon / sensitivity is at most 1. Above 1,
P > e^-30 and the loss is at most epsilon + 2^-17. This excess is of one entry: it adds up over the entries that a user
changes and over sub-queries.
"""

from __future__ import annotations

import math
import operator
from dataclasses import dataclass
from decimal import Decimal, localcontext
from functools import lru_cache
from itertools import accumulate, repeat

import numpy as np
import scipy
from numpy.typing import NDArray

from sfumato.transforms.privacy.keys import RunKey, random_bits, random_bits_16

# With this many thresholds the table stays in the cache. Draws beyond it are drawn again, which is exact because the
# geometric distribution is memoryless.
_MAX_THRESHOLDS = 1 << 12
# For smaller epsilon / sensitivity most draws would lie beyond the table. G is then drawn digit by digit in this base.
# The digits are independent: G = _BASE H + L, H geometric with beta^_BASE, L with P[L = l] proportional to beta^l.
_BASE = 1 << 12
_MIN_TABLE_RATE = 2.0**-14
_UNRESOLVED = np.int16(-1)
_MAX_SMALL = 1 << 14  # the difference of two such variates is an int16
# Beyond these the thresholds' rounding (2^-64) would no longer be negligible compared with the probabilities.
MIN_NOISE_EPSILON, MAX_NOISE_EPSILON = 1e-8, 30.0


@dataclass(frozen=True)
class GeometricTable:
    """P[G >= k] as integer thresholds: G >= k if and only if a uniform 64-bit number is < thresholds[k - 1].

    Attributes:
        thresholds: uint64[K], floor(2^64 P[G >= k]) for k = 1..K, descending.
        guide: int16[65536], G by the number's upper 16 bits; -1 where these do not decide, or G is beyond the table.
    """

    thresholds: NDArray[np.uint64]
    guide: NDArray[np.int16]

    def lookup(self, bits: NDArray[np.uint64]) -> NDArray[np.int64]:
        """Returns G for 64-bit numbers uint64[n]: int64[n]. K means K or more."""
        size = len(self.thresholds)
        return size - np.searchsorted(self.thresholds[::-1], bits, side="right")


@lru_cache(maxsize=64)
def geometric_table(epsilon: float, sensitivity: int = 1) -> GeometricTable:
    """Returns the table of the geometric distribution P[G >= k] = beta^k, beta = exp(-epsilon / sensitivity).

    It is computed with 50 digits.

    Raises:
        ValueError: epsilon / sensitivity is outside MIN_NOISE_EPSILON..MAX_NOISE_EPSILON, where 64-bit thresholds
            would be too coarse for the guarantee.
    """
    _check_rate(epsilon, sensitivity)
    with localcontext() as context:
        context.prec = 50
        beta = (-Decimal(epsilon) / sensitivity).exp()
        size = min(_MAX_THRESHOLDS, 1 + int(12 * sensitivity / Decimal(epsilon)))
        return _table(_powers(beta, size))


@lru_cache(maxsize=64)
def digit_table(epsilon: float, sensitivity: int = 1) -> GeometricTable:
    """Returns the table of the lowest digit L = G mod 4096: P[L >= l] = (beta^l - beta^4096) / (1 - beta^4096).

    It is computed with 50 digits. Its last threshold is 0, so no draw lies beyond. Raises: see `geometric_table`.
    """
    _check_rate(epsilon, sensitivity)
    with localcontext() as context:
        context.prec = 50
        powers = _powers((-Decimal(epsilon) / sensitivity).exp(), _BASE)
        return _table([(power - powers[-1]) / (1 - powers[-1]) for power in powers])


def _check_rate(epsilon: float, sensitivity: int) -> None:
    if not MIN_NOISE_EPSILON <= epsilon / sensitivity <= MAX_NOISE_EPSILON:
        raise ValueError(
            f"epsilon / sensitivity must lie in {MIN_NOISE_EPSILON}..{MAX_NOISE_EPSILON}, got {epsilon / sensitivity}"
        )


def _powers(beta: Decimal, count: int) -> list[Decimal]:
    """Returns beta^1 .. beta^count."""
    return list(accumulate(repeat(beta, count), operator.mul))


def _table(survival: list[Decimal]) -> GeometricTable:
    """Returns the table of P[G >= k], k = 1..K. Call it within the decimal context that computed them."""
    scale = Decimal(1 << 64)
    thresholds = np.array([int(probability * scale) for probability in survival], dtype=np.uint64)
    table = GeometricTable(thresholds, np.empty(0, dtype=np.int16))
    first = np.arange(1 << 16, dtype=np.uint64) << np.uint64(48)
    largest = table.lookup(first)
    smallest = table.lookup(first | np.uint64((1 << 48) - 1))
    decided = (largest == smallest) & (largest < len(thresholds))
    return GeometricTable(thresholds, np.where(decided, largest, _UNRESOLVED).astype(np.int16))


def geometric(
    key: RunKey, label: str, streams: NDArray[np.uint64], count: int, epsilon: float, sensitivity: int = 1
) -> NDArray[np.int16 | np.int64]:
    """Draws geometric variates P[G = k] = (1 - beta) beta^k.

    Args:
        key: of the run.
        label: the purpose of the draw.
        streams: uint64[s]. Row i depends on the key, the label and streams[i] only.
        count: variates for each stream.
        epsilon: of the noise.
        sensitivity: of the noise.

    Returns:
        int64[s, count], or int16 where all values are at most _MAX_SMALL: sums are then four times faster. The mean is
        at most 1e8; a value exceeds 2^40 with probability below e^-10000.

    Raises:
        ValueError: epsilon / sensitivity is out of range (see `geometric_table`).
    """
    _check_rate(epsilon, sensitivity)
    digits = 0
    while epsilon / sensitivity < _MIN_TABLE_RATE:
        epsilon *= _BASE  # a power of two: exact
        digits += 1
    values = _draw(geometric_table(epsilon, sensitivity), key, (label,), streams, count)
    if digits:
        values = values.astype(np.int64)
    for place in reversed(range(digits)):
        epsilon /= _BASE
        values *= _BASE
        values += _draw(digit_table(epsilon, sensitivity), key, (label, "digit", place), streams, count)
    return values


def _draw(
    table: GeometricTable, key: RunKey, label: tuple[str | int, ...], streams: NDArray[np.uint64], count: int
) -> NDArray[np.int16 | np.int64]:
    """Draws from a table's distribution, [len(streams), count]; beyond the table the tail is geometric.

    The result is int16 where every value is at most _MAX_SMALL, and int64 otherwise.
    """
    upper = random_bits_16(key.subkey(*label, "upper"), streams, count)
    values: NDArray[np.int16 | np.int64] = np.take(table.guide, upper)
    undecided = np.flatnonzero(values.ravel() < 0)
    if not len(undecided):
        return values
    size, row, column = len(table.thresholds), undecided // count, undecided % count
    lower = random_bits(key.subkey(*label, "lower"), streams[row], column.astype(np.uint64))[:, 0]
    bits = (upper[row, column].astype(np.uint64) << np.uint64(48)) | (lower >> np.uint64(16))
    drawn = table.lookup(bits)
    # The distribution is memoryless: given G >= K, G - K is geometric again.
    beyond, attempt = np.flatnonzero(drawn == size), 0
    while len(beyond):
        attempt += 1
        place = streams[row[beyond]], column[beyond].astype(np.uint64)
        again = table.lookup(random_bits(key.subkey(*label, "beyond", attempt), *place)[:, 0])
        drawn[beyond] += again
        beyond = beyond[again == size]
    if drawn.max() > _MAX_SMALL:
        values = values.astype(np.int64)
    values[row, column] = drawn
    return values


def discrete_laplace(
    key: RunKey, label: str, streams: NDArray[np.uint64], count: int, epsilon: float, sensitivity: int = 1
) -> NDArray[np.int64]:
    """Draws discrete Laplace noise (paper 000, Eq. 4), P[Z = k] proportional to exp(-epsilon |k| / sensitivity).

    Arguments and errors are those of `geometric`. The result is int64[s, count].

    >>> from sfumato.transforms.privacy.keys import FixedSecret
    >>> key = RunKey.derive(FixedSecret(b"k" * 32), {})
    >>> discrete_laplace(key, "noise", np.arange(2, dtype=np.uint64), 3, epsilon=0.5).shape
    (2, 3)
    """
    pairs = geometric(key, label, streams, 2 * count, epsilon, sensitivity)
    return np.asarray(pairs[:, :count] - pairs[:, count:], dtype=np.int64)


@dataclass(frozen=True)
class NoiseEvents:
    """Sparse noise: value[e] is added at slot[e] of stream row[e]. int64[number of events] each."""

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
    """Draws Polya(shapes[s], beta) - Polya(shapes[s], beta) noise for each of slots[s] slots of every stream s.

    Polya(a, beta) is the sum of a Poisson number, with mean -a ln(1 - beta), of logarithmic(beta) variates. Over many
    slots, the variates of a stream are scattered uniformly.

    Args:
        key: of the run.
        label: the purpose of the draw.
        streams: uint64[s].
        shapes: float64[s], 0 or more.
        slots: int64[s], above 0.
        epsilon: of the noise.
        sensitivity: of the noise.

    Returns:
        The noise. Events of one slot add up.
    """
    log_complement = math.log(-math.expm1(-epsilon / sensitivity))  # ln(1 - beta)
    means = -2 * shapes * slots * log_complement
    uniform = _unit(random_bits(key.subkey(label, "events"), streams, np.zeros_like(streams))[:, 0])
    events = _poisson_quantile(uniform, means)
    row = np.repeat(np.arange(len(streams)), events)
    number = (np.arange(len(row)) - np.repeat(np.cumsum(events) - events, events)).astype(np.uint64)
    place = random_bits(key.subkey(label, "place"), streams[row], number)
    size = random_bits(key.subkey(label, "size"), streams[row], number)
    slot = np.minimum((_unit(place[:, 0]) * slots[row]).astype(np.int64), slots[row] - 1)
    sign = 1 - 2 * (place[:, 1] & np.uint64(1)).astype(np.int64)
    # Logarithmic variates from two uniforms: Kemp (1981), algorithm LK.
    q = -np.expm1(_unit(size[:, 0]) * log_complement)
    with np.errstate(divide="ignore"):
        value = 1 + (np.log(_unit(size[:, 1])) / np.log(q)).astype(np.int64)
    return NoiseEvents(row, slot, sign * value)


def _unit(bits: NDArray[np.uint64]) -> NDArray[np.float64]:
    """Returns uniform floats in (0, 1]."""
    return ((bits >> np.uint64(11)) + np.uint64(1)).astype(np.float64) * 2.0**-53


def _poisson_quantile(uniform: NDArray[np.float64], means: NDArray[np.float64]) -> NDArray[np.int64]:
    """Returns the smallest k with P[Poisson(mean) <= k] >= uniform; 0 where the mean is 0."""
    safe = np.maximum(means, 1e-300)
    inner = np.minimum(uniform, 1 - 2.0**-53)
    guess = np.ceil(np.nan_to_num(scipy.special.pdtrik(inner, safe), nan=0.0))
    below = np.maximum(guess - 1, 0)
    quantile = np.where(scipy.special.pdtr(below, safe) >= inner, below, guess)
    return np.where(inner <= np.exp(-safe), 0, np.maximum(quantile, 0)).astype(np.int64)
