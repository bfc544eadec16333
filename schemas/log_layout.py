"""The layout of a log: its format, the columns of places, and the partitions to read."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from datetime import date

from sfumato.schemas.errors import RequestError
from sfumato.schemas.slots import LOGS_OWN

E7 = "e7"
MAX_H3, MAX_QUADKEY = 15, 30
_EARTH_METRES = 40_075_016.686  # the equator, as Web Mercator has it
_H3_METRES = 1_281_256.011  # the mean edge of a cell of resolution 0; each resolution divides it by the root of 7
_INTEGER = re.compile(r"-?[0-9]{1,18}")
_HOURS = re.compile(r"([0-9]{1,2})(?::00)?(?:-([0-9]{1,2})(?::00)?)?")
_DAY, _LONGEST = 24, 18  # hours; a night that lasts longer is more probably a morning with its hours exchanged


@dataclass(frozen=True)
class CellColumn:
    """A column of cells instead of coordinates. A record lies at the centre of its cell.

    index: `h3` or `quadkey`. resolution: 0 to MAX_H3, or a quadkey's length, 1 to MAX_QUADKEY. Rows of other cells are
    dropped.
    """

    column: str
    index: str
    resolution: int

    @classmethod
    def parse(cls, column: str, text: str) -> CellColumn:
        """Returns the cells of a column, by `h3:RESOLUTION` or `quadkey:LENGTH`. Raises RequestError."""
        index, _, number = text.partition(":")
        low, high = {"h3": (0, MAX_H3), "quadkey": (1, MAX_QUADKEY)}.get(index, (0, -1))
        if not number.isdecimal() or not low <= int(number) <= high:
            raise RequestError(
                f"cell_index: must be h3:RESOLUTION between 0 and {MAX_H3}, or quadkey:LENGTH between 1 and "
                f"{MAX_QUADKEY}, got {text!r}"
            )
        return cls(column, index, int(number))

    def metres(self, latitude: float) -> float:
        """Returns the approximate width of a cell at a latitude in degrees, in metres."""
        if self.index == "h3":
            return float(2 * _H3_METRES * 7.0 ** (-self.resolution / 2))
        return _EARTH_METRES * math.cos(math.radians(latitude)) / 2.0**self.resolution


@dataclass(frozen=True)
class DayRows:
    """The days, and the hours of the day, whose rows are read, by the calendar and clocks of a time zone.

    A day may have 23, 24 or 25 hours there. A row without a time belongs to no day and no hour.
    """

    column: str  # of timestamps, or of seconds since 1970
    time_zone: str | None  # name in the IANA database; None for the logs' own local times
    first: date | None  # None for all days
    last: date | None  # included
    hours: tuple[int, int] | None = None  # from the first to before the second, over midnight if that is less

    def __str__(self) -> str:
        last = "" if self.last == self.first else f":{self.last}"
        given = [] if self.first is None else [f"--period {self.first}{last}"]
        given += [] if self.hours is None else ["--hours {}-{}".format(*self.hours)]
        return f"{' and '.join(given)} (by {self.column}, in {self.time_zone or f'local time, {LOGS_OWN}'})"


def hours_of(text: str) -> tuple[int, int]:
    """Returns the hours of `FROM-TO`, such as (8, 9) for `8-9`, `08:00-09:00` or `8`, the hour from 08:00.

    Raises RequestError: the text is none, or lasts over midnight so long that the hours are probably exchanged.
    """
    found = _HOURS.fullmatch(text.strip())
    begin = end = 0
    if found:
        begin = int(found[1])
        end = int(found[2]) if found[2] else begin + 1
    if begin == end or begin > 23 or end > 24 or end == 0:
        raise RequestError(
            f"hours: must be FROM-TO in whole hours, such as 8-9 for 08:00 to before 09:00, or 22-5, got {text!r}"
        )
    if (lasts := (end - begin) % _DAY) > _LONGEST and end < begin:
        raise RequestError(
            f"hours: {text} lasts {lasts} hours, over midnight, of {_LONGEST} at most; exchanged it is {end}-{begin}"
        )
    return begin, end


@dataclass(frozen=True)
class LogLayout:
    """The options of a run about its logs, other than the names of columns."""

    format: str | None = None  # a name of `FORMATS`; None for the format of the file's name
    latitude: str = "latitude"  # the columns from which a job reads places
    longitude: str = "longitude"
    e7: bool = False  # whether both hold integers, degrees times 10^7
    geometry: str | None = None  # a column of points instead of them
    cells: CellColumn | None = None  # a column of cells instead of them
    columns: tuple[str, ...] = ()  # that a job reads, for warehouses that read only these; empty for all
    days: DayRows | None = None  # whose rows are read; None for all rows
    decimal: str = "."  # the decimal mark of numbers in text, a point or a comma
    dates: str | None = None  # the order of dates in text, `dmy` or `mdy`; None for ISO 8601

    @property
    def place_column(self) -> str | None:
        """Returns the column that replaces coordinates; None without one."""
        return self.cells.column if self.cells is not None else self.geometry


@dataclass(frozen=True)
class PartitionFilter:
    """The folders `name=value` whose files are read: the values from `low` to `high`, both included."""

    name: str
    low: str
    high: str

    @classmethod
    def parse(cls, text: str) -> PartitionFilter:
        """Returns the filter of `NAME=VALUE` or `NAME=LOW:HIGH`. Raises RequestError."""
        name, equals, values = text.partition("=")
        low, colon, high = values.partition(":")
        if not (name and equals and low) or (colon and not high):
            raise RequestError(f"where: must be NAME=VALUE or NAME=LOW:HIGH, such as date=2026-11-20, got {text!r}")
        found = cls(name, low, high if colon else low)
        if _order(found.low, found.high) > 0:
            raise RequestError(f"where: must have LOW before HIGH, got {text!r}")
        return found

    def __str__(self) -> str:
        return f"{self.name}={self.low}" + (f":{self.high}" if self.high != self.low else "")

    def keeps(self, value: str) -> bool:
        """Returns whether files of this value are read. Integers compare as numbers, other values as text."""
        return _order(self.low, value) <= 0 <= _order(self.high, value)


def _order(first: str, second: str) -> int:
    """Returns a number below, equal to or above 0 if the first value is before, equal to or after the second."""
    if _INTEGER.fullmatch(first) and _INTEGER.fullmatch(second):
        return int(first) - int(second)
    return (first > second) - (first < second)
