"""Counts by category: of shards at boundaries, and of trees' entries, by table and by search, against brute force."""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import replace
from fractions import Fraction

import numpy as np
import pytest

from sfumato.schemas.region import Places
from sfumato.schemas.tree import Tree
from sfumato.transforms.locations.distributions import (
    Distributions,
    bound_distributions,
    build_weighted_shard_group,
    split_distributions,
)
from sfumato.transforms.locations.encode import EncodedLocations
from sfumato.transforms.locations.read import ShardGroupCoder
from sfumato.transforms.locations.shards import ShardGroup, ShardPlan, build_shard_group, split_by_shard_group
from sfumato.transforms.locations.spill import Spill, load
from sfumato.transforms.locations.users import bound_users
from sfumato.transforms.privacy.keys import FixedSecret, RunKey, keyed_hash
from sfumato.transforms.privacy.shared_noise import Noise
from sfumato.transforms.secagg.encodings import TreeEncoding
from sfumato.transforms.secagg.modulus import Window
from sfumato.transforms.secagg.shard_sums import ShardQuery, sum_shards
from tests.chunks import split_by_user_group
from tests.seeds import seeded_rng
from tests.unit.locations import oracle

GAMMA = 50
KEY = RunKey.derive(FixedSecret(b"categories" * 3), {})
Rows = list[tuple[int, int, int, int]]  # (shard, category, code, weight)


def some_users(places: Places, users: int = 200) -> dict[int, tuple[list[int], list[float]]]:
    """Places and weights of users with 1 to 8 records, at home in a few places."""
    rng = seeded_rng(places.depth)
    found = {}
    for user in keyed_hash(b"c" * 32, np.arange(users)).tolist():
        cells = rng.choice([0, 4**places.depth - 1, *rng.integers(0, 4**places.depth, 4)], rng.integers(1, 9))
        categories = rng.integers(0, places.bins, len(cells))
        weights = rng.choice([0.0, 1.0, 2.5], len(cells))
        found[user] = ((categories << 2 * places.depth | cells).tolist(), weights.tolist())
    return found


def groups_of(
    users: dict[int, tuple[list[int], list[float]]], places: Places, shard_plan: ShardPlan, kind: str, weighted: bool
) -> list[ShardGroup]:
    """The pure stages, each user's records spread over three batches."""
    by_user: dict[int, list[bytes]] = {}
    rows = [(user, *one) for user, mine in users.items() for one in zip(*mine, strict=True)]
    for part in (rows[::3], rows[1::3], rows[2::3]):
        ids, codes, values = zip(*part, strict=True)
        batch = EncodedLocations(
            np.array(ids, np.uint64),
            np.array(codes, places.dtype),
            0,
            (),
            np.array(values) if weighted else None,
        )
        for number, chunk in split_by_user_group(batch, Spill()):
            by_user.setdefault(number, []).append(chunk)
    by_shard: dict[int, list[bytes]] = {}
    for mine in by_user.values():
        if kind == "one":
            split = split_by_shard_group(bound_users(mine, places), shard_plan, places, Spill())
        else:
            parts = [
                Distributions.from_columns(load(part), places)
                for part in bound_distributions(mine, places, GAMMA).store(Spill())
            ]
            split = (pair for part in parts for pair in split_distributions(part, shard_plan, places, Spill()))
        for number, chunk in split:
            by_shard.setdefault(number, []).append(chunk)
    build = build_shard_group if kind == "one" else build_weighted_shard_group
    groups = [build(number, mine, shard_plan, places, Spill()) for number, mine in sorted(by_shard.items())]
    return [ShardGroupCoder().decode(ShardGroupCoder().encode(group)) for group in groups]


def rows_by_oracle(
    users: dict[int, tuple[list[int], list[float]]], places: Places, shard_plan: ShardPlan, kind: str, weighted: bool
) -> Rows:
    rows = []
    for user, (mine, weights) in users.items():
        position = Fraction(user >> places.bits, 2 ** (64 - places.bits))
        shard = math.floor(position * shard_plan.shards / Fraction(shard_plan.sampling_rate))
        held = oracle.amounts(mine, weights if weighted else None)
        adds = {oracle.drawn(user, held): 1} if kind == "one" else oracle.rounded(user, held, GAMMA)
        if shard < shard_plan.shards:
            rows += [(shard, place >> 2 * places.depth, place % 4**places.depth, n) for place, n in adds.items()]
    return rows


def entry_of(tree: Tree, code: int) -> int:
    node, present = code | 4**tree.depth, set(tree.nodes.tolist())
    while node not in present:
        node >>= 2
    return tree.entries.tolist().index(node)


@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("kind", ["one", "all"])
@pytest.mark.parametrize(
    ("places", "share", "shards"),
    [(Places(3, 2), 1.0, 1), (Places(13, 3), 0.6, 70), (Places(14, 5), 0.6, 70), (Places(20, 16), 0.6, 70)],
)
def test_counts_by_category(
    monkeypatch: pytest.MonkeyPatch, places: Places, kind: str, weighted: bool, share: float, shards: int
) -> None:
    depth, users, shard_plan = places.depth, some_users(places), ShardPlan(200, 200 * share, share, shards, 1)
    groups = groups_of(users, places, shard_plan, kind, weighted)
    rows = rows_by_oracle(users, places, shard_plan, kind, weighted)
    assert sum(weight for *_, weight in rows) == (1 if kind == "one" else GAMMA) * sum(
        int(group.sizes().sum()) for group in groups
    )
    rng = seeded_rng(1)
    boundaries = np.unique([0, 4**depth, 4**depth - 1, *rng.integers(0, 4**depth, 9)]).astype(np.uint64)
    some = Tree.of(depth, np.array([4 + i for i in range(3)] + [4**depth | code for _, _, code, _ in rows[:9]]))
    trees = [Tree.uniform(depth, 2), some]
    entries = [{code: entry_of(tree, code) for _, _, code, _ in rows} for tree in trees]
    sums = Counter((shard, category, code) for shard, category, code, weight in rows for _ in range(weight))
    for group in groups:
        for block in (slice(0, group.shards), slice(group.shards // 3, group.shards)):
            below = group.counts_below(boundaries, block)
            expected = np.zeros(below.shape, dtype=int)
            for (shard, category, code), n in sums.items():
                if block.start <= shard - group.first < block.stop:
                    expected[shard - group.first - block.start, category] += n * (code < boundaries)
            assert below.shape == (block.stop - block.start, places.bins, len(boundaries))
            assert np.array_equal(below, expected)
            for tree, entry in zip(trees, entries, strict=True):
                encoding = TreeEncoding(tree, places.bins)
                wanted = np.zeros((block.stop - block.start, encoding.length), dtype=int)
                for (shard, category, code), n in sums.items():
                    if block.start <= shard - group.first < block.stop:
                        wanted[shard - group.first - block.start, category * len(tree.entries) + entry[code]] += n
                by_table = encoding.reads_every_row(group)
                assert np.array_equal(encoding.count(group, block), wanted)
                monkeypatch.setattr(TreeEncoding, "reads_every_row", lambda *_: not by_table and tree.level <= 10)  # noqa: B023
                assert np.array_equal(encoding.count(group, block), wanted)
                summed, together = (
                    replace(encoding, summed=True),
                    wanted.reshape(len(wanted), -1, len(tree.entries)).sum(axis=1),
                )
                assert np.array_equal(summed.count(group, block), together)
                monkeypatch.undo()
                assert np.array_equal(summed.count(group, block), together)


@pytest.mark.parametrize("kind", ["one", "all"])
def test_a_user_more_changes_the_sums_by_one_unit_in_all(kind: str) -> None:
    """In L1, over all shards, categories and entries, exact sums without noise: gamma, or 1, and exactly that."""
    places, unit = Places(6, 3), 1 if kind == "one" else GAMMA
    users, shard_plan = some_users(places), ShardPlan(200, 200, 1.0, 7, 1)
    query = ShardQuery(1, TreeEncoding(Tree.uniform(6, 3), 3), 1.0, Window(1 << 40, 1 << 39), Noise(), unit)

    def total(those: dict) -> np.ndarray:
        groups = groups_of(those, places, shard_plan, kind, True)
        return sum(sum_shards(group, query, KEY, None).sums for group in groups)

    everybody = total(users)
    for user in sorted(users)[::20]:
        others = total({one: mine for one, mine in users.items() if one != user})
        assert (everybody >= others).all()
        assert np.abs(everybody - others).sum() == unit


def test_dropouts_take_all_of_a_users_categories_with_them() -> None:
    places = Places(6, 3)
    (group,) = groups_of(some_users(places), places, ShardPlan(200, 200, 1.0, 1, 1), "all", True)
    encoding, mask = TreeEncoding(Tree.uniform(6, 2), 3), np.arange(200) % 3 > 0
    kept = group.only(mask)
    assert (kept.places, int(kept.sizes()[0])) == (places, int(mask.sum()))
    assert int(encoding.count(kept, slice(0, 1)).sum()) == GAMMA * int(mask.sum())
