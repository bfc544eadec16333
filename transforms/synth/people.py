"""The people of the city: the records of any users as columns, computed from the seed and the users' numbers alone.

A user has a home and a work place. Each record has an hour of the week, a kind of location that depends on the hour,
and a position. Every choice is a hash of (seed, choice, user[, record]). So records do not depend on how users are cut
into blocks, files or workers. With a day (`day_plan`), only the active users have records, and hour, kind of location
and position also depend on the day. People, homes and work places stay the same.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from datetime import date
from typing import Literal

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from sfumato.schemas.region import EARTH_RADIUS_KM, Region
from sfumato.transforms.synth.city import ELSEWHERE, HOME, RISK_SIDE, WORK, City
from sfumato.transforms.synth.day_plan import CROWD, SEASON, DayPlan, plan_day
from sfumato.transforms.synth.random_streams import draw, random_bits, scramble_63, stream_key
from sfumato.transforms.synth.rhythm import HOUR_US, WEEK_START_US, clock_offset_us, rhythm_table

UserIdKind = Literal["int", "string"]
USER_ID_KINDS: tuple[UserIdKind, ...] = ("int", "string")
DEFAULT_REGION = Region(3.00, 1.00, 3.13, 1.13)
"""Where Penumbra is: a square of 14.5 km in the Gulf of Guinea. It has no land, so no map takes it for a real city."""

# First elements of the names of random streams.
_ID, _HOME, _WORK, _INFECTED, _STATE, _ELSEWHERE, _JITTER, _ACTIVE, _AWAY, _SEASON, _CROWD = range(11)
_BLOCK_USERS = 1 << 15  # the arrays of one block fit the processor's cache
_LOW_32 = np.uint64(0xFFFFFFFF)
_RHYTHM = rhythm_table()
_LOCATION_KINDS = 5  # HOME, WORK, ELSEWHERE, SEASON, CROWD


def record_schema(user_id: UserIdKind = "int") -> pa.Schema:
    """The columns of a location log."""
    return pa.schema(
        [
            pa.field("user_id", pa.int64() if user_id == "int" else pa.string(), nullable=False),
            pa.field("latitude", pa.float64(), nullable=False),
            pa.field("longitude", pa.float64(), nullable=False),
            pa.field("timestamp", pa.timestamp("us", tz="UTC"), nullable=False),
            pa.field("infected", pa.bool_(), nullable=False),
            pa.field("km_from_home", pa.float32(), nullable=False),
        ]
    )


def make_records(
    first: int,
    last: int,
    record: int,
    *,
    city: City,
    seed: int = 0,
    region: Region = DEFAULT_REGION,
    user_id: UserIdKind = "int",
    day: date | None = None,
) -> pa.Table:
    """Record number `record` of each of the users first .. last - 1, in the order of the users' numbers.

    Args:
        first, last: numbers of users.
        record: number of the record, from 0.
        city: with a day, the city of that day (`day_plan.build_city_on`).
        seed: picks the people.
        region: over which the city is stretched.
        user_id: type of the ids.
        day: UTC date. Only the users who are active on it have records. None: every user, in the one week.
    """
    plan = None if day is None else plan_day(day, seed, (region.west + region.east) / 2)
    columns, filled = Columns.empty(last - first), 0
    for start in range(first, last, _BLOCK_USERS):
        users = np.arange(start, min(start + _BLOCK_USERS, last), dtype=np.uint64)
        if plan is not None:
            users = users[_selected(users, plan.active, seed, _ACTIVE, plan.ordinal)]
        _fill(columns.part(filled, filled + len(users)), users, record, city, seed, region, plan)
        filled += len(users)
    return columns.part(0, filled).table(user_id)


@dataclass(frozen=True)
class Columns:
    """The columns of n records, in the order of `record_schema`.

    Attributes:
        user_id: int64[n].
        latitude, longitude: float64[n], degrees.
        timestamp: int64[n], microseconds since 1970, UTC.
        infected: bool[n].
        km_from_home: float32[n], to the centre of the home's cell.
    """

    user_id: NDArray[np.int64]
    latitude: NDArray[np.float64]
    longitude: NDArray[np.float64]
    timestamp: NDArray[np.int64]
    infected: NDArray[np.bool_]
    km_from_home: NDArray[np.float32]

    @classmethod
    def empty(cls, n: int) -> Columns:
        """Columns of n records that have no values yet."""
        return cls(*(np.empty(n, kind) for kind in (np.int64, float, float, np.int64, np.bool_, np.float32)))

    def part(self, first: int, last: int) -> Columns:
        """A view of records first .. last - 1."""
        return Columns(*(getattr(self, column.name)[first:last] for column in fields(self)))

    def table(self, user_id: UserIdKind) -> pa.Table:
        """The columns as an Arrow table of `record_schema(user_id)`."""
        schema = record_schema(user_id)
        ids = pa.array(self.user_id) if user_id == "int" else hex_ids(self.user_id)
        times = pa.array(self.timestamp).cast(schema.field("timestamp").type)
        columns = [ids, self.latitude, self.longitude, times, self.infected, self.km_from_home]
        return pa.Table.from_arrays([pa.array(column) for column in columns], schema=schema)


def _fill(
    out: Columns,
    users: NDArray[np.uint64],
    record: int,
    city: City,
    seed: int,
    region: Region,
    plan: DayPlan | None,
) -> None:
    """Computes record `record` of these users into `out`."""
    # Ends the names of the streams that differ between records and days.
    occasion = (record,) if plan is None else (record, plan.ordinal)
    state = random_bits(stream_key(seed, _STATE, *occasion), users)
    jitter = random_bits(stream_key(seed, _JITTER, *occasion), users)
    hour_and_kind = (_RHYTHM if plan is None else plan.rhythm)[(state >> np.uint64(48)).view(np.int64)]
    kind = hour_and_kind & np.uint16(3)
    if plan is not None:
        kind[(kind == HOME) & _selected(users, plan.away, seed, _AWAY)] = SEASON
        kind[(kind == ELSEWHERE) & _selected(users, plan.crowd, seed, _CROWD, plan.ordinal)] = CROWD

    keys = np.zeros(_LOCATION_KINDS, dtype=np.uint64)
    keys[HOME] = stream_key(seed, _HOME)
    keys[WORK] = stream_key(seed, _WORK)
    keys[SEASON] = stream_key(seed, _SEASON)
    keys[ELSEWHERE] = keys[CROWD] = stream_key(seed, _ELSEWHERE, *occasion)
    cell = draw(city.tables, kind, random_bits(keys[kind], users), city.bits)
    row, column = city.positions(cell)
    x = column + (jitter >> np.uint64(32)) * 2.0**-32  # in cells from the west
    y = row + (jitter & _LOW_32) * 2.0**-32  # in cells from the north
    cell_width, cell_height = (region.east - region.west) / city.side, (region.north - region.south) / city.side
    np.add(x * cell_width, region.west, out=out.longitude)
    np.subtract(region.north, y * cell_height, out=out.latitude)

    within_hour_us = ((state & _LOW_32) * np.uint64(HOUR_US)) >> np.uint64(32)
    since_us = (hour_and_kind >> np.uint16(2)).astype(np.int64) * HOUR_US + within_hour_us.view(np.int64)
    week_us = WEEK_START_US - clock_offset_us((region.west + region.east) / 2)
    np.add(since_us, week_us if plan is None else plan.start_us, out=out.timestamp)

    home_row, home_column = city.positions(draw(city.tables, HOME, random_bits(int(keys[HOME]), users), city.bits))
    risk_cell = (home_row * RISK_SIDE // city.side) * RISK_SIDE + home_column * RISK_SIDE // city.side
    uniform = random_bits(stream_key(seed, _INFECTED), users) >> np.uint64(32)
    np.less(uniform, city.risk[risk_cell], out=out.infected)
    shrinking = np.cos(np.radians((region.south + region.north) / 2))  # of degrees of longitude, in those of latitude
    east = (x - home_column - 0.5) * ((region.east - region.west) * shrinking / city.side)
    south = (y - home_row - 0.5) * cell_height
    out.km_from_home[:] = np.radians(np.hypot(east, south)) * EARTH_RADIUS_KM
    out.user_id[:] = person_ids(users, seed)


def person_ids(users: NDArray[np.uint64], seed: int) -> NDArray[np.int64]:
    """The ids of numbered users: int64[n], in no visible order."""
    return scramble_63(users, stream_key(seed, _ID))


def _selected(users: NDArray[np.uint64], share: float, *stream: int) -> NDArray[np.bool_]:
    """Whether a stream selects each user, with probability `share`: bool[n]. A larger share adds users."""
    return (random_bits(stream_key(*stream), users) >> np.uint64(32)) < np.uint64(round(share * 2.0**32))


def hex_ids(numbers: NDArray[np.int64]) -> pa.Array:
    """`u` and 16 hexadecimal digits for each number, as an Arrow string array."""
    pairs = np.frombuffer("".join(f"{byte:02x}" for byte in range(256)).encode(), dtype=np.uint16)
    text = np.empty((len(numbers), 17), dtype=np.uint8)
    text[:, 0] = ord("u")
    text[:, 1:] = pairs[numbers.astype(">i8").view(np.uint8)].view(np.uint8).reshape(-1, 16)
    offsets = np.arange(len(numbers) + 1, dtype=np.int32) * np.int32(17)
    return pa.StringArray.from_buffers(len(numbers), pa.py_buffer(offsets), pa.py_buffer(text))
