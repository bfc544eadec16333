"""What runs of a job on neighbouring logs and under several keys show of its promises. Pure.

Three rules judge everything that leaves a run:

1. What one user changes must also change with the key: a fact that differs between neighbours under one key, and is
   equal under all keys, follows from the records without noise.
2. Under one key noise cancels, so counts of neighbours differ by what the user adds, which the manifest bounds. Records
   of another user in their place add some counts and remove others: each side has its own bound.
3. Between two keys only noise differs, which must have the stated size, and be drawn separately for each count.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from sfumato.transforms.audit.measurements import Floats, Measurement

_TOLERANCE = 1e-6  # relative, of sums of floats
_DEVIATIONS = 5.5  # of a statistic of noise that are no violation
_ENOUGH = 100  # counts, for a statistic of their noise
_EVENTS = 4  # share the level of a test


@dataclass(frozen=True)
class Outcome:
    """All that a run left.

    Attributes:
        facts: everything that leaves, by name: exit status, files, fields, columns, lines of the log, charges.
        measured: the measurements of its release, in their order.
        privacy: what its manifest states of privacy.
    """

    facts: Mapping[str, object]
    measured: tuple[Measurement, ...] = ()
    privacy: Mapping[str, Any] = field(default_factory=dict)


def leaks(own: Sequence[Outcome], neighbour: Outcome) -> list[str]:
    """Returns the names of facts that follow from a user, and not from the key.

    own: under each key. neighbour: under the first key.
    """
    names = sorted({name for one in (*own, neighbour) for name in one.facts})
    return [
        name
        for name in names
        if neighbour.facts.get(name) != own[0].facts.get(name)
        and all(one.facts.get(name) == own[0].facts.get(name) for one in own)
    ]


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
    if one.threshold is None and (one.keys != other.keys or one.name != other.name):
        if not one.follows:
            return math.inf
        if not one.keeps_noise:
            return None
        keys = (before.keys() & after.keys()) - _inner(one, other)
    difference = np.array([after.get(key, hidden) - before.get(key, hidden) for key in keys])
    sides = (np.linalg.norm(difference[sign * difference > 0], one.norm) for sign in (1, -1))
    return float(max(sides, default=0.0))


def judged_noise(one: Outcome, other: Outcome) -> list[str]:
    """Returns the measurements with enough equal counts in two runs to judge their noise."""
    pairs = zip(one.measured, other.measured, strict=False)
    return [first.name for first, second in pairs if len(_deviates(first, second)[0]) >= _ENOUGH]


def faults_of_noise(one: Outcome, other: Outcome) -> list[str]:
    """Returns how the noise of two runs on the same logs contradicts the stated one, in words. Their keys differ."""
    drawn = [
        (first.name, *_deviates(first, second)) for first, second in zip(one.measured, other.measured, strict=False)
    ]
    found = []
    for name, z, kurtosis in drawn:
        reach = _DEVIATIONS * math.sqrt((kurtosis - 1) / max(len(z), 1))
        if len(z) >= _ENOUGH and abs(float(np.mean(z**2)) - 1) > reach:
            size = math.sqrt(float(np.mean(z**2)))
            found.append(f"the noise of {name} is {size:.2f} times the stated one")
    for (name, z, _), (following, w, _) in itertools.pairwise(drawn):
        both = min(len(z), len(w))
        if both >= _ENOUGH and abs(float(np.mean(z[:both] * w[:both]))) > _DEVIATIONS / math.sqrt(both):
            found.append(f"{name} and {following} have the same noise")
    return found


def _inner(*measured: Measurement) -> set[str]:
    """Returns the nodes that hold other nodes: they are counted without these, and so differ with them."""
    return {key[:length] for each in measured for key in each.keys for length in range(1, len(key))}


def _deviates(one: Measurement, other: Measurement) -> tuple[Floats, float]:
    """Returns differences of equal counts as multiples of their standard deviation, and the kurtosis of such noise."""
    if one.stddev is None or other.stddev is None or one.threshold is not None:
        return np.empty(0), 3.0
    inner = _inner(one, other)
    where = {key: at for at, key in enumerate(other.keys) if key not in inner}
    pairs = [(at, where[key]) for at, key in enumerate(one.keys) if key in where]
    first, second = np.array(pairs, dtype=int).reshape(-1, 2).T
    stddev = np.hypot(one.stddev[first], other.stddev[second])
    excess = 0.0 if one.kind == "gaussian" or not len(stddev) else 1.5 + 1 / float(stddev.min()) ** 2
    return (one.values[first] - other.values[second]) / stddev, 3.0 + excess


def is_drawn(own: Sequence[Outcome]) -> bool:
    """Returns whether any table or array differs between keys."""
    return any(
        one.facts[name] != own[0].facts.get(name)
        for one in own[1:]
        for name in one.facts
        if name.startswith(("column ", "array "))
    )


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
