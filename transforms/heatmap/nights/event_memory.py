"""Sudden changes of the nights before, and whether they last. Pure.

The first night of a change does not enter the accumulators. The change is remembered instead, with its size. If a
night soon after is more likely with the change than without it, the change lasts. The accumulators below and above its
place then forget what they know, by the variance of a jump of that size, and take in the new night. A change that comes
back on the same weekday is forgotten and learned for that weekday alone.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import date

import numpy as np

from sfumato.transforms.heatmap.nights.changes_tonight import changed_nodes, descendants, place_of
from sfumato.transforms.heatmap.nights.night_posterior import Accumulated
from sfumato.transforms.heatmap.nights.sudden_changes import FoundChange, NodeErrors
from sfumato.transforms.heatmap.nights.week_model import WEEK
from sfumato.transforms.heatmap.posterior.full_tree import FullTree

MAX_EVENTS = 512
_SOON = 3  # days in which a lasting change shows again
_WEEKS = 2  # in which a weekly change shows again
_MIN_LOG_ODDS = 3.0  # 20 to 1: a change lasts
_DIFFERENCE = 0.3  # standard deviation of a lasting change's size, from one night to another, over its size
_INSIDE = 0.1  # roughness of a jump inside the node that changed


@dataclass(frozen=True)
class Event:
    """A sudden change of an earlier night.

    Attributes:
        node: a leading 1 and the path.
        night: when it was found.
        excess: measured less expected users, over all users.
        stddev: of the error of `excess`.
    """

    node: int
    night: date
    excess: float
    stddev: float


def repeated(event: Event, errors: NodeErrors, night: date, users: float) -> slice | None:
    """The weekdays on which an event lasts, as a slice of the week; None if it does not, or nothing tells."""
    days = (night - event.night).days
    if days <= _SOON:
        weekdays = slice(0, WEEK)
    elif days % WEEK == 0 and days <= _WEEKS * WEEK:
        weekdays = slice(night.weekday(), night.weekday() + 1)
    else:
        return None
    row = int(np.searchsorted(errors.node, np.uint64(event.node)))
    if row == len(errors.node) or errors.node[row] != event.node:
        return None
    difference = float(errors.measured[row] - errors.expected[row])
    size, error = event.excess * users, event.stddev * users
    noise = float(errors.expected_variance[row] + errors.noise[row])
    before = noise + errors.cohort * max(float(errors.expected[row]), 0.5)
    after = noise + errors.cohort * max(float(errors.expected[row]) + size, 0.5)
    after += error**2 + (_DIFFERENCE * size) ** 2
    log_odds = difference**2 / before - (difference - size) ** 2 / after + np.log(before / after)
    return weekdays if difference * size > 0 and log_odds / 2 > _MIN_LOG_ODDS else None


def forget(
    full: FullTree, known: Accumulated, expected: Sequence[np.ndarray], event: Event, users: float, weekdays: slice
) -> None:
    """Adds the variance of a jump to the shares that an event moves, in place.

    Args:
        full: the tree of `known`.
        known: the accumulators.
        expected: users by level and node of `full`, without the event.
        event: one that lasts.
        users: of the whole map.
        weekdays: to forget.
    """
    depth, path = place_of(event.node)
    size = event.excess * users
    for level in range(1, len(full.codes)):
        if level <= depth:  # the family of the node, or of its ancestor
            rows = descendants(full, level - 1, path >> (2 * (depth - level + 1)), level)
        else:
            rows = descendants(full, depth, path, level)
        if rows.start == rows.stop:
            continue
        total = expected[level - 1][full.parents[level][rows.start // 4 : rows.stop // 4]]
        if level <= depth:
            variance = (size / np.maximum(total, abs(size))) ** 2
        else:
            inside = abs(size) * total / max(float(total.sum()), 1.0)
            variance = _INSIDE * (inside / (inside + total + 1)) ** 2
        precision = known.precision[level][rows, weekdays]
        known.precision[level][rows, weekdays] = precision / (1 + np.repeat(variance, 4)[:, None] * precision)


def remembered(
    events: Sequence[Event], found: Sequence[FoundChange], errors: NodeErrors, night: date, users: float
) -> tuple[Event, ...]:
    """The events that later nights may repeat, the oldest first."""
    kept = [event for event in events if (night - event.night).days < _WEEKS * WEEK]
    users = max(users, 1.0)  # a noisy estimate of few users may be 0
    for row, excess in changed_nodes(found):
        noise = errors.noise[row] + errors.cohort * max(errors.measured[row], errors.expected[row], 0.5)
        stddev = float(np.sqrt(noise + errors.expected_variance[row]))
        kept.append(Event(int(errors.node[row]), night, excess / users, stddev / users))
    return tuple(kept[-MAX_EVENTS:])
