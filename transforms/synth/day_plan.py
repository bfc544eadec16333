"""What sets one date apart from the next: how many people are active, the season, the weather, and an event.

Everything here is a function of the date and, for the weather, of the seed: a day is the same whichever others are
made. Days are UTC's, as folders `dt=YYYY-MM-DD` of logs usually are; their hours follow the local clock, so the UTC
Saturday of a place in the west begins on its Friday afternoon.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from datetime import date
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from sfumato.transforms.synth.city import ELSEWHERE, HOME, SIDE, SIZE_KM, City, build_city
from sfumato.transforms.synth.random_streams import Words, alias_probabilities, alias_table, random_bits, stream_key
from sfumato.transforms.synth.rhythm import HOUR_US, HOURS, clock_offset_us, day_rhythm
from sfumato.transforms.synth.shapes import Point, hill

SEASON, CROWD = 3, 4  # kinds of place beside HOME, WORK and ELSEWHERE: the season's home, the event

SEASON_CENTRE, SEASON_RADIUS_KM = (2.6, 8.4), 1.6
"""Where the season's homes are: near the ocean's beach."""
SEASON_SHARE = 0.3  # of the people live there at midsummer
_MIDSUMMER = 172  # day of the year

EVENTS: tuple[Point, ...] = ((10.0, 6.45), (6.5, 5.9), (7.75, 4.25))
"""Where crowds gather in turn: stadium, university, square."""
EVENT_RADIUS_KM = 0.4
EVENT_SHARE = 0.2  # of the people who are neither at home nor at work
_EVENT_EVERY_DAYS = 28
_SOME_EVENT = date(2026, 11, 7)

_WEATHER_ACTIVE, _WEATHER_OUTDOORS = 0.03, 0.15  # how far the weather moves the share of the active, and their outings
_WEATHER = 1 << 16  # names the stream of weathers; those of people have small numbers


@dataclass(frozen=True)
class DayPlan:
    """A day. active, away, crowd: shares of all people, of those at home, and of those elsewhere.

    rhythm: states of a record, 4 * (hour of the day) + kind of place, uint16[65536]. start_us: when the day begins, in
    microseconds since 1970. ordinal: the day's number.
    """

    ordinal: int
    start_us: int
    rhythm: NDArray[np.uint16]
    active: float
    away: float
    crowd: float


def plan_day(day: date, seed: int, longitude: float) -> DayPlan:
    """What happens on a day (UTC) to people whose clock is that of a longitude."""
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
    """From -1 (people stay in) to 1."""
    word = random_bits(stream_key(seed, _WEATHER), np.array([day.toordinal()], dtype=np.uint64))[0]
    return int(word) * 2.0**-63 - 1


def away_share(day: date) -> float:
    """The share of the people who live in their season's home: a wave with the length of a year, 0 at midwinter."""
    phase = 2 * math.pi * (day.timetuple().tm_yday - _MIDSUMMER) / 365.25
    return SEASON_SHARE * (1 + math.cos(phase)) / 2


def event_of(day: date) -> Point | None:
    """Where in the city (km) a crowd gathers on a day, or None: one Saturday in four has an event."""
    number, rest = divmod(day.toordinal() - _SOME_EVENT.toordinal(), _EVENT_EVERY_DAYS)
    return None if rest else EVENTS[number % len(EVENTS)]


def build_city_on(day: date, side: int = SIDE) -> City:
    """The city with the season's homes and, on the day of an event, its crowd: four or five tables."""
    return _build_city_with(event_of(day), side)


def density_on(day: date, seed: int, longitude: float, side: int = SIDE) -> NDArray[np.float64]:
    """The density that a day's records are drawn from, float64[side, side], row 0 in the north, sum 1."""
    city, plan = build_city_on(day, side), plan_day(day, seed, longitude)
    home, work, elsewhere = np.bincount(plan.rhythm & 3, minlength=3) / len(plan.rhythm)
    shares = [home * (1 - plan.away), work, elsewhere * (1 - plan.crowd), home * plan.away, elsewhere * plan.crowd]
    tables = city.tables.reshape(-1, side**2)
    density = sum(share * alias_probabilities(table) for share, table in zip(shares, tables, strict=False))
    return np.asarray(density).reshape(side, side)


@lru_cache(maxsize=2)
def _build_city_with(event: Point | None, side: int) -> City:
    city = build_city(side)
    parts = [city.tables, _table_about(city, HOME, SEASON_CENTRE, SEASON_RADIUS_KM)]
    if event is not None:
        parts.append(_table_about(city, ELSEWHERE, event, EVENT_RADIUS_KM, power=0.5))
    return City(side, np.concatenate(parts), city.risk)


def _table_about(city: City, kind: int, centre: Point, radius_km: float, power: float = 1.0) -> Words:
    """The alias table uint64[side^2] of one of the city's densities, of which only what is near a point is left.

    power: below 1 evens the density out, as a crowd fills the lanes when the square is full.
    """
    density = alias_probabilities(city.tables.reshape(-1, city.side**2)[kind]).reshape(city.side, city.side)
    middle = ((np.arange(city.side) + 0.5) * (SIZE_KM / city.side)).astype(np.float32)
    return alias_table(density**power * hill(middle[None, :], middle[:, None], centre, radius_km))
