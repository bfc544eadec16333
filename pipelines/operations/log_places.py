"""Where most users of logs are, and how many places each visits, for options of jobs. Nothing here is noisy."""

from __future__ import annotations

import math
from bisect import bisect_left

import numpy as np
from numpy.typing import NDArray

from sfumato.schemas.rectangle import Region

NEARBY = 0.003  # degrees, about 300 m: records in one square of this size are at one place
_MIDDLE = (0.02, 0.98)  # quantiles of the users' coordinates; the region may leave out what is beyond them
_REACH = 3  # widths of the middle half of the places, beyond which a place is far from most
MOST_PLACES = 10  # of a user that are counted
_NEARLY_ALL = 0.998  # of the visits: what is lost is then less than the noise of most counts
_SOME = 0.9  # of the visits: bounds that keep fewer are not worth showing

Array = NDArray[np.float64]
Codes = NDArray[np.uint64]
Mask = NDArray[np.bool_]


class Visits:
    """The visits of logs: a user at a place on a day.

    Args:
        hour: of the day whose visits are also counted separately.
        step: of the users, one in about `step` is kept.
    """

    def __init__(self, hour: int, step: int) -> None:
        self._hour, self._step = hour, step
        self._visits = [np.empty((3, 0), np.uint64)]
        self._then = [np.empty(0, bool)]
        self._users_then = [np.empty(0, np.uint64)]

    def add(self, user: Codes, place: Codes, hour: Codes, is_placed: Mask) -> None:
        """Adds records: hashes of users, 0 without one, places, hours since 1970, 0 without, and whether in a place."""
        day, own = np.divmod(hour, np.uint64(24))
        kept, is_then = (user != 0) & (user % np.uint64(self._step) == 0), own == self._hour
        self._users_then.append(np.unique(user[kept & is_then]))
        kept &= is_placed & (hour > 0)
        self._visits.append(np.stack([user[kept], place[kept], day[kept]]))
        self._then.append(is_then[kept])

    def counts_then(self) -> tuple[int, float]:
        """Returns how many users are in a place at the hour, about, and their share of all users at the hour."""
        users = len(np.unique(np.concatenate(self._visits, axis=1)[0][np.concatenate(self._then)]))
        return users * self._step, users / max(len(np.unique(np.concatenate(self._users_then))), 1)

    def shares(self, at_the_hour: bool) -> list[float]:
        """Returns which share of the visits remains, at most, if users count at 1 to MOST_PLACES places.

        The places are those of a user with the most days. A sample in proportion to records keeps fewer visits.

        at_the_hour: leave out visits at other hours.
        """
        found = np.concatenate(self._visits, axis=1)
        if at_the_hour:
            found = found[:, np.concatenate(self._then)]
        if not found.shape[1]:
            return []
        pairs, days = np.unique(np.unique(found, axis=1)[:2], axis=1, return_counts=True)
        order = np.lexsort((-days, pairs[0]))
        _, first, each = np.unique(pairs[0], return_index=True, return_counts=True)
        rank = np.arange(len(order)) - np.repeat(first, each)
        kept = np.bincount(np.minimum(rank, MOST_PLACES), weights=days[order], minlength=MOST_PLACES + 1)
        return [float(share) for share in np.cumsum(kept[:-1]) / kept.sum()]


def bound_of(shares: list[float]) -> int:
    """Returns the number of places of a user that keeps nearly all visits, at most MOST_PLACES; 1 without visits."""
    return min(bisect_left(shares, _NEARLY_ALL) + 1, MOST_PLACES) if shares else 1


def shares_text(shares: list[float]) -> str:
    """Returns which bounds keep which share of the visits, up to the one that keeps nearly all."""
    bound = bound_of(shares)
    shown = [number for number in range(1, bound + 1) if shares[number - 1] >= _SOME or number == bound]
    texts = [f"{shares[number - 1]:.1%} with {number}" for number in shown]
    return ", ".join([texts[0].replace("with", "with --max_items_per_user"), *texts[1:]])


def suggested_region(places: Array) -> Region | None:
    """Returns round borders around the middle of places: multiples of about a fifth of its width; None without places.

    Round, because a map's borders are published: borders that follow the data closely would reveal where people are.

    places: float64[2, n], longitudes and latitudes in degrees.
    """
    places = places[:, ~_misplaced(places)]
    if not places.shape[1]:
        return None
    low, high = np.quantile(places, _MIDDLE, axis=1)
    unit = _round_up(max(float((high - low).max()) / 5, 1e-3))
    west, south = (np.floor(low / unit) * unit).tolist()
    east, north = ((np.floor(high / unit) + 1) * unit).tolist()
    return Region(max(west, -180.0), max(south, -90.0), min(east, 180.0), min(north, 90.0))


def _misplaced(places: Array) -> NDArray[np.bool_]:
    """Returns which places are near most others only with swapped coordinates or another sign: bool[n]."""
    if not places.shape[1]:
        return np.zeros(0, dtype=bool)
    low, high = np.quantile(places, (0.25, 0.75), axis=1)
    reach = _REACH * (high - low) + NEARBY

    def is_near(x: Array, y: Array) -> NDArray[np.bool_]:
        found = np.stack([x, y], axis=1)
        return np.asarray(((found >= low - reach) & (found <= high + reach)).all(axis=1))

    x, y = places
    found = is_near(y, x)
    for axis, turned in enumerate(((-x, y), (x, -y))):
        if has_sign(low[axis] - reach[axis], high[axis] + reach[axis]):
            found |= is_near(*turned)
    return ~is_near(x, y) & found


def has_sign(low: float, high: float) -> bool:
    """Returns whether an interval of degrees is so far from 0 that no place near it is one with the sign lost."""
    return min(abs(low), abs(high)) > high - low and low * high > 0


def _round_up(value: float) -> float:
    """Returns the next of 1, 2 and 5 times a power of ten."""
    power = 10.0 ** math.floor(math.log10(value))
    return next(step * power for step in (1, 2, 5, 10) if step * power >= value * (1 - 1e-9))
