"""The people of the city: records and trips of any users, computed from the seed and the users' numbers only.

A user has a home and a work place. Each record has an hour of the week, a kind of location that depends on the hour,
and a position. Every choice is a hash of (seed, choice, user[, record]). So records do not depend on how users are cut
into blocks, files or workers. With a day (`city.DayPlan`), only the active users have records, and hour, kind of
location and position also depend on the day. People, homes and work places stay the same.

For trips, a user has a home, a work place and a place elsewhere, drawn separately from those of records, and each trip
joins two of the three. The work place is the one nearest the home among CANDIDATES places drawn by the density of work,
and so is the place elsewhere among its own. Distances are between the centres of DISTRICTS x DISTRICTS squares; ties
take the first. So the probability of each pair of cells is known exactly.
"""

from __future__ import annotations

from datetime import date
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from sfumato.schemas.rectangle import PENUMBRA, Region
from sfumato.schemas.region import EARTH_RADIUS_KM
from sfumato.transforms.synth.city import (
    CROWD,
    ELSEWHERE,
    HOME,
    HOUR_US,
    SEASON,
    WEEK_START_US,
    WORK,
    City,
    DayPlan,
    clock_offset_us,
    plan_day,
    rhythm_table,
)
from sfumato.transforms.synth.landscape import RISK_SIDE
from sfumato.transforms.synth.random_streams import draw, random_bits, scramble_63, stream_key

# First elements of the names of random streams.
_ID, _HOME, _WORK, _INFECTED, _STATE, _ELSEWHERE, _JITTER, _ACTIVE, _AWAY, _SEASON, _CROWD = range(11)
_BLOCK_USERS = 1 << 15  # the arrays of one block fit the processor's cache
_LOW_32 = np.uint64(0xFFFFFFFF)
_RHYTHM = rhythm_table()
_LOCATION_KINDS = 5  # HOME, WORK, ELSEWHERE, SEASON, CROWD
_TIME = pa.timestamp("us", tz="UTC")


def _schema(columns: dict[str, pa.DataType]) -> pa.Schema:
    return pa.schema([pa.field(name, kind, nullable=False) for name, kind in columns.items()])


RECORD_SCHEMA = _schema(
    {
        "user_id": pa.int64(),
        "latitude": pa.float64(),
        "longitude": pa.float64(),
        "timestamp": _TIME,
        "infected": pa.bool_(),
        "km_from_home": pa.float32(),  # to the centre of the home's cell
    }
)
_TRIP_ENDS = [f"{end}_{name}" for end in ("origin", "destination") for name in ("longitude", "latitude")]
TRIP_SCHEMA = _schema({"user_id": pa.int64(), **dict.fromkeys(_TRIP_ENDS, pa.float64()), "start": _TIME})
CANDIDATES = 4
DISTRICTS = 32  # squares along a side
SHARES = ((HOME, WORK, 3 / 8), (WORK, HOME, 2 / 8), (HOME, ELSEWHERE, 2 / 8), (ELSEWHERE, HOME, 1 / 8))
"""The kinds of trips: where one begins and ends, and its share, a multiple of 1/8."""
_EARLIEST = (7, 16, 10, 19)  # hour of the local clock at which trips of each kind begin to start
_HOURS = 3
# First elements of the names of random streams of trips: from 101 on, to stay clear of those of records.
_PLACE, _KIND, _POSITION, _START = range(101, 105)


def make_records(
    first: int,
    last: int,
    record: int,
    *,
    city: City,
    seed: int = 0,
    region: Region = PENUMBRA,
    day: date | None = None,
) -> pa.Table:
    """Returns record number `record` of each of the users first .. last - 1, in the order of the users' numbers.

    city: with a day, that of `city.build_city_on`. day: UTC date, on which only the active users have records; None:
    every user, in the one week.
    """
    plan = None if day is None else plan_day(day, seed, (region.west + region.east) / 2)
    blocks = []
    for start in range(first, last, _BLOCK_USERS):
        users = np.arange(start, min(start + _BLOCK_USERS, last), dtype=np.uint64)
        if plan is not None:
            users = users[_selected(users, plan.active, seed, _ACTIVE, plan.ordinal)]
        blocks.append(_records(users, record, city, seed, region, plan))
    return pa.Table.from_batches(blocks, RECORD_SCHEMA).combine_chunks()


def _records(
    users: NDArray[np.uint64], record: int, city: City, seed: int, region: Region, plan: DayPlan | None
) -> pa.RecordBatch:
    """Returns record `record` of these users."""
    # Ends the names of the streams that differ between records and days.
    occasion = (record,) if plan is None else (record, plan.ordinal)
    state = random_bits(stream_key(seed, _STATE, *occasion), users)
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
    cells = draw(city.tables, kind, random_bits(keys[kind], users), city.bits)
    x, y = _places(city, cells, random_bits(stream_key(seed, _JITTER, *occasion), users))
    cell_width, cell_height = (region.east - region.west) / city.side, (region.north - region.south) / city.side

    within_hour_us = ((state & _LOW_32) * np.uint64(HOUR_US)) >> np.uint64(32)
    since_us = (hour_and_kind >> np.uint16(2)).astype(np.int64) * HOUR_US + within_hour_us.view(np.int64)
    week_us = WEEK_START_US - clock_offset_us((region.west + region.east) / 2)

    home_row, home_column = city.positions(draw(city.tables, HOME, random_bits(int(keys[HOME]), users), city.bits))
    risk_cell = (home_row * RISK_SIDE // city.side) * RISK_SIDE + home_column * RISK_SIDE // city.side
    uniform = random_bits(stream_key(seed, _INFECTED), users) >> np.uint64(32)
    shrinking = np.cos(np.radians((region.south + region.north) / 2))  # of degrees of longitude, in those of latitude
    east = (x - home_column - 0.5) * ((region.east - region.west) * shrinking / city.side)
    south = (y - home_row - 0.5) * cell_height
    columns = [
        person_ids(users, seed),
        region.north - y * cell_height,
        x * cell_width + region.west,
        since_us + (week_us if plan is None else plan.start_us),
        uniform < city.risk[risk_cell],
        (np.radians(np.hypot(east, south)) * EARTH_RADIUS_KM).astype(np.float32),
    ]
    arrays = [pa.array(column).cast(field.type) for column, field in zip(columns, RECORD_SCHEMA, strict=True)]
    return pa.RecordBatch.from_arrays(arrays, schema=RECORD_SCHEMA)


def _places(
    city: City, cells: NDArray[np.int64], jitter: NDArray[np.uint64]
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Returns random places in cells, from the west and from the north: float64[n] each, in cells."""
    row, column = city.positions(cells)
    return column + (jitter >> np.uint64(32)) * 2.0**-32, row + (jitter & _LOW_32) * 2.0**-32


def person_ids(users: NDArray[np.uint64], seed: int) -> NDArray[np.int64]:
    """Returns the ids of numbered users: int64[n], in no visible order."""
    return scramble_63(users, stream_key(seed, _ID))


def _selected(users: NDArray[np.uint64], share: float, *stream: int) -> NDArray[np.bool_]:
    """Returns whether a stream selects each user, with probability `share`: bool[n]. A larger share adds users."""
    return (random_bits(stream_key(*stream), users) >> np.uint64(32)) < np.uint64(round(share * 2.0**32))


def make_trips(
    first: int,
    last: int,
    trip: int,
    *,
    city: City,
    seed: int = 0,
    region: Region = PENUMBRA,
) -> pa.Table:
    """Returns trip number `trip` of each of the users first .. last - 1, in the order of the users' numbers.

    Arguments are those of `make_records`, of a city without a day.
    """
    users = np.arange(first, last, dtype=np.uint64)
    home = _cells(city, HOME, seed, users, 0)
    places = np.stack([home, _near(city, WORK, seed, users, home), _near(city, ELSEWHERE, seed, users, home)])
    kinds = np.repeat(np.arange(len(SHARES)), [round(8 * share) for *_, share in SHARES])
    kind = kinds[(random_bits(stream_key(seed, _KIND, trip), users) >> np.uint64(61)).astype(np.int64)]
    rows = np.arange(len(users))
    columns: list[NDArray[Any]] = [person_ids(users, seed)]
    for place in (0, 1):  # where a trip begins, where it ends
        cells = places[np.array([share[place] for share in SHARES])[kind], rows]
        places_in = _places(city, cells, random_bits(stream_key(seed, _POSITION, trip, place), users))
        x, y = (one / city.side for one in places_in)
        columns += [region.west + x * (region.east - region.west), region.north - y * (region.north - region.south)]
    bits = random_bits(stream_key(seed, _START, trip), users)
    within = ((bits >> np.uint64(32)) * np.uint64(_HOURS * HOUR_US)) >> np.uint64(32)
    day = (bits & np.uint64(0xFFFF)) % np.uint64(5)
    start = WEEK_START_US - clock_offset_us((region.west + region.east) / 2) + within.astype(np.int64)
    start += (np.array(_EARLIEST)[kind] + 24 * day.astype(np.int64)) * HOUR_US
    columns.append(start)
    arrays = [pa.array(column).cast(field.type) for column, field in zip(columns, TRIP_SCHEMA, strict=True)]
    return pa.Table.from_arrays(arrays, schema=TRIP_SCHEMA)


def _cells(city: City, kind: int, seed: int, users: NDArray[np.uint64], number: int) -> NDArray[np.int64]:
    return draw(city.tables, kind, random_bits(stream_key(seed, _PLACE, kind, number), users), city.bits)


def _near(city: City, kind: int, seed: int, users: NDArray[np.uint64], home: NDArray[np.int64]) -> NDArray[np.int64]:
    """Returns the nearest to the home of some places, cells int64[n]."""
    wide = city.side // DISTRICTS
    row, column = (place // wide for place in city.positions(home))
    drawn = [_cells(city, kind, seed, users, number) for number in range(CANDIDATES)]
    distances = []
    for cells in drawn:
        y, x = (place // wide for place in city.positions(cells))
        distances.append((y - row) ** 2 + (x - column) ** 2)
    return np.asarray(np.choose(np.argmin(distances, axis=0), drawn))
