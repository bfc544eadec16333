"""Trips of the city's people, and the matrix of flows that they are drawn from.

A user has a home, a work place and a place elsewhere. Each trip joins two of them. A work place is the nearest to the
home of CANDIDATES places that are drawn by the density of work, and likewise the place elsewhere. Distances are between
the centres of DISTRICTS x DISTRICTS squares, and the first of equally near ones is taken. So the probability of each
pair of cells is known exactly. Every choice is a hash of (seed, choice, user[, trip]), see `people`.
"""

from __future__ import annotations

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from sfumato.schemas.region import Region
from sfumato.transforms.synth.city import ELSEWHERE, HOME, WORK, City
from sfumato.transforms.synth.people import DEFAULT_REGION, UserIdKind, hex_ids, person_ids
from sfumato.transforms.synth.random_streams import draw, random_bits, stream_key
from sfumato.transforms.synth.rhythm import HOUR_US, WEEK_START_US, clock_offset_us

CANDIDATES = 4
DISTRICTS = 32  # squares along a side
SHARES = ((HOME, WORK, 3 / 8), (WORK, HOME, 2 / 8), (HOME, ELSEWHERE, 2 / 8), (ELSEWHERE, HOME, 1 / 8))
"""The kinds of trips: where one begins and ends, and its share, a multiple of 1/8."""
_EARLIEST = (7, 16, 10, 19)  # hour of the local clock at which trips of each kind begin to start
_HOURS = 3
# First elements of the names of random streams; those of `people` are smaller numbers.
_PLACE, _KIND, _POSITION, _START = range(101, 105)
_LOW_32 = np.uint64(0xFFFFFFFF)


def trip_schema(user_id: UserIdKind = "int") -> pa.Schema:
    """The columns of a log of trips."""
    ends = [f"{end}_{name}" for end in ("origin", "destination") for name in ("longitude", "latitude")]
    return pa.schema(
        [
            pa.field("user_id", pa.int64() if user_id == "int" else pa.string(), nullable=False),
            *(pa.field(name, pa.float64(), nullable=False) for name in ends),
            pa.field("start", pa.timestamp("us", tz="UTC"), nullable=False),
        ]
    )


def make_trips(
    first: int,
    last: int,
    trip: int,
    *,
    city: City,
    seed: int = 0,
    region: Region = DEFAULT_REGION,
    user_id: UserIdKind = "int",
) -> pa.Table:
    """Trip number `trip` of each of the users first .. last - 1, in the order of the users' numbers.

    Args:
        first, last: numbers of users.
        trip: number of the trip, from 0.
        city: without a day.
        seed: picks the people.
        region: over which the city is stretched.
        user_id: type of the ids.
    """
    users = np.arange(first, last, dtype=np.uint64)
    home = _cells(city, HOME, seed, users, 0)
    places = np.stack([home, _near(city, WORK, seed, users, home), _near(city, ELSEWHERE, seed, users, home)])
    kinds = np.repeat(np.arange(len(SHARES)), [round(8 * share) for *_, share in SHARES])
    kind = kinds[(random_bits(stream_key(seed, _KIND, trip), users) >> np.uint64(61)).astype(np.int64)]
    rows = np.arange(len(users))
    columns = []
    for place in (0, 1):  # where a trip begins, where it ends
        cells = places[np.array([share[place] for share in SHARES])[kind], rows]
        jitter = random_bits(stream_key(seed, _POSITION, trip, place), users)
        row, column = city.positions(cells)
        x = (column + (jitter >> np.uint64(32)) * 2.0**-32) / city.side
        y = (row + (jitter & _LOW_32) * 2.0**-32) / city.side
        columns += [region.west + x * (region.east - region.west), region.north - y * (region.north - region.south)]
    bits = random_bits(stream_key(seed, _START, trip), users)
    within = ((bits >> np.uint64(32)) * np.uint64(_HOURS * HOUR_US)) >> np.uint64(32)
    day = (bits & np.uint64(0xFFFF)) % np.uint64(5)
    start = WEEK_START_US - clock_offset_us((region.west + region.east) / 2) + within.astype(np.int64)
    start += (np.array(_EARLIEST)[kind] + 24 * day.astype(np.int64)) * HOUR_US
    ids = person_ids(users, seed)
    schema = trip_schema(user_id)
    arrays = [pa.array(ids) if user_id == "int" else hex_ids(ids), *map(pa.array, columns)]
    return pa.Table.from_arrays([*arrays, pa.array(start).cast(schema.field("start").type)], schema=schema)


def _cells(city: City, kind: int, seed: int, users: NDArray[np.uint64], number: int) -> NDArray[np.int64]:
    return draw(city.tables, kind, random_bits(stream_key(seed, _PLACE, kind, number), users), city.bits)


def _near(city: City, kind: int, seed: int, users: NDArray[np.uint64], home: NDArray[np.int64]) -> NDArray[np.int64]:
    """The nearest to the home of some places, cells int64[n]."""
    wide = city.side // DISTRICTS
    row, column = (place // wide for place in city.positions(home))
    best = farthest = np.zeros(0, np.int64)
    for number in range(CANDIDATES):
        cells = _cells(city, kind, seed, users, number)
        y, x = (place // wide for place in city.positions(cells))
        distance = (y - row) ** 2 + (x - column) ** 2
        if not number:
            best, farthest = cells, distance
            continue
        nearer = distance < farthest
        best, farthest = np.where(nearer, cells, best), np.where(nearer, distance, farthest)
    return best
