"""Distributions of users in shards, against an oracle, and the pipeline that builds them."""

from __future__ import annotations

import math
from fractions import Fraction

import apache_beam as beam
import numpy as np
import pytest
from apache_beam.runners.portability.fn_api_runner import FnApiRunner
from apache_beam.testing.util import assert_that, equal_to

from sfumato.schemas.region import Places
from sfumato.transforms.locations.distributions import (
    Distributions,
    bound_distributions,
    build_weighted_shard_group,
    split_distributions,
)
from sfumato.transforms.locations.encode import EncodedLocations
from sfumato.transforms.locations.read import BoundGroups, BuildShards, LocationBound, ShardGroupCoder
from sfumato.transforms.locations.shards import (
    ShardGroup,
    ShardPlan,
    build_shard_group,
    empty_shard_groups,
    split_by_shard_group,
)
from sfumato.transforms.locations.spill import Spill, forget, load
from sfumato.transforms.locations.users import bound_users
from sfumato.transforms.privacy.admission import UserCounts, sum_user_counts
from tests.chunks import split_by_user_group
from tests.seeds import seeded_rng
from tests.unit.locations import oracle as one_user

Records = list[tuple[int, int]]  # (hash, code)


def pack(records: Records, depth: int) -> bytes:
    users, codes = zip(*records, strict=True)
    return Spill().store(np.array(users, np.uint64).data, np.array(codes, Places(depth).dtype).data)


def oracle(records: Records, gamma: int) -> list[tuple[int, int, int]]:
    """(hash, code, weight), one user at a time."""
    cells: dict[int, list[int]] = {}
    for user, code in records:
        cells.setdefault(user, []).append(code)
    return [
        (user, code, weight)
        for user, mine in sorted(cells.items())
        for code, weight in one_user.rounded(user, one_user.amounts(mine, None), gamma).items()
    ]


def some_records(users: int, depth: int, seed: int = 0) -> Records:
    """Users with 1 to 40 records in a few cells each; some share the upper bits of their hashes."""
    rng = seeded_rng(seed)
    hashes = rng.integers(0, 2**64, users, dtype=np.uint64)
    hashes[: users // 4] = (hashes[0] >> np.uint64(8) << np.uint64(8)) + np.arange(users // 4, dtype=np.uint64)
    hashes[0], hashes[1] = 2**64 - 1, 0  # the last shard, the first
    records: Records = []
    for user in np.unique(hashes).tolist():
        home = rng.integers(0, 4**depth, 6)
        records += [(user, code) for code in home[rng.integers(0, 6, rng.integers(1, 41))].tolist()]
    return [records[i] for i in rng.permutation(len(records))]


def groups_of(records: Records, shard_plan: ShardPlan, depth: int, gamma: int, parts: int = 7) -> dict[int, ShardGroup]:
    """The pure stages, with the records in `parts` batches."""
    by_user_group: dict[int, list[bytes]] = {}
    for batch in np.array_split(np.arange(len(records)), parts):
        users = np.array([records[i][0] for i in batch], np.uint64)
        codes = np.array([records[i][1] for i in batch], Places(depth).dtype)
        for number, chunk in split_by_user_group(EncodedLocations(users, codes, len(users), ()), Spill()):
            by_user_group.setdefault(number, []).append(chunk)
    chunks = {number: [empty] for number, empty in empty_shard_groups(shard_plan, weighted=True)}
    for mine in by_user_group.values():
        for part in bound_distributions(mine, Places(depth), gamma).store(Spill()):
            rows = Distributions.from_columns(load(part), Places(depth))
            for number, chunk in split_distributions(rows, shard_plan, Places(depth), Spill()):
                chunks[number].append(chunk)
    return {n: build_weighted_shard_group(n, mine, shard_plan, Places(depth), Spill()) for n, mine in chunks.items()}


def same(a: ShardGroup, b: ShardGroup) -> bool:
    return (a.first, a.shards, a.places) == (b.first, b.shards, b.places) and all(
        x.dtype == y.dtype and np.array_equal(x, y)
        for x, y in ((a.keys, b.keys), (a.weights, b.weights), (a.clients, b.clients))
    )


@pytest.mark.parametrize(
    ("depth", "share", "shards"), [(1, 1.0, 1), (13, 1.0, 150), (14, 0.4, 64), (20, 0.4, 65), (13, 0.1, 3)]
)
def test_shard_sums_against_an_oracle(depth: int, share: float, shards: int) -> None:
    gamma, records = 100, some_records(400, depth)
    shard_plan = ShardPlan(400, 400 * share, share, shards, 1)
    expected: dict[int, list[tuple[int, int, int]]] = {}
    for user, code, weight in oracle(records, gamma):
        shard = math.floor(Fraction(user >> (2 * depth), 2 ** (64 - 2 * depth)) * shards / Fraction(share))
        if shard < shards:
            expected.setdefault(shard, []).append((user, code, weight))
    boundaries = np.unique(np.concatenate([[0, 4**depth], seeded_rng(1).integers(0, 4**depth + 1, 20)])).astype(
        np.uint64
    )
    users = 0
    for number, group in groups_of(records, shard_plan, depth, gamma).items():
        assert (group.first, group.shards) == (
            number << shard_plan.shift(True),
            min(1 << shard_plan.shift(True), shards - group.first),
        )
        sizes, starts = group.sizes(), group.user_starts
        assert starts[0] == 0
        for block in (slice(0, group.shards), slice(group.shards // 2, group.shards)):
            below = group.counts_below(boundaries, block)
            weights_of, keys_of, end = group.weights_of(block), group.keys_of(block), 0
            for row, place in enumerate(range(block.start, block.stop)):
                mine = expected.get(group.first + place, [])
                ranks = {user: rank for rank, user in enumerate(sorted({user for user, _, _ in mine}))}
                assert sizes[place] == starts[place + 1] - starts[place] == len(ranks)
                ordered = sorted((code, ranks[user], weight) for user, code, weight in mine)
                begin, end = end, end + len(ordered)
                assert keys_of[begin:end].tolist() == [(place << 2 * depth) + code for code, _, _ in ordered]
                assert weights_of[begin:end].tolist() == [weight for _, _, weight in ordered]
                where = slice(group.starts[place], group.starts[place + 1])
                assert group.clients[where].tolist() == [rank for _, rank, _ in ordered]
                assert below[row].tolist() == [sum(w for c, _, w in ordered if c < b) for b in boundaries.tolist()]
            assert end == len(keys_of) == len(weights_of)
        users += int(sizes.sum())
    assert users == sum(len({user for user, _, _ in mine}) for mine in expected.values()) > 0


def test_only_is_what_would_have_been_built_without_the_others() -> None:
    depth, records = 9, some_records(300, 9)
    shard_plan = ShardPlan(300, 200, 200 / 300, 20, 1)
    rng = seeded_rng(3)
    present = {user: bool(rng.random() < 0.7) for user in sorted({user for user, _ in records})}
    full = groups_of(records, shard_plan, depth, 50)
    rest = groups_of([record for record in records if present[record[0]]], shard_plan, depth, 50)
    # Ranks follow the hashes, so by shard and rank is the hashes' order among those who take part.
    taking_part = [user for user in present if (user >> 2 * depth) / 2 ** (64 - 2 * depth) < shard_plan.sampling_rate]
    mask, done = np.array([present[user] for user in taking_part]), 0
    for number, group in sorted(full.items()):
        users = int(group.user_starts[-1])
        assert same(group.only(mask[done : done + users]), rest[number])
        nobody = group.only(np.zeros(users, dtype=bool))
        assert (len(nobody.keys), nobody.sizes().tolist()) == (0, [0] * group.shards)
        done += users
    assert done == len(mask)


def test_coder_keeps_weights_and_clients_held_or_not() -> None:
    for depth in (5, 20):
        group = groups_of(some_records(100, depth), ShardPlan(100, 100, 1.0, 7, 1), depth, 40)[0]
        coder = ShardGroupCoder()
        unstored = ShardGroup(
            group.first, group.shards, Places(depth), group.keys, weights=group.weights, clients=group.clients
        )
        assert coder.encode(group) == coder.encode(unstored)
        spill = Spill("memory:coder")
        held = ShardGroup(group.first, group.shards, Places(depth), group.keys, spill.store(*group.columns()))
        for encoded in (coder.encode(group), coder.encode(held)):
            assert same(coder.decode(encoded), group)
            assert coder.decode(encoded).sizes().tolist() == group.sizes().tolist()
        forget("memory:coder")


@pytest.mark.parametrize("gamma", [None, 60])
def test_the_pipeline_builds_what_the_pure_stages_build(gamma: int | None) -> None:
    depth, records = 7, some_records(200, 7)
    shard_plan = ShardPlan(200, 120, 0.6, 5, 1)
    chunks = []
    for batch in np.array_split(np.array(records, dtype=np.uint64), 4):
        encoded = EncodedLocations(batch[:, 0].copy(), batch[:, 1].astype(np.uint32), len(batch), ())
        chunks += list(split_by_user_group(encoded, Spill()))
    if gamma is None:
        words = bound_users([pack(records, depth)], Places(depth))
        ((_, chunk),) = split_by_shard_group(words, shard_plan, Places(depth), Spill())
        expected = [build_shard_group(0, [chunk], shard_plan, Places(depth), Spill())]
    else:
        expected = list(groups_of(records, shard_plan, depth, gamma).values())
        assert len(expected) > 1
    with beam.Pipeline(runner=FnApiRunner()) as pipeline:
        elements = pipeline | "Chunks" >> beam.Create(chunks)
        bound = LocationBound(Places(depth), Spill(), "one" if gamma is None else "all", gamma)
        bounded, users = elements | BoundGroups(bound)
        planned = pipeline | "ShardPlan" >> beam.Create([shard_plan])
        shards = bounded | BuildShards(Places(depth), planned, Spill(), weighted=gamma is not None)
        encoded = [ShardGroupCoder().encode(group) for group in expected]
        assert_that(shards | beam.Map(ShardGroupCoder().encode), equal_to(encoded))
        expected = UserCounts(len({user for user, _ in records}))
        assert_that(users | beam.CombineGlobally(sum_user_counts), equal_to([expected]), label="users")
