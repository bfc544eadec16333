"""Places whose users differ tonight from what the nights before lead to expect, and what they do to its map. Pure.

A place is a node that tonight's tree measured, or a square of 2 x 2 or 3 x 3 nodes of one size, most of which it
measured, because a crowd rarely fits a node. All places are tested at once. Under the null hypothesis the difference D
of the measured and the expected users is the sum of independent errors: of the expectation (normal), of the cohort (c
times a Poisson number, less its mean), and of the noise (as many Laplace variables as the place has entries). The
nodes of a square have correlated expectations, because they share ancestors. With K the sum of the cumulant functions,
the probability that D is at least x = K'(t) is about

    exp(K(t) - t x) / (t sqrt(2 pi K''(t))).

The family-wise error rate is divided evenly among the sizes of places, and among the places of a size (Bonferroni).
`transforms/changes` has other tests on purpose. Its sampling error is normal: with 30 cohorts a place of 100 users
would exceed a margin of 164,000 tests 28 times as often as stated. And the family-wise rate would cost `changes` a
sixth to a half of what it finds (docs/results/changes.md).

Changed places overlap. The place whose D is largest against its bound comes first, then what it explains is taken from
all others: its D from that of its ancestors, and all of its descendants. When a place was found, the nodes around it
are tested again, at a family-wise rate of their own.

Changes are kept out of what is accumulated (`sums_without`), and added to the map's users (`add_changes`).

Source: Daniels (1954), Saddlepoint approximations in statistics; Lugannani and Rice (1980) for tails.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass, fields, replace

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view
from numpy.typing import NDArray

from sfumato.schemas.region import deinterleave
from sfumato.schemas.tree import node_levels, node_paths
from sfumato.transforms.statistics.bisection import bisect_each
from sfumato.transforms.statistics.posterior.full_tree import FullTree, NodeMeasurements, SubtreeSums, add_up, by_family
from sfumato.transforms.statistics.posterior.inference import project

Floats = NDArray[np.float64]
FAMILY_WISE_ERROR = 0.05
_MAX_CHANGES = 64  # of one night
_COARSEST = 4  # level of the nodes of places: in a larger place, drift and weather look like a change
_FINEST_SQUARE = 7  # level of the nodes of squares
_SQUARE_SIDES = (2, 3)
_SHARED = 0.2  # correlation of the errors of the expected users of two nodes of a square, such as that of a parent
MAX_PLACE = 9  # nodes
_DOUBLINGS, _BISECTIONS = 20, 40  # in the search for the end of an interval
_STEPS = np.geomspace(0.3, 60.0, 64)  # values of t, over 1 / standard deviation, before its limit by the noise
_ROUGHNESS = 0.05  # of a change inside its node, over its square, where nothing is measured


@dataclass(frozen=True)
class NodeErrors:
    """The errors of n nodes tonight, level by level."""

    node: NDArray[np.uint64]  # uint64[n], ascending: a leading 1 and the path
    measured: Floats  # measured, expected: float64[n], users
    expected: Floats
    expected_variance: Floats  # float64[n], of the error of `expected`
    noise: Floats  # float64[n], variance of the noise of `measured`
    entries: Floats  # float64[n], whose noises add up to that of the node
    # c - 1 where one of c cohorts was queried. It is the variance that `measured` has for each user, as
    # `TreeMeasurement.sampling`.
    sampling: float
    tested: NDArray[np.bool_]  # bool[n], whether the node may be found

    def only(self, rows: NDArray[np.int64]) -> NodeErrors:
        """Returns the errors of some nodes."""
        arrays = {one.name: getattr(self, one.name)[rows] for one in fields(self) if one.name != "sampling"}
        return replace(self, **arrays)

    def sums(self, places: NDArray[np.int64]) -> NodeErrors:
        """Returns the errors of places of some nodes: int64[m, 9], rows of nodes, or -1."""

        def summed(values: Floats) -> Floats:
            return np.asarray(np.append(values, 0.0)[places].sum(axis=1))

        together = summed(np.sqrt(self.expected_variance)) ** 2
        return replace(
            self,
            node=self.node[places[:, 0]],
            measured=summed(self.measured),
            expected=summed(self.expected),
            expected_variance=(1 - _SHARED) * summed(self.expected_variance) + _SHARED * together,
            noise=summed(self.noise),
            entries=summed(self.entries),
            tested=np.asarray(np.append(self.tested, True)[places].all(axis=1)),
        )

    def deviations(self) -> Floats:
        """Returns the standard deviations of measured - expected: float64[n]."""
        return np.sqrt(self.expected_variance + self.sampling * self._users + np.maximum(self.noise, 1e-9))

    def margins(self, log_inverse: Floats) -> Floats:
        """Returns the x that measured - expected exceeds with a probability of exp(-log_inverse): float64[n], for x >
        0.
        """
        jump = self.sampling + 1  # a queried user counts as this number of users
        rate = self.sampling * self._users / jump**2
        noise = np.maximum(self.noise, 1e-9) / (2 * self.entries)
        below, before = np.zeros(len(noise)), np.zeros(len(noise))
        margin = np.full(len(noise), np.inf)
        for step in _STEPS:
            t = 1 / (self.deviations() / step + np.sqrt(noise))  # noise t^2 stays below 1
            grown = np.exp(np.minimum(jump * t, 100.0))
            left = 1 - noise * t**2
            cumulant = self.expected_variance * t**2 / 2 + rate * (grown - 1 - jump * t) - self.entries * np.log(left)
            slope = self.expected_variance * t + rate * jump * (grown - 1) + 2 * self.entries * noise * t / left
            bend = self.expected_variance + rate * jump**2 * grown
            bend += 2 * self.entries * noise * (1 + noise * t**2) / left**2
            inverse = t * slope - cumulant + np.log(t) + np.log(2 * np.pi * bend) / 2
            here = np.isinf(margin) & (inverse >= log_inverse)
            part = (log_inverse[here] - below[here]) / np.maximum(inverse[here] - below[here], 1e-12)
            margin[here] = before[here] + part * (slope[here] - before[here])
            below, before = inverse, slope
        return margin

    def intervals(self, log_inverse: Floats) -> tuple[Floats, Floats]:
        """Returns the ends of intervals of the users who are there, by inverted tests: float64[n] each.

        A number of users is in the interval unless `measured` is further from it than the margin that it has itself.
        So a number that is tested and rejected is not in the interval.
        """

        def misses(users: Floats, side: float) -> NDArray[np.bool_]:
            there = replace(self, expected=users, expected_variance=np.zeros(len(users)))
            return np.asarray(side * (self.measured - users) > there.margins(log_inverse))

        inside = np.maximum(self.measured, 0.0)
        high = inside + 5 * self.deviations() + 1
        for _ in range(_DOUBLINGS):
            high = np.where(misses(high, -1.0), high, 2 * high)
        low = bisect_each(lambda users: ~misses(users, 1.0), inside, np.zeros(len(inside)), _BISECTIONS)[1]
        return low, bisect_each(lambda users: ~misses(users, -1.0), inside, high, _BISECTIONS)[1]

    @property
    def _users(self) -> Floats:
        return np.maximum(self.expected, 0.5)


@dataclass(frozen=True)
class FoundChange:
    """A changed place."""

    rows: list[int]  # of its nodes
    excess: list[float]  # measured less expected users of each node
    interval: tuple[float, float]  # the ends of the simultaneous 95% interval of the users of all of its nodes together


def find_sudden_changes(errors: NodeErrors) -> list[FoundChange]:
    """Finds the changed places, the clearest first. No node of one lies within a node of another."""
    if not (errors.node >> np.uint64(2 * _COARSEST)).any():
        return []
    places, size = _places(errors)
    joint = errors.sums(places)
    tests = np.bincount(size[joint.tested], minlength=int(size.max()) + 1)
    log_inverse = np.log(2 * tests * max(int((tests > 0).sum()), 1) / FAMILY_WISE_ERROR + 1)
    likely = joint.tested & (np.abs(joint.measured - joint.expected) > 2 * joint.deviations())
    rows = np.flatnonzero(likely)  # the others cannot be found
    if not len(rows):
        return []
    search = _Search(errors)
    search.take(places[rows], joint.only(rows), log_inverse[size[rows]])
    if not search.found:
        return []
    near = search.neighbours()
    if len(near):
        again = np.full(len(near), math.log(2 * len(near) / FAMILY_WISE_ERROR))
        search.take(_padded(near[:, None]), errors.only(near), again)
    chosen = errors.sums(np.concatenate([_padded(np.array([rows])) for rows in search.found]))
    intervals = np.transpose(chosen.intervals(np.array(search.levels)))
    difference = errors.measured - errors.expected
    return [
        FoundChange(rows, difference[rows].tolist(), (float(low), float(high)))
        for rows, (low, high) in zip(search.found, intervals, strict=True)
    ]


def _places(errors: NodeErrors) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Returns all places, int64[m, 9], and a number for the size of each, int64[m]."""
    level = node_levels(errors.node)
    alone = np.flatnonzero(level >= _COARSEST)
    places, sizes = [_padded(alone[:, None])], [3 * level[alone]]
    x, y = (axis.astype(np.int64) for axis in deinterleave(node_paths(errors.node)))
    for at in range(_COARSEST, min(_FINEST_SQUARE, int(level[-1])) + 1):
        here = np.flatnonzero(level == at)
        grid = np.full((1 << at, 1 << at), -1)
        grid[y[here], x[here]] = here
        for side in _SQUARE_SIDES:
            square = sliding_window_view(np.pad(grid, side - 1, constant_values=-1), (side, side)).reshape(-1, side**2)
            square = square[(square >= 0).sum(axis=1) > side**2 / 2]
            places.append(_padded(-np.sort(-square, axis=1)))
            sizes.append(np.full(len(square), 3 * at + side - 1))
    return np.concatenate(places), np.concatenate(sizes)


def _padded(rows: NDArray[np.int64]) -> NDArray[np.int64]:
    return np.pad(rows, ((0, 0), (0, MAX_PLACE - rows.shape[1])), constant_values=-1)


class _Search:
    """Takes places, the clearest first."""

    def __init__(self, errors: NodeErrors) -> None:
        self.found: list[list[int]] = []  # rows of nodes, by place
        self.levels: list[float] = []  # log_inverse of the test that found each place
        self._node, self._level = errors.node, node_levels(errors.node)
        self._left = np.append(errors.measured - errors.expected, 0.0)  # what no found place explains
        self._closed = np.append(~errors.tested, False)
        self._deviation = errors.deviations()

    def take(self, places: NDArray[np.int64], errors: NodeErrors, log_inverse: Floats) -> None:
        """Takes places, int64[m, 9], while the difference of one is beyond its margin.

        errors: of each place; log_inverse: of the probability of its margin, float64[m].
        """
        margin = errors.margins(log_inverse)
        while len(self.found) < _MAX_CHANGES:
            differences = self._left[places].sum(axis=1)
            score = np.where(self._closed[places].any(axis=1), 0.0, np.abs(differences) / margin)
            best = int(score.argmax())
            if score[best] <= 1:
                return
            # The nodes of a place without a difference of their own are no part of the change.
            sign = np.sign(differences[best])
            rows = [row for row in places[best].tolist() if row >= 0 and self._left[row] != 0]
            clear = [row for row in rows if sign * self._left[row] > self._deviation[row]] or rows
            self.found.append(clear)
            self.levels.append(float(log_inverse[best]))
            for row in clear:
                self._explain(row)

    def neighbours(self) -> NDArray[np.int64]:
        """Returns the rows of the nodes of the same size around those that were found, which may still be taken."""
        x, y = (axis.astype(np.int64) for axis in deinterleave(node_paths(self._node)))
        near = np.zeros(len(x), dtype=bool)
        for row in itertools.chain.from_iterable(self.found):
            near |= (self._level == self._level[row]) & (abs(x - x[row]) <= 1) & (abs(y - y[row]) <= 1)
        return np.flatnonzero(near & ~self._closed[:-1] & (self._left[:-1] != 0))

    def _explain(self, row: int) -> None:
        """Takes a node's difference from that of its ancestors, and closes them, the node and its descendants."""
        value, level, node = self._left[row], self._level, self._node
        for above in range(int(level[row])):
            place = int(np.searchsorted(node, node[row] >> np.uint64(2 * (int(level[row]) - above))))
            self._left[place] -= value
            self._closed[place] = True
        down = np.maximum(level - level[row], 0).astype(np.uint64)
        self._left[:-1][(level >= level[row]) & (node >> (np.uint64(2) * down) == node[row])] = 0.0


def place_of(node: int) -> tuple[int, int]:
    """Returns the level and the path of a node with a leading 1."""
    level = (node.bit_length() - 1) // 2
    return level, node ^ (1 << (2 * level))


def changed_nodes(found: Sequence[FoundChange]) -> list[tuple[int, float]]:
    """Returns the row and the excess of every node of some changes."""
    return [pair for one in found for pair in zip(one.rows, one.excess, strict=True)]


def descendants(full: FullTree, level: int, path: int, below: int) -> slice:
    """Returns the nodes of level `below` within a node, as a slice of that level's nodes."""
    down = 2 * (below - level)
    ends = np.array([path << down, (path + 1) << down], dtype=np.uint64)
    begin, end = np.searchsorted(full.codes[below], ends).tolist()
    return slice(begin, end)


def sums_without(
    own: FullTree, nodes: NodeMeasurements, expected: Sequence[Floats], errors: NodeErrors, found: Sequence[FoundChange]
) -> SubtreeSums:
    """Returns tonight's sums as they would be without some changes, by level and node of tonight's own tree.

    A changed node counts as expected from the nights before, with a variance as large as the change. Nothing is
    measured inside it: variances are infinite there.
    """
    weighted, weights = ([one.copy() for one in values] for values in (nodes.weighted, nodes.weights))
    inside: list[tuple[int, slice]] = []
    for row, excess in changed_nodes(found):
        level, path = place_of(int(errors.node[row]))
        for above in range(level):
            place = np.searchsorted(own.codes[above], np.uint64(path >> (2 * (level - above))))
            weighted[above][place] -= excess * weights[above][place]
        for below in range(level, len(own.codes)):
            rows = descendants(own, level, path, below)
            leaf = own.leaves[below][rows]
            area = 4.0 ** (level - below)
            variance = area * (excess**2 + errors.deviations()[row] ** 2)
            weighted[below][rows] = np.where(leaf, expected[below][rows] / variance, 0.0)
            weights[below][rows] = np.where(leaf, 1 / variance, 0.0)
            if below > level:
                inside.append((below, rows))
    sums = add_up(own, NodeMeasurements(weighted, weights))
    for level, rows in inside:
        sums.variance[level][rows] = np.inf
        sums.users[level][rows] = 0.0
    return sums


def add_changes(
    full: FullTree,
    users: Sequence[Floats],
    variance: Sequence[Floats],
    tonight: SubtreeSums,
    errors: NodeErrors,
    found: Sequence[FoundChange],
) -> tuple[list[Floats], list[Floats]]:
    """Adds changes to the users of a map without them.

    Inside a changed node the surplus is spread evenly, but for what the measurements show beyond their noise. Where
    users are missing, they are missing in proportion.

    Args:
        users, variance: of the map, by level and node of `full`, as are those that are returned.
        tonight: the measured users of the nodes of `full`, with an infinite variance where there is no measurement.
    """
    users, variance = [one.copy() for one in users], [one.copy() for one in variance]
    for row, excess in changed_nodes(found):
        level, path = place_of(int(errors.node[row]))
        node = descendants(full, level, path, level)
        before = users[level][node].copy()
        after = np.maximum(before + excess, 0.0)
        variance[level][node] = errors.noise[row] + errors.sampling * np.maximum(after, errors.expected[row])
        users[level][node] = after
        for above in range(level):
            place = np.searchsorted(full.codes[above], np.uint64(path >> (2 * (level - above))))
            users[above][place] += float((after - before)[0])
        old, own = before, slice(node.start, node.stop)  # users before, of the nodes of the level above that have them
        for below in range(level + 1, len(full.codes)):
            rows = descendants(full, level, path, below)
            if rows.start == rows.stop:
                break
            parents = full.parents[below][rows.start // 4 : rows.stop // 4]
            total, total_before = users[below - 1][parents], old[parents - own.start]
            children = by_family(users[below][rows])
            surplus = total - total_before
            scaled = children * (total / np.maximum(total_before, 1e-9))[:, None]
            even, left = _inside(
                children, surplus, by_family(tonight.users[below][rows]), by_family(tonight.variance[below][rows])
            )
            new = np.where((surplus > 0)[:, None], project(children + even, np.maximum(total, 0.0)), scaled)
            share = new / np.maximum(total, 1e-9)[:, None]
            spread = by_family(variance[below][rows]) + share**2 * variance[below - 1][parents][:, None]
            old, own = users[below][rows].copy(), rows
            users[below][rows] = new.ravel()
            variance[below][rows] = (spread + left[:, None] / 4).ravel()
    return users, variance


def _inside(children: Floats, surplus: Floats, measured: Floats, variance: Floats) -> tuple[Floats, Floats]:
    """Spreads the surplus of n nodes over their children.

    Args:
        children: float64[n, 4], users without the surplus.
        surplus: float64[n], users.
        measured, variance: float64[n, 4], of the children's users; an infinite variance where nothing is measured.

    Returns:
        What each child gets, float64[n, 4], and the sum of its errors' variances over the four, float64[n].
    """
    quarter = surplus[:, None] / 4
    known = np.asarray(np.isfinite(variance).all(axis=1))
    variance = np.where(known[:, None], variance, 1.0)
    summed = variance.sum(axis=1)
    more = np.where(known[:, None], measured - children, quarter)
    contrast = more + variance / summed[:, None] * (surplus - more.sum(axis=1))[:, None] - quarter
    noise = (variance * (1 - variance / summed[:, None])).sum(axis=1)
    energy = (contrast**2).sum(axis=1)
    kept = np.where(known, np.maximum(1 - noise / np.maximum(energy, 1e-12), 0.0), 0.0)
    return quarter + kept[:, None] * contrast, kept * noise + (1 - kept) * _ROUGHNESS * surplus**2
