"""One sub-query in every shard: encode, add noise, sum modulo m, drop what may not be seen, decode, add up.

Clients' vectors and shares are never materialised: the modulo commutes with the sums, so a shard's sum modulo m of
(vector + noise) is (counts + noise of all survivors) modulo m (paper 000, Eq. 2).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray
from scipy.special import bdtr

from sfumato.transforms.locations.shards import ShardGroup
from sfumato.transforms.privacy.keys import RunKey, random_bits
from sfumato.transforms.privacy.noise import discrete_laplace, polya_difference_events
from sfumato.transforms.secagg.encodings import Encoding
from sfumato.transforms.secagg.modulus import Window
from sfumato.transforms.secagg.rounding import Rounding, fraction_bits, l1_sensitivity, rounded_sums

NoiseMode = Literal["shard", "client", "central"]
# Shards are worked on in blocks of about so many vector entries and users, which fit the cache.
_BLOCK_ENTRIES, _BLOCK_USERS = 1 << 17, 1 << 17


@dataclass(frozen=True)
class ShardQuery:
    """What every client of every shard is asked in one sub-query.

    unit: what a client's vector adds up to, for each entry to which a location adds. rounding: independent where her
    weights, which then have `fraction_bits` behind the point, are still to be rounded, entry by entry.
    required_survivors: a client's share of the noise is Polya(1 / required_survivors). planned_clients: clients for
    which a shard is planned; its noise is then that of required_survivors clients, whoever is there, and no shard is
    lost but by simulated dropout. None is the paper's model: every survivor adds noise, and a shard with fewer than
    required_survivors reveals nothing. asked: the first of the shards that are asked, and the one after the last; None
    for all.
    """

    index: int
    encoding: Encoding
    epsilon: float
    window: Window
    required_survivors: int
    unit: int = 1
    rounding: Rounding = "systematic"
    shard_range: tuple[int, int] | None = None
    planned_clients: int | None = None

    @property
    def sensitivity(self) -> int:
        """Largest L1 norm of one user's vector."""
        return l1_sensitivity(self.unit, self.rounding, self.encoding.length, self.encoding.sensitivity)

    def bind(self, key: RunKey) -> RunKey:
        """The key for this very question: another one under the same run's key gets other noise.

        Which tree a later sub-query asks for follows from noisy counts in floating point, and another machine may round
        them otherwise: a run that is repeated there must not show two trees' sums under one noise.
        """
        question = (
            self.index,
            self.encoding.fingerprint,
            self.epsilon.hex(),
            self.shard_range,
            self.unit,
            self.rounding,
        )
        return key.narrowed({"question": repr(question)})


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

    simulated_dropout: chance that a client vanishes, and its value with it; in the paper's model its share of the noise
    as well. With central noise there is no secure aggregation: no shard is lost and the sum is exact, for
    `add_central_noise`.
    """
    present = survivors(group, query.index, key, simulated_dropout)
    kept = planned_shards(group.numbers(), query, key, simulated_dropout)
    key = query.bind(key)
    answering = group if present is None else group.only(present)
    sizes = answering.sizes()
    encoding = query.encoding
    total = ShardTotals(np.zeros(encoding.length, dtype=np.int64), 0)
    step = max(1, _BLOCK_ENTRIES // encoding.length)
    if query.rounding == "independent" or encoding.works_by_user(answering):
        step = max(1, min(step, _BLOCK_USERS * group.shards // (1 + len(answering.keys))))
    for first in range(0, group.shards, step):
        block = slice(first, min(first + step, group.shards))
        if noise == "central":
            live = np.ones(block.stop - block.start, dtype=bool)
        elif query.planned_clients is None:
            live = sizes[block] >= query.required_survivors
        else:
            live = kept[block].copy()
        if query.shard_range is not None:
            numbers = np.arange(group.first + block.start, group.first + block.stop)
            live &= (numbers >= query.shard_range[0]) & (numbers < query.shard_range[1])
        if not live.any():
            continue
        sums = count_vectors(answering, block, query, key)
        if noise != "central":
            sums += (
                shard_noise(group.numbers()[block], sizes[block], query, key)
                if noise == "shard"
                else client_noise(group, block, present, query, key)
            )
            sums = decode(encode(sums, query.window), query.window)
        total += ShardTotals(sums[live].sum(axis=0), int(live.sum()))
    return total


def count_vectors(group: ShardGroup, block: slice, query: ShardQuery, key: RunKey) -> NDArray[np.int64]:
    """Sums of what the clients of each shard of the block hold, without noise: int64[shards of block, T]."""
    if query.rounding == "systematic":
        return query.encoding.count(group, block)
    bits = fraction_bits(query.unit)
    return rounded_sums(group, block, query.encoding, bits, key.subkey("rounding", query.index))


def add_central_noise(totals: ShardTotals, query: ShardQuery, key: RunKey) -> ShardTotals:
    """The exact totals of all shards with the discrete Laplace noise that a trusted server adds, once."""
    noise = discrete_laplace(
        query.bind(key),
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
    return _coins(key.subkey("dropout", index), group.numbers()[shard], rank.astype(np.uint64)) >= dropout


def planned_shards(shards: NDArray[np.uint64], query: ShardQuery, key: RunKey, dropout: float) -> NDArray[np.bool_]:
    """Which shards keep `required_survivors` of their planned clients, each of whom vanishes with this probability.

    The coins belong to the plan: they depend on the key, the sub-query and the shard's number, and not on who is there.

    Args:
        shards: uint64[n], the shards' numbers.
        query: of which the planned and the required number of clients are.
        key: of the run.
        dropout: probability, in [0, 1].

    Returns:
        bool[n]; all true without dropout, or in the paper's model, where the users themselves decide.
    """
    if query.planned_clients is None or dropout <= 0:
        return np.ones(len(shards), dtype=bool)
    lost = float(bdtr(query.required_survivors - 1, query.planned_clients, 1 - dropout))
    return _coins(key.subkey("planned dropout", query.index), shards, np.zeros_like(shards)) >= lost


def _coins(subkey: bytes, high: NDArray[np.uint64], low: NDArray[np.uint64]) -> NDArray[np.float64]:
    """Uniform numbers in [0, 1), one a pair."""
    return np.asarray((random_bits(subkey, high, low)[:, 0] >> np.uint64(11)) * 2.0**-53)


def shard_noise(
    shards: NDArray[np.uint64], sizes: NDArray[np.int64], query: ShardQuery, key: RunKey
) -> NDArray[np.int64]:
    """The noise of each shard in closed form: int64[shards, T].

    Discrete Laplace (exact) and nothing else for planned shards. In the paper's model also what the survivors above the
    required number add; rows of shards with fewer then lack noise and must not be used.
    """
    entries = query.encoding.length
    noise = discrete_laplace(key, f"shard noise {query.index}", shards, entries, query.epsilon, query.sensitivity)
    if query.planned_clients is not None:
        return noise
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
    """Every client's share, sparsely, summed over each shard: int64[shards of block, T].

    A slot is a (client, entry) pair. Of a planned shard the clients are the required ones, whoever is there, so that
    the sum is discrete Laplace; in the paper's model they are the survivors, by their rank in the shard.
    """
    entries = query.encoding.length
    offsets, sizes = group.user_starts[block], group.sizes()[block]
    events = polya_difference_events(
        key,
        f"client noise {query.index}",
        group.numbers()[block],
        np.full(len(offsets), 1 / query.required_survivors),
        (sizes if query.planned_clients is None else np.full_like(sizes, query.required_survivors)) * entries,
        query.epsilon,
        query.sensitivity,
    )
    client, entry = np.divmod(events.slot, entries)
    kept = np.ones(len(client), dtype=bool)
    if present is not None and query.planned_clients is None:
        kept = present[offsets[events.row] + client]
    noise = np.zeros((len(offsets), entries), dtype=np.int64)
    np.add.at(noise, (events.row[kept], entry[kept]), events.value[kept])
    return noise
