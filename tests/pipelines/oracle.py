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
from sfumato.transforms.heatmap.adaptive import bind_key
from sfumato.transforms.heatmap.parameters import HeatmapParameters
from sfumato.transforms.heatmap.schedule import HeatmapState, advance, start
from sfumato.transforms.privacy.keys import RunKey, keyed_hash, random_words
from sfumato.transforms.privacy.noise import discrete_laplace, polya_difference_events
from sfumato.transforms.secagg.shards import ShardTotals


def code_of(longitude: float, latitude: float, region: Region, depth: int) -> int | None:
    if not (region.west <= longitude <= region.east and region.south <= latitude <= region.north):
        return None
    side = 2**depth
    x = min(side - 1, int((longitude - region.west) * (side / (region.east - region.west))))
    y = min(side - 1, int((region.north - latitude) * (side / (region.north - region.south))))
    return int(interleave(np.array([x], np.uint32), np.array([y], np.uint32))[0])


def one_location_a_user(pattern: str, region: Region, depth: int, key: RunKey) -> dict[int, int]:
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
    return {user: sorted(mine)[(user % 2**32) * len(mine) // 2**32] for user, mine in records.items()}


def heatmap(pattern: str, region: Region, parameters: HeatmapParameters, key: RunKey) -> HeatmapState:
    depth = parameters.depth
    key = bind_key(key, region, parameters, LocationColumns())
    places = one_location_a_user(pattern, region, depth, key)
    state = start(len(places), parameters, key)
    cohort = state.cohort
    shards: dict[int, list[int]] = defaultdict(list)
    for user, code in places.items():
        position = Fraction(user >> (2 * depth), 2 ** (64 - 2 * depth))
        shard = math.floor(position * cohort.shards / Fraction(cohort.sampling_rate))
        if shard < cohort.shards:
            shards[shard].append(code)
    while state.query is not None:
        state = advance(state, ask(state, shards, parameters, key), parameters)
    return state


def ask(state: HeatmapState, shards: dict[int, list[int]], parameters: HeatmapParameters, key: RunKey) -> ShardTotals:
    query = state.query
    assert query is not None
    entries = query.tree.entries.tolist()
    place = {node: i for i, node in enumerate(entries)}
    present = set(query.tree.nodes.tolist())
    total, live = np.zeros(len(entries), dtype=np.int64), 0
    for shard in range(state.cohort.shards):
        stream = np.array([shard], dtype=np.uint64)
        codes = sorted(shards[shard])
        clients = list(range(len(codes)))
        if parameters.simulated_dropout:
            ranks = np.arange(len(codes), dtype=np.uint64)
            words = random_words(key.subkey("dropout", query.index), np.full(len(codes), stream[0]), ranks)
            stays = (words[:, 0] >> np.uint64(11)) * 2.0**-53 >= parameters.simulated_dropout
            clients = [client for client, stay in enumerate(stays.tolist()) if stay]
        if len(clients) < query.required_survivors:
            continue
        live += 1
        vector = [0] * len(entries)
        if parameters.noise == "client":
            share, slots = np.array([1 / query.required_survivors]), np.array([len(codes) * len(entries)])
            label = f"client noise {query.index}"
        else:
            vector = discrete_laplace(key, f"shard noise {query.index}", stream, len(entries), query.epsilon)[
                0
            ].tolist()
            share, slots = np.array([len(clients) / query.required_survivors - 1]), np.array([len(entries)])
            label = f"surplus noise {query.index}"
        events = polya_difference_events(key, label, stream, share, slots, query.epsilon)
        for slot, value in zip(events.slot.tolist(), events.value.tolist(), strict=True):
            if parameters.noise == "shard" or slot // len(entries) in set(clients):
                vector[slot % len(entries)] += value
        for client in clients:
            node = codes[client] | 4**parameters.depth
            while node not in present:
                node >>= 2
            vector[place[node]] += 1
        window = query.window
        seen = np.array(vector) % window.modulus
        total += np.where(seen >= window.modulus - window.low, seen - window.modulus, seen)
    return ShardTotals(total, live)
