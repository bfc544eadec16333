"""What attacks on moments share: logs of users, and their blocks as the job makes them."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pyarrow as pa

from sfumato.schemas.moments import FixedPoint, ValueColumns
from sfumato.transforms.locations.spill import Spill
from sfumato.transforms.locations.users import split_unusable
from sfumato.transforms.moments.client_values import Block, Values, split_by_user, user_blocks
from sfumato.transforms.moments.groups import ColumnGroups, Grouping
from sfumato.transforms.moments.release import MomentsMetadata
from sfumato.transforms.privacy.keys import FixedSecret, RunKey
from sfumato.transforms.release.metadata import ReleaseMetadata
from tests.seeds import seeded_rng

CITIES = ColumnGroups("city", ("Bath", "Cork"))


def run_key(number: int = 0) -> RunKey:
    return RunKey.derive(FixedSecret(b"attacks on moments" * 2), {"number": number})


def log(users: int, seed: int, x: Sequence[float], y: Sequence[float] | None = None) -> pa.RecordBatch:
    """One to three records a user with values of these lists, a tenth of them missing, of three cities."""
    rng = seeded_rng(seed)
    ids = np.repeat(np.arange(users), rng.integers(1, 4, users))
    columns = {"user_id": pa.array(ids), "city": pa.array(rng.choice(["Bath", "Cork", "Rome"], len(ids)).tolist())}
    for name, values in (("x", x), ("y", y)):
        if values is not None:
            columns[name] = pa.array(rng.choice(np.asarray(values, float), len(ids)), mask=rng.random(len(ids)) < 0.1)
    return pa.RecordBatch.from_pydict(columns)


def without(batch: pa.RecordBatch, user: int) -> pa.RecordBatch:
    """The log of all other users."""
    return batch.filter(pa.array(np.array(batch.column("user_id")) != user))


def is_usable(batch: pa.RecordBatch, user: int) -> bool:
    """Whether a user has a record with a number in each column."""
    frame = batch.to_pandas().drop(columns="city")
    return bool(np.isfinite(frame[frame["user_id"] == user].to_numpy()).all(axis=1).any())


def values_of(grouping: Grouping | None, form: FixedPoint | None, second: FixedPoint | bool = False) -> Values:
    """How the values of a log are read; second: the form of `y`, or whether there is such a column."""
    group, groups = (None, None) if grouping is None else ("city", grouping.groups)
    columns = ValueColumns("x", group=group, second="y" if second else None)
    return Values(columns, form, groups, second if isinstance(second, FixedPoint) else None)


def blocks(batch: pa.RecordBatch, values: Values, key: RunKey) -> list[Block]:
    """As the job makes them."""
    parts: dict[int, list[bytes]] = {}
    for group, stored in split_by_user(values.encode(batch, key), Spill(None)):
        parts.setdefault(group, []).append(stored)
    records = (split_unusable(chunks)[0] for chunks in parts.values())
    return [block for chunks in records if chunks for block in user_blocks(chunks, values, key)]


def release_of(grouping: Grouping | None) -> MomentsMetadata:
    """What a release of moments states beside its results."""
    metadata = ReleaseMetadata("moments", "a", "2026-11-21T00:00:00+00:00", "key file", True, {"column": "x"})
    return MomentsMetadata(metadata, grouping, "x", True)
