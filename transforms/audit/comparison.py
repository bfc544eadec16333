"""What runs of a job on neighbouring logs and under several keys show of its promises. Pure.

Three rules judge everything that leaves a run:

1. What one user changes must also change with the key: a fact that differs between neighbours under one key, and is
   equal under all keys, follows from the records without noise.
2. Under one key noise cancels, so counts of neighbours differ by what the user adds, which the manifest bounds. Records
   of another user in their place add some counts and remove others: each side has its own bound.
3. Between two keys only noise differs, which must have the stated size, and be drawn separately for each count.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pandas as pd

from sfumato.transforms.audit.facts import SINGLE, Facts
from sfumato.transforms.audit.measurements import Measurement

_TOLERANCE = 1e-6  # relative, of sums of floats
_SMALL = 0.02  # of the difference between two keys
_EVENTS = 4  # share the level of a test


Cell = tuple[str, int, str]  # file, hash of the row and column of a fact
_NONE = pd.DataFrame(index=np.empty(0, np.uint64), dtype=np.float64)


@dataclass(frozen=True)
class Outcome:
    """All that a run left.

    Attributes:
        facts: everything that leaves, see `facts`.
        measured: the measurements of its release, in their order.
        privacy: what its manifest states of privacy.
        message: why it ended without a release; None for a release.
        unrendered: files that differ from what the published tables render.
    """

    facts: Facts
    measured: tuple[Measurement, ...] = ()
    privacy: Mapping[str, Any] = field(default_factory=dict)
    message: str | None = None
    unrendered: tuple[str, ...] = ()

    def fact(self, cell: Cell) -> float | None:
        """Returns a fact; None if there is none."""
        file, row, column = cell
        table = self.facts.get(file, _NONE)
        if column not in table.columns or row not in table.index:
            return None
        value = float(table[column].to_numpy()[table.index.get_loc(row)])
        return None if math.isnan(value) else value


def _same(one: pd.DataFrame, other: pd.DataFrame) -> pd.DataFrame:
    return (one == other) | (one.isna() & other.isna())


def _aligned(one: Outcome, other: Outcome, file: str) -> tuple[pd.DataFrame, pd.DataFrame]:
    """Returns the facts of a file in two runs, with the rows and columns of both."""
    first, second = one.facts.get(file, _NONE), other.facts.get(file, _NONE)
    rows, columns = first.index.union(second.index, False), first.columns.union(second.columns, False)
    return first.reindex(index=rows, columns=columns), second.reindex(index=rows, columns=columns)


def leaks(own: Sequence[Outcome], neighbour: Outcome) -> set[Cell]:
    """Returns the facts that differ from those of a neighbour, and are the same under every key.

    own: under each key. neighbour: under the first key.
    """
    found: set[Cell] = set()
    for file in own[0].facts.keys() | neighbour.facts.keys():
        first, other = _aligned(own[0], neighbour, file)
        differs = ~_same(first, other)
        rows, columns = first.index[differs.any(axis=1)], first.columns
        first, differs = first.loc[rows], differs.loc[rows]
        for one in own[1:]:
            differs &= _same(first, one.facts.get(file, _NONE).reindex(index=rows, columns=columns))
        places = np.argwhere(differs.to_numpy())
        found |= {(file, int(rows[row]), str(columns[column])) for row, column in places}
    return found


def constant(runs: Sequence[Outcome], cell: Cell) -> bool:
    """Returns whether a fact is the same in all runs."""
    return len({one.fact(cell) for one in runs}) == 1


def named(cell: Cell) -> str:
    """Returns the name of a fact's column in words."""
    file, _, column = cell
    return f"{column} of {file}" if file else column


class Separation:
    """Facts that separate the runs with a user from those without, in all pairs of runs so far.

    Where the first pair has v and w, the event "on the side of v from (v + w) / 2" is fixed for all further pairs. With
    probabilities p and q of it, privacy bounds p (1 - q) by ((e^epsilon + delta) / (1 + e^epsilon))^2.
    """

    def __init__(self) -> None:
        self.pairs = self._first = 0
        self._left: dict[str, tuple[pd.DataFrame, pd.DataFrame]] = {}

    def add(self, own: Outcome, without: Outcome) -> None:
        """Adds a pair of runs under fresh keys."""
        if not self.pairs:
            for file in own.facts.keys() | without.facts.keys():
                one, other = (each.fillna(-1e300) for each in _aligned(own, without, file))
                self._left[file] = (one + other) / 2, (one - other).apply(np.sign)
            self._first = sum(int(np.count_nonzero(sign)) for _, sign in self._left.values())
        else:
            for file, (middle, sign) in self._left.items():
                for each, side in ((own, 1), (without, -1)):
                    facts = each.facts.get(file, _NONE).reindex(index=middle.index, columns=middle.columns)
                    sign = sign.where(side * sign * (facts.fillna(-1e300) - middle) > 0, 0)
                rows = sign.index[sign.any(axis=1)]
                self._left[file] = middle.loc[rows], sign.loc[rows]
        self.pairs += 1

    def found(self, epsilon: float, delta: float, level: float) -> set[Cell]:
        """Returns the facts that separated all pairs, where privacy makes this less probable than the level."""
        bound = math.log((math.exp(epsilon) + delta) / (1 + math.exp(epsilon)))
        if math.log(max(self._first, 1)) + 2 * (self.pairs - 1) * bound > math.log(level):
            return set()
        return {
            (file, int(sign.index[row]), str(sign.columns[column]))
            for file, (_, sign) in self._left.items()
            for row, column in np.argwhere(sign.to_numpy())
        }


@dataclass(frozen=True)
class Change:
    """What a user changed in a measurement. size: the larger side in its norm; None where other things were counted."""

    measurement: Measurement
    size: float | None

    @property
    def is_larger(self) -> bool:
        """Whether the user changed more than is stated."""
        return self.size is not None and self.size > self.measurement.bound * (1 + _TOLERANCE)


def changes(own: Outcome, neighbour: Outcome, users_alone: bool) -> list[Change]:
    """Returns what the user changed in each measurement.

    users_alone: whether the number of users differs, from which plans and so noise follow: only users are compared.
    """
    pairs = zip(own.measured, neighbour.measured, strict=False)
    return [Change(one, _size(one, other)) for one, other in pairs if not users_alone or len(one.keys) == 1]


def _size(one: Measurement, other: Measurement) -> float | None:
    """Returns the norm of the larger side of a difference; infinite where a first measurement counts other things."""
    before, after = one.by_key, other.by_key
    keys, hidden = before.keys() | after.keys(), (one.threshold or 0) - 1  # at most
    if one.cut or other.cut:
        keys = before.keys() & after.keys()
    elif one.threshold is not None:
        keys = {key for key in keys if one.has_parent(key) and other.has_parent(key)}
    elif one.keys != other.keys or one.name != other.name:
        if not one.follows:
            return math.inf
        if not one.keeps_noise:
            return None
        keys = (before.keys() & after.keys()) - one.inner - other.inner
    difference = np.array([after.get(key, hidden) - before.get(key, hidden) for key in keys])
    sides = (np.linalg.norm(difference[sign * difference > 0], one.norm) for sign in (1, -1))
    return float(max(sides, default=0.0))


def _tables(one: Outcome) -> dict[str, pd.DataFrame]:
    """Returns the facts of tables and arrays."""
    return {file: table for file, table in one.facts.items() if list(table.index) != [SINGLE]}


def is_drawn(own: Sequence[Outcome]) -> bool:
    """Returns whether any table or array differs between keys."""
    first, *others = map(_tables, own)
    return any(
        one.keys() != first.keys() or any(not table.equals(one[file]) for file, table in first.items())
        for one in others
    )


def equal_noise(one: Outcome, other: Outcome, tried: Outcome) -> float:
    """Returns the share of noisy facts of tables in which a run has the noise of another one; 0 without any.

    one, other: runs on the same logs under two keys, which tell what is noisy and how much. tried: the run that is
    compared with `one`. Its noise is the same where it differs by a small part of what they differ by.
    """
    equal = noisy = 0
    for file, table in _tables(one).items():
        again, third = (run.facts.get(file, _NONE).reindex_like(table) for run in (other, tried))
        is_noisy = table.notna() & (again != table)
        near = (third - table).abs() <= _SMALL * (again - table).abs().fillna(0)
        noisy += int(is_noisy.to_numpy().sum())
        equal += int((is_noisy & near).to_numpy().sum())
    return equal / noisy if noisy else 0.0


def below_thresholds(one: Outcome) -> list[str]:
    """Returns the measurements that show a count below their threshold, in words."""
    return [
        f"{each.name} shows a count below its threshold {each.threshold:g}"
        for each in one.measured
        if each.threshold is not None and len(each.values) and each.values.min() < each.threshold
    ]


@dataclass(frozen=True)
class Event:
    """A published count is at least a number; one that is not published is below it. place: of the measurement."""

    place: int
    key: str
    least: float

    def holds(self, one: Outcome) -> bool:
        """Whether it happened in a run."""
        if self.place >= len(one.measured):
            return False
        return one.measured[self.place].by_key.get(self.key, -math.inf) >= self.least


def separating_events(own: Sequence[Outcome], neighbour: Outcome) -> list[Event]:
    """Returns events that are more probable with a user than with another one in their place.

    own: under each key. neighbour: under the first one, so that the counts which the user adds to are known.
    """
    found: list[tuple[float, Event]] = []
    for place, (one, other) in enumerate(zip(own[0].measured, neighbour.measured, strict=False)):
        runs = [run.measured[place].by_key for run in own if place < len(run.measured)]
        for at, (key, value) in enumerate(one.by_key.items()):
            added = value - other.by_key.get(key, value)
            if added > 0:
                stddev = 1.0 if one.stddev is None else float(one.stddev[at])
                least = float(np.median([values[key] for values in runs if key in values]))
                found.append((added / stddev, Event(place, key, least)))
    return [event for _, event in sorted(found, key=lambda pair: -pair[0])[:_EVENTS]]
