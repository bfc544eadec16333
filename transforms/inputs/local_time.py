"""The local time of moments in a zone, and which rows of a log belong to given days and hours. Pure."""

from __future__ import annotations

import itertools
from datetime import datetime
from zoneinfo import ZoneInfo

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as pt
from numpy.typing import NDArray
from tzfpy import get_tz

from sfumato.schemas.log_layout import DayRows
from sfumato.schemas.rectangle import PENUMBRA, Region
from sfumato.schemas.slots import UTC
from sfumato.transforms.inputs.text_values import decoded, nulls

HOUR_SECONDS = 3600
DAY_SECONDS = 24 * HOUR_SECONDS
AT_SEA = "Etc/"  # the beginning of the names of zones at sea
PER_SECOND = {"s": 1, "ms": 10**3, "us": 10**6, "ns": 10**9}
_WIDE, _SAMPLED = 15.0, 9  # degrees in which the sun's time differs by an hour; places along a side of a region
_FIRST_SECOND, _END_SECOND = -62_135_510_400, 253_402_214_400  # of the years 1 to 9999, a day inside
_MAX_SECONDS = 1e15


def local_seconds(column: pa.Array, time_zone: str) -> tuple[NDArray[np.int64], NDArray[np.bool_]]:
    """Returns seconds since 1970-01-01 00:00 on the zone's clocks, int64[n], and which moments exist, bool[n].

    A timestamp without a zone, and a number of seconds since 1970, is in UTC. A moment outside the years 1 to 9999
    counts as no time.
    """
    column = decoded(column)
    if pt.is_timestamp(column.type):
        known = ~nulls(column)
        seconds = column.cast(pa.int64()).fill_null(0).to_numpy(zero_copy_only=False) // PER_SECOND[column.type.unit]
    else:
        numbers = np.asarray(column.to_numpy(zero_copy_only=False), dtype=np.float64)
        known = np.isfinite(numbers)
        seconds = np.floor(np.clip(np.where(known, numbers, 0), -_MAX_SECONDS, _MAX_SECONDS)).astype(np.int64)
    known = known & (seconds >= _FIRST_SECOND) & (seconds < _END_SECOND)
    moments = pa.array(np.where(known, seconds, 0), pa.timestamp("s", time_zone))
    return pc.local_timestamp(moments).cast(pa.int64()).to_numpy(), known


def of_days(column: pa.Array, days: DayRows) -> tuple[NDArray[np.bool_], int, int]:
    """Returns which moments are in the days and hours, bool[n], and the numbers before and after the days."""
    local, known = local_seconds(column, days.time_zone or UTC)
    date = local // DAY_SECONDS
    before = after = np.zeros(len(local), dtype=bool)
    if days.first is not None and days.last is not None:
        epoch = np.datetime64("1970-01-01", "D")
        first, last = (int((np.datetime64(day, "D") - epoch).astype(np.int64)) for day in (days.first, days.last))
        before, after = known & (date < first), known & (date > last)
    kept = known & ~before & ~after
    if days.hours is not None:
        begin, end = days.hours
        hour = local % DAY_SECONDS // HOUR_SECONDS
        kept &= (hour - begin) % 24 < ((end - begin) % 24 or 24)
    return kept, int(before.sum()), int(after.sum())


def zone_warning(region: Region, time_zone: str | None) -> str | None:
    """Returns a warning if a region is wholly at sea, or if its clocks never agree with those of the given time zone.

    As if a sign were lost: it follows from the two options only. None if the region is so wide that it has several
    zones anyway, and for the invented city; clocks are compared unless they show UTC.
    """
    if region.east - region.west > _WIDE or region == PENUMBRA:
        return None
    longitudes = np.linspace(region.west, region.east, _SAMPLED).tolist()
    latitudes = np.linspace(region.south, region.north, _SAMPLED).tolist()
    found = (get_tz(*place) for place in itertools.product(longitudes, latitudes))
    zones = list(dict.fromkeys(name for name in found if name and not name.startswith(AT_SEA)))
    check = "check the signs and the order of --region"
    if not zones:
        return f"the whole region {region} (WEST,SOUTH,EAST,NORTH) lies at sea: {check}"
    clocks = _offsets(time_zone or UTC)
    if not any(clocks) or any(
        one == other for zone in zones for one, other in zip(_offsets(zone), clocks, strict=True)
    ):
        return None
    return (
        f"the region {region} is in the time zone {zones[0]}, whose clocks differ from those of {time_zone} "
        f"(--time_zone): {check}"
    )


def _offsets(time_zone: str) -> list[float]:
    """Returns the zone's seconds ahead of UTC, in January and in July."""
    moments = (datetime(2026, month, 1, tzinfo=ZoneInfo(time_zone)) for month in (1, 7))
    return [offset.total_seconds() for moment in moments if (offset := moment.utcoffset()) is not None]
