"""One sub-query in every shard: encode, add noise, sum modulo m, drop lost shards, decode, add up. Pure.

Clients' vectors are never materialised. The modulo commutes with sums, so a shard's sum modulo m of (vector + share)
over its clients is (counts + shard noise) modulo m (paper 000, Eq. 2). Words for noise:

- A *client's share* is what one client adds to each entry of the vector: a difference of two Polya variates.
- *Shard noise* is the sum of the shares of a shard's clients. It is drawn in closed form (`draw_shard_noise`, the
  default), or share by share (`sum_client_shares`, to study the protocol). Both have one distribution.
- Shard noise in closed form has two parts: the *guarantee's noise*, an exact variate of the sub-query's cost, to which
  the shares of the required honest clients add up; and *surplus noise*, the shares of all further clients. The second
  is independent of the first and only adds to the error.
- *Central noise* is what a trusted curator adds once to the exact sum of all shards, or each of two servers to its
  share of that sum. Shards then have no noise.

`ShardQuery.noise` describes the distribution of shard noise or of central noise, and draws nothing.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np
import scipy
from numpy.typing import NDArray

from sfumato.transforms.locations.shards import ShardGroup
from sfumato.transforms.privacy.discrete_laplace import polya_difference_events
from sfumato.transforms.privacy.keys import RunKey, random_bits
from sfumato.transforms.privacy.shared_noise import Noise
from sfumato.transforms.secagg.encodings import Encoding, Rounding, fraction_bits, rounded_sums, sensitivity_of
from sfumato.transforms.secagg.modulus import Window

NoiseSource = Literal["shard", "client"]
# A block of shards has about this many vector entries and users, which fit the cache.
_BLOCK_ENTRIES, _BLOCK_USERS = 1 << 17, 1 << 17


@dataclass(frozen=True)
class ShardQuery:
    """A sub-query as the clients of all its shards receive it.

    Attributes:
        index: of the sub-query in the run, from 1.
        encoding: of the clients' vectors.
        cost: of the sub-query for a user in its shards, in the unit of the noise: epsilon or rho.
        window: of the secure sums.
        noise: the distribution of shard noise, or of central noise. Its required clients must respond in every shard.
        gamma: the sum of a client's vector, for each entry that a location adds to: 1 for one location a user.
        rounding: `independent` where the weights, with `fraction_bits`, are rounded entry by entry in this sub-query.
        shard_range: the first shard to query and the one after the last; None for all.
        planned_clients: clients that a shard is planned for. Its noise is then that of the required clients, whatever
            the number of its users, and a shard is lost only by simulated dropout. None is the paper's model: every
            survivor adds noise, and a shard with fewer than the required clients reveals nothing.
        servers: number of servers that each add central noise to their share of the sum; 0 where a curator adds it.
    """

    index: int
    encoding: Encoding
    cost: float
    window: Window
    noise: Noise
    gamma: int = 1
    rounding: Rounding = "systematic"
    shard_range: tuple[int, int] | None = None
    planned_clients: int | None = None
    servers: int = 0

    @property
    def sensitivity(self) -> float:
        """Largest norm of one user's vector, the one that the noise protects."""
        encoding = self.encoding
        return sensitivity_of(
            self.noise.kind, self.gamma, self.rounding, encoding.length, encoding.entries_per_location
        )

    def bind(self, key: RunKey) -> RunKey:
        """Returns the key for this query. Any other query under the same run's key gets other noise.

        The tree of a later sub-query follows from noisy counts in floating point, and another machine may round them in
        another way. A run that is repeated there must not publish sums of two trees under one noise.
        """
        parts = (self.index, self.encoding.fingerprint, self.cost.hex(), self.shard_range, self.gamma, self.rounding)
        return key.narrowed({"question": repr(parts)})


@dataclass(frozen=True)
class ShardTotals:
    """Decoded sums of the live shards, int64[T] (int64[0] without any shard), and the number of live shards."""

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
    group: ShardGroup,
    query: ShardQuery,
    key: RunKey,
    noise_source: NoiseSource | None = "shard",
    simulated_dropout: float = 0.0,
) -> ShardTotals:
    """Returns the decoded sum over the live shards of a group, with shard noise.

    Without shard noise there is no secure aggregation: no shard is lost and the sum is exact, for `add_central_noise`.

    Args:
        group: of shards.
        query: the sub-query.
        key: of the run.
        noise_source: how shard noise is drawn: in closed form for a shard, or as clients' shares. None for exact sums,
            which a trusted curator sees.
        simulated_dropout: probability that a client vanishes with its value; in the paper's model with its share too.
    """
    present = survivors(group, query.index, key, simulated_dropout)
    kept = planned_shards(group.numbers(), query, key, simulated_dropout)
    key = query.bind(key)
    surviving = group if present is None else group.only(present)
    sizes = surviving.sizes()
    encoding = query.encoding
    total = ShardTotals(np.zeros(encoding.length, dtype=np.int64), 0)
    step = max(1, _BLOCK_ENTRIES // encoding.length)
    if query.rounding == "independent" or encoding.reads_every_row(surviving):
        step = max(1, min(step, _BLOCK_USERS * group.shards // (1 + len(surviving.keys))))
    for first in range(0, group.shards, step):
        block = slice(first, min(first + step, group.shards))
        if noise_source is None:
            live = np.ones(block.stop - block.start, dtype=bool)
        elif query.planned_clients is None:
            live = sizes[block] >= query.noise.required
        else:
            live = kept[block].copy()
        if query.shard_range is not None:
            numbers = np.arange(group.first + block.start, group.first + block.stop)
            live &= (numbers >= query.shard_range[0]) & (numbers < query.shard_range[1])
        if not live.any():
            continue
        sums = count_vectors(surviving, block, query, key)
        if noise_source == "shard":
            sums += draw_shard_noise(group.numbers()[block], sizes[block], query, key)
        elif noise_source == "client":
            sums += sum_client_shares(group, block, present, query, key)
        if noise_source is not None:
            sums = decode(encode(sums, query.window), query.window)
        total += ShardTotals((sums if live.all() else sums[live]).sum(axis=0), int(live.sum()))
    return total


def count_vectors(group: ShardGroup, block: slice, query: ShardQuery, key: RunKey) -> NDArray[np.int64]:
    """Returns the sums of the clients' vectors in each shard of the block, without noise: int64[shards of block, T]."""
    if query.rounding == "systematic":
        return query.encoding.count(group, block)
    bits = fraction_bits(query.gamma)
    return rounded_sums(group, block, query.encoding, bits, key.subkey("rounding", query.index))


def add_central_noise(totals: ShardTotals, query: ShardQuery, key: RunKey) -> ShardTotals:
    """Returns the exact totals of all shards plus central noise, drawn once: by a curator, or by each server."""
    central_noise = query.noise.kind.draw(
        query.bind(key),
        f"central noise {query.index}",
        np.arange(max(query.servers, 1), dtype=np.uint64),
        query.encoding.length,
        query.cost,
        query.sensitivity,
    )
    return ShardTotals(totals.sums + central_noise.sum(axis=0), totals.live)


def encode(sums: NDArray[np.int64], window: Window) -> NDArray[np.int64]:
    """Returns the sums modulo m, as secure aggregation shows them to the server."""
    modulus = window.modulus
    if modulus & (modulus - 1) == 0:  # in two's complement this is the modulo, and several times faster
        return sums & (modulus - 1)
    return np.mod(sums, modulus)


def decode(sums: NDArray[np.int64], window: Window) -> NDArray[np.int64]:
    """Returns the integers in [-low, modulus - low) that are congruent to the sums."""
    moved = encode(sums + window.low, window)
    moved -= window.low
    return moved


def survivors(group: ShardGroup, index: int, key: RunKey, dropout: float) -> NDArray[np.bool_] | None:
    """Returns whether each user of the group responds to sub-query `index`: bool[users]; None for all of them."""
    if dropout <= 0:
        return None
    shard = np.repeat(np.arange(group.shards), group.sizes())
    rank = np.arange(len(shard)) - group.user_starts[shard]
    return _coins(key.subkey("dropout", index), group.numbers()[shard], rank.astype(np.uint64)) >= dropout


def planned_shards(shards: NDArray[np.uint64], query: ShardQuery, key: RunKey, dropout: float) -> NDArray[np.bool_]:
    """Returns whether each shard keeps the required number of its planned clients, who vanish with this probability.

    The coins depend on the key, the sub-query and the shard's number, and not on the data.

    Args:
        shards: uint64[n], the shards' numbers.
        query: with the planned and the required number of clients.
        key: of the run.
        dropout: probability, in [0, 1].

    Returns:
        bool[n]; all true without dropout, and in the paper's model, where the number of users decides.
    """
    if query.planned_clients is None or dropout <= 0:
        return np.ones(len(shards), dtype=bool)
    lost = float(scipy.special.bdtr(query.noise.required - 1, query.planned_clients, 1 - dropout))
    return _coins(key.subkey("planned dropout", query.index), shards, np.zeros_like(shards)) >= lost


def _coins(subkey: bytes, high: NDArray[np.uint64], low: NDArray[np.uint64]) -> NDArray[np.float64]:
    """Returns uniform numbers in [0, 1), one for each pair (high, low): float64[n]."""
    return np.asarray((random_bits(subkey, high, low)[:, 0] >> np.uint64(11)) * 2.0**-53)


def draw_shard_noise(
    shards: NDArray[np.uint64], sizes: NDArray[np.int64], query: ShardQuery, key: RunKey
) -> NDArray[np.int64]:
    """Returns the noise of each shard in closed form: int64[shards, T].

    It is the guarantee's noise, one exact variate an entry, plus surplus noise: the shares of the clients above the
    number of honest required ones. In planned shards these are the other required clients; in the paper's model all
    others who respond. A shard of that model with fewer survivors than required lacks noise: its row must not be used.
    """
    entries = query.encoding.length
    # The guarantee's noise.
    noise = query.noise.kind.draw(key, f"shard noise {query.index}", shards, entries, query.cost, query.sensitivity)
    planned = query.planned_clients is not None
    if planned and not query.noise.colluders:
        return noise
    clients = np.full_like(sizes, query.noise.required) if planned else sizes
    surplus = np.maximum(clients / query.noise.honest - 1, 0.0)
    events = polya_difference_events(
        key,
        f"surplus noise {query.index}",
        shards,
        surplus,
        np.full(len(shards), entries),
        query.cost,
        int(query.sensitivity),
    )
    np.add.at(noise, (events.row, events.slot), events.value)  # surplus noise
    return noise


def sum_client_shares(
    group: ShardGroup, block: slice, present: NDArray[np.bool_] | None, query: ShardQuery, key: RunKey
) -> NDArray[np.int64]:
    """Returns the sum of all clients' shares in each shard: int64[shards of block, T].

    Shares are drawn sparsely: most are 0. A slot is a (client, entry) pair. A planned shard has the shares of the
    required number of clients, whatever the number of its users, so that the sum is discrete Laplace if none may
    collude. In the paper's model they are the survivors' shares, by their rank in the shard.
    """
    entries = query.encoding.length
    offsets, sizes = group.user_starts[block], group.sizes()[block]
    events = polya_difference_events(
        key,
        f"client noise {query.index}",
        group.numbers()[block],
        np.full(len(offsets), 1 / query.noise.honest),
        (sizes if query.planned_clients is None else np.full_like(sizes, query.noise.required)) * entries,
        query.cost,
        int(query.sensitivity),
    )
    client, entry = np.divmod(events.slot, entries)
    kept = np.ones(len(client), dtype=bool)
    if present is not None and query.planned_clients is None:
        kept = present[offsets[events.row] + client]
    shares = np.zeros((len(offsets), entries), dtype=np.int64)
    np.add.at(shares, (events.row[kept], entry[kept]), events.value[kept])
    return shares
