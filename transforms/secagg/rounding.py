"""Rounding of a user's distribution to integers: once for all sub-queries, or entry by entry in each of them. Pure.

Systematic rounding is done where distributions are made (`locations/distributions.py`). A user's weights add up to
gamma exactly, so the L1 norm of the vector is gamma in every sub-query. Independent rounding is the paper's (000,
Section 5.7). Each client rounds every entry of a vector of norm gamma up or down on its own. The norm can then be
nearly gamma + d, where d is the vector's length.

In integers, weights are made systematically for gamma 2^f. For an entry's share X the client sends
floor((X + R) / 2^f), with R uniform in [0, 2^f). That is unbiased, and an entry without a share stays 0. Of K entries
with a share the client sends at most sum ceil(X / 2^f) < gamma + K, so the norm is at most gamma + d - 1. Where a
location adds to E entries, as in the E rows of a sketch, it is below gamma E + d. Both bounds hold for every outcome of
the R, and the R are independent of the noise. So the guarantee for the sensitivity gamma E + d holds given the R, and
also without them. One more user changes the ranks of the clients above, and so their R. All R have one distribution,
independent of the data.
"""

from __future__ import annotations

import math
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from sfumato.transforms.locations.distributions import MAX_GAMMA
from sfumato.transforms.locations.shards import ShardGroup
from sfumato.transforms.privacy.keys import random_bits
from sfumato.transforms.secagg.encodings import Encoding

Rounding = Literal["systematic", "independent"]
_MAX_FRACTION_BITS = 16  # a share is then exact to 1 / 65536 of a unit


def fraction_bits(gamma: int) -> int:
    """f: the fraction bits of weights for gamma, as many as fit below MAX_GAMMA, at most 16.

    From gamma = 2^30 on there are none, and both roundings are the same.
    """
    return max(0, min(_MAX_FRACTION_BITS, MAX_GAMMA.bit_length() - gamma.bit_length()))


def stored_total(gamma: int, rounding: Rounding) -> int:
    """The sum of a user's stored weights: gamma, or gamma 2^f before independent rounding."""
    return gamma << fraction_bits(gamma) if rounding == "independent" else gamma


def l1_sensitivity(gamma: int, rounding: Rounding, length: int, entries: int = 1) -> int:
    """The largest L1 norm of one user's vector of `length` entries, where a location adds to `entries` of them."""
    return gamma * entries + (length if rounding == "independent" else 0)


def l2_sensitivity(gamma: int, rounding: Rounding, length: int, entries: int = 1) -> float:
    """The largest L2 norm of such a vector, by the triangle inequality: over locations, and over the rounding."""
    return gamma * math.sqrt(entries) + (math.sqrt(length) if rounding == "independent" else 0)


def rounded_sums(group: ShardGroup, block: slice, encoding: Encoding, bits: int, subkey: bytes) -> NDArray[np.int64]:
    """Sums of the vectors of each shard of the block, each client's entries rounded: int64[shards of block, length].

    The R of a client and an entry depends on the subkey, the client's shard, their rank in it and the entry alone.

    Args:
        group: of users with distributions.
        block: shards of the group.
        encoding: of the sub-query.
        bits: f, the fraction bits of the group's weights.
        subkey: of the sub-query.
    """
    shards, length = block.stop - block.start, encoding.length
    sums = np.zeros(shards * length, dtype=np.int64)
    weights = group.weights_of(block)
    if weights is None or group.clients is None:
        raise TypeError("independent rounding needs distributions, and the group has one location a user")
    clients = group.clients[group.starts[block.start] : group.starts[block.stop]]
    if not len(weights):
        return sums.reshape(shards, length)
    shard = np.repeat(np.arange(shards), np.diff(group.starts[block.start : block.stop + 1]))
    user = group.user_starts[block][shard] - group.user_starts[block.start] + clients
    for entry in encoding.entries_of(group, block):
        place = user * length + entry
        order = np.argsort(place)
        first = np.flatnonzero(np.diff(place[order], prepend=-1))
        share = np.add.reduceat(weights[order], first)
        row = order[first]  # one for each entry of a user
        low = clients[row].astype(np.uint64) << np.uint64(32) | entry[row].astype(np.uint64)
        draw = random_bits(subkey, group.numbers()[block][shard[row]], low)[:, 0] & np.uint64((1 << bits) - 1)
        np.add.at(sums, shard[row] * length + entry[row], (share + draw.astype(np.int64)) >> bits)
    return sums.reshape(shards, length)
