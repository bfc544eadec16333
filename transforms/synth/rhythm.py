"""The rhythm of a week or of a day: the distribution of records over hours and kinds of location."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from sfumato.transforms.synth.city import ELSEWHERE, HOME, WORK

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


# Share of the people who have records on a day with hours of this kind alone.
_WORKDAY_ACTIVE, _WEEKEND_ACTIVE = 0.77, 0.64


def rhythm_table() -> NDArray[np.uint16]:
    """4 * (hour of the week) + (kind of location) for 2^16 equally likely states of a record: uint16[65536]."""
    return _states(_hour_weights())


def day_rhythm(first_hour: int, outdoors: float = 1.0) -> tuple[NDArray[np.uint16], float]:
    """The rhythm of a day, which may have hours of a working day and of a weekend.

    Args:
        first_hour: of the day, as an hour of the week, 0..167.
        outdoors: factor of the number of records ELSEWHERE.

    Returns:
        4 * (hour of the day) + (kind of location) for 2^16 equally likely states of a record, uint16[65536]; and the
        share of the people who have records.
    """
    hours = (first_hour + np.arange(24)) % HOURS
    weights = _hour_weights()[hours]
    weights[:, ELSEWHERE] *= outdoors
    active = np.where(hours < 5 * 24, _WORKDAY_ACTIVE, _WEEKEND_ACTIVE)
    share = float(np.average(active, weights=weights.sum(axis=1)))
    return _states(weights * active[:, None]), share


def _hour_weights() -> NDArray[np.float64]:
    """Relative numbers of records by hour of the week and kind of location: float64[168, 4]; the last kind is 0."""
    weights = np.zeros((HOURS, 4))
    for hour in range(HOURS):
        is_weekend = hour >= 5 * 24
        work = (_WEEKEND_WORK if is_weekend else _WORKDAY_WORK)[hour % 24] / 100
        elsewhere = (_WEEKEND_ELSEWHERE if is_weekend else _WORKDAY_ELSEWHERE)[hour % 24] / 100
        for kind, share in {HOME: 1 - work - elsewhere, WORK: work, ELSEWHERE: elsewhere}.items():
            weights[hour, kind] = _ACTIVITY[hour % 24] * share
    return weights


def _states(weights: NDArray[np.float64]) -> NDArray[np.uint16]:
    """Indices of weights, each repeated in proportion to its weight: uint16[65536]."""
    ends = np.rint(np.cumsum(weights) / weights.sum() * (1 << 16)).astype(np.int64)
    return np.repeat(np.arange(weights.size, dtype=np.uint16), np.diff(ends, prepend=0))


def clock_offset_us(longitude: float) -> int:
    """Local time minus UTC in microseconds: full hours by longitude, in degrees, without time-zone data."""
    return round(longitude / 15) * HOUR_US
