"""What logs hold, for their operator: columns, places, users and likely causes of unusable rows. Nothing here is noisy.

The figures are exact, so they are for the person who holds the logs only: no job reads them, and nothing is published.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import date, timedelta
from typing import Literal

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as pt
from numpy.typing import NDArray
from tzfpy import get_tz

from sfumato.pipelines.operations.log_places import NEARBY, Array, Visits, bound_of, has_sign, suggested_region
from sfumato.schemas.ledger import Period
from sfumato.schemas.locations import is_text
from sfumato.schemas.log_layout import LogLayout
from sfumato.schemas.log_roles import AXES, find_roles, ids_among, people_among
from sfumato.schemas.rectangle import Region
from sfumato.schemas.requests.publish_request import MAX_BAD_FRACTION
from sfumato.schemas.slots import UTC
from sfumato.transforms.geo.zone_raster import OUTSIDE, ZoneLocator
from sfumato.transforms.inputs.local_time import AT_SEA, DAY_SECONDS, HOUR_SECONDS, local_seconds
from sfumato.transforms.inputs.log_file import LogFile
from sfumato.transforms.inputs.log_reader import format_of, open_raw, slice_file
from sfumato.transforms.inputs.text_lines import first_fields
from sfumato.transforms.inputs.text_values import (
    decoded,
    iso_dates,
    nulls,
    parsed,
    utf8_texts,
    with_point,
    without_views,
)
from sfumato.transforms.privacy.user_hashes import hash_users
from sfumato.transforms.release.basemap_file import MUCH_NEARER, nearest_city

_PLACES = 1_000_000  # the number of places, at most about, that are kept for the suggested region
_COMMA = r"^\s*[+-]?[0-9]{1,3},[0-9]+\s*$"
_NUMERIC_DATE = r"^\s*(?P<date>[0-9]{1,2}[./-][0-9]{1,2}[./-][0-9]{4})\b"
_HALF_DAY = r"[0-9]\s*[AaPp]\.?[Mm]\.?\s*$"
_LOCAL_DATE = rf"{_NUMERIC_DATE}|{_HALF_DAY}"
_ISO_TIME = r"^\s*[0-9]{4}-[0-9]{2}-[0-9]{2}[T ][0-9]"
OTHER_ORDER: Mapping[str, Literal["dmy", "mdy"]] = {"dmy": "mdy", "mdy": "dmy"}
_NO_NAME = r"^\s*[+-]?[0-9]*[.,:/-]?[0-9][0-9.,:/ T-]*$"  # numbers, dates and times, which identify nobody
_ZONED = r"([zZ]|[+-][0-9]{2}:?[0-9]{2})\s*$"
SOME, MOST = 0.01, 0.5  # shares of the rows or places that are a sign of a cause
_IN_ZONES = 0.1  # the share of the places below which zones probably lie elsewhere
_STRAY = 0.001  # share of the rows on days at either end that do not belong to the period
_CENTURY = 36_525  # days
_E7 = 1e7
_TURN = 360.0  # degrees: no longitude of any convention is beyond
_POLE = 90.0
_OF_ROWS = 0.95  # users a row, beyond which ids are those of rows; a few rows may be there twice
HOUR = 8  # of the day whose visits are counted, from 08:00 to before 09:00
_LIKE_PEOPLE, _FEWER = 0.2, 0.9  # shares of the number of user ids: of values of a column that may identify people
_PEOPLE = 50  # values of such a column, at least
_ZONE_PLACES = 500  # places whose time zones are looked up, at least; all places of fewer


@dataclass
class Facts:
    """Exact figures of logs.

    Attributes:
        columns: the type of each column of the first file, by name.
        roles: the column of each role that was found, by the option that names it.
        rows: number of rows.
        unusable: rows by the reason for which a job leaves them out, a verb first.
        signs: rows by a sign of what is wrong with the whole log; see `causes`.
        users: number of different user ids.
        rows_a_user: the median, the 99th percentile and the largest number of rows of a user; zeros without users.
        fewer: other columns that may identify people, because they hold fewer values than that of user ids, in the
            first rows of a file: the number of values by name.
        first_users: number of user ids in these rows.
        days: rows by day, in days since 1970.
        dates: different dates such as 11/10/2026, in which either number may be the month.
        is_e7: whether latitude and longitude are integers, degrees times 10^7.
        region: round borders of the middle of the places, one a user; None without places.
        given: the region given; None without one.
        time_zone: of most places on land, one a user; None without places on land.
        near: the nearest large city to the middle of the region, and its distance in kilometres; None without a region.
        near_swapped: the same with latitude and longitude swapped; None if that is no place either.
        outside: the share of the places, one a user, that are outside of the given region, or of `region` without one.
        rows_outside: the share of the rows with a place that are outside of the same region.
        swapped: the share that are outside, and within with swapped coordinates.
        in_zones: the share of the rows with a place that are in a zone; None without zones or places.
        signless: the share of the rows with a place that are outside, and within with another sign of a coordinate.
        users_then: number of users at HOUR; with zones, of those in one. Of many rows, by a sample.
        in_zones_then: their share of the users with a place at HOUR, if there are zones.
        shares_then, shares_all_day: the shares of the visits at HOUR, and of all, that remain if a user counts at 1 to
            MOST_PLACES places: zones, or squares of some 300 m.
    """

    columns: dict[str, str]
    roles: dict[str, str]
    rows: int = 0
    unusable: dict[str, int] = field(default_factory=dict)
    signs: dict[str, int] = field(default_factory=dict)
    users: int = 0
    rows_a_user: tuple[int, int, int] = (0, 0, 0)
    fewer: dict[str, int] = field(default_factory=dict)
    first_users: int = 0
    days: Counter[int] = field(default_factory=Counter)
    dates: set[str] = field(default_factory=set)
    is_e7: bool = False
    region: Region | None = None
    given: Region | None = None
    time_zone: str | None = None
    near: tuple[str, float] | None = None
    near_swapped: tuple[str, float] | None = None
    outside: float = 0.0
    rows_outside: float = 0.0
    swapped: float = 0.0
    in_zones: float | None = None
    users_then: int = 0
    signless: float = 0.0
    in_zones_then: float = 0.0
    shares_then: list[float] = field(default_factory=list)
    shares_all_day: list[float] = field(default_factory=list)

    @property
    def places_a_user(self) -> int:
        """Returns the bound on places of a user that keeps nearly all visits at HOUR."""
        return bound_of(self.shares_then)

    @property
    def states_zones(self) -> bool:
        """Returns whether there are times, and none without a time zone; numbers are in UTC."""
        return bool(self.days) and not self.signs.get("naive")

    @property
    def others(self) -> list[str]:
        """Returns the columns without a role."""
        return [name for name in self.columns if name not in self.roles.values()]

    @property
    def is_outside(self) -> bool:
        """Returns whether more places are outside than a job accepts by default."""
        return self.outside > MAX_BAD_FRACTION

    @property
    def are_columns_swapped(self) -> bool:
        """Returns whether latitude and longitude are probably in each other's column."""
        if self.signs.get("swapped", 0) > MOST * self.rows:
            return True
        turned = None if self.given is None else self.given.with_axes_swapped()
        return self.swapped > MOST and (turned is None or self.may_be_swapped)

    @property
    def may_be_swapped(self) -> bool:
        """Returns whether the places are much nearer to a city with latitude and longitude swapped."""
        near, swapped = self.near, self.near_swapped
        return near is not None and swapped is not None and swapped[1] * MUCH_NEARER < near[1]

    @property
    def are_zones_elsewhere(self) -> bool:
        """Returns whether few of the places are in a zone."""
        return self.in_zones is not None and self.in_zones < _IN_ZONES

    @property
    def is_of_rows(self) -> bool:
        """Returns whether nearly each value of the column of user ids occurs once."""
        return self.users > 1 and self.users > _OF_ROWS * self.rows

    @property
    def lost(self) -> float:
        """Returns the share of the rows that no job counts, for all reasons."""
        rows = sum(self.unusable.values()) + self.signs.get("no time", 0) + self.signs.get("at 0, 0", 0)
        return self.swapped + self.signless + rows / max(self.rows, 1)

    @property
    def timeless(self) -> str | None:
        """Returns the number of rows without a time in words, if these are too few to be a cause of trouble."""
        number = self.signs.get("no time", 0)
        if not 0 < number <= SOME * self.rows:
            return None
        return f"times: {number:,} rows have no value in {self.roles['time_column']}; jobs with --day_column skip them"

    @property
    def period(self) -> Period | None:
        """Returns the days of nearly all rows that have a time; None without times, or over more than a century."""
        days = sorted(self.days)
        share = np.cumsum([self.days[day] for day in days]) / self.days.total()
        first, last = (days[at] for at in np.searchsorted(share, (_STRAY, 1 - _STRAY))) if days else (0, _CENTURY)
        if last - first >= _CENTURY:
            return None
        return Period(*(date(1970, 1, 1) + timedelta(days=day) for day in (first, last)))


def inspect_logs(
    logs: Sequence[LogFile],
    given: Mapping[str, str],
    region: Region | None = None,
    time_zone: str | None = None,
    locator: ZoneLocator | None = None,
) -> Facts:
    """Reads all rows of logs and returns what they hold.

    Args:
        logs: one or more files.
        given: columns by the option that names them; the others are recognised by their names.
        region: of which to count the places outside; None for the one that is suggested.
        time_zone: of days and hours; None for UTC, and the logs' own local times.
        locator: of the zones whose visitors are to be counted; None without zones.

    Raises:
        RequestError: a given column is missing.
        DataError: a file cannot be read.
    """
    with open_raw(logs[0]) as file:
        columns = {column.name: str(column.type) for column in file.schema}
        rows = file.rows * len(logs)
    if format_of(logs[0]) == "ndjson":
        columns = dict.fromkeys(first_fields(logs[0]), "JSON")
    roles = find_roles(columns, given)
    if "time_column" not in roles and (name := _column_of_times(logs[0], set(columns) - set(roles.values()))):
        roles["time_column"] = name
    axes = [columns[roles[name]] for name in AXES if name in roles]
    facts = Facts(columns, roles, given=region, is_e7=bool(axes) and all("int" in kind for kind in axes))
    if "user_id_column" in roles and format_of(logs[0]) != "ndjson":
        _note_ids(facts, logs[0])
    hashes, places, visitors = [np.empty(0, np.uint64)], [np.empty((2, 0))], [np.empty(0, np.uint64)]
    step = max(rows // _PLACES, 1)
    visits, in_zones = Visits(HOUR, step), list[NDArray[np.bool_]]()
    key = os.urandom(32)  # hashes are compared within this process only
    for batch in _batches(logs, list(roles.values()) or list(columns)[:1]):
        facts.rows += batch.num_rows
        user = np.zeros(batch.num_rows, np.uint64)
        if (name := roles.get("user_id_column")) is not None:
            ids = _plain(batch, name)
            known = ~nulls(ids)
            _count(facts.unusable, "have no user id", ~known)
            if (readable := utf8_texts(ids)) is not None:
                _count(facts.signs, "not UTF-8", ~readable)
            user[known] = hash_users(ids.filter(pa.array(known)), key)
            hashes.append(user[known])
        hour = np.zeros(batch.num_rows, np.int64)
        if (name := roles.get("time_column")) is not None:
            hour = _note_times(facts, _plain(batch, name), logs[0].layout, time_zone or UTC)
        if len(axes) == 2:
            kept, found = _note_places(facts, batch, logs[0].layout)
            places.append(found[:, ::step])
            visitors.append(user[kept][::step])
            is_placed = np.ones(found.shape[1], bool)
            if locator is None:
                row, column = np.floor(found / NEARBY).astype(np.int64)
                place = row << 32 ^ column
            else:
                place = locator.zone_of(*found)
                is_placed = place != OUTSIDE
                in_zones.append(is_placed)
            visits.add(user[kept], place.view(np.uint64), hour[kept].view(np.uint64), is_placed)
    _, each = np.unique(np.concatenate(hashes), return_counts=True)
    if len(each):
        facts.users = len(each)
        middle, high = np.quantile(each, (0.5, 0.99), method="higher").tolist()
        facts.rows_a_user = int(middle), int(high), int(each.max())
    facts.shares_then, facts.shares_all_day = visits.shares(at_the_hour=True), visits.shares(at_the_hour=False)
    facts.users_then, facts.in_zones_then = visits.counts_then()
    if sum(map(len, in_zones)):
        facts.in_zones = float(np.mean(np.concatenate(in_zones)))
    all_places = of_rows = np.concatenate(places, axis=1)
    if "user_id_column" in roles:  # one place of each user, so that no user with many rows decides
        all_places = all_places[:, np.unique(np.concatenate(visitors), return_index=True)[1]]
    facts.region = suggested_region(all_places)
    facts.time_zone = _zone_of_most(all_places)
    if facts.region is not None:
        within = region or facts.region
        outside = ~_within(within, *all_places)
        facts.rows_outside = float(np.mean(~_within(within, *of_rows)))
        facts.outside = float(np.mean(outside))
        facts.swapped = float(np.mean(outside & _within(within, *all_places[::-1])))
        longitude, latitude = of_rows[:, ~_within(within, *of_rows)]
        turned = np.zeros(len(longitude), dtype=bool)
        if has_sign(within.west, within.east):
            turned |= _within(within, -longitude, latitude)
        if has_sign(within.south, within.north):
            turned |= _within(within, longitude, -latitude)
        facts.signless = int(turned.sum()) / of_rows.shape[1]
        x, y = (facts.region.west + facts.region.east) / 2, (facts.region.south + facts.region.north) / 2
        facts.near = nearest_city(x, y)
        facts.near_swapped = nearest_city(y, x) if abs(x) <= _POLE else None
    return facts


def _within(region: Region, longitude: Array, latitude: Array) -> NDArray[np.bool_]:
    is_between = (longitude >= region.west) & (longitude <= region.east)
    return is_between & (latitude >= region.south) & (latitude <= region.north)


def _zone_of_most(places: Array) -> str | None:
    """Returns the time zone of most of the places, of those on land in a sample; None without such places."""
    sample = places[:, :: max(places.shape[1] // _ZONE_PLACES, 1)]
    zones = Counter(name for name in map(get_tz, *sample.tolist()) if name and not name.startswith(AT_SEA))
    return max(zones, key=zones.__getitem__, default=None)


def _column_of_times(log: LogFile, names: Collection[str]) -> str | None:
    """Returns the first column whose values are times in most of a file's first rows, best ISO 8601; None without."""
    batch = next(_batches([log], sorted(names)), None)
    columns = {} if batch is None else {name: _plain(batch, name) for name in sorted(names)}
    typed = [name for name, column in columns.items() if pt.is_timestamp(column.type)]
    texts = {name: column for name, column in columns.items() if is_text(column.type)}
    for form in (_ISO_TIME, _LOCAL_DATE):
        typed += [
            name
            for name, column in texts.items()
            if 2 * (pc.sum(pc.match_substring_regex(column, form)).as_py() or 0) > len(column)
        ]
    return next(iter(typed), None)


def _note_ids(facts: Facts, log: LogFile) -> None:
    """Finds the columns of `Facts.fewer` in the first rows of a file: text, or numbers that are named like ids."""
    user = facts.roles["user_id_column"]
    with open_raw(log) as file:
        names = [name for name, number in Counter(file.schema.names).items() if number == 1]
    others = [name for name in facts.others if name in names]
    others = people_among(others) or others
    batch = next(_batches([log], [user, *others]), None)
    if batch is None or batch.num_rows == 0 or user not in names or pt.is_null(batch.schema.field(user).type):
        return
    facts.first_users = pc.count_distinct(_plain(batch, user)).as_py()
    for name in others:
        column = _plain(batch, name)
        is_named = bool(ids_among([name]))
        is_id = pt.is_integer(column.type) and is_named
        if is_text(column.type):
            is_id = is_named or 2 * (pc.sum(pc.match_substring_regex(column, _NO_NAME)).as_py() or 0) < len(column)
        number = pc.count_distinct(column).as_py() if is_id else 0
        if max(_LIKE_PEOPLE * facts.first_users, _PEOPLE) <= number < _FEWER * facts.first_users:
            facts.fewer[name] = number


def _batches(logs: Sequence[LogFile], names: Sequence[str]) -> Iterator[pa.RecordBatch]:
    for log in logs:
        for part in slice_file(log):
            with open_raw(log, names) as file:
                yield from file.batches(part, [name for name in names if name in file.schema.names])


def _plain(batch: pa.RecordBatch, name: str) -> pa.Array:
    """Returns a column's values in a type that Arrow can filter."""
    return without_views(decoded(batch.column(name)))


def _count(counts: dict[str, int], name: str, where: pa.BooleanArray | NDArray[np.bool_]) -> None:
    number = int(pc.sum(where).as_py() or 0) if isinstance(where, pa.Array) else int(where.sum())
    if number:
        counts[name] = counts.get(name, 0) + number


def _note_times(facts: Facts, column: pa.Array, layout: LogLayout, time_zone: str) -> NDArray[np.int64]:
    """Counts times that are missing, that have no zone, and that are written as 27.11.2026 or 11/27/2026.

    Returns the hours since 1970 of each time, int64[n]; 0 without a time.
    """
    if is_text(column.type):
        written, order = column, layout.dates
        if order is not None:
            column = iso_dates(written, order)
        _count(facts.signs, "local date", pc.match_substring_regex(column, _LOCAL_DATE))
        _count(facts.signs, "AM or PM", pc.match_substring_regex(written, _HALF_DAY))
        facts.dates.update(
            pc.struct_field(pc.extract_regex(written, _NUMERIC_DATE), "date").unique().drop_null().to_pylist()
        )
        times = parsed(column, pa.timestamp("us", "UTC"))
        without_zone = pc.invert(pc.match_substring_regex(column, _ZONED))
        _count(facts.signs, "naive", pc.and_(times.is_valid(), without_zone))
        if order is not None:
            other = parsed(iso_dates(written, OTHER_ORDER[order]), pa.timestamp("us", "UTC"))
            _count(facts.signs, OTHER_ORDER[order], pc.and_not(other.is_valid(), times.is_valid()))
        column = times
    elif pt.is_timestamp(column.type) and column.type.tz is None:
        _count(facts.signs, "naive", column.is_valid())
    seconds, known = local_seconds(column, time_zone)
    _count(facts.signs, "no time", ~known)
    days, rows = np.unique(seconds[known] // DAY_SECONDS, return_counts=True)
    facts.days.update(dict(zip(days.tolist(), rows.tolist(), strict=True)))
    return np.where(known, seconds // HOUR_SECONDS, 0)


def _note_places(facts: Facts, batch: pa.RecordBatch, layout: LogLayout) -> tuple[NDArray[np.bool_], Array]:
    """Counts unusable places and signs of their cause.

    Returns:
        Whether each row has a usable place: bool[n]. The k usable ones: float64[2, k], longitudes and latitudes.
    """
    latitude, longitude = (_degrees(facts, batch, name, layout) for name in ("latitude_column", "longitude_column"))
    known = np.isfinite(latitude) & np.isfinite(longitude)
    inside = known & (np.abs(latitude) <= 90) & (np.abs(longitude) <= 180)
    null_island = inside & (latitude == 0) & (longitude == 0)
    _count(facts.unusable, "have no latitude or longitude", ~known)
    swapped = (np.abs(latitude) > 90) & (np.abs(latitude) <= 180) & (np.abs(longitude) <= 90)
    _count(facts.unusable, "probably have latitude and longitude swapped", swapped)
    _count(facts.unusable, "are not in degrees", known & ~inside & ~swapped)
    _count(facts.signs, "beyond degrees", (np.abs(latitude) > _TURN) | (np.abs(longitude) > _TURN))
    _count(facts.signs, "at 0, 0", null_island)
    _count(facts.signs, "swapped", swapped)
    kept = inside & ~null_island
    return kept, np.stack([longitude[kept], latitude[kept]])


def _degrees(facts: Facts, batch: pa.RecordBatch, option: str, layout: LogLayout) -> Array:
    """Returns the degrees of a column, NaN where there is none, and counts those with a decimal comma."""
    column = _plain(batch, facts.roles[option])
    if facts.is_e7:
        return np.asarray(column.to_numpy(zero_copy_only=False), dtype=np.float64) / _E7
    if is_text(column.type):
        if layout.decimal == ",":
            column = with_point(column)
        elif option == "latitude_column":
            _count(facts.signs, "comma", pc.match_substring_regex(column, _COMMA))
        column = parsed(column, pa.float64())
    return np.asarray(pc.cast(column, pa.float64(), safe=False).to_numpy(zero_copy_only=False), dtype=np.float64)
