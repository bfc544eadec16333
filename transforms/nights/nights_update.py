"""A night's update: the state and tonight's noisy counts become the next state and tonight's map. Pure.

Events. The first night of a change does not enter the accumulators. The change is remembered instead, with its size.
If a night soon after is more likely with the change than without it, the change lasts. The accumulators below and above
its place then forget what they know, by the variance of a jump of that size, and take in the new night. A change that
comes back on the same weekday is forgotten and learned for that weekday only.

Scales, of how fast shares drift and of how much nights differ, are learned from what each night's counts say of the
forecast. Let e be a family's innovation: tonight's measured shares less the expected ones. Its variance is expected to
be S for each of three coordinates. A part of S follows from the drift since the nights before, and another is the
night's effect. Each part has a scale. A night moves the logarithm of a scale by the score of the innovations' normal
likelihood over its information (recursive maximum likelihood), which fades with the nights. So S becomes as large as
the innovations are, where the part matters.

Source: West and Harrison (1997), Bayesian Forecasting and Dynamic Models, chapter 10; Ljung and Soderstrom (1983).
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import date
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sfumato.schemas.timeline import PlaceChange
from sfumato.schemas.tree import Tree, node_levels, node_names, node_paths
from sfumato.transforms.counting.state import Estimate
from sfumato.transforms.nights.night_posterior import (
    WEEK,
    Accumulated,
    NightPosterior,
    has_weekday_like,
    infer_night,
    measured_shares,
    per_coordinate,
)
from sfumato.transforms.nights.nights_state import (
    MAX_EVENTS,
    Event,
    NightsState,
    VarianceScales,
    joined,
    pruned,
    rounded,
)
from sfumato.transforms.nights.sudden_changes import (
    FoundChange,
    NodeErrors,
    add_changes,
    changed_nodes,
    descendants,
    find_sudden_changes,
    place_of,
    sums_without,
)
from sfumato.transforms.statistics.posterior.full_tree import (
    FullTree,
    SubtreeSums,
    TreeMeasurement,
    add_up,
    by_family,
    measure,
)
from sfumato.transforms.statistics.posterior.unbiased import user_intervals

Floats = NDArray[np.float64]
_SOON = 3  # days in which a lasting change shows again
_WEEKS = 2  # in which a weekly change shows again
_MIN_LOG_ODDS = 3.0  # 20 to 1: a change lasts
_DIFFERENCE = 0.3  # standard deviation of a lasting change's size, from one night to another, over its size
_INSIDE = 0.1  # roughness of a jump inside the node that changed
_LEAST_EXPECTED = 0.5  # users of a node, for the variance of its sampling


def repeated(event: Event, errors: NodeErrors, night: date, users: float) -> slice | None:
    """Returns the weekdays on which an event lasts, as a slice of the week; None if it does not, or nothing tells."""
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
    before = noise + errors.sampling * max(float(errors.expected[row]), 0.5)
    after = noise + errors.sampling * max(float(errors.expected[row]) + size, 0.5)
    after += error**2 + (_DIFFERENCE * size) ** 2
    log_odds = difference**2 / before - (difference - size) ** 2 / after + np.log(before / after)
    return weekdays if difference * size > 0 and log_odds / 2 > _MIN_LOG_ODDS else None


def forget(
    full: FullTree, known: Accumulated, expected: Sequence[np.ndarray], event: Event, users: float, weekdays: slice
) -> None:
    """Adds the variance of a jump to the shares that an event moves on some weekdays, in place.

    known: accumulators of `full`; expected: users by level and node, without the event; users: of the whole map.
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
    """Returns the events that later nights may repeat, the oldest first."""
    kept = [event for event in events if (night - event.night).days < _WEEKS * WEEK]
    users = max(users, 1.0)  # a noisy estimate of few users may be 0
    for row, excess in changed_nodes(found):
        noise = errors.noise[row] + errors.sampling * max(errors.measured[row], errors.expected[row], 0.5)
        stddev = float(np.sqrt(noise + errors.expected_variance[row]))
        kept.append(Event(int(errors.node[row]), night, excess / users, stddev / users))
    return tuple(kept[-MAX_EVENTS:])


def learn_scales(scales: VarianceScales, before: NightPosterior, own: FullTree, sums: SubtreeSums) -> VarianceScales:
    """Returns the scales after a night, from the families that tonight's own tree and the nights before share.

    sums: measured users of its nodes, without sudden changes; an infinite variance where nothing is measured.
    """
    columns: list[tuple[Floats, Floats, Floats, Floats]] = []
    for level in range(1, min(len(own.codes), len(before.full.codes))):
        families, there = own.codes[level][::4], before.full.codes[level][::4]
        _, mine, earlier = np.intersect1d(families, there, assume_unique=True, return_indices=True)
        users, variance = by_family(sums.users[level])[mine], by_family(sums.variance[level])[mine]
        expected = by_family(before.users[level])[earlier]
        total = expected.sum(axis=1)
        use = np.isfinite(variance).all(axis=1) & (total >= 1)
        users, variance, expected, total = users[use], variance[use], expected[use], total[use]
        share, variance = measured_shares(users, variance, total)
        forecast = before.share_variance[level][earlier][use]
        night = before.accumulated.night[level][earlier][use]
        drift = np.maximum(forecast - night - 1 / (4 * total), 0) / 2  # near the balance of drift and measurements
        square = ((share - expected / total[:, None]) ** 2).sum(axis=1)
        columns.append((square, per_coordinate(variance) + forecast, drift, night))
    return scales.learned(*(np.concatenate(column) for column in zip(*columns, strict=True)))


@dataclass(frozen=True)
class NightMap:
    """Tonight's map."""

    full: FullTree  # the tree of all nodes that are known, tonight's queried ones among them
    estimate: Estimate  # of the users that are there tonight, queried or not, on the leaves of `full`
    variance: Sequence[Floats]  # of the errors of users, by level and node of `full`
    # The places that differ from what the nights before lead to expect.
    changes: list[PlaceChange] = field(default_factory=list)
    parameters: dict[str, Any] = field(default_factory=dict)  # learned from the noisy counts, for the manifest

    def on(self, tree: Tree) -> tuple[Estimate, Floats, Floats]:
        """Returns the map on a coarser tree, whose entries are nodes of `full`: that of tonight's queries, say.

        Returns also the ends of the 95% intervals of its entries, float64[T] each.
        """
        users = self.full.sums(self.full.by_level(self.estimate.counts))
        levels, paths = node_levels(tree.entries), node_paths(tree.entries)
        counts, variance = np.zeros(len(paths)), np.zeros(len(paths))
        for level, codes in enumerate(self.full.codes):
            here = levels == level
            place = np.searchsorted(codes, paths[here])
            counts[here], variance[here] = users[level][place], self.variance[level][place]
        stddev = np.sqrt(variance)
        return Estimate(tree, counts, stddev, slope=self.estimate.slope), *user_intervals(counts, stddev)


def update(
    state: NightsState | None, night: date, measured: Sequence[TreeMeasurement], users: float, users_stddev: float
) -> tuple[NightsState, NightMap]:
    """Takes in a night.

    1. The nights before lead to expect a number of users at each node. Places that differ from it are changes.
    2. Tonight's counts without the changes join the accumulators, and give a map without them.
    3. The changes are added to the map.
    4. A change of a night before that shows again lasts. What is known of its place is forgotten, and the accumulators
       take in the night again, with the change.
    5. The counts without changes teach how fast shares drift, and how much nights differ.

    Args:
        state: after the nights before; None begins.
        night: after the state's. Raises RequestError otherwise.
        measured: tonight's noisy counts, scaled to all users. With c cohorts, `sampling` is c - 1.
        users, users_stddev: of the whole map tonight, and of their error.

    Returns the state after the night, and its map.
    """
    own = FullTree.from_trees(*(one.tree for one in measured))
    variance = users_stddev**2
    if state is None:
        return _first_night(own, night, measured, users, variance)
    known, before, scale = state.drifted(night), state.expect(night, users, variance), state.scales.night
    full = FullTree.from_trees(state.full.tree, own.tree)
    known = state.moved_to(full, known)
    expected = [before.full.values_at(level, codes, before.users) for level, codes in enumerate(own.codes)]
    likely = [np.maximum(one, _LEAST_EXPECTED) for one in expected]
    nodes = measure(own, measured, likely)
    sums = add_up(own, nodes)
    errors = _errors(own, before, measured, sums, likely)
    # A first weekend differs from working days, which is no sudden change.
    found = find_sudden_changes(errors) if has_weekday_like(state.known.precision[1], night.weekday()) else []

    def infer(without: list[FoundChange]) -> NightPosterior:
        base = max(users - sum(excess for _, excess in changed_nodes(without)), users / 5)
        part = sums_without(own, nodes, expected, errors, without) if without else sums
        return infer_night(full, known, night.weekday(), base, variance, _on(full, own, part), scale)

    posterior = infer(found)
    counts, spread = posterior.users, posterior.variance
    if found:
        counts, spread = add_changes(full, counts, spread, _on(full, own, sums), errors, found)
    cells = full.leaf_values(counts)
    cells *= users / max(float(cells.sum()), 1e-9)  # a place cannot lose more users than it has
    estimate = Estimate(full.tree, cells, np.sqrt(full.leaf_values(spread)), slope=posterior.slope)

    after = posterior.accumulated
    lasting = [(event, repeated(event, errors, night, users)) for event in state.events]
    places = [event.node for event, weekdays in lasting if weekdays is not None]
    if places:
        anywhere = [before.full.values_at(level, codes, before.users) for level, codes in enumerate(full.codes)]
        for event, weekdays in lasting:
            if weekdays is not None:
                forget(full, known, anywhere, event, users, weekdays)
        after = infer([one for one in found if not _is_at(errors.node[one.rows], places)]).accumulated
    clean = sums_without(own, nodes, expected, errors, found) if found else sums
    scales = learn_scales(state.scales, before, own, clean)
    events = remembered(state.events, found, errors, night, users)
    after_night = NightsState(night, joined(state.rests_on, night), *_kept(full, after), events, scales)
    changes = []
    for one in found:
        there, likely_there = (float(values[one.rows].sum()) for values in (errors.measured, errors.expected))
        names = tuple(node_names(errors.node[one.rows]))
        changes.append(PlaceChange(names, max(there, 0.0), *one.interval, likely_there))
    return after_night, NightMap(full, estimate, spread, changes, _parameters(after, scales))


def _first_night(
    own: FullTree, night: date, measured: Sequence[TreeMeasurement], users: float, variance: float
) -> tuple[NightsState, NightMap]:
    """Returns the night without any before it. Nothing is expected, so nothing can differ from it."""
    expected = [np.full(len(codes), users / 4.0**level) for level, codes in enumerate(own.codes)]
    for _ in range(2):  # the variance of sampling depends on the users, and so on the first pass
        sums = add_up(own, measure(own, measured, [np.maximum(one, _LEAST_EXPECTED) for one in expected]))
        posterior = infer_night(own, Accumulated.empty(own), night.weekday(), users, variance, sums)
        expected = posterior.users
    counts, spread = own.leaf_values(posterior.users), np.sqrt(own.leaf_values(posterior.variance))
    state = NightsState(night, joined((), night), *_kept(own, posterior.accumulated))
    estimate = Estimate(own.tree, counts, spread, slope=posterior.slope)
    parameters = _parameters(posterior.accumulated, state.scales)
    return state, NightMap(own, estimate, posterior.variance, [], parameters)


def _kept(full: FullTree, known: Accumulated) -> tuple[FullTree, Accumulated]:
    """Returns what the next night reads: the families of which most is known, rounded as the table rounds them."""
    full, known = pruned(full, known)
    return full, rounded(known)


def _parameters(known: Accumulated, scales: VarianceScales) -> dict[str, Any]:
    """Returns what was learned of the shares of the families of each level, from level 1 on: averages over families."""
    return {
        "drift_scale": float(f"{scales.drift:.4g}"),
        "night_scale": float(f"{scales.night:.4g}"),
        **{
            name: [float(f"{values.mean():.4g}") for values in getattr(known, name)[1:]]
            for name in ("roughness", "night")
        },
    }


def _errors(
    own: FullTree, before: NightPosterior, measured: Sequence[TreeMeasurement], sums: SubtreeSums, likely: list[Floats]
) -> NodeErrors:
    """Returns what is known of tonight's measured nodes. Those that the nights before know as well are tested."""
    sampling = max(one.sampling for one in measured)
    spread = [before.full.values_at(level, codes, before.variance) for level, codes in enumerate(own.codes)]
    return NodeErrors(
        node=own.tree.nodes,
        measured=np.concatenate(sums.users),
        expected=np.concatenate(likely),
        expected_variance=np.concatenate(spread),
        noise=np.maximum(np.concatenate(sums.variance) - sampling * np.concatenate(likely), 0.0),
        entries=np.concatenate(own.sums([np.ones(len(codes)) for codes in own.codes])),
        sampling=sampling,
        tested=np.isin(own.tree.nodes, before.full.tree.nodes) & (own.tree.nodes > 1),
    )


def _is_at(nodes: NDArray[np.uint64], places: Sequence[int]) -> bool:
    """Returns whether one of some nodes is within one of some places, which are nodes too, or the other way round."""
    for node, place in itertools.product(nodes.tolist(), places):
        shift = node.bit_length() - place.bit_length()
        if node >> shift == place if shift >= 0 else place >> -shift == node:
            return True
    return False


def _on(full: FullTree, own: FullTree, sums: SubtreeSums) -> SubtreeSums:
    """Returns tonight's sums on a larger tree; the variance is infinite where nothing was measured."""
    users = [np.zeros(len(codes)) for codes in full.codes]
    variance = [np.full(len(codes), np.inf) for codes in full.codes]
    for level, codes in enumerate(own.codes):
        place = np.searchsorted(full.codes[level], codes)
        users[level][place], variance[level][place] = sums.users[level], sums.variance[level]
    return SubtreeSums(users, variance)
