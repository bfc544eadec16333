"""The heatmap job once more, by dictionaries and loops: an answer to compare pipelines with.

Shares with the job only the keyed primitives (hash, noise) and the pure state machine; reading, bounding, sharding,
tree matching and summing are done here in the plainest way.
"""

from __future__ import annotations

import glob
import math
from collections import defaultdict
from datetime import UTC, datetime
from fractions import Fraction
from typing import Any
from zoneinfo import ZoneInfo

import numpy as np
import pyarrow.parquet as pq
from scipy.stats import binom

from sfumato.schemas.locations import LocationColumns
from sfumato.schemas.region import Region
from sfumato.schemas.slots import Slots
from sfumato.transforms.counting.parameters import CountParameters
from sfumato.transforms.counting.state import CountState, Estimate
from sfumato.transforms.counting.sub_queries import advance, start_run
from sfumato.transforms.heatmap.transform import bind_key
from sfumato.transforms.privacy.admission import ChargeAndAdmit, UserCounts
from sfumato.transforms.privacy.discrete_gaussian import discrete_gaussian
from sfumato.transforms.privacy.discrete_laplace import discrete_laplace, polya_difference_events
from sfumato.transforms.privacy.keys import RunKey, keyed_hash, random_bits
from sfumato.transforms.privacy.mechanism import sigma_for_rho
from sfumato.transforms.secagg.shard_sums import ShardQuery, ShardTotals
from tests.unit.locations import oracle as users_oracle


def code_of(longitude: float, latitude: float, region: Region, depth: int) -> int | None:
    if not (region.west <= longitude <= region.east and region.south <= latitude <= region.north):
        return None
    side = 2**depth
    x = min(side - 1, int((longitude - region.west) * (side / (region.east - region.west))))
    y = min(side - 1, int((region.north - latitude) * (side / (region.north - region.south))))
    return 2 * int(f"{x:b}", 4) + int(f"{y:b}", 4)  # the bits of both in turn


def value_of(record: dict[str, Any], columns: LocationColumns) -> float | None:
    """A record's weight or time in seconds, None for a bad one; 0 where the request has neither."""
    name = columns.weight or columns.time
    if name is None:
        return 0.0
    value = record[name]
    if isinstance(value, datetime):
        return value.replace(tzinfo=UTC).timestamp()
    bad = value is None or not math.isfinite(value) or (columns.weight is not None and value < 0)
    return None if bad else float(value)


def category_of(record: dict[str, Any], columns: LocationColumns) -> int | None:
    """A record's category or slot, None where it has none of them."""
    if columns.slots is not None:
        return slot_of(record[columns.slots.column], columns.slots)
    if columns.auxiliary is None:
        return 0
    value = record[columns.auxiliary.column]
    name = str(value).lower() if isinstance(value, bool) else str(value)
    return columns.auxiliary.categories.index(name) if name in columns.auxiliary.categories else None


def slot_of(value: datetime | float | None, slots: Slots) -> int | None:
    """The slot of a time by the calendar, None for what is no time."""
    if isinstance(value, int | float):
        value = datetime.fromtimestamp(math.floor(value), UTC) if math.isfinite(value) else None
    if value is None:
        return None
    local = (value if value.tzinfo else value.replace(tzinfo=UTC)).astimezone(ZoneInfo(slots.time_zone))
    hour = sum(3600 * local.hour + 60 * local.minute >= edge for edge in slots.edge_seconds[:-1]) - 1
    return {"weekday": local.weekday(), "hour_of_week": 24 * local.weekday() + hour}.get(slots.kind, hour)


def records_of_users(
    pattern: str, region: Region, depth: int, key: RunKey, columns: LocationColumns
) -> dict[int, list[tuple[int, float]]]:
    """The good records of each user: places, and weights or times; none for who has no good one."""
    records: dict[int, list[tuple[int, float]]] = defaultdict(list)
    for path in glob.glob(pattern):
        table = pq.read_table(path)
        ids = table["user_id"].to_pylist()
        values = np.array(ids) if isinstance(ids[0], int) else np.array(ids, dtype=object)
        hashes = keyed_hash(key.subkey("users"), values).tolist()
        for user, record in zip(hashes, table.to_pylist(), strict=True):
            records[user] += []
            code = code_of(record["longitude"], record["latitude"], region, depth)
            value, category = value_of(record, columns), category_of(record, columns)
            if code is not None and value is not None and category is not None:
                records[user].append((category << 2 * depth | code, value))
    return records


def weights_of_users(
    records: dict[int, list[tuple[int, float]]], parameters: CountParameters, columns: LocationColumns
) -> dict[int, dict[int, int]]:
    """What each user adds to each place: 1 in one of them, or shares that add up to gamma."""
    weights: dict[int, dict[int, int]] = {}
    for user, mine in records.items():
        places, values = map(list, zip(*mine, strict=True))
        if columns.time is not None:
            values = users_oracle.dwell_times(values, columns.max_dwell)
        held = users_oracle.amounts(places, values if columns.time or columns.weight else None)
        if parameters.contributes == "all":
            assert parameters.distribution_gamma is not None
            weights[user] = users_oracle.rounded(user, held, parameters.distribution_gamma)
        else:
            weights[user] = {
                (users_oracle.top if parameters.contributes == "top" else users_oracle.drawn)(user, held): 1
            }
    return weights


def mixed(user: int, slot: int, stream: int) -> int:
    """SplitMix64 of a user and a slot, in Python's integers."""
    word = (1 << 64) - 1
    bits = (user + (4 * slot + stream) * 0x9E3779B97F4A7C15) & word
    bits = ((bits ^ bits >> 30) * 0xBF58476D1CE4E5B9) & word
    bits = ((bits ^ bits >> 27) * 0x94D049BB133111EB) & word
    return bits ^ bits >> 31


def slots_of_user(user: int, records: list[tuple[int, float]], parameters: CountParameters) -> dict[int, int]:
    """One record in each of a few slots: 1 in each of its places."""
    slots: dict[int, list[int]] = defaultdict(list)
    for place, _ in sorted(records):
        slots[place >> 2 * parameters.depth].append(place)
    kept = sorted(slots, key=lambda slot: mixed(user, slot, 2))[: parameters.records_per_user]
    return {slots[slot][(mixed(user, slot, 1) % 2**32 * len(slots[slot])) >> 32]: 1 for slot in kept}


def heatmap(
    pattern: str,
    region: Region,
    parameters: CountParameters,
    key: RunKey,
    columns: LocationColumns | None = None,
    prior: Estimate | None = None,
) -> CountState:
    depth, columns = parameters.depth, columns or LocationColumns()
    bits = 2 * depth + math.ceil(math.log2(columns.bins))
    key = bind_key(key, region, parameters, columns, prior)
    records = records_of_users(pattern, region, depth, key, columns)
    present = {user: mine for user, mine in records.items() if mine}
    if parameters.records_per_user > 1:
        users = {user: slots_of_user(user, mine, parameters) for user, mine in present.items()}
    else:
        users = weights_of_users(present, parameters, columns)
    admission = ChargeAndAdmit(parameters.admission())(UserCounts(len(users), len(records) - len(users)), key)
    state = start_run(admission, parameters, prior)
    shard_plan = state.shard_plan
    rate = shard_plan.shards / Fraction(shard_plan.sampling_rate)
    shards: dict[int, list[dict[int, int]]] = defaultdict(list)
    for user, weights in sorted(users.items()):
        shard = (user >> bits) * rate.numerator // (rate.denominator << 64 - bits)
        if shard < shard_plan.shards:
            shards[shard].append(weights)
    while state.query is not None:
        state = advance(state, ask(state, shards, parameters, key), parameters)
    return state


def ask(
    state: CountState, shards: dict[int, list[dict[int, int]]], parameters: CountParameters, key: RunKey
) -> ShardTotals:
    query, run_key = state.query, key
    assert query is not None
    key = query.bind(run_key)
    tree = query.encoding.tree
    nodes, length = tree.entries.tolist(), query.encoding.length
    place = {node: i for i, node in enumerate(nodes)}
    present = set(tree.nodes.tolist())
    total, live = np.zeros(length, dtype=np.int64), 0
    for shard in range(*(query.shard_range or (0, state.shard_plan.shards))):
        stream = np.array([shard], dtype=np.uint64)
        # Clients are ranked by their place, or by their hash where they have several.
        codes = sorted(shards[shard], key=min) if state.gamma == 1 else shards[shard]
        clients = list(range(len(codes)))
        if parameters.simulated_dropout:
            ranks = np.arange(len(codes), dtype=np.uint64)
            words = random_bits(run_key.subkey("dropout", query.index), np.full(len(codes), stream[0]), ranks)
            stays = (words[:, 0] >> np.uint64(11)) * 2.0**-53 >= parameters.simulated_dropout
            clients = [client for client, stay in enumerate(stays.tolist()) if stay]
        planned = parameters.participation == "planned"
        if planned and parameters.simulated_dropout and not parameters.is_one_batch:  # by coins of the plan
            word = int(random_bits(run_key.subkey("planned dropout", query.index), stream, 0 * stream)[0, 0])
            size = max(query.noise.required, round(state.shard_plan.users / state.shard_plan.shards))
            lost = binom.cdf(query.noise.required - 1, size, 1 - parameters.simulated_dropout)
            if (word >> 11) * 2.0**-53 < lost:
                continue
        if not planned and len(clients) < query.noise.required:
            continue
        live += 1
        vector = [0] * length
        if parameters.noise_source == "client":
            senders = query.noise.required if planned else len(codes)
            share, slots = np.array([1 / query.noise.honest]), np.array([senders * length])
            label = f"client noise {query.index}"
        elif parameters.is_one_batch:
            share, slots, label = np.zeros(1), np.zeros(1, dtype=int), "none"
        else:
            vector = noise(key, f"shard noise {query.index}", shard, query)
            surplus = (query.noise.required if planned else len(clients)) / query.noise.honest - 1
            share, slots = np.array([surplus]), np.array([length])
            label = f"surplus noise {query.index}"
        events = polya_difference_events(key, label, stream, share, slots, query.cost, state.gamma)
        for slot, value in zip(events.slot.tolist(), events.value.tolist(), strict=True):
            if planned or parameters.noise_source == "shard" or slot // length in set(clients):
                vector[slot % length] += value
        for client in clients:
            for code, weight in codes[client].items():
                category, code = divmod(code, 4**parameters.depth)
                node = code | 4**parameters.depth
                while node not in present:
                    node >>= 2
                vector[place[node] + (0 if len(nodes) == length else category * len(nodes))] += weight
        if parameters.is_one_batch:
            total += np.array(vector)
            continue
        window = query.window
        seen = np.array(vector) % window.modulus
        total += np.where(seen >= window.modulus - window.low, seen - window.modulus, seen)
    if parameters.is_one_batch:
        for server in range(max(query.servers, 1)):
            total += np.array(noise(key, f"central noise {query.index}", server, query))
    return ShardTotals(total, live)


def noise(key: RunKey, label: str, stream: int, query: ShardQuery) -> list[int]:
    streams = np.array([stream], dtype=np.uint64)
    if query.noise.kind.NAME == "gaussian":
        sigma = sigma_for_rho(query.cost, query.gamma)
        return discrete_gaussian(key, label, streams, query.encoding.length, sigma)[0].tolist()
    return discrete_laplace(key, label, streams, query.encoding.length, query.cost, query.gamma)[0].tolist()
