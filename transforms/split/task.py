"""A task: all that devices, the two aggregators and the collector agree on, in a public JSON file.

Its id is the SHA-256 of the file, so a task with any other byte is another task: reports that a device makes for it are
refused elsewhere. A task is one batch: each aggregator opens it once.

An adaptive map is a series of tasks, its rounds. Each has a tree, which follows from the noisy counts of the rounds
before. A device answers a round only after the one before, and spends at most the epsilon of the map.
"""

from __future__ import annotations

import hashlib
import json
import math
import time
from collections.abc import Sequence
from dataclasses import MISSING, asdict, dataclass, field, fields, replace
from datetime import UTC, datetime
from functools import cached_property
from typing import Any, Self

import numpy as np

from sfumato.schemas.errors import RequestError
from sfumato.schemas.region import Grid, Region
from sfumato.schemas.tree import Tree, node_names, nodes_from_names
from sfumato.transforms.io.files import read_file
from sfumato.transforms.privacy.discrete_laplace import MAX_NOISE_EPSILON, MIN_NOISE_EPSILON
from sfumato.transforms.split.circuits import Circuit, Histogram, L1BoundSum
from sfumato.transforms.split.hpke import is_public_key
from sfumato.transforms.split.prio3 import Prio3

PRECISION = 3600  # seconds to which reports round their time
COUNT_SHARE = 0.005  # of epsilon, for each aggregator's noisy number of reports
MAX_DEPTH = 8  # of a complete grid
MAX_TREE_DEPTH = 15
MAX_ENTRIES = 4**MAX_DEPTH
_FORMAT = "sfumato split task 1"
_KEYS = ("leader", "helper", "collector", "verify")
_ROUNDING = 1e-9  # of sums of epsilon


@dataclass(frozen=True)
class Round:
    """The place of a task in an adaptive map.

    Attributes:
        epsilon: of the complete map, for a user who answers every round.
        users: the public number of users that the map is planned for.
        round: number of this round, from 1.
        spent: epsilon of the rounds before.
        first: id of the first round's task, in hexadecimal; empty in the first round itself.
    """

    epsilon: float
    users: int
    round: int = 1
    spent: float = 0.0
    first: str = ""

    def __post_init__(self) -> None:
        _check("map.epsilon", _is_number(self.epsilon) and 0 < self.epsilon <= MAX_NOISE_EPSILON)
        _check("map.users", type(self.users) is int and 1 <= self.users <= 1 << 40)
        _check("map.round", type(self.round) is int and 1 <= self.round <= 40)
        _check("map.spent", _is_number(self.spent) and (self.spent > 0) == (self.round > 1))
        _check("map.first", isinstance(self.first, str) and len(self.first) == 64 * (self.round > 1))
        _check("map.first", _is_hex(self.first))


@dataclass(frozen=True)
class Task:
    """A public task. Raises RequestError for a value out of range.

    Attributes:
        name: distinguishes tasks that are otherwise equal, such as those of two days.
        region: west, south, east and north in degrees.
        depth: the finest cells are 2^depth x 2^depth. They are counted, or the entries of `tree`.
        epsilon: of all that is published, for a user who sends one report.
        min_batch: with which each aggregator compares its noisy number of reports.
        start: first second of the window in which reports are made, in seconds since 1970 and a multiple of PRECISION.
        end: end of the window, excluded.
        leader: public key of the leader, 32 bytes in hexadecimal; and so are `helper` and `collector`.
        helper: see `leader`.
        collector: see `leader`.
        verify: public key of the secret that leader and helper share. With another secret, the same report verified
            twice would disclose its cell to either of them.
        max_value: the largest sum of a user's whole weights; 1 for users who are each in one cell.
        tree: names of the nodes below the root whose entries are counted, see `Tree`; None for all finest cells.
        map: the adaptive map that the task is a round of; None for a task of its own.
        text: the file.
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
    verify: str
    max_value: int = 1
    tree: tuple[str, ...] | None = None
    map: Round | None = None
    text: str = field(repr=False, compare=False, kw_only=True)

    def __post_init__(self) -> None:
        most = MAX_DEPTH if self.tree is None else MAX_TREE_DEPTH
        _check("name", isinstance(self.name, str) and self.name.isprintable() and 0 < len(self.name) <= 100)
        _check("depth", type(self.depth) is int and 1 <= self.depth <= most)
        _check("max_value", type(self.max_value) is int and 1 <= self.max_value <= 1 << 16)
        _check("min_batch", type(self.min_batch) is int and 1 <= self.min_batch <= 1 << 40)
        least = MIN_NOISE_EPSILON / COUNT_SHARE * self.max_value
        _check("epsilon", _is_number(self.epsilon) and least <= self.epsilon <= MAX_NOISE_EPSILON)
        times = (self.start, self.end)
        _check("start, end", all(type(time) is int and time >= 0 and time % PRECISION == 0 for time in times))
        _check("start, end", self.start < self.end)
        for role in _KEYS:
            key = getattr(self, role)
            _check(role, isinstance(key, str) and _is_hex(key) and is_public_key(bytes.fromhex(key)))
        # An operator that also collects would read the other's share before its noise hides anything from it, and a
        # device could verify reports with a key that it knows.
        _check(", ".join(_KEYS), len({getattr(self, role) for role in _KEYS}) == len(_KEYS))
        if self.map is not None:
            spent = self.map.spent + self.epsilon
            _check("epsilon, map.spent", spent <= self.map.epsilon * (1 + _ROUNDING))
            _check("tree", self.tree is not None)
        _check("depth, tree", len(self.counted.entries) <= MAX_ENTRIES)
        _ = self.grid, self.circuit

    @classmethod
    def read(cls, path: str) -> Self:
        """Returns the task of a file. Raises RequestError."""
        try:
            return cls.parse(read_file(path).decode())
        except (OSError, UnicodeDecodeError) as error:
            raise RequestError(f"task: cannot read {path} ({error})") from None

    @classmethod
    def parse(cls, text: str) -> Self:
        """Returns the task of a file's text. Raises RequestError."""
        try:
            content = json.loads(text)
        except (ValueError, RecursionError) as error:
            raise RequestError(f"task: is no JSON ({error})") from None
        if not isinstance(content, dict) or content.get("format") != _FORMAT:
            raise RequestError(f'task: must be a JSON object with "format": "{_FORMAT}"')
        given = _entries(cls, "", {name: value for name, value in content.items() if name != "format"})
        times = {name: _seconds(name, given[name]) for name in ("start", "end")}
        region = given["region"]
        _check("region", isinstance(region, list) and len(region) == 4 and all(map(_is_number, region)))
        _check("tree", isinstance(given.get("tree", []), list))
        given |= {name: tuple(given[name]) for name in ("region", "tree") if name in given}
        if "map" in given:
            _check("map", isinstance(given["map"], dict))
            given["map"] = Round(**_entries(Round, "map.", given["map"]))
        return cls(**{**given, **times, "text": text})

    def next_round(self, tree: Tree, epsilon: float) -> Self:
        """Returns the task of the map's next round, whose window follows on this one's.

        Args:
            tree: whose entries the round counts.
            epsilon: of the round.
        """
        assert self.map is not None
        here = self.map
        spent = here.spent + self.epsilon
        series = replace(here, round=here.round + 1, spent=spent, first=here.first or self.id.hex())
        content = json.loads(self.text) | {
            "epsilon": epsilon,
            "tree": node_names(tree.nodes[1:]),
            "map": asdict(series),
            "start": _text_of(self.end),
            "end": _text_of(2 * self.end - self.start),
        }
        return self.parse(json.dumps(content, separators=(",", ":")))

    def check_follows(self, previous: Task) -> None:
        """Raises RequestError if this is not a next round of the map that `previous` is a round of."""
        if previous.map is None or self != previous.next_round(self.counted, self.epsilon):
            raise RequestError("task: is not the next round of the map that was answered; it is old or forged")

    def check_open(self) -> None:
        """Raises RequestError if the window does not include the present."""
        if not self.start <= time.time() < self.end:
            window = f"{_text_of(self.start)} to {_text_of(self.end)}"
            raise RequestError(f"task: takes reports from {window} only; check the clock, or wait for the next task")

    @cached_property
    def id(self) -> bytes:
        """The task's id, 32 bytes."""
        return hashlib.sha256(self.text.encode()).digest()

    @cached_property
    def grid(self) -> Grid:
        """The grid of the finest cells."""
        return Grid(Region(*self.region), self.depth)

    @cached_property
    def counted(self) -> Tree:
        """The tree whose entries are counted. Raises RequestError."""
        if self.tree is None:
            return Tree.uniform(self.depth, self.depth)
        try:
            tree = Tree.of(self.depth, nodes_from_names(self.tree, self.depth))
        except ValueError as error:
            raise RequestError(f"task: tree: {error}") from None
        _check("tree", node_names(tree.nodes[1:]) == list(self.tree))  # so equal trees have equal texts
        return tree

    @cached_property
    def circuit(self) -> Circuit:
        """What a report must be: one cell, or weights of cells."""
        length = len(self.counted.entries)
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

    def measurement(self, location: Sequence[float] | None = None, weights: object = None) -> int | list[int]:
        """Returns what a device reports: its entry, or whole weights of all entries.

        Args:
            location: longitude and latitude in degrees, where all of the device's weight is.
            weights: a list of [longitude, latitude, weight] instead, for a task with a max_value.

        Raises:
            RequestError: not exactly one is given, a place is outside of the region, or the weights are none.
        """
        if (location is None) == (weights is None):
            raise RequestError("location, weights: one is required; give --location LON,LAT")
        if self.max_value == 1:
            if location is None:
                raise RequestError("weights: the task counts one cell a user (max_value 1); give --location LON,LAT")
            return self.cell_of(*location)
        places: Any = weights if location is None else [(*location, self.max_value)]
        sums = [0] * self.circuit.length
        try:
            for longitude, latitude, weight in places:
                if type(weight) is not int:
                    raise ValueError("a weight is not a whole number")
                sums[self.cell_of(float(longitude), float(latitude))] += weight
        except (TypeError, ValueError, OverflowError) as error:
            if isinstance(error, RequestError):
                raise
            raise RequestError(f"weights: must be a list of [longitude, latitude, weight] ({error})") from None
        return sums

    def cell_of(self, longitude: float, latitude: float) -> int:
        """Returns the number of the entry of a location. Raises RequestError: it is outside of the region."""
        _, codes = self.grid.locate(np.array([longitude]), np.array([latitude]))
        if not len(codes):
            raise RequestError("location: is outside of the task's region; no report was made")
        return int(self.counted.index.owners(codes)[0])


def _entries(kind: type, place: str, given: dict[str, Any]) -> dict[str, Any]:
    """Returns the entries of a part of the file. Raises RequestError: one is unknown or missing."""
    known = {one.name: one for one in fields(kind) if one.name != "text"}
    if unknown := sorted(set(given) - set(known)):
        raise RequestError(f"task: has no entry {place}{unknown[0]}; entries are {', '.join(sorted(known))}")
    if missing := sorted(name for name, one in known.items() if name not in given and one.default is MISSING):
        raise RequestError(f"task: requires {', '.join(place + name for name in missing)}")
    return given


def _check(name: str, holds: bool) -> None:
    if not holds:
        raise RequestError(f"task: {name} is out of range; see the documentation of task files")


def _is_number(value: Any) -> bool:
    return type(value) in (int, float) and math.isfinite(value)


def _is_hex(text: str) -> bool:
    return len(text) % 2 == 0 and all(character in "0123456789abcdef" for character in text)


def _text_of(seconds: int) -> str:
    return datetime.fromtimestamp(seconds, UTC).isoformat()


def _seconds(name: str, value: Any) -> int:
    """Returns a time of a task file in seconds. Raises RequestError."""
    try:
        time = datetime.fromisoformat(value)
    except (TypeError, ValueError):
        raise RequestError(f"task: {name} must be a time such as 2026-11-20T00:00:00+00:00, got {value!r}") from None
    if time.tzinfo is None or (seconds := time.timestamp()) != int(seconds):
        raise RequestError(f"task: {name} requires a time zone and whole seconds, got {value!r}")
    return int(seconds)
