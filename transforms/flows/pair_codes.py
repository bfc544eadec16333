"""Codes of pairs of cells: four bits a level, the origin's two before the destination's two. Pure.

A cell's code has two bits a level (`schemas/region.py`). So the first 4 l bits of a pair's code are the code of the
pair of cells of level l in which it lies, and pairs in the order of their codes are in the order of a tree with 16
children a node.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

MAX_PAIR_DEPTH = 15  # 60 bits
_TWO_BITS, _FOUR_BITS = np.uint64(3), np.uint64(15)
Codes = NDArray[np.uint64]


def join_cells(origins: Codes, destinations: Codes, depth: int) -> Codes:
    """Codes of pairs, uint64[n], of origins and destinations, uint64[n] codes of cells of level `depth`."""
    pairs = np.zeros(len(origins), np.uint64)
    for level in range(depth):
        at = np.uint64(2 * level)
        digit = ((origins >> at) & _TWO_BITS) << np.uint64(2) | ((destinations >> at) & _TWO_BITS)
        pairs |= digit << np.uint64(4 * level)
    return pairs


def split_pairs(pairs: Codes, depth: int) -> tuple[Codes, Codes]:
    """The inverse of `join_cells`: origins and destinations, uint64[n] each."""
    origins, destinations = np.zeros_like(pairs), np.zeros_like(pairs)
    for level in range(depth):
        digit = (pairs >> np.uint64(4 * level)) & _FOUR_BITS
        origins |= (digit >> np.uint64(2)) << np.uint64(2 * level)
        destinations |= (digit & _TWO_BITS) << np.uint64(2 * level)
    return origins, destinations


def count_prefixes(codes: Codes, counts: NDArray[np.int64], nodes: Codes, bits: int) -> NDArray[np.int64]:
    """The counts of nodes: int64[m].

    Args:
        codes: uint64[n] ascending, distinct, of pairs.
        counts: int64[n], of each.
        nodes: uint64[m], in any order, prefixes of codes.
        bits: that a code has more than a node.
    """
    before = np.concatenate(([0], np.cumsum(counts)))
    first = np.searchsorted(codes, nodes << np.uint64(bits))
    last = np.searchsorted(codes, (nodes << np.uint64(bits)) | np.uint64((1 << bits) - 1), side="right")
    return np.asarray(before[last] - before[first])
