"""The plan of one date: how many people are active, the season, the weather and an event.

A plan depends on the date and, for the weather, on the seed. It does not depend on which other dates are made. Days are
UTC days, as folders `dt=YYYY-MM-DD` of logs usually are. Their hours follow the local clock. So a UTC Saturday in the
far west begins on Friday afternoon, local time.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from datetime import date
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from sfumato.transforms.synth.city import ELSEWHERE, HOME, SIDE, City, build_city, cell_centres
from sfumato.transforms.synth.random_streams import Words, alias_probabilities, alias_table, random_bits, stream_key
from sfumato.transforms.synth.rhythm import HOUR_US, HOURS, clock_offset_us, day_rhythm
from sfumato.transforms.synth.shapes import Point, hill

SEASON, CROWD = 3, 4  # kinds of location beside HOME, WORK and ELSEWHERE: a holiday home, the crowd at an event

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
class DayPlan:
    """The plan of a day.

    Attributes:
        ordinal: the number of the day, see `date.toordinal`.
        start_us: its start, in microseconds since 1970.
        rhythm: uint16[65536], see `rhythm.day_rhythm`.
        active: share of the people who have records.
        away: share of records at HOME that are at a holiday home instead.
        crowd: share of records ELSEWHERE that are at the event instead.
    """

    ordinal: int
    start_us: int
    rhythm: NDArray[np.uint16]
    active: float
    away: float
    crowd: float


def plan_day(day: date, seed: int, longitude: float) -> DayPlan:
    """The plan of a UTC day for people at a longitude, in degrees."""
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
    """The weather, from -1 (people stay at home) to 1: uniform."""
    bits = random_bits(stream_key(seed, _WEATHER), np.array([day.toordinal()], dtype=np.uint64))[0]
    return int(bits) * 2.0**-63 - 1


def away_share(day: date) -> float:
    """The share of the people at their holiday home: a cosine over the year, 0 at midwinter."""
    phase = 2 * math.pi * (day.timetuple().tm_yday - _MIDSUMMER) / 365.25
    return SEASON_SHARE * (1 + math.cos(phase)) / 2


def event_of(day: date) -> Point | None:
    """The centre of the event of a day, in km; None without one. Every fourth Saturday has an event."""
    number, rest = divmod(day.toordinal() - _SOME_EVENT.toordinal(), _EVENT_EVERY_DAYS)
    return None if rest else EVENTS[number % len(EVENTS)]


def build_city_on(day: date, side: int = SIDE) -> City:
    """The city with a fourth table for SEASON and, on the day of an event, a fifth for CROWD."""
    return _build_city_with(event_of(day), side)


@lru_cache(maxsize=2)
def _build_city_with(event: Point | None, side: int) -> City:
    city = build_city(side)
    parts = [city.tables, _table_near(city, HOME, SEASON_CENTRE, SEASON_RADIUS_KM)]
    if event is not None:
        parts.append(_table_near(city, ELSEWHERE, event, EVENT_RADIUS_KM, power=0.5))
    return City(side, np.concatenate(parts), city.risk)


def _table_near(city: City, kind: int, centre: Point, radius_km: float, power: float = 1.0) -> Words:
    """The alias table, uint64[side^2], of one of the city's densities near a point.

    Args:
        city: with a table of the density.
        kind: of location.
        centre, radius_km: of the hill by which the density is multiplied, in km.
        power: of the density. Below 1 it evens the density out, as a crowd does that spreads into side streets.
    """
    density = alias_probabilities(city.tables.reshape(-1, city.side**2)[kind]).reshape(city.side, city.side)
    km = cell_centres(city.side)
    return alias_table(density**power * hill(km[None, :], km[:, None], centre, radius_km))
