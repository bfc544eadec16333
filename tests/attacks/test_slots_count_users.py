"""The users of a map with several records a user are all counted, however fine its cells are.

Rows of bounded records have the cell, the slot and what is left of the user's hash. At depth 20 with 168 slots 16 bits
are left, so a count by rows would end at 65,536 users. The run would be planned for a fraction of its users: the moduli
of shards' sums would be too small, and true populations would be refused.
"""

from __future__ import annotations

import apache_beam as beam
import numpy as np
import pyarrow as pa
import pytest
from apache_beam.runners.portability.fn_api_runner import FnApiRunner
from apache_beam.testing.util import assert_that, equal_to

from sfumato.schemas.locations import LocationColumns
from sfumato.schemas.places import Places
from sfumato.schemas.region import Grid, Region
from sfumato.schemas.slots import Slots
from sfumato.transforms.locations.encode import encode_locations
from sfumato.transforms.locations.read import BoundGroups, LocationBound
from sfumato.transforms.locations.spill import Spill
from sfumato.transforms.locations.users import split_by_user_group
from sfumato.transforms.privacy.admission import UserCounts, sum_user_counts
from tests.seeds import seeded_rng

USERS = 20_000


@pytest.mark.parametrize(("depth", "most"), [(8, 2), (20, 2), (20, 1)])
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
