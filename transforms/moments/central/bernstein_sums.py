"""Exact sums from which a trusted curator computes counts, sums, means and moments of a clipped number. Pure.

A value lies at t in [0, 1] of the range. Its user adds `scale` B_j(t) to slot j of their group, j = 0..K, where B_j(t)
= C(K, j) t^j (1 - t)^(K - j) are the Bernstein polynomials of degree K. They are at least 0, and their sum is 1. So a
user adds exactly `scale` to all slots of all groups together, whatever the value: the L1 sensitivity of all sums is
`scale`. The sum over users of every polynomial of degree K or less is linear in the slots, and a mean is a ratio of two
such sums: one noise serves the count, the sum and all powers.

For K = 1 the slots are the sums of 1 - t and of t. What one user can add, and take away, spans exactly the L1 ball. So
Laplace noise on the slots is the K-norm mechanism of a count with a sum (Hardt and Talwar 2010, On the geometry of
differential privacy; its K names a norm). The count, and the sum about the middle of the range, each have half the
variance that they have from half of the budget each.

With a second column, at u of its range, the user adds `scale` B_j(t) B_l(u) to slot (j, l). These products are at least
0, and their sum is 1, too. So the sensitivity stays, and sums of products of both columns are linear in the slots.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sfumato.schemas.moments import ValueRange
from sfumato.transforms.privacy.discrete_laplace import discrete_laplace
from sfumato.transforms.privacy.keys import RunKey
from sfumato.transforms.privacy.mechanism import noise_quantile

Array = NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class ExactSums:
    """Exact sums over users. They may be used only with noise added."""

    slots: NDArray[np.int64]  # int64[G, S], by group and slot. S is K + 1, with a second column (K + 1)(L + 1).
    outside: NDArray[np.int64]  # int64[2 C], users with a value below and above the range of each of C columns

    @classmethod
    def zeros(cls, groups: int, degrees: Sequence[int]) -> ExactSums:
        """Returns the sums of no user. degrees: K, or K and L."""
        slots = math.prod(degree + 1 for degree in degrees)
        return cls(np.zeros((groups, slots), np.int64), np.zeros(2 * len(degrees), np.int64))

    def total(self, others: Iterable[ExactSums]) -> ExactSums:
        """This and others together; for `beam.CombineGlobally`, from `zeros`."""
        slots, outside = self.slots.copy(), self.outside.copy()
        for other in others:
            slots += other.slots
            outside += other.outside
        return ExactSums(slots, outside)


def bernstein(t: Array, degree: int) -> Array:
    """Returns the Bernstein polynomials of a degree: float64[degree + 1, n].

    By sums and products only, whose results are the same on every machine.
    """
    basis = np.ones((1, len(t)))
    for k in range(1, degree + 1):
        raised = np.zeros((k + 1, len(t)))
        raised[:-1] = basis * (1 - t)
        raised[1:] += basis * t
        basis = raised
    return basis


def coefficients(power: int, degree: int, low: float, high: float) -> Array:
    """Returns the Bernstein coefficients c_j of x^power over [low, high], sum of c_j B_j(t): float64[degree + 1].

    They are the values of the polynomial's blossom: Farouki (2012), The Bernstein polynomial basis, Section 3.
    """
    return np.array(
        [
            math.fsum(
                math.comb(j, i) * math.comb(degree - j, power - i) * high**i * low ** (power - i)
                for i in range(power + 1)
            )
            / math.comb(degree, power)
            for j in range(degree + 1)
        ]
    )


def tensor(first: Array, second: Array) -> Array:
    """Returns the coefficients of a product of polynomials of the first and of the second column: float64[..., S].

    first: float64[..., K + 1]. second: float64[..., L + 1].
    """
    products = np.asarray(first)[..., :, None] * np.asarray(second)[..., None, :]
    return np.asarray(products.reshape(*products.shape[:-2], -1))


def sum_values(
    columns: Sequence[Array],
    uniforms: Array,
    groups: NDArray[Any] | None,
    rows: int,
    spans: Sequence[ValueRange],
    degrees: Sequence[int],
    scale: int,
) -> ExactSums:
    """Returns the sums of some users.

    What a user adds is rounded to integers by systematic rounding: at random and without bias, so that its total stays
    exactly `scale`.

    Args:
        columns: float64[n], finite: the values of one column, or of two.
        uniforms: float64[n] in [0, 1), one keyed random number a user.
        groups: unsigned[n], below `rows`; None for one group.
        spans: the range of each column. Values outside it count as an end.
        degrees: K, or K and L.
        scale: what one user adds, an integer.
    """
    clients = len(columns[0])
    basis, outside = np.ones((1, clients)), []
    for values, span, degree in zip(columns, spans, degrees, strict=True):
        with np.errstate(over="ignore"):  # an infinite distance is clipped
            t = np.clip((values - span.low) / (span.high - span.low), 0, 1)
        basis = (basis[:, None] * bernstein(t, degree)).reshape(len(basis) * (degree + 1), clients)
        outside += [np.count_nonzero(values < span.low), np.count_nonzero(values > span.high)]
    below = np.cumsum(basis[:-1], axis=0)  # of slots 0..j together; of all, it is 1
    edges = np.full((len(basis) + 1, clients), scale, np.int64)
    edges[0] = 0
    edges[1:-1] = np.floor(scale * np.minimum(below, 1) + uniforms)
    added = np.diff(edges, axis=0)
    group = np.zeros(clients, np.int64) if groups is None else groups
    # Sums of a block stay far below 2^53, so they are exact as floats.
    slots = [np.bincount(group, column, rows).astype(np.int64) for column in added]
    return ExactSums(np.stack(slots, axis=1), np.array(outside, np.int64))


_SMALLEST, _LARGEST = -32, 64  # magnitudes below 2^_SMALLEST count as 0, those from 2^_LARGEST as the largest bin
_MAGNITUDES = _LARGEST - _SMALLEST
BINS = 2 * _MAGNITUDES + 1  # negative values from the largest magnitude on, zero, positive values
_HIGH = np.concatenate(
    [-(2.0 ** np.arange(_LARGEST - 1, _SMALLEST - 1, -1)), [0.0], 2.0 ** np.arange(_SMALLEST + 1, _LARGEST + 1)]
)
_LOW = 0.0 - _HIGH[::-1]
FALSE_SEED_PROBABILITY = 1e-6  # that any empty bin looks certainly filled
_FALSE_STEP_PROBABILITY = 0.05  # that the range grows by an empty bin
_WINDOW = 4  # adjacent bins, for few users
_NEAR_ZERO = 1 / 16  # an end so near 0, as a share of the other, is moved to 0: a few small values cost little


def count_magnitudes(values: Array) -> NDArray[np.int64]:
    """Returns the number of values in each bin: int64[BINS]. values: float64[n], finite."""
    magnitude = np.clip(np.frexp(values)[1] - _SMALLEST, 0, _MAGNITUDES)
    magnitude[values == 0] = 0
    return np.bincount(np.where(values < 0, -magnitude, magnitude) + _MAGNITUDES, minlength=BINS)


def find_range(counts: NDArray[np.int64], epsilon: float, key: RunKey) -> tuple[ValueRange, bool]:
    """Returns the range that noisy counts choose, for a number whose range nobody gave.

    As ApproxBounds of Google's differential-privacy library: each user adds 1 to one bin, so one budget serves all. A
    bin with far more users than noise explains is certainly not empty. From such bins the range grows outwards, while
    the next bin is above the noise of a single bin.

    counts: int64[BINS], exact, one bin a user. epsilon: of the noisy counts.

    Returns:
        The range; and whether some bin is certainly not empty. If none is, the range is a guess: the four adjacent bins
        with the most users by the noisy counts.
    """
    noisy = counts + discrete_laplace(key, "range", np.zeros(1, np.uint64), BINS, epsilon)[0]
    seeds = np.flatnonzero(noisy > noise_quantile(epsilon, FALSE_SEED_PROBABILITY / BINS))
    if len(seeds):
        first, last = int(seeds[0]), int(seeds[-1])
    else:
        first = int(np.argmax(np.convolve(noisy, np.ones(_WINDOW, np.int64), "valid")))
        last = first + _WINDOW - 1
    filled = np.concatenate([[False], noisy > noise_quantile(epsilon, _FALSE_STEP_PROBABILITY), [False]])
    while filled[last + 2]:
        last += 1
    while filled[first]:
        first -= 1
    low, high = float(_LOW[first]), float(_HIGH[last])
    if 0 < low <= _NEAR_ZERO * high:
        low = 0.0
    if _NEAR_ZERO * low <= high < 0:
        high = 0.0
    return ValueRange(low, max(high, low + 2.0**_SMALLEST)), bool(len(seeds))
