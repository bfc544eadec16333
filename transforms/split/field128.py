"""Field128 of the VDAF draft, p = 2^128 - 7 * 2^66 + 1, as arithmetic of NumPy arrays.

An array of elements is float64[6, ...]: six limbs of 22 bits, least significant first, balanced around 0. Products of
limbs are below 2^42.1, and a float64 holds integers exactly up to 2^53, so sums of 6 * 256 products are exact. Because
66 = 3 * 22, a limb of weight 2^132 = 112 * 2^66 - 16 (mod p) folds into limbs 3 and 0. All work is the same for all
values: no branch and no index depends on an element.

Encoded elements are uint64[..., 2], little-endian words of 16 bytes.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

Elements = NDArray[np.float64]
Words = NDArray[np.uint64]

MODULUS = 2**128 - 7 * 2**66 + 1
ENCODED_SIZE = 16
LIMBS, _BITS = 6, 22
_BASE = float(1 << _BITS)
_MASK = np.int64((1 << _BITS) - 1)
_TOP_BITS = 128 - (LIMBS - 1) * _BITS  # of the last limb
_GENERATOR, _GENERATOR_ORDER = pow(7, (MODULUS - 1) >> 66, MODULUS), 1 << 66
_HIGH = np.uint64(MODULUS >> 64)  # the modulus is this word, and 1 below it
_MAX_TERMS = 256  # products of balanced elements whose sums are exact
# Added before an element is encoded: a multiple of the modulus that makes every sum of balanced limbs positive.
_POSITIVE = [(16 * MODULUS >> _BITS * limb) & int(_MASK) for limb in range(LIMBS - 1)]
_POSITIVE.append(16 * MODULUS >> _BITS * (LIMBS - 1))


def is_canonical(words: Words) -> NDArray[np.bool_]:
    """Returns which encoded elements, uint64[..., 2], are below the modulus: bool[...]."""
    low, high = words[..., 0], words[..., 1]
    return np.asarray((high < _HIGH) | ((high == _HIGH) & (low < 1)))


def from_words(words: Words) -> Elements:
    """Returns the elements that canonical words uint64[..., 2] encode: float64[6, ...]."""
    low, high = words[..., 0], words[..., 1]
    mask, bits = np.uint64(_MASK), np.uint64
    limbs = np.empty((LIMBS, *low.shape))
    limbs[0] = low & mask
    limbs[1] = (low >> bits(22)) & mask
    limbs[2] = (low >> bits(44)) | ((high & bits(3)) << bits(20))
    limbs[3] = (high >> bits(2)) & mask
    limbs[4] = (high >> bits(24)) & mask
    limbs[5] = high >> bits(46)
    for limb in range(LIMBS - 1):
        _carry(limbs, limb)
    return limbs


def to_words(elements: Elements) -> Words:
    """Returns the canonical encoding uint64[..., 2] of elements float64[6, ...]."""
    limbs = [limb.astype(np.int64) + offset for limb, offset in zip(elements, _POSITIVE, strict=True)]
    _carry_up(limbs)
    over = limbs[5] >> _TOP_BITS  # 2^128 = 7 * 2^66 - 1
    limbs[5] &= (1 << _TOP_BITS) - 1
    limbs[3] += 7 * over
    limbs[0] -= over
    _carry_up(limbs)  # now below 2^128 + 2^74
    part = [limb.astype(np.uint64) for limb in limbs]
    shift = np.uint64
    low = part[0] | (part[1] << shift(22)) | (part[2] << shift(44))
    high = (part[2] >> shift(20)) | (part[3] << shift(2)) | (part[4] << shift(24)) | (part[5] << shift(46))
    beyond = (limbs[5] >> _TOP_BITS > 0) | ~is_canonical(np.stack([low, high], axis=-1))
    # Subtracting the modulus is adding 7 * 2^66 - 1 modulo 2^128.
    borrow = (beyond & (low == 0)).astype(np.uint64)
    excess = beyond.astype(np.uint64)
    return np.stack([low - excess, high + shift(28) * excess - borrow], axis=-1)


def _carry_up(limbs: list[NDArray[np.int64]]) -> None:
    for limb in range(LIMBS - 1):
        limbs[limb + 1] += limbs[limb] >> _BITS
        limbs[limb] &= _MASK


def from_ints(values: Sequence[int]) -> Elements:
    """Returns public integers as elements, float64[6, len(values)]."""
    encoded = b"".join((value % MODULUS).to_bytes(ENCODED_SIZE, "little") for value in values)
    return from_words(np.frombuffer(encoded, dtype="<u8").reshape(-1, 2))


def multiply(a: Elements, b: Elements) -> Elements:
    """Returns products entry by entry; the trailing axes broadcast."""
    return _folded(_convolved(a, b))


def dot(a: Elements, b: Elements) -> Elements:
    """Returns the sums of products along the last axis, float64[6, ...]."""
    length = max(a.shape[-1], b.shape[-1])
    sums = [
        _settled([place.sum(axis=-1) for place in _convolved(a[..., part], b[..., part])])
        for part in (slice(first, first + _MAX_TERMS) for first in range(0, length, _MAX_TERMS))
    ]
    return sums[0] if len(sums) == 1 else total(np.stack(sums, axis=-1))


def matmul(a: Elements, b: Elements) -> Elements:
    """Returns the product of matrices, float64[6, ..., n, k] times float64[6, ..., k, m]."""
    inner = a.shape[-1]
    parts = []
    for first in range(0, inner, _MAX_TERMS):
        left, right = a[..., first : first + _MAX_TERMS], b[..., first : first + _MAX_TERMS, :]
        places = [
            sum(left[i] @ right[place - i] for i in range(max(0, place - 5), min(5, place) + 1)) for place in range(11)
        ]
        parts.append(_settled(places))
    return parts[0] if len(parts) == 1 else total(np.stack(parts, axis=-1))


def total(elements: Elements) -> Elements:
    """Returns sums along the last axis, of up to 2^22 elements."""
    return _settled([*elements.sum(axis=-1)])


def settle(elements: Elements) -> Elements:
    """Returns the same elements with balanced limbs, after up to 2^22 additions or subtractions."""
    return _settled([*elements])


def is_zero(elements: Elements) -> NDArray[np.bool_]:
    """Returns which elements are 0: bool[...]."""
    return np.asarray(~to_words(elements).any(axis=-1))


@lru_cache(maxsize=64)
def root_powers(order: int) -> Elements:
    """Returns the powers 0 .. order - 1 of the principal root of unity of this order, a power of two."""
    root = pow(_GENERATOR, _GENERATOR_ORDER // order, MODULUS)
    powers = [1]
    for _ in range(order - 1):
        powers.append(powers[-1] * root % MODULUS)
    return from_ints(powers)


def lagrange_basis(point: Elements, order: int) -> Elements:
    """Returns each Lagrange polynomial over the roots of unity of an order at each point, float64[6, ..., order].

    It is (w^k / order) prod_s (point^(2^s) + w^(k 2^s)), without division, for root w^k.

    Args:
        point: float64[6, ...].
        order: a power of two.
    """
    powers = root_powers(order)
    basis = spread(from_ints([pow(order, -1, MODULUS)]), point.ndim)
    square, step = point, order
    factors = []
    while step > 1:  # the factor of s takes `step` values, repeated along k
        factors.append(settle(square[..., None] + spread(powers[:, :: order // step], point.ndim)))
        square, step = multiply(square, square), step // 2
    for factor in reversed(factors):
        basis = multiply(np.concatenate([basis, basis], axis=-1), factor)
    return multiply(basis, spread(powers, point.ndim))


def is_root_of_unity(point: Elements, order: int) -> NDArray[np.bool_]:
    """Returns which points are roots of unity of an order, a power of two: bool[...]."""
    power = point
    for _ in range(order.bit_length() - 1):
        power = multiply(power, power)
    return is_zero(settle(power - spread(from_ints([1]), power.ndim - 1)))


def spread(vector: Elements, axes: int) -> Elements:
    """Returns public elements float64[6, n] as an operand with this number of axes after the limbs; the last has n."""
    return vector.reshape(LIMBS, *([1] * (axes - 1)), -1)


def _convolved(a: Elements, b: Elements) -> list[NDArray[np.float64]]:
    """Returns the 11 sums of products of limbs by weight."""
    places = []
    for place in range(2 * LIMBS - 1):
        first, last = max(0, place - LIMBS + 1), min(LIMBS - 1, place)
        sums = a[first] * b[place - first]
        term = np.empty_like(sums)
        for i in range(first + 1, last + 1):
            sums += np.multiply(a[i], b[place - i], out=term)
        places.append(sums)
    return places


def _carry(limbs: NDArray[np.float64] | list[NDArray[np.float64]], limb: int) -> None:
    """Moves what exceeds half a limb to the next one."""
    carry = np.rint(limbs[limb] * (1 / _BASE))
    limbs[limb + 1] += carry
    limbs[limb] -= carry * _BASE


def _fold(limbs: list[NDArray[np.float64]]) -> None:
    """Replaces the last limb, of weight 2^(22 (5 + i)), by limbs three and six below."""
    top = limbs.pop()
    limbs[-3] += top * 112
    limbs[-6] -= top * 16


def _settled(limbs: list[NDArray[np.float64]]) -> Elements:
    """Returns elements of 6 or 11 limbs that are below 2^53."""
    limbs = [*(limb.astype(np.float64) for limb in limbs), np.zeros_like(limbs[0])]
    for limb in range(len(limbs) - 1):
        _carry(limbs, limb)
    while len(limbs) > 2 * LIMBS - 1:
        _fold(limbs)
    limbs += [np.zeros_like(limbs[0]) for _ in range(2 * LIMBS - 1 - len(limbs))]
    return _folded(limbs)


def _folded(limbs: list[NDArray[np.float64]]) -> Elements:
    """Returns elements of 11 limbs that are below 2^46, with limbs of at most 2^21 + 2^15."""
    for _ in range(3):  # limbs 10, 9 and 8 are still small enough
        _fold(limbs)
    limbs.append(np.zeros_like(limbs[0]))
    _carry(limbs, 7)
    _carry(limbs, 6)
    while len(limbs) > LIMBS:
        _fold(limbs)
    limbs.append(np.zeros_like(limbs[0]))
    for limb in range(LIMBS):
        _carry(limbs, limb)
    _fold(limbs)
    for limb in (0, 3):
        _carry(limbs, limb)
    return np.stack(limbs)
