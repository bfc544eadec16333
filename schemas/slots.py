"""Slots of local time, in which records are counted separately: hours, weekdays, hours of the week, or other hours."""

from __future__ import annotations

import difflib
import re
import zoneinfo
from dataclasses import dataclass
from typing import Any

from tzfpy import get_tz

from sfumato.schemas.errors import RequestError, did_you_mean
from sfumato.schemas.region import world_map

UTC = "UTC"
LOGS_OWN = "as in the logs"
KINDS = ("hour", "weekday", "hour_of_week")
DAYS = ("Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday", "Sunday")


@dataclass(frozen=True)
class Slots:
    """Slots of local time. Raises RequestError if a value is unknown or out of range.

    >>> slots = Slots.parse("time", "0,7,10,16,19,24", "Europe/Lisbon")
    >>> len(slots), slots.names[1]
    (5, '07-10 h')
    """

    column: str  # of timestamps, or of seconds since 1970
    kind: str  # one of KINDS, or `edges`
    time_zone: str = UTC  # of the local time, a name in the IANA database
    edges: tuple[float, ...] = ()  # of the kind `edges`, hours of the day from 0 to 24, ascending

    def __post_init__(self) -> None:
        if self.kind == "edges":
            ascending = all(a < b for a, b in zip(self.edges, self.edges[1:], strict=False))
            if len(self.edges) < 3 or not ascending or self.edges[0] != 0 or self.edges[-1] != 24:
                shown = ",".join(f"{edge:g}" for edge in self.edges)
                raise RequestError(
                    "slots: edges must be ascending hours from 0 to 24, with one or more between, such as "
                    f"0,7,10,16,19,24, got {shown!r}"
                )
            if any(round(edge * 60) != edge * 60 for edge in self.edges) or len(self.edges) > 25:
                raise RequestError("slots: must have at most 25 edges, on whole minutes, such as 7.5 for 07:30")
        elif self.kind not in KINDS:
            known = ", ".join(KINDS)
            raise RequestError(
                f"slots: must be {known}, or edges in hours such as 0,7,10,16,19,24, got {self.kind!r}"
                f"{did_you_mean(self.kind, KINDS)}"
            )
        check_time_zone("time_zone", self.time_zone)

    @classmethod
    def parse(cls, column: str, text: str, time_zone: str = UTC) -> Slots:
        """Returns the slots of an option's text: a kind, or edges with commas. Raises RequestError."""
        text = text.strip()
        if "," not in text:
            return cls(column, text, time_zone)
        try:
            edges = tuple(float(part) for part in text.split(","))
        except ValueError:
            raise RequestError(
                f"slots: edges must be numbers of hours, such as 0,7,10,16,19,24, got {text!r}"
            ) from None
        return cls(column, "edges", time_zone, edges)

    def __len__(self) -> int:
        return {"hour": 24, "weekday": 7, "hour_of_week": 168, "edges": len(self.edges) - 1}[self.kind]

    @property
    def names(self) -> tuple[str, ...]:
        """Returns the name of each slot, such as `08-09 h`, `Monday` or `Monday 08-09 h`."""
        hours = tuple(_hours(hour, hour + 1) for hour in range(24))
        if self.kind == "edges":
            return tuple(_hours(a, b) for a, b in zip(self.edges, self.edges[1:], strict=False))
        if self.kind == "hour_of_week":
            return tuple(f"{day} {hour}" for day in DAYS for hour in hours)
        return DAYS if self.kind == "weekday" else hours

    @property
    def ticks(self) -> tuple[tuple[int, str], ...]:
        """Returns the slots with a tick on an axis, and the text of each."""
        if self.kind == "edges":
            return tuple((slot, _clock(edge)) for slot, edge in enumerate(self.edges))
        if self.kind == "hour":
            return tuple((hour, _clock(hour)) for hour in range(0, 25, 6))
        return tuple((day * (24 if self.kind == "hour_of_week" else 1), name[:3]) for day, name in enumerate(DAYS))

    @property
    def edge_seconds(self) -> tuple[int, ...]:
        """Returns the starts of a day's slots and the day's end, in seconds after local midnight."""
        hours = self.edges or tuple(range(25))
        return tuple(round(hour * 3600) for hour in hours)

    def metadata(self) -> dict[str, Any]:
        """Returns what the manifest states and the key is bound to, in JSON's types."""
        own = {"column": self.column, "kind": self.kind, "edges": list(self.edges), "time_zone": self.time_zone}
        return {**own, "names": list(self.names)}


@dataclass(frozen=True)
class DaySlots(Slots):
    """The days of a period, in logs of which no other rows are read. A day's slot is its number modulo their number."""

    kind: str = "day"
    days: int = 1

    def __post_init__(self) -> None:
        check_time_zone("time_zone", self.time_zone)

    def __len__(self) -> int:
        return self.days

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(f"day {number}" for number in range(self.days))


def _hours(begin: float, end: float) -> str:
    return f"{_clock(begin)}-{_clock(end)} h"


def _clock(hour: float) -> str:
    minutes = round(hour * 60)
    return f"{minutes // 60:02d}" if minutes % 60 == 0 else f"{minutes // 60:02d}:{minutes % 60:02d}"


# Zones that people mean by abbreviations, which the database lacks or holds as zones without daylight saving time.
_ABBREVIATIONS = {
    "PST": "America/Los_Angeles", "PDT": "America/Los_Angeles", "MDT": "America/Denver", "CST": "America/Chicago",
    "CDT": "America/Chicago", "EDT": "America/New_York", "BST": "Europe/London", "CEST": "Europe/Berlin",
    "UTC": "UTC", "GMT": "UTC", "IST": "Asia/Kolkata", "JST": "Asia/Tokyo", "AEST": "Australia/Sydney",
    "AST": "America/Halifax", "ADT": "America/Halifax", "AKST": "America/Anchorage",
}  # fmt: skip


def times_text(time_zone: str | None) -> tuple[str, str]:
    """Returns how times without a zone are read, and what to do if that is wrong.

    time_zone: the option's value; None without it.
    """
    if time_zone is None:
        return "times without a zone count as local times, others as UTC", "if all are in UTC, give --time_zone"
    return (
        f"a time that states no zone would be read as UTC and converted to {time_zone}",
        "if there are such times and they are local, leave out --time_zone",
    )


def clocks_text(time_zone: str | None, times: str | None) -> str:
    """Returns by whose clocks days, hours and slots are, for pages: the zone's, or those of the logs.

    time_zone: the option's value; None without it. times: what the manifest states of times without a zone, if any.
    """
    return time_zone or (UTC if times is None else LOGS_OWN)


def _zones_of(name: str) -> list[str]:
    """Returns the zones whose city is nearly that of a name: a city that is in no zone's name has none."""
    zones = sorted(zone for zone in zoneinfo.available_timezones() if not re.search(r"^Etc/|[+-]\d", zone))
    city = {zone: zone.rpartition("/")[2] for zone in zones}
    near = difflib.get_close_matches(name.rpartition("/")[2], sorted(set(city.values())), n=1, cutoff=0.8)
    return [zone for zone in zones if city[zone] in near]


def _zone_of_city(name: str) -> list[str]:
    """Returns the zone of the largest city that has the last part of a name; none if there is no such city."""
    city = name.rpartition("/")[2].replace("_", " ").casefold()
    return [get_tz(x, y) for place, x, y, _ in world_map()["places"] if place.casefold() == city][:1]


def check_time_zone(option: str, name: str) -> str:
    """Returns the name of a zone. Raises RequestError, with the option's name, if there is no such zone."""
    try:
        zoneinfo.ZoneInfo(name)
    except (zoneinfo.ZoneInfoNotFoundError, ValueError, OSError):
        usual = _ABBREVIATIONS.get(name.upper())
        known = [usual] if usual else _zone_of_city(name) or _zones_of(name)
        hint = did_you_mean(name, known, cutoff=0)
        raise RequestError(f"{option}: must be a time zone such as Asia/Tokyo, got {name!r}{hint}") from None
    return name
