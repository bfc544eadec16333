"""Rows become users and codes: what is dropped and why, categories, times, slots of local time."""

from __future__ import annotations

import itertools
import zoneinfo
from collections import Counter
from datetime import UTC, datetime, timedelta

import numpy as np
import pyarrow as pa
import pytest

from sfumato.schemas.locations import DROP_REASONS, Auxiliary, LocationColumns
from sfumato.schemas.region import Grid
from sfumato.schemas.slots import Slots
from sfumato.transforms.locations.encode import EncodedLocations, encode_locations, slots_of
from sfumato.transforms.privacy.keys import keyed_hash
from tests.conftest import REGION
from tests.seeds import seeded_rng

GRID = Grid(REGION, 6)
COLUMNS = LocationColumns()
# Of several things wrong with a row, which counts: everything that is missing goes before what is not right.
ORDER = ("null_user_id", "null_coordinate", "out_of_region", "null_value", "bad_weight", "unknown_category")
KEY = b"k" * 32


def batch(rows: list[tuple]) -> pa.RecordBatch:
    ids, latitude, longitude = zip(*rows, strict=True)
    return pa.record_batch(
        {
            "user_id": pa.array(ids),
            "latitude": pa.array(latitude, pa.float64()),
            "longitude": pa.array(longitude, pa.float64()),
        }
    )


def dropped_of(encoded: EncodedLocations) -> dict[str, int]:
    return {reason: number for reason, number in zip(DROP_REASONS, encoded.dropped, strict=True) if number}


def test_bad_rows_are_dropped_and_counted_by_their_first_reason() -> None:
    encoded = encode_locations(
        batch(
            [
                (1, 50.5, 0.0),
                (None, None, 0.0),  # null_user_id
                (2, None, 0.0),  # null_coordinate
                (3, 50.5, None),  # null_coordinate
                (4, np.nan, 0.0),  # not_finite
                (5, 50.5, np.inf),  # not_finite
                (6, 91.0, 0.0),  # out_of_range
                (7, 50.5, -181.0),  # out_of_range
                (8, 51.0001, 0.0),  # out_of_region
                (9, 51.0, 1.0),  # the border belongs to the region
            ]
        ),
        COLUMNS,
        GRID,
        KEY,
    )
    assert encoded.rows == 10
    assert dropped_of(encoded) == {
        "null_user_id": 1,
        "null_coordinate": 2,
        "not_finite": 2,
        "out_of_range": 2,
        "out_of_region": 1,
    }
    assert encoded.users.tolist() == keyed_hash(KEY, np.array([1, 9])).tolist()
    expected = GRID.codes(np.array([0.0, 1.0]), np.array([50.5, 51.0]))
    assert encoded.codes.tolist() == expected.tolist()


@pytest.mark.parametrize(
    "kind",
    [pa.int32(), pa.uint64(), pa.string(), pa.large_string(), pa.binary(), pa.dictionary(pa.int32(), pa.string())],
)
def test_ids_of_every_type_hash_equal_users_equally(kind: pa.DataType) -> None:
    ids = pa.array(["7", "8", "7", "9"])
    column = ids.dictionary_encode() if pa.types.is_dictionary(kind) else ids.cast(kind)
    table = pa.record_batch({"user_id": column, "latitude": pa.array([50.5] * 4), "longitude": pa.array([0.0] * 4)})
    users = encode_locations(table, COLUMNS, GRID, KEY).users
    assert users[0] == users[2]
    assert len(set(users.tolist())) == 3


def with_values(**columns: pa.Array) -> pa.RecordBatch:
    """Rows of users 0, 1, 2, ... at one place, with more columns."""
    rows = len(next(iter(columns.values())))
    table = batch([(i, 50.5, 0.0) for i in range(rows)])
    for name, column in columns.items():
        table = table.append_column(name, column)
    return table


def users_of(encoded: EncodedLocations) -> list[int]:
    known = {hash_: i for i, hash_ in enumerate(keyed_hash(KEY, np.arange(100)).tolist())}
    return [known[one] for one in encoded.users.tolist()]


def test_bad_weights_and_times_are_dropped_and_counted() -> None:
    weights = pa.array([1.5, -1.0, None, np.nan, np.inf, 0.0, -np.inf, 1e308, -0.0])
    encoded = encode_locations(with_values(w=weights), LocationColumns(weight="w"), GRID, KEY)
    assert dropped_of(encoded) == {"null_value": 1, "bad_weight": 4}
    assert users_of(encoded) == [0, 5, 7, 8]
    assert encoded.values is not None
    assert encoded.values.tolist() == [1.5, 0.0, 1e308, 0.0]
    whole = encode_locations(with_values(w=pa.array([3, None, -2, 0])), LocationColumns(weight="w"), GRID, KEY)
    assert dropped_of(whole) == {"null_value": 1, "bad_weight": 1}
    assert whole.values is not None
    assert whole.values.tolist() == [3, 0]
    times = encode_locations(
        with_values(t=pa.array([np.nan, np.inf, 3.0, -np.inf])), LocationColumns(time="t"), GRID, KEY
    )
    assert dropped_of(times) == {"null_value": 3}
    assert users_of(times) == [2]


@pytest.mark.parametrize(
    ("kind", "seconds"),
    [
        (pa.timestamp("s"), 7),
        (pa.timestamp("ms", tz="Europe/Rome"), 0.007),
        (pa.timestamp("us"), 7e-6),
        (pa.timestamp("ns"), 7e-9),
        (pa.int32(), 7),
        (pa.float32(), 7),
    ],
)
def test_times_become_seconds(kind: pa.DataType, seconds: float) -> None:
    times = pa.array([7, None, -7], pa.int64()).cast(kind)
    encoded = encode_locations(with_values(t=times), LocationColumns(time="t"), GRID, KEY)
    assert dropped_of(encoded) == {"null_value": 1}
    assert encoded.values is not None
    assert encoded.values.tolist() == [seconds, -seconds]
    assert users_of(encoded) == [0, 2]


@pytest.mark.parametrize(
    ("values", "kind", "categories", "expected"),
    [
        ([True, None, False], pa.bool_(), None, [1, None, 0]),
        ([True, None, False], pa.bool_(), "true,false", [0, None, 1]),
        ([0, 1, 2, None, -1], pa.int8(), None, [0, 1, "?", None, "?"]),
        ([0, 1, 2, None, 2**63], pa.uint64(), "2,0,-1", [1, "?", 0, None, "?"]),
        ([2**64 - 1, 5], pa.uint64(), "-1,18446744073709551615", [1, "?"]),
        (["b", "A", None, "c", "a", ""], pa.string(), "a,b,c", [1, "?", None, 2, 0, "?"]),
        (["é", "e"], pa.large_string(), "é,e", [0, 1]),
        (["é", "x", None], pa.string_view(), "é,e", [0, "?", None]),
        ([b"a", b"\xff"], pa.binary(), "a,b", [0, "?"]),
        ([b"aa", b"bb"], pa.binary(2), "bb,a", ["?", 0]),
    ],
)
def test_categories_by_their_place_in_the_list(values: list, kind: pa.DataType, categories, expected: list) -> None:
    auxiliary = Auxiliary("c", assumed=True) if categories is None else Auxiliary("c", tuple(categories.split(",")))
    columns = LocationColumns(auxiliary=auxiliary)
    column = pa.array(values, kind) if kind != pa.string_view() else pa.array(values).cast(kind)
    for one in (column, column.dictionary_encode()) if kind == pa.string() else (column,):
        columns.check(with_values(c=one).schema, "f")
        encoded = encode_locations(with_values(c=one), columns, GRID, KEY)
        kept = [(i, category) for i, category in enumerate(expected) if category not in (None, "?")]
        assert users_of(encoded) == [i for i, _ in kept]
        assert (encoded.codes >> np.uint64(2 * GRID.depth)).tolist() == [category for _, category in kept]
        cell = GRID.codes(np.zeros(1), np.full(1, 50.5))[0]
        assert set((encoded.codes & np.uint64(4**GRID.depth - 1)).tolist()) == {int(cell)}
        assert sum(encoded.dropped) == len(values) - len(kept)
        assert dropped_of(encoded).get("null_value", 0) == expected.count(None)
        assert dropped_of(encoded).get("unknown_category", 0) == expected.count("?")


def test_a_row_counts_for_its_first_reason_and_keeps_its_values(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every combination of a user, a latitude, a weight and a category, good and bad, in blocks and in one."""
    ids, latitudes = (
        [(1, None), (None, "null_user_id")],
        [(50.5, None), (None, "null_coordinate"), (80.0, "out_of_region")],
    )
    weights = [(2.5, None), (None, "null_value"), (-1.0, "bad_weight"), (np.nan, "bad_weight")]
    categories = [("b", None), (None, "null_value"), ("z", "unknown_category")]
    rows, reasons, good = [], [], 0
    for number, parts in enumerate(itertools.product(ids, latitudes, weights, categories)):
        rows.append((number if parts[0][0] else None, *(value for value, _ in parts[1:])))
        found = [reason for _, reason in parts if reason]
        good += not found
        reasons += sorted(found, key=ORDER.index)[:1]
    order = seeded_rng(0).permutation(len(rows) * 5) % len(rows)
    user, latitude, weight, category = zip(*(rows[i] for i in order), strict=True)
    table = pa.record_batch(
        {
            "user_id": pa.array(user),
            "latitude": pa.array(latitude, pa.float64()),
            "longitude": pa.array([0.0] * len(user)),
            "w": pa.array(weight, pa.float64(), from_pandas=False),
            "c": pa.array(category),
        }
    )
    columns = LocationColumns(weight="w", auxiliary=Auxiliary("c", ("a", "b")))
    for size in (1 << 16, 7):
        monkeypatch.setattr("sfumato.transforms.locations.encode._BLOCK_ROWS", size)
        encoded = encode_locations(table, columns, GRID, KEY)
        assert dropped_of(encoded) == {reason: 5 * n for reason, n in Counter(reasons).items()}
        assert encoded.values is not None
        assert encoded.values.tolist() == [2.5] * 5 * good
        assert set((encoded.codes >> np.uint64(12)).tolist()) == {1}
        some = encode_locations(table, columns, GRID, KEY, lambda hashes: np.arange(len(hashes)) < 0)
        assert (len(some.users), some.dropped) == (0, encoded.dropped)


def expected(moment: datetime, slots: Slots) -> int:
    """The slot of a moment by the calendar."""
    local = moment.astimezone(zoneinfo.ZoneInfo(slots.time_zone))
    if slots.kind == "weekday":
        return local.weekday()
    second = 3600 * local.hour + 60 * local.minute + local.second
    hour = sum(second >= edge for edge in slots.edge_seconds[:-1]) - 1
    return 24 * local.weekday() + hour if slots.kind == "hour_of_week" else hour


@pytest.mark.parametrize(
    ("kind", "zone"),
    [
        ("weekday", "Asia/Tokyo"),
        ("hour", "Europe/Berlin"),
        ("hour_of_week", "America/New_York"),
        ("0,7.5,10,16,19,24", "Australia/Lord_Howe"),
    ],
)
def test_slots_follow_the_calendar_through_daylight_saving(kind: str, zone: str) -> None:
    slots = Slots.parse("t", kind, zone)
    changes = [
        datetime(2026, month, day, tzinfo=UTC) for month, day in ((3, 8), (3, 29), (4, 5), (10, 4), (10, 25), (11, 1))
    ]
    moments = [day + timedelta(minutes=10 * step) for day in changes for step in range(-150, 290)]
    moments += [datetime(1969, 12, 31, 23, 59, 59, tzinfo=UTC), datetime(1912, 5, 5, tzinfo=UTC)]
    found, known = slots_of(pa.array(moments, pa.timestamp("us", "UTC")), slots)
    assert known.all()
    assert found.tolist() == [expected(moment, slots) for moment in moments]


def test_the_type_of_the_column_makes_no_difference() -> None:
    slots, seconds = Slots.parse("t", "hour_of_week", "Asia/Tokyo"), [1_700_000_000, 0, -1, 1_774_746_000]
    moments = [datetime.fromtimestamp(one, UTC) for one in seconds]
    columns = [
        pa.array(seconds),
        pa.array(seconds, pa.int32()),
        pa.array([one + 0.25 for one in seconds]),
        pa.array([one.replace(tzinfo=None) for one in moments], pa.timestamp("s")),  # without a zone it is UTC
        pa.array(moments, pa.timestamp("ms", "America/New_York")),  # the zone of the column is not that of the slots
        pa.array(moments, pa.timestamp("us", "UTC")).dictionary_encode(),
    ]
    wanted = [expected(moment, slots) for moment in moments]
    for column in columns:
        found, known = slots_of(column, slots)
        assert known.all()
        assert found.tolist() == wanted


def test_what_is_no_time_is_not_known_and_breaks_nothing() -> None:
    slots = Slots.parse("t", "hour", "Europe/Berlin")
    numbers = pa.array([None, np.nan, np.inf, -np.inf, 1e300, -1e300, 1e12, 0.0])
    found, known = slots_of(numbers, slots)
    assert known.tolist() == [False] * 7 + [True]
    assert (found < 24).all()
    integers = pa.array([None, (1 << 63) - 1, -(1 << 63), 253_402_300_800, 0])
    assert slots_of(integers, slots)[1].tolist() == [False] * 4 + [True]
    times = pa.array([None, (1 << 63) - 1, -(1 << 62), 0], pa.timestamp("s"))
    assert slots_of(times, slots)[1].tolist() == [False] * 3 + [True]
