"""One sub-query in every shard: encode, add noise, sum modulo m, drop what may not be seen, decode, add up.

Clients' vectors and shares are never materialised: the modulo commutes with the sums, so a shard's sum modulo m of
(vector + noise) is (counts + noise of all survivors) modulo m (paper 000, Eq. 2).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from sfumato.transforms.locations.shards import ShardGroup
from sfumato.transforms.privacy.keys import RunKey, random_words
from sfumato.transforms.privacy.noise import discrete_laplace, polya_difference_events
from sfumato.transforms.secagg.encodings import Encoding
from sfumato.transforms.secagg.modulus import Window

NoiseMode = Literal["shard", "client", "central"]
# Shards are worked on in blocks of about so many vector entries and users, which fit the cache.
_BLOCK_ENTRIES, _BLOCK_USERS = 1 << 17, 1 << 17


@dataclass(frozen=True)
class ShardQuery:
    """What every client of every shard is asked in one sub-query.

    unit: what a client's weights sum to; her vector's L1 norm is at most that times the encoding's sensitivity.
    required_survivors: below it a shard reveals nothing, and a client's share of the noise is
    Polya(1 / required_survivors).
    """

    index: int
    encoding: Encoding
    epsilon: float
    window: Window
    required_survivors: int
    unit: int = 1

    @property
    def sensitivity(self) -> int:
        """Largest L1 norm of one user's vector."""
        return self.unit * self.encoding.sensitivity


@dataclass(frozen=True)
class ShardTotals:
    """Decoded sums of the live shards: int64[T] (or int64[0] for none at all), and how many shards lived."""

    sums: NDArray[np.int64]
    live: int

    def __add__(self, other: ShardTotals) -> ShardTotals:
        if not len(self.sums):
            return other
        if not len(other.sums):
            return self
        return ShardTotals(self.sums + other.sums, self.live + other.live)


NOTHING = ShardTotals(np.zeros(0, dtype=np.int64), 0)


def sum_shards(
    group: ShardGroup, query: ShardQuery, key: RunKey, noise: NoiseMode = "shard", simulated_dropout: float = 0.0
) -> ShardTotals:
    """The decoded sum over the live shards of a group.

    simulated_dropout: chance that a client vanishes after the noise is decided, and its value and share with it.
    With central noise there is no secure aggregation: no shard is lost and the sum is exact, for `add_central_noise`.
    """
    present = survivors(group, query.index, key, simulated_dropout)
    answering = group if present is None else group.only(present)
    sizes = answering.sizes()
    encoding = query.encoding
    total = ShardTotals(np.zeros(encoding.length, dtype=np.int64), 0)
    step = max(1, _BLOCK_ENTRIES // encoding.length)
    if encoding.works_by_user(answering):
        step = max(1, min(step, _BLOCK_USERS * group.shards // (1 + len(answering.keys))))
    for first in range(0, group.shards, step):
        block = slice(first, min(first + step, group.shards))
        live = sizes[block] >= (0 if noise == "central" else query.required_survivors)
        if not live.any():
            continue
        sums = encoding.count(answering, block)
        if noise != "central":
            sums += (
                shard_noise(group.numbers()[block], sizes[block], query, key)
                if noise == "shard"
                else client_noise(group, block, present, query, key)
            )
            sums = decode(encode(sums, query.window), query.window)
        total += ShardTotals(sums[live].sum(axis=0), int(live.sum()))
    return total


def add_central_noise(totals: ShardTotals, query: ShardQuery, key: RunKey) -> ShardTotals:
    """The exact totals of all shards with the discrete Laplace noise that a trusted server adds, once."""
    noise = discrete_laplace(
        key,
        f"central noise {query.index}",
        np.zeros(1, dtype=np.uint64),
        query.encoding.length,
        query.epsilon,
        query.sensitivity,
    )
    return ShardTotals(totals.sums + noise[0], totals.live)


def encode(sums: NDArray[np.int64], window: Window) -> NDArray[np.int64]:
    """What secure aggregation shows the server: sums modulo m."""
    modulus = window.modulus
    if modulus & (modulus - 1) == 0:  # two's complement makes this the modulo, several times as fast
        return sums & (modulus - 1)
    return np.mod(sums, modulus)


def decode(sums: NDArray[np.int64], window: Window) -> NDArray[np.int64]:
    """The integers in [-low, modulus - low) that are congruent to the sums."""
    return encode(sums + window.low, window) - window.low


def survivors(group: ShardGroup, index: int, key: RunKey, dropout: float) -> NDArray[np.bool_] | None:
    """Which users of the group answer sub-query `index`: bool[users], or None for all of them."""
    if dropout <= 0:
        return None
    shard = np.repeat(np.arange(group.shards), group.sizes())
    rank = np.arange(len(shard)) - group.user_starts[shard]
    words = random_words(key.subkey("dropout", index), group.numbers()[shard], rank.astype(np.uint64))
    return np.asarray((words[:, 0] >> np.uint64(11)) * 2.0**-53 >= dropout)


def shard_noise(
    shards: NDArray[np.uint64], sizes: NDArray[np.int64], query: ShardQuery, key: RunKey
) -> NDArray[np.int64]:
    """The noise of all survivors of each shard in closed form: int64[shards, T].

    Discrete Laplace (exact), and what the survivors above the required number add to it. Only for live shards;
    other rows lack noise and must not be used.
    """
    entries = query.encoding.length
    noise = discrete_laplace(key, f"shard noise {query.index}", shards, entries, query.epsilon, query.sensitivity)
    surplus = np.maximum(sizes / query.required_survivors - 1, 0.0)
    events = polya_difference_events(
        key,
        f"surplus noise {query.index}",
        shards,
        surplus,
        np.full(len(shards), entries),
        query.epsilon,
        query.sensitivity,
    )
    np.add.at(noise, (events.row, events.slot), events.value)
    return noise


def client_noise(
    group: ShardGroup, block: slice, present: NDArray[np.bool_] | None, query: ShardQuery, key: RunKey
) -> NDArray[np.int64]:
    """Every client's share, sparsely, summed over the survivors of each shard: int64[shards of block, T].

    A slot is a (client, entry) pair, a client being its rank in the shard.
    """
    entries = query.encoding.length
    offsets = group.user_starts[block]
    events = polya_difference_events(
        key,
        f"client noise {query.index}",
        group.numbers()[block],
        np.full(len(offsets), 1 / query.required_survivors),
        group.sizes()[block] * entries,
        query.epsilon,
        query.sensitivity,
    )
    client, entry = np.divmod(events.slot, entries)
    kept = np.ones(len(client), dtype=bool) if present is None else present[offsets[events.row] + client]
    noise = np.zeros((len(offsets), entries), dtype=np.int64)
    np.add.at(noise, (events.row[kept], entry[kept]), events.value[kept])
    return noise
