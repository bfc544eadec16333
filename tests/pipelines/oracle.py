"""The heatmap job once more, by dictionaries and loops: an answer to compare pipelines with.

Shares with the job only the keyed primitives (hash, noise) and the pure state machine; reading, bounding, sharding,
tree matching and summing are done here in the plainest way.
"""

from __future__ import annotations

import glob
import math
from collections import defaultdict
from fractions import Fraction

import numpy as np
import pyarrow.parquet as pq

from sfumato.schemas.locations import LocationColumns
from sfumato.schemas.region import Region, interleave
from sfumato.transforms.heatmap.parameters import HeatmapParameters
from sfumato.transforms.heatmap.schedule import advance, start
from sfumato.transforms.heatmap.state import HeatmapState
from sfumato.transforms.heatmap.whole import bind_key
from sfumato.transforms.privacy.keys import RunKey, keyed_hash, random_words
from sfumato.transforms.privacy.noise import discrete_laplace, polya_difference_events
from sfumato.transforms.secagg.shards import ShardQuery, ShardTotals


def code_of(longitude: float, latitude: float, region: Region, depth: int) -> int | None:
    if not (region.west <= longitude <= region.east and region.south <= latitude <= region.north):
        return None
    side = 2**depth
    x = min(side - 1, int((longitude - region.west) * (side / (region.east - region.west))))
    y = min(side - 1, int((region.north - latitude) * (side / (region.north - region.south))))
    return int(interleave(np.array([x], np.uint32), np.array([y], np.uint32))[0])


def records_of_users(pattern: str, region: Region, depth: int, key: RunKey) -> dict[int, list[int]]:
    records: dict[int, list[int]] = defaultdict(list)
    for path in glob.glob(pattern):
        table = pq.read_table(path)
        ids = table["user_id"].to_pylist()
        values = np.array(ids) if isinstance(ids[0], int) else np.array(ids, dtype=object)
        hashes = keyed_hash(key.subkey("users"), values).tolist()
        for user, lat, lon in zip(hashes, table["latitude"].to_pylist(), table["longitude"].to_pylist(), strict=True):
            code = code_of(lon, lat, region, depth)
            if code is not None:
                records[user].append(code)
    return records


def weights_of_users(records: dict[int, list[int]], gamma: int | None) -> dict[int, dict[int, int]]:
    """What each user adds to each cell: 1 in one of them, or shares that add up to gamma."""
    if gamma is None:
        return {user: {sorted(mine)[(user % 2**32) * len(mine) // 2**32]: 1} for user, mine in records.items()}
    weights: dict[int, dict[int, int]] = {}
    for user, mine in records.items():
        offset = Fraction((user % 2**32) * len(mine) // 2**32, len(mine))
        held: dict[int, int] = {}
        for place, code in enumerate(sorted(mine)):
            edges = (math.floor(Fraction(gamma * i, len(mine)) + offset) for i in (place, place + 1))
            held[code] = held.get(code, 0) - next(edges) + next(edges)
        weights[user] = {code: weight for code, weight in held.items() if weight}
    return weights


def heatmap(pattern: str, region: Region, parameters: HeatmapParameters, key: RunKey) -> HeatmapState:
    depth = parameters.depth
    key = bind_key(key, region, parameters, LocationColumns())
    users = weights_of_users(records_of_users(pattern, region, depth, key), parameters.distribution_gamma)
    state = start(len(users), parameters, key)
    cohort = state.cohort
    shards: dict[int, list[dict[int, int]]] = defaultdict(list)
    for user, weights in sorted(users.items()):
        position = Fraction(user >> (2 * depth), 2 ** (64 - 2 * depth))
        shard = math.floor(position * cohort.shards / Fraction(cohort.sampling_rate))
        if shard < cohort.shards:
            shards[shard].append(weights)
    while state.query is not None:
        state = advance(state, ask(state, shards, parameters, key), parameters)
    return state


def ask(
    state: HeatmapState, shards: dict[int, list[dict[int, int]]], parameters: HeatmapParameters, key: RunKey
) -> ShardTotals:
    query = state.query
    assert query is not None
    tree = query.encoding.tree
    entries = tree.entries.tolist()
    place = {node: i for i, node in enumerate(entries)}
    present = set(tree.nodes.tolist())
    total, live = np.zeros(len(entries), dtype=np.int64), 0
    for shard in range(state.cohort.shards):
        stream = np.array([shard], dtype=np.uint64)
        # Clients are ranked by their cell, or by their hash where they have several.
        codes = sorted(shards[shard], key=min) if state.unit == 1 else shards[shard]
        clients = list(range(len(codes)))
        if parameters.simulated_dropout:
            ranks = np.arange(len(codes), dtype=np.uint64)
            words = random_words(key.subkey("dropout", query.index), np.full(len(codes), stream[0]), ranks)
            stays = (words[:, 0] >> np.uint64(11)) * 2.0**-53 >= parameters.simulated_dropout
            clients = [client for client, stay in enumerate(stays.tolist()) if stay]
        if parameters.noise != "central" and len(clients) < query.required_survivors:
            continue
        live += 1
        vector = [0] * len(entries)
        if parameters.noise == "client":
            share, slots = np.array([1 / query.required_survivors]), np.array([len(codes) * len(entries)])
            label = f"client noise {query.index}"
        elif parameters.noise == "central":
            share, slots, label = np.zeros(1), np.zeros(1, dtype=int), "none"
        else:
            vector = noise(key, f"shard noise {query.index}", shard, query)
            share, slots = np.array([len(clients) / query.required_survivors - 1]), np.array([len(entries)])
            label = f"surplus noise {query.index}"
        events = polya_difference_events(key, label, stream, share, slots, query.epsilon, state.unit)
        for slot, value in zip(events.slot.tolist(), events.value.tolist(), strict=True):
            if parameters.noise == "shard" or slot // len(entries) in set(clients):
                vector[slot % len(entries)] += value
        for client in clients:
            for code, weight in codes[client].items():
                node = code | 4**parameters.depth
                while node not in present:
                    node >>= 2
                vector[place[node]] += weight
        if parameters.noise == "central":
            total += np.array(vector)
            continue
        window = query.window
        seen = np.array(vector) % window.modulus
        total += np.where(seen >= window.modulus - window.low, seen - window.modulus, seen)
    if parameters.noise == "central":
        total += np.array(noise(key, f"central noise {query.index}", 0, query))
    return ShardTotals(total, live)


def noise(key: RunKey, label: str, stream: int, query: ShardQuery) -> list[int]:
    streams = np.array([stream], dtype=np.uint64)
    return discrete_laplace(key, label, streams, query.encoding.length, query.epsilon, query.unit)[0].tolist()
