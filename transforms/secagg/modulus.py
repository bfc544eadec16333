"""The modulus of secure sums, for a stated probability that any entry of any shard wraps around. Pure."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from sfumato.schemas.errors import RequestError
from sfumato.transforms.privacy.shared_noise import Noise
from sfumato.transforms.statistics.bisection import bisect

MAX_MODULUS = 1 << 62  # sums modulo m, and what is added to them on the way, are 64-bit integers


@dataclass(frozen=True)
class Window:
    """Sums modulo m are decoded as integers in [-low, modulus - low). Entries without noise are never negative.

    >>> Window(modulus=4096, low=1024).bits
    12
    """

    modulus: int
    low: int

    @property
    def bits(self) -> int:
        """Bits of one entry on the wire."""
        return (self.modulus - 1).bit_length()


def noise_bound(epsilon: float, sensitivity: int, shape: float, probability: float) -> int:
    """Returns a t with P[X - Y >= t] <= probability, X and Y Polya(shape, exp(-epsilon / sensitivity)) (Chernoff)."""
    rate = epsilon / sensitivity
    # Any s in (0, rate) gives a valid bound. The best of a fine grid is near the best of all.
    s = rate * (1 - np.geomspace(1e-6, 0.999, 2000))
    log_moment = shape * (2 * math.log(-math.expm1(-rate)) - np.log(-np.expm1(s - rate)) - np.log(-np.expm1(-s - rate)))
    return max(1, math.ceil(float(np.min((log_moment - math.log(probability)) / s))))


def size_bound(expected: float, probability: float) -> int:
    """Returns an n with P[a shard has more than n users] <= probability, for a binomial size (Chernoff).

    expected: the size's expectation, in users.

    >>> size_bound(expected=1000.0, probability=1e-9)
    1211
    """

    def is_likely(excess: float) -> bool:
        return _upper_tail_exponent(expected, excess) < -math.log(probability)

    high = 1.0
    while is_likely(high):
        high *= 2
    _, excess = bisect(is_likely, 0.0, high, 60)
    return math.ceil(expected * (1 + excess))


def _upper_tail_exponent(expected: float, excess: float) -> float:
    return expected * ((1 + excess) * math.log1p(excess) - excess)


def min_window(
    *,
    expected_size: float,
    noise: Noise,
    cost: float,
    sensitivity: float,
    gamma: int,
    entries: int,
    shards: int,
    probability: float,
    is_planned: bool = True,
) -> Window:
    """Returns the smallest window that wraps with at most this probability anywhere in a sub-query.

    Half of the probability is for shards that are larger than expected, half for noise.

    Args:
        expected_size: an upper bound of the expected number of users in a shard.
        noise: of a shard's sum.
        cost: of the sub-query, in the unit of the noise.
        sensitivity: largest norm of a client's vector.
        gamma: the largest value that one client adds to one entry.
        entries: length of the vector.
        shards: number of queried shards.
        probability: largest probability with which any sum wraps around.
        is_planned: whether a shard has the noise of its required clients; false in the paper's model, where every user
            of the shard adds noise.
    """
    users = size_bound(expected_size, probability / (2 * shards))
    tail = probability / (4 * shards * entries)
    shape = noise.shape if is_planned else max(users / noise.honest, 1.0)
    if is_planned and shape == 1:
        bound = noise.kind.quantile(cost, tail, sensitivity)
    else:
        bound = noise_bound(cost, int(sensitivity), shape, tail)  # clients add shares of Laplace noise only
    return Window(users * gamma + 2 * bound + 1, bound)


def choose_window(least: Window, modulus: int | None, allow_overflow: bool) -> Window:
    """Returns the smallest power of two that holds the window `least`, or the given modulus with its share below 0.

    Raises:
        RequestError: the given modulus is too small and overflow is not allowed.
    """
    if least.modulus > MAX_MODULUS:
        raise RequestError(
            f"gamma: no modulus up to 2^62 holds the sums, {least.modulus} would do; give a smaller gamma, or auto"
        )
    if modulus is None:
        chosen = 1 << least.bits
        return Window(chosen, least.low + (chosen - least.modulus) // 2)
    if modulus < least.modulus and not allow_overflow:
        raise RequestError(
            f"modulus: {modulus} is too small, the least that would do is {least.modulus} "
            "(or use auto, a smaller gamma where users give distributions, or allow_overflow to study what wraps)"
        )
    return Window(modulus, min(least.low * modulus // least.modulus, modulus - 1))
