"""The slot of a time, against Python's own calendar: zones, daylight saving, every type of column."""

from __future__ import annotations

import zoneinfo
from datetime import UTC, datetime, timedelta

import numpy as np
import pyarrow as pa
import pytest

from sfumato.schemas.slots import Slots
from sfumato.transforms.locations.encode import slots_of


def expected(moment: datetime, slots: Slots) -> int:
    """The slot of a moment by the calendar."""
    local = moment.astimezone(zoneinfo.ZoneInfo(slots.time_zone))
    if slots.kind == "weekday":
        return local.weekday()
    second = 3600 * local.hour + 60 * local.minute + local.second
    hour = sum(second >= edge for edge in slots.edge_seconds[:-1]) - 1
    return 24 * local.weekday() + hour if slots.kind == "hour_of_week" else hour


@pytest.mark.parametrize("kind", ["hour", "weekday", "hour_of_week", "0,7.5,10,16,19,24"])
@pytest.mark.parametrize("zone", ["UTC", "Asia/Tokyo", "Europe/Berlin", "America/New_York", "Australia/Lord_Howe"])
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


def test_a_repeated_and_a_missing_hour_of_berlin() -> None:
    slots = Slots.parse("t", "hour", "Europe/Berlin")
    autumn = [datetime(2026, 10, 25, hour, 30, tzinfo=UTC) for hour in (0, 1)]  # 02:30 twice
    spring = [datetime(2026, 3, 29, hour, 30, tzinfo=UTC) for hour in (0, 1)]  # 01:30, then 03:30
    assert slots_of(pa.array(autumn, pa.timestamp("ms", "UTC")), slots)[0].tolist() == [2, 2]
    assert slots_of(pa.array(spring, pa.timestamp("ns", "UTC")), slots)[0].tolist() == [1, 3]


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
