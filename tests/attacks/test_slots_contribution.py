"""A user with records in every hour and everywhere adds one to one entry of each sub-query, or to as many as stated.

A map of every slot under one epsilon would be a false promise if a user counted once in each slot. So logs with and
without one busy user are read, bounded and summed as the job does it, without noise.
"""

from __future__ import annotations

import apache_beam as beam
import numpy as np
import pyarrow as pa
import pytest
from apache_beam.runners.portability.fn_api_runner import FnApiRunner
from apache_beam.testing.util import assert_that, equal_to
from numpy.typing import NDArray

from benchmarks.evaluation.in_memory import Rows
from sfumato.schemas.locations import LocationColumns
from sfumato.schemas.region import Grid, Places, Region
from sfumato.schemas.slots import Slots
from sfumato.schemas.tree import Tree
from sfumato.transforms.counting.plan import make_plan
from sfumato.transforms.heatmap.request import heatmap_parameters
from sfumato.transforms.locations.encode import encode_locations
from sfumato.transforms.locations.read import BoundGroups, LocationBound
from sfumato.transforms.locations.shards import ShardPlan
from sfumato.transforms.locations.spill import Spill
from sfumato.transforms.locations.users import Contribution, bound_slots, bound_users
from sfumato.transforms.privacy.admission import UserCounts, sum_user_counts
from sfumato.transforms.secagg.encodings import TreeEncoding
from tests.chunks import split_by_user_group
from tests.seeds import seeded_rng

DEPTH, OTHERS, BUSY = 5, 200, 5_000
REGION = Region(-1, 50, 1, 51)


def sums(slots: Slots, busy: int, contribution: Contribution, seed: int, most: int = 1) -> list[NDArray[np.int64]]:
    """Exact sums, over all shards, of sub-queries with all slots together and by slot."""
    rng = seeded_rng(seed)
    columns = {
        "user_id": np.concatenate([np.arange(OTHERS), np.full(BUSY, 10**6)]),
        "longitude": rng.uniform(-1, 1, OTHERS + BUSY),
        "latitude": rng.uniform(50, 51, OTHERS + BUSY),
        "time": rng.integers(0, 10**9, OTHERS + BUSY),
    }
    table = pa.RecordBatch.from_pydict(columns).slice(0, OTHERS + busy)
    places, spill = Places(DEPTH, len(slots)), Spill()
    encoded = encode_locations(table, LocationColumns(slots=slots), Grid(REGION, DEPTH), b"k" * 32)
    groups: dict[int, list[bytes]] = {}
    for group, chunk in split_by_user_group(encoded, spill):
        groups.setdefault(group, []).append(chunk)
    if most > 1:
        parts = [bound_slots(one, places, most) for one in groups.values()]
    else:
        parts = [bound_users(one, places, None, contribution == "top") for one in groups.values()]
    bounded = np.sort(np.concatenate(parts))
    rows = Rows(places, bounded & ~places.mask, bounded & places.mask)
    shard_plan = ShardPlan(OTHERS, OTHERS, 1.0, 3, 1)
    encodings = [
        TreeEncoding(Tree.uniform(DEPTH, level), len(slots), summed) for level in (2, 4) for summed in (True, False)
    ]
    shards = rows.shard_groups(shard_plan)
    return [sum(one.count(group, slice(0, group.shards)).sum(axis=0) for group in shards) for one in encodings]


@pytest.mark.parametrize(
    ("kind", "contribution", "most"),
    [
        ("hour", "one", 1),
        ("hour_of_week", "top", 1),
        ("0,7,24", "top", 1),
        ("hour", "one", 24),
        ("weekday", "one", 3),
    ],
)
def test_a_busy_user_adds_to_as_many_slots_as_stated(kind: str, contribution: Contribution, most: int) -> None:
    """In L1 by the stated number in all, which is what the noise is for; and by one in a slot."""
    slots = Slots.parse("time", kind, "Asia/Tokyo")
    with_user, without = (sums(slots, busy, contribution, 3, most) for busy in (BUSY, 0))
    for summed, more, less in zip((True, False) * 2, with_user, without, strict=True):
        assert less.sum() == OTHERS  # the control: everybody is counted once, over all slots
        difference = more - less
        assert (difference >= 0).all()
        assert difference.sum() == most  # they have records in every slot: exactly that, so the bound is not loose
        if not summed:
            assert (difference.reshape(len(slots), -1).sum(axis=1) <= 1).all()
    # The noise does not grow with the slots, and the budget is spent once.
    parameters = heatmap_parameters(
        "adaptive", {"depth": 6, "population": 5_000, "trust": "central"}, slots=len(slots), records_per_user=most
    )
    plan = make_plan(parameters)
    assert plan.state.sensitivity() == most
    spent = sum(one.cost for one in plan.sub_queries) + parameters.admission().cost
    assert spent == pytest.approx(parameters.epsilon)
    for one in plan.sub_queries:
        assert one.noise_stddev == pytest.approx(parameters.noise_kind.stddev(one.cost, most))


# The users of a map with several records a user are all counted, however fine its cells are.
#
# Rows of bounded records have the cell, the slot and what is left of the user's hash. At depth 20 with 168 slots 16
# bits are left, so a count by rows would end at 65,536 users. The run would be planned for a fraction of its users:
# the moduli of shards' sums would be too small, and true populations would be refused.


USERS = 20_000


@pytest.mark.parametrize(("depth", "most"), [(8, 2), (20, 2)])
def test_every_user_is_counted_at_every_depth(depth: int, most: int) -> None:
    """At depth 20 some 2,900 of these users have the 16 bits of another one."""
    slots, rng = Slots.parse("time", "hour_of_week"), seeded_rng(0)
    columns = {
        "user_id": np.tile(np.arange(USERS), 2),
        "longitude": rng.uniform(-1, 1, 2 * USERS),
        "latitude": rng.uniform(50, 51, 2 * USERS),
        "time": rng.integers(0, 10**9, 2 * USERS),
    }
    log, places = LocationColumns(slots=slots, records_per_user=most), Places(depth, len(slots))
    encoded = encode_locations(pa.RecordBatch.from_pydict(columns), log, Grid(Region(-1, 50, 1, 51), depth), b"k" * 32)
    chunks = list(split_by_user_group(encoded, Spill()))
    with beam.Pipeline(runner=FnApiRunner()) as root:
        _, users = root | beam.Create(chunks) | BoundGroups(LocationBound(places, Spill(), records_per_user=most))
        assert_that(users | beam.CombineGlobally(sum_user_counts), equal_to([UserCounts(USERS, 0)]))
