"""Penumbra, an invented city: the distributions of homes, work places and other places, of infections, and its days.

The city fills a square of 14 x 14 km, which the job stretches over any region. It has an ocean in the west, a bay in
the north-east with the mouth of a river, districts with street grids of different angles and block sizes, a diagonal
avenue, parks and a port. Every seed has the same city with other people. Rasters have row 0 in the north. The model
follows no paper. Its only aim is that a heatmap of it looks like a city.

The plan of a date says how many people are active, and has the season, the weather and an event. It depends on the date
and, for the weather, on the seed, not on which other dates are made. Days are UTC days, as folders `dt=YYYY-MM-DD` of
logs usually are. Their hours follow the local clock. So a UTC Saturday in the far west begins on Friday afternoon,
local time.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from datetime import date
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from sfumato.transforms.synth.landscape import SIDE, Point, cell_centres, city_rasters, hill, risk_raster
from sfumato.transforms.synth.random_streams import Words, alias_probabilities, alias_table, random_bits, stream_key

HOME, WORK, ELSEWHERE = 0, 1, 2  # kinds of location
HOURS = 7 * 24
HOUR_US = 3_600_000_000
WEEK_START_US = 1_741_564_800_000_000
"""Monday 10 March 2025, 00:00, in microseconds since 1970: the start of the records' week, local time."""

# Relative numbers of records by hour from midnight. Phones report while they are used or moved.
_ACTIVITY = (6, 4, 3, 3, 4, 8, 18, 32, 38, 34, 32, 34, 38, 36, 34, 35, 40, 46, 46, 42, 36, 30, 20, 11)
# Per cent of an hour's records at WORK and ELSEWHERE. The rest is at HOME.
# fmt: off
_WORKDAY_WORK = (3, 3, 3, 3, 4, 6, 12, 28, 48, 58, 60, 56, 46, 54, 58, 56, 48, 28, 12, 7, 5, 4, 3, 3)
_WORKDAY_ELSEWHERE = (6, 5, 4, 4, 5, 10, 22, 36, 30, 22, 20, 24, 34, 26, 22, 24, 32, 46, 44, 38, 32, 26, 18, 10)
_WEEKEND_WORK = (3, 3, 3, 3, 3, 3, 4, 6, 8, 10, 11, 11, 11, 11, 11, 11, 10, 9, 8, 7, 6, 5, 4, 3)
_WEEKEND_ELSEWHERE = (14, 12, 8, 5, 4, 4, 7, 12, 20, 32, 42, 48, 52, 52, 50, 50, 48, 46, 46, 46, 44, 38, 30, 20)
# fmt: on

# Share of the people who have records on a day with hours of this kind only.
_WORKDAY_ACTIVE, _WEEKEND_ACTIVE = 0.77, 0.64

SEASON, CROWD = 3, 4  # kinds of location next to HOME, WORK and ELSEWHERE: a holiday home, the crowd at an event

SEASON_CENTRE, SEASON_RADIUS_KM = (2.6, 8.4), 1.6
"""Holiday homes are near the beach of the ocean. Centre in km."""
SEASON_SHARE = 0.3  # share of the people who live there at midsummer
_MIDSUMMER = 172  # day of the year

EVENTS: tuple[Point, ...] = ((10.0, 6.45), (6.5, 5.9), (7.75, 4.25))
"""Centres of events (km), in turn: stadium, university, square."""
EVENT_RADIUS_KM = 0.4
EVENT_SHARE = 0.2  # share of the people ELSEWHERE who are at the event
_EVENT_EVERY_DAYS = 28
_SOME_EVENT = date(2026, 11, 7)

_WEATHER_ACTIVE = 0.03  # change of the share of active people at the best weather
_WEATHER_OUTDOORS = 0.15  # relative change of records ELSEWHERE at the best weather
_WEATHER = 1 << 16  # name of the random stream; the streams of people have small numbers


@dataclass(frozen=True)
class City:
    """The distributions from which people are drawn.

    `tables` are alias tables, one after the other: HOME, WORK and ELSEWHERE; of a day also SEASON and CROWD.
    """

    side: int  # cells along one side, a power of two
    tables: Words  # uint64[kinds * side^2]
    risk: NDArray[np.uint64]  # uint64[RISK_SIDE^2], the probability of infection by home, times 2^32

    @property
    def bits(self) -> int:
        """Bits of a cell's number, which is its row times `side` plus its column."""
        return 2 * (self.side.bit_length() - 1)

    def positions(self, cells: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Returns rows, from the north, and columns, from the west, of numbered cells: int64[n] each."""
        return cells >> (self.bits // 2), cells & (self.side - 1)


@lru_cache(maxsize=2)
def build_city(side: int = SIDE) -> City:
    """Returns the city on side x side cells, a power of two. The full size takes about 2 s and 150 MB."""
    tables = np.concatenate([alias_table(raster) for raster in city_rasters(side)])
    return City(side, tables, (risk_raster() * 2.0**32).astype(np.uint64).ravel())


def rhythm_table() -> NDArray[np.uint16]:
    """Returns 4 * (hour of the week) + (kind of location) for 2^16 equally likely states of a record: uint16[65536]."""
    return _states(_hour_weights())


def day_rhythm(first_hour: int, outdoors: float = 1.0) -> tuple[NDArray[np.uint16], float]:
    """Returns `rhythm_table` with the hours of a day, and the share of the people who have records on it.

    first_hour: of the day, as an hour of the week, 0..167. outdoors: factor of the number of records ELSEWHERE.
    """
    hours = (first_hour + np.arange(24)) % HOURS
    weights = _hour_weights()[hours]
    weights[:, ELSEWHERE] *= outdoors
    active = np.where(hours < 5 * 24, _WORKDAY_ACTIVE, _WEEKEND_ACTIVE)
    share = float(np.average(active, weights=weights.sum(axis=1)))
    return _states(weights * active[:, None]), share


def _hour_weights() -> NDArray[np.float64]:
    """Returns relative numbers of records by hour of the week and kind of location: float64[168, 4]; the last is 0."""
    work = np.array([*_WORKDAY_WORK * 5, *_WEEKEND_WORK * 2]) / 100
    elsewhere = np.array([*_WORKDAY_ELSEWHERE * 5, *_WEEKEND_ELSEWHERE * 2]) / 100
    shares = np.stack([1 - work - elsewhere, work, elsewhere, np.zeros(HOURS)], axis=1)
    return np.array(_ACTIVITY * 7)[:, None] * shares


def _states(weights: NDArray[np.float64]) -> NDArray[np.uint16]:
    """Indices of weights, each repeated in proportion to its weight: uint16[65536]."""
    ends = np.rint(np.cumsum(weights) / weights.sum() * (1 << 16)).astype(np.int64)
    return np.repeat(np.arange(weights.size, dtype=np.uint16), np.diff(ends, prepend=0))


def clock_offset_us(longitude: float) -> int:
    """Returns the local time minus UTC in microseconds: full hours by longitude, in degrees, without time-zone data."""
    return round(longitude / 15) * HOUR_US


@dataclass(frozen=True)
class DayPlan:
    """The plan of a day."""

    ordinal: int  # the number of the day, see `date.toordinal`
    start_us: int  # its start, in microseconds since 1970
    rhythm: NDArray[np.uint16]  # uint16[65536], see `day_rhythm`
    active: float  # share of the people who have records
    away: float  # share of records at HOME that are at a holiday home instead
    crowd: float  # share of records ELSEWHERE that are at the event instead


def plan_day(day: date, seed: int, longitude: float) -> DayPlan:
    """Returns the plan of a UTC day for people at a longitude, in degrees."""
    ordinal = day.toordinal()
    first_hour = (day.weekday() * 24 + clock_offset_us(longitude) // HOUR_US) % HOURS
    weather = weather_of(day, seed)
    rhythm, active = day_rhythm(first_hour, 1 + _WEATHER_OUTDOORS * weather)
    return DayPlan(
        ordinal=ordinal,
        start_us=(ordinal - date(1970, 1, 1).toordinal()) * 24 * HOUR_US,
        rhythm=rhythm,
        active=active + _WEATHER_ACTIVE * weather,
        away=away_share(day),
        crowd=0.0 if event_of(day) is None else EVENT_SHARE,
    )


def weather_of(day: date, seed: int) -> float:
    """Returns the weather, from -1 (people stay at home) to 1: uniform."""
    bits = random_bits(stream_key(seed, _WEATHER), np.array([day.toordinal()], dtype=np.uint64))[0]
    return int(bits) * 2.0**-63 - 1


def away_share(day: date) -> float:
    """Returns the share of the people at their holiday home: a cosine over the year, 0 at midwinter."""
    phase = 2 * math.pi * (day.timetuple().tm_yday - _MIDSUMMER) / 365.25
    return SEASON_SHARE * (1 + math.cos(phase)) / 2


def event_of(day: date) -> Point | None:
    """Returns the centre of the event of a day, in km; None without one. Every fourth Saturday has an event."""
    number, rest = divmod(day.toordinal() - _SOME_EVENT.toordinal(), _EVENT_EVERY_DAYS)
    return None if rest else EVENTS[number % len(EVENTS)]


def build_city_on(day: date, side: int = SIDE) -> City:
    """Returns the city with a fourth table for SEASON and, on the day of an event, a fifth for CROWD."""
    return _build_city_with(event_of(day), side)


@lru_cache(maxsize=2)
def _build_city_with(event: Point | None, side: int) -> City:
    city = build_city(side)
    parts = [city.tables, _table_near(city, HOME, SEASON_CENTRE, SEASON_RADIUS_KM)]
    if event is not None:
        parts.append(_table_near(city, ELSEWHERE, event, EVENT_RADIUS_KM, power=0.5))
    return City(side, np.concatenate(parts), city.risk)


def _table_near(city: City, kind: int, centre: Point, radius_km: float, power: float = 1.0) -> Words:
    """Returns the alias table, uint64[side^2], of one kind's density times a hill around a point, in km.

    power: of the density. Below 1 it evens the density out, as a crowd does that spreads into side streets.
    """
    density = alias_probabilities(city.tables.reshape(-1, city.side**2)[kind]).reshape(city.side, city.side)
    km = cell_centres(city.side)
    return alias_table(density**power * hill(km[None, :], km[:, None], centre, radius_km))
