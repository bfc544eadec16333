"""A night's update: the state and tonight's noisy counts become the next state and tonight's map. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import date
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sfumato.schemas.ledger import Period
from sfumato.schemas.tree import Tree, node_levels, node_paths
from sfumato.transforms.heatmap.nights.night_posterior import Accumulated, infer_night
from sfumato.transforms.heatmap.nights.nights_state import NightsState, joined, rounded
from sfumato.transforms.heatmap.posterior.full_tree import FullTree
from sfumato.transforms.heatmap.posterior.measurements import SubtreeSums, TreeMeasurement, add_up, measure
from sfumato.transforms.heatmap.posterior.unbiased import user_intervals
from sfumato.transforms.heatmap.state import Estimate

Floats = NDArray[np.float64]
_LEAST_EXPECTED = 0.5  # users of a node, for the variance of its sampling


@dataclass(frozen=True)
class Change:
    """A place that differs tonight from what the nights before lead to expect.

    Attributes:
        node: a leading 1 and the node's path.
        users: tonight.
        low, high: simultaneous 95% interval of `users`.
        expected: users.
    """

    node: int
    users: float
    low: float
    high: float
    expected: float


@dataclass(frozen=True)
class NightMap:
    """Tonight's map.

    Attributes:
        estimate: of tonight's users.
        low, high: float64[leaves], ends of 95% intervals of the users that are there tonight, queried or not.
        changes: the places that differ from what the nights before lead to expect.
        parameters: learned from the noisy counts, for the manifest.
        full: the tree of all nodes that are known.
        users: float64[n] by level and node of `full`.
        variance: of these, by level and node.
    """

    estimate: Estimate
    low: Floats
    high: Floats
    changes: list[Change] = field(default_factory=list)
    parameters: dict[str, Any] = field(default_factory=dict)
    full: FullTree | None = None
    users: Sequence[Floats] = ()
    variance: Sequence[Floats] = ()

    def on(self, tree: Tree) -> tuple[Estimate, Floats, Floats]:
        """The map on a coarser tree, whose entries are nodes of `full`: tonight's queried tree, say.

        Returns:
            The estimate, and the ends of the 95% intervals of its entries, float64[T] each.
        """
        assert self.full is not None
        levels, paths = node_levels(tree.entries), node_paths(tree.entries)
        counts, variance = np.zeros(len(paths)), np.zeros(len(paths))
        for level, codes in enumerate(self.full.codes):
            here = levels == level
            place = np.searchsorted(codes, paths[here])
            counts[here], variance[here] = self.users[level][place], self.variance[level][place]
        stddev = np.sqrt(variance)
        return Estimate(tree, counts, stddev, slope=self.estimate.slope), *user_intervals(counts, stddev)


def update(
    state: NightsState | None,
    night: date,
    measured: Sequence[TreeMeasurement],
    users: float,
    users_stddev: float,
) -> tuple[NightsState, NightMap]:
    """Takes in a night.

    Args:
        state: after the nights before; None begins.
        night: after the state's.
        measured: tonight's noisy counts, scaled to all users. With c cohorts, `sampling` is c - 1.
        users: of the whole map tonight.
        users_stddev: of the error of `users`.

    Returns:
        The state after the night, and its map.

    Raises:
        RequestError: the night is not after the state's.
    """
    own = FullTree.from_trees(*(one.tree for one in measured))
    variance = users_stddev**2
    if state is None:
        full, known, rests_on = own, Accumulated.empty(own), tuple[Period, ...]()
        expected = [np.full(len(codes), users / 4.0**level) for level, codes in enumerate(own.codes)]
    else:
        before = state.expect(night, users, variance)
        full = FullTree.from_trees(state.full.tree, own.tree)
        known, rests_on = state.moved_to(full, state.drifted(night)), state.rests_on
        expected = [before.full.values_at(level, codes, before.users) for level, codes in enumerate(own.codes)]
    for _ in range(1 if state else 2):  # the first night's variance of sampling depends on its own users
        sums = add_up(own, measure(own, measured, [np.maximum(one, _LEAST_EXPECTED) for one in expected]))
        posterior = infer_night(full, known, night.weekday(), users, variance, _on(full, own, sums))
        expected = [posterior.full.values_at(level, codes, posterior.users) for level, codes in enumerate(own.codes)]
    counts, spread = full.leaf_values(posterior.users), np.sqrt(full.leaf_values(posterior.variance))
    low, high = user_intervals(counts, spread)
    after = NightsState(night, joined(rests_on, night), full, rounded(posterior.accumulated))
    estimate = Estimate(full.tree, counts, spread, slope=posterior.slope)
    return after, NightMap(estimate, low, high, [], {}, full, posterior.users, posterior.variance)


def _on(full: FullTree, own: FullTree, sums: SubtreeSums) -> SubtreeSums:
    """Tonight's sums on a larger tree; the variance is infinite where nothing was measured."""
    users = [np.zeros(len(codes)) for codes in full.codes]
    variance = [np.full(len(codes), np.inf) for codes in full.codes]
    for level, codes in enumerate(own.codes):
        place = np.searchsorted(full.codes[level], codes)
        users[level][place], variance[level][place] = sums.users[level], sums.variance[level]
    return SubtreeSums(users, variance)
