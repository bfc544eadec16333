"""A task: all that devices, the two aggregators and the collector agree on, in a public JSON file.

Its id is the SHA-256 of its content, so a task with any other value is another task: reports that a device makes for it
are refused elsewhere. A task is one batch: each aggregator opens it once.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from datetime import UTC, datetime
from functools import cached_property
from typing import Any, Self

import numpy as np

from sfumato.schemas.errors import RequestError
from sfumato.schemas.region import Grid, Region
from sfumato.transforms.io.files import read_file
from sfumato.transforms.privacy.noise import MAX_NOISE_EPSILON, MIN_NOISE_EPSILON
from sfumato.transforms.split.circuits import Circuit, Histogram, L1BoundSum
from sfumato.transforms.split.hpke import KEY_SIZE
from sfumato.transforms.split.prio3 import Prio3

PRECISION = 3600  # seconds to which reports round their time
COUNT_SHARE = 0.005  # of epsilon, for each aggregator's noisy number of reports
MAX_DEPTH = 8
_FORMAT = "sfumato split task 1"


@dataclass(frozen=True)
class Task:
    """A public task. Raises RequestError for a value out of range.

    Attributes:
        name: distinguishes tasks that are otherwise equal, such as those of two days.
        region: west, south, east and north in degrees. Its 2^depth x 2^depth cells are counted.
        depth: see `region`.
        epsilon: of all that is published, for a user who sends one report.
        min_batch: the smallest noisy number of reports that is published.
        start: first second of the window in which reports are made, in seconds since 1970 and a multiple of PRECISION.
        end: end of the window, excluded.
        leader: public key of the leader, 32 bytes in hexadecimal; and so are `helper` and `collector`.
        helper: see `leader`.
        collector: see `leader`.
        max_value: the largest sum of a user's whole weights; 1 for users who are each in one cell.
    """

    name: str
    region: tuple[float, float, float, float]
    depth: int
    epsilon: float
    min_batch: int
    start: int
    end: int
    leader: str
    helper: str
    collector: str
    max_value: int = 1

    def __post_init__(self) -> None:
        _check("name", isinstance(self.name, str) and self.name.isprintable() and 0 < len(self.name) <= 100)
        _check("depth", type(self.depth) is int and 1 <= self.depth <= MAX_DEPTH)
        _check("max_value", type(self.max_value) is int and 1 <= self.max_value <= 1 << 16)
        _check("min_batch", type(self.min_batch) is int and 1 <= self.min_batch <= 1 << 40)
        _check("epsilon", isinstance(self.epsilon, int | float) and math.isfinite(self.epsilon))
        least, most = MIN_NOISE_EPSILON / COUNT_SHARE * self.max_value, MAX_NOISE_EPSILON
        _check("epsilon", least <= self.epsilon <= most)
        times = (self.start, self.end)
        _check("start, end", all(type(time) is int and time >= 0 and time % PRECISION == 0 for time in times))
        _check("start, end", self.start < self.end)
        for role in ("leader", "helper", "collector"):
            _check(role, isinstance(key := getattr(self, role), str) and len(key) == 2 * KEY_SIZE and _is_hex(key))
        _check("leader, helper, collector", len({self.leader, self.helper, self.collector}) == 3)
        _ = self.grid, self.circuit

    @classmethod
    def read(cls, path: str) -> Self:
        """Returns the task of a file. Raises RequestError."""
        try:
            content = json.loads(read_file(path))
        except (OSError, ValueError) as error:
            raise RequestError(f"task: cannot read {path} as JSON ({error})") from None
        return cls.of(content)

    @classmethod
    def of(cls, content: Mapping[str, Any]) -> Self:
        """Returns the task of a file's content. Raises RequestError."""
        names = {one.name for one in fields(cls)}
        if not isinstance(content, dict) or content.get("format") != _FORMAT:
            raise RequestError(f'task: must be a JSON object with "format": "{_FORMAT}"')
        given = {name: value for name, value in content.items() if name != "format"}
        if unknown := sorted(set(given) - names):
            raise RequestError(f"task: has no entry {unknown[0]!r}; entries are {', '.join(sorted(names))}")
        if missing := sorted(names - {"max_value"} - set(given)):
            raise RequestError(f"task: requires {', '.join(missing)}")
        times = {name: _seconds(name, given[name]) for name in ("start", "end")}
        region = given["region"]
        _check("region", isinstance(region, list) and len(region) == 4)
        return cls(**{**given, **times, "region": tuple(region)})

    @cached_property
    def text(self) -> str:
        """The file's content, in one canonical form."""
        times = {name: datetime.fromtimestamp(getattr(self, name), UTC).isoformat() for name in ("start", "end")}
        return json.dumps({"format": _FORMAT, **asdict(self), **times}, sort_keys=True, separators=(",", ":"))

    @cached_property
    def id(self) -> bytes:
        """The task's id, 32 bytes."""
        return hashlib.sha256(self.text.encode()).digest()

    @cached_property
    def grid(self) -> Grid:
        """The counted cells."""
        return Grid(Region(*self.region), self.depth)

    @cached_property
    def circuit(self) -> Circuit:
        """What a report must be: one cell, or weights of cells."""
        length = 4**self.depth
        return Histogram(length) if self.max_value == 1 else L1BoundSum(length, self.max_value)

    @cached_property
    def prio3(self) -> Prio3:
        """Prio3 in the context of this task."""
        return Prio3(self.circuit, b"dap-18" + self.id)

    @property
    def count_epsilon(self) -> float:
        """The epsilon of each aggregator's noisy number of reports."""
        return COUNT_SHARE * self.epsilon

    @property
    def sums_epsilon(self) -> float:
        """The epsilon of the counts of all cells."""
        return self.epsilon - 2 * self.count_epsilon

    def measurement(self, longitude: float, latitude: float) -> int | list[int]:
        """Returns what a device at a location reports: its cell, or all weight there. Raises as `cell_of`."""
        cell = self.cell_of(longitude, latitude)
        if self.max_value == 1:
            return cell
        return [self.max_value * (one == cell) for one in range(self.circuit.length)]

    def cell_of(self, longitude: float, latitude: float) -> int:
        """Returns the number of the cell of a location. Raises RequestError: it is outside of the region."""
        _, codes = self.grid.locate(np.array([longitude]), np.array([latitude]))
        if not len(codes):
            raise RequestError("location: is outside of the task's region; no report was made")
        return int(codes[0])


def _check(name: str, holds: bool) -> None:
    if not holds:
        raise RequestError(f"task: {name} is out of range; see the documentation of task files")


def _is_hex(text: str) -> bool:
    return all(character in "0123456789abcdef" for character in text)


def _seconds(name: str, value: Any) -> int:
    """Returns a time of a task file in seconds. Raises RequestError."""
    try:
        time = datetime.fromisoformat(value)
    except (TypeError, ValueError):
        raise RequestError(f"task: {name} must be a time such as 2026-11-20T00:00:00+00:00, got {value!r}") from None
    if time.tzinfo is None or (seconds := time.timestamp()) != int(seconds):
        raise RequestError(f"task: {name} requires a time zone and whole seconds, got {value!r}")
    return int(seconds)
