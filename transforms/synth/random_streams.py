"""Counter-based random bits, and sampling from a raster. Vectorised.

Random bits are a hash of a stream's key and a counter. So user 7 has the same home in every file, block and process.
The generator is splitmix64 (Steele, Lea and Flood, OOPSLA 2014). It is fast and not cryptographic. It makes demo data;
no privacy noise may use it.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

Words = NDArray[np.uint64]

_GAMMA = 0x9E3779B97F4A7C15
_MULTIPLIER_1 = 0xBF58476D1CE4E5B9
_MULTIPLIER_2 = 0x94D049BB133111EB
_MASK_64 = (1 << 64) - 1
_MASK_63 = (1 << 63) - 1


def mix(words: Words) -> Words:
    """Returns splitmix64's finaliser, a bijection of 64-bit words. Works in place on uint64[n] and returns it."""
    words ^= words >> np.uint64(30)
    words *= np.uint64(_MULTIPLIER_1)
    words ^= words >> np.uint64(27)
    words *= np.uint64(_MULTIPLIER_2)
    words ^= words >> np.uint64(31)
    return words


def stream_key(seed: int, *path: int) -> int:
    """Returns the 64-bit key of the random stream that a seed and a path of integers name."""
    key = seed & _MASK_64
    for part in path:
        bits = np.array([(key + (part + 1) * _GAMMA) & _MASK_64], dtype=np.uint64)
        key = int(mix(bits)[0])
    return key


def random_bits(keys: int | Words, counters: Words) -> Words:
    """Returns 64 random bits for each counter: uint64[n]. keys: of the stream, or one for each counter."""
    words = counters * np.uint64(_GAMMA)
    words += np.uint64(keys) if isinstance(keys, int) else keys
    return mix(words)


def scramble_63(values: Words, key: int) -> NDArray[np.int64]:
    """Returns a keyed bijection of 0 .. 2^63 - 1: int64[n]. Distinct values give distinct numbers in no visible order.

    Each step is a bijection modulo 2^63: an exclusive or with a constant, a multiplication by an odd number, an
    exclusive or with the number's own upper bits.
    """
    mask = np.uint64(_MASK_63)
    words = (values & mask) ^ np.uint64(key & _MASK_63)
    for shift, multiplier in ((30, _MULTIPLIER_1), (27, _MULTIPLIER_2), (29, _GAMMA)):
        words ^= words >> np.uint64(shift)
        words *= np.uint64(multiplier)
        words &= mask
    words ^= words >> np.uint64(32)
    return words.view(np.int64)


def alias_table(weights: NDArray[np.floating]) -> Words:
    """Returns Walker's alias table: uint64[2^b]. `draw` needs 64 random bits and one look-up.

    The lower b bits of an entry hold the slot's alias, the upper 64 - b bits its threshold. Weights are scaled to mean
    1. Heavy slots (above 1) fill up light ones in order; one that drops below 1 takes the rest from the next. Prefix
    sums find all of this without a loop.

    Args:
        weights: float[2^b], b <= 24.

    Source: Huebschle-Schneider and Sanders, "Parallel weighted random sampling" (2019), Section 4.
    """
    slots = weights.size
    bits = slots.bit_length() - 1
    scaled = weights.ravel().astype(np.float64)
    scaled *= slots / scaled.sum()
    is_light = scaled <= 1
    light, heavy = np.flatnonzero(is_light), np.flatnonzero(~is_light)
    threshold = np.minimum(scaled, 1.0)
    alias = np.arange(slots, dtype=np.uint64)
    if len(heavy):
        missing = np.cumsum(1 - scaled[light])
        spare = np.cumsum(scaled[heavy] - 1)
        last = len(heavy) - 1
        # Light slot i takes from the first heavy slot that has spare weight after the light slots before i.
        before = np.concatenate(([0.0], missing[:-1]))
        alias[light] = heavy[np.minimum(np.searchsorted(spare, before), last)]
        # Heavy slot j is overdrawn by the first light slot that takes more than it has left.
        taker = np.searchsorted(missing, spare, side="right")
        overdrawn = np.flatnonzero((taker < len(light)) & (np.arange(len(heavy)) < last))
        threshold[heavy[overdrawn]] = np.clip(1 + spare[overdrawn] - missing[taker[overdrawn]], 0, 1)
        alias[heavy[overdrawn]] = heavy[overdrawn + 1]
    steps = float(1 << (64 - bits))
    # The largest float below `steps`, so that the shift of a full slot does not wrap to threshold 0.
    table = np.minimum(threshold * steps, np.nextafter(steps, 0)).astype(np.uint64)
    table <<= np.uint64(bits)
    # A full slot must never give another alias, not even once in 2^(64 - b) draws.
    alias = np.where(threshold >= 1, np.arange(slots, dtype=np.uint64), alias)
    return table | alias


def draw(tables: Words, which: NDArray[np.integer] | int, words: Words, bits: int) -> NDArray[np.int64]:
    """Draws cells from alias tables: int64[n] in 0 .. 2^bits - 1.

    tables: uint64[t * 2^bits], t tables one after the other. which: int[n], the table of each draw, or one table.
    words: uint64[n], random bits. bits: of a cell.
    """
    shift = np.uint64(64 - bits)
    slot = words >> shift
    entry = tables[(slot | (np.asarray(which, dtype=np.uint64) << np.uint64(bits))).view(np.int64)]
    own = (words & np.uint64((1 << (64 - bits)) - 1)) < (entry >> np.uint64(bits))
    return np.where(own, slot, entry & np.uint64((1 << bits) - 1)).view(np.int64)


def alias_probabilities(table: Words) -> NDArray[np.float64]:
    """Returns the distribution of a table: float64[2^b]. The inverse of `alias_table`, but for rounding."""
    slots = table.size
    bits = slots.bit_length() - 1
    own = (table >> np.uint64(bits)).astype(np.float64) / float(1 << (64 - bits))
    alias = (table & np.uint64(slots - 1)).astype(np.int64)
    return (own + np.bincount(alias, weights=1 - own, minlength=slots)) / slots
