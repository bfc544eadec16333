"""The people of the city: any users' records as columns, computed from the seed and the users' numbers alone.

A user has a home and a work place, and each of the user's records has an hour of the week, a kind of place
by that hour, and a position. Every choice is a hash of (seed, choice, user[, record]), so the records do not
depend on how users are cut into blocks, files or workers. On a date (dates.py), hour, kind of place and position are
drawn anew for the users who are active, whatever other dates are made; people, homes and work places stay.
"""

from __future__ import annotations

from dataclasses import dataclass
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

# Names of the streams of random words.
_ID, _HOME, _WORK, _INFECTED, _STATE, _ELSEWHERE, _JITTER, _ACTIVE, _AWAY, _SEASON, _CROWD = range(11)
_BLOCK_USERS = 1 << 15  # the arrays of one block fit the processor's cache
_LOW_32 = np.uint64(0xFFFFFFFF)
_RHYTHM = rhythm_table()
_KINDS_OF_PLACE = 5  # HOME, WORK, ELSEWHERE, SEASON, CROWD


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


def make_people(
    first: int,
    last: int,
    *,
    city: City,
    seed: int = 0,
    records_per_user: int = 1,
    region: Region = DEFAULT_REGION,
    user_id: UserIdKind = "int",
) -> pa.Table:
    """All records of users first .. last - 1: the record 0 of every user, then the record 1, and so on."""
    parts = [
        make_records(first, last, record, city=city, seed=seed, region=region, user_id=user_id)
        for record in range(records_per_user)
    ]
    return pa.concat_tables(parts).combine_chunks()


def make_records(
    first: int,
    last: int,
    record: int,
    *,
    city: City,
    seed: int,
    region: Region = DEFAULT_REGION,
    user_id: UserIdKind = "int",
    day: date | None = None,
) -> pa.Table:
    """Record number `record` of each of the users first .. last - 1, in the order of the users' numbers.

    With a day only of the users who are active on it; `city` is then the city of that day (dates.build_city_on).
    """
    plan = None if day is None else plan_day(day, seed, (region.west + region.east) / 2)
    columns, filled = Columns.empty(last - first), 0
    for start in range(first, last, _BLOCK_USERS):
        users = np.arange(start, min(start + _BLOCK_USERS, last), dtype=np.uint64)
        if plan is not None:
            users = users[_chance(users, plan.active, seed, _ACTIVE, plan.ordinal)]
        _fill(columns.part(filled, filled + len(users)), users, record, city, seed, region, plan)
        filled += len(users)
    return columns.part(0, filled).table(user_id)


@dataclass(frozen=True)
class Columns:
    """The columns of n records."""

    user_id: NDArray[np.int64]
    latitude: NDArray[np.float64]  # degrees
    longitude: NDArray[np.float64]  # degrees
    timestamp: NDArray[np.int64]  # microseconds since 1970, UTC
    infected: NDArray[np.bool_]
    km_from_home: NDArray[np.float32]  # to the middle of the home's cell

    @classmethod
    def empty(cls, n: int) -> Columns:
        """Columns of n records that are yet to be filled."""
        return cls(
            np.empty(n, np.int64),
            np.empty(n),
            np.empty(n),
            np.empty(n, np.int64),
            np.empty(n, np.bool_),
            np.empty(n, np.float32),
        )

    def part(self, first: int, last: int) -> Columns:
        """A view of records first .. last - 1."""
        rows = slice(first, last)
        return Columns(
            self.user_id[rows],
            self.latitude[rows],
            self.longitude[rows],
            self.timestamp[rows],
            self.infected[rows],
            self.km_from_home[rows],
        )

    def table(self, user_id: UserIdKind) -> pa.Table:
        """The columns as an Arrow table of `record_schema(user_id)`."""
        schema = record_schema(user_id)
        ids = pa.array(self.user_id) if user_id == "int" else hex_ids(self.user_id)
        return pa.Table.from_arrays(
            [
                ids,
                pa.array(self.latitude),
                pa.array(self.longitude),
                pa.array(self.timestamp).cast(schema.field("timestamp").type),
                pa.array(self.infected),
                pa.array(self.km_from_home),
            ],
            schema=schema,
        )


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
    # What ends the names of the streams that are drawn anew for each record and day.
    anew = (record,) if plan is None else (record, plan.ordinal)
    state = random_bits(stream_key(seed, _STATE, *anew), users)
    jitter = random_bits(stream_key(seed, _JITTER, *anew), users)
    hour_and_place = (_RHYTHM if plan is None else plan.rhythm)[(state >> np.uint64(48)).view(np.int64)]
    place = hour_and_place & np.uint16(3)
    if plan is not None:
        place[(place == HOME) & _chance(users, plan.away, seed, _AWAY)] = SEASON
        place[(place == ELSEWHERE) & _chance(users, plan.crowd, seed, _CROWD, plan.ordinal)] = CROWD

    keys = np.zeros(_KINDS_OF_PLACE, dtype=np.uint64)
    keys[HOME] = stream_key(seed, _HOME)
    keys[WORK] = stream_key(seed, _WORK)
    keys[SEASON] = stream_key(seed, _SEASON)
    keys[ELSEWHERE] = keys[CROWD] = stream_key(seed, _ELSEWHERE, *anew)
    cell = draw(city.tables, place, random_bits(keys[place], users), city.bits)
    column, row = cell & (city.side - 1), cell >> (city.bits // 2)
    east = column + (jitter >> np.uint64(32)) * 2.0**-32  # in cells, 0 <= east < side
    south = row + (jitter & _LOW_32) * 2.0**-32
    np.add(east * ((region.east - region.west) / city.side), region.west, out=out.longitude)
    np.subtract(region.north, south * ((region.north - region.south) / city.side), out=out.latitude)

    # The 32 low bits of the state, scaled to an hour.
    within_us = ((state & _LOW_32) * np.uint64(HOUR_US)) >> np.uint64(32)
    since_us = (hour_and_place >> np.uint16(2)).astype(np.int64) * HOUR_US + within_us.view(np.int64)
    week_us = WEEK_START_US - clock_offset_us((region.west + region.east) / 2)
    start_us = week_us if plan is None else plan.start_us
    np.add(since_us, start_us, out=out.timestamp)

    home = draw(city.tables, HOME, random_bits(int(keys[HOME]), users), city.bits)
    probability = city.risk[_risk_cell(home, city)]
    luck = random_bits(stream_key(seed, _INFECTED), users) >> np.uint64(32)
    np.less(luck, probability, out=out.infected)
    middle = np.radians((region.south + region.north) / 2)
    wide, tall = (region.east - region.west) * np.cos(middle) / city.side, (region.north - region.south) / city.side
    far = np.hypot((east - (home & (city.side - 1)) - 0.5) * wide, (south - (home >> (city.bits // 2)) - 0.5) * tall)
    out.km_from_home[:] = np.radians(far) * EARTH_RADIUS_KM
    out.user_id[:] = scramble_63(users, stream_key(seed, _ID))


def _chance(users: NDArray[np.uint64], share: float, *stream: int) -> NDArray[np.bool_]:
    """Which users a stream picks when it picks that share of them, bool[n]; with a larger share, these and others."""
    return (random_bits(stream_key(*stream), users) >> np.uint64(32)) < np.uint64(round(share * 2.0**32))


def _risk_cell(home: NDArray[np.int64], city: City) -> NDArray[np.int64]:
    """The cells of the risk raster that hold the given cells of the city, int64[n]."""
    row, column = home >> (city.bits // 2), home & (city.side - 1)
    return (row * RISK_SIDE // city.side) * RISK_SIDE + column * RISK_SIDE // city.side


def hex_ids(numbers: NDArray[np.int64]) -> pa.Array:
    """`u` and 16 hexadecimal digits for each number, as an Arrow string array."""
    pairs = np.frombuffer("".join(f"{byte:02x}" for byte in range(256)).encode(), dtype=np.uint16)
    text = np.empty((len(numbers), 17), dtype=np.uint8)
    text[:, 0] = ord("u")
    text[:, 1:] = pairs[numbers.astype(">i8").view(np.uint8)].view(np.uint8).reshape(-1, 16)
    offsets = np.arange(len(numbers) + 1, dtype=np.int32) * np.int32(17)
    return pa.StringArray.from_buffers(len(numbers), pa.py_buffer(offsets), pa.py_buffer(text))
