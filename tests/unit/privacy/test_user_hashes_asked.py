"""The rows of one rotating cohort, against a plain loop over rows."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest

from sfumato.schemas.locations import LocationColumns
from sfumato.schemas.rotation import Rotation
from sfumato.transforms.privacy.keys import FixedSecret
from sfumato.transforms.privacy.user_hashes import AskedUsers, rotation_key
from tests.seeds import seeded_rng

COLUMNS = LocationColumns()
COHORTS = 7
KEY = rotation_key(FixedSecret(bytes(range(32))), "city", COHORTS)


def logs(ids: pa.Array, seed: int = 0) -> pa.RecordBatch:
    rng = seeded_rng(seed)
    latitude, longitude = rng.uniform(50, 51, len(ids)), rng.uniform(-1, 1, len(ids))
    return pa.RecordBatch.from_pydict({"user_id": ids, "latitude": latitude, "longitude": longitude})


def asked(cohort: int) -> AskedUsers:
    return AskedUsers(Rotation(cohort, COHORTS), KEY)


@pytest.mark.parametrize("kind", [pa.int64(), pa.string(), pa.string_view(), pa.dictionary(pa.int32(), pa.string())])
def test_every_user_is_in_one_cohort_with_all_rows(kind: pa.DataType) -> None:
    numbers = seeded_rng(1).integers(0, 300, 2_000)
    ids = pa.array(numbers) if kind == pa.int64() else pa.array([f"u{one}" for one in numbers]).cast(kind)
    batch = logs(ids)
    parts = [asked(cohort).only(batch, COLUMNS) for cohort in range(1, COHORTS + 1)]
    assert sum(part.num_rows for part in parts) == batch.num_rows
    users = [set(part.column("user_id").to_pylist()) for part in parts]
    assert sum(map(len, users)) == len(set(ids.to_pylist()))
    for part, own in zip(parts, users, strict=True):
        rows = [row for row in batch.to_pylist() if row["user_id"] in own]
        assert part.to_pylist() == rows  # in the order of the log


def test_other_rows_do_not_decide_who_is_asked() -> None:
    batch = logs(pa.array(np.arange(1_000)))
    whole = asked(3).only(batch, COLUMNS).column("user_id").to_pylist()
    part = asked(3).only(batch.slice(500), COLUMNS).column("user_id").to_pylist()
    assert part == [one for one in whole if one >= 500]


def test_rows_without_an_id_are_one_user() -> None:
    """All of them may be one person's, who is asked as rarely as any other."""
    ids = pa.array([None if number % 2 else number for number in range(4_000)])
    batch = logs(ids)
    batch = batch.set_column(1, "latitude", pa.array([None if n % 8 == 1 else 50.5 for n in range(4_000)]))
    parts = [asked(cohort).only(batch, COLUMNS) for cohort in range(1, COHORTS + 1)]
    assert sum(part.num_rows for part in parts) == batch.num_rows
    assert sorted(part.column("user_id").null_count for part in parts) == [0] * (COHORTS - 1) + [2_000]


def test_nothing_is_asked_of_an_empty_batch() -> None:
    assert asked(1).only(logs(pa.array([], pa.int64())), COLUMNS).num_rows == 0
