"""What sudden changes do to tonight's map: they are kept out of what is accumulated, and added to its users. Pure."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from sfumato.transforms.heatmap.nights.sudden_changes import FoundChange, NodeErrors
from sfumato.transforms.heatmap.posterior.contrasts import project
from sfumato.transforms.heatmap.posterior.full_tree import FullTree, by_family
from sfumato.transforms.heatmap.posterior.measurements import NodeMeasurements, SubtreeSums, add_up

Floats = NDArray[np.float64]
_ROUGHNESS = 0.05  # of a change inside its node, over its square, where nothing is measured


def place_of(node: int) -> tuple[int, int]:
    """The level and the path of a node with a leading 1."""
    level = (node.bit_length() - 1) // 2
    return level, node ^ (1 << (2 * level))


def changed_nodes(found: Sequence[FoundChange]) -> list[tuple[int, float]]:
    """The row and the excess of every node of some changes."""
    return [pair for one in found for pair in zip(one.rows, one.excess, strict=True)]


def descendants(full: FullTree, level: int, path: int, below: int) -> slice:
    """The nodes of level `below` within a node, as a slice of that level's nodes."""
    down = 2 * (below - level)
    ends = np.array([path << down, (path + 1) << down], dtype=np.uint64)
    begin, end = np.searchsorted(full.codes[below], ends).tolist()
    return slice(begin, end)


def sums_without(
    own: FullTree, nodes: NodeMeasurements, expected: Sequence[Floats], errors: NodeErrors, found: Sequence[FoundChange]
) -> SubtreeSums:
    """Tonight's sums as they would be without some changes.

    A changed node counts as expected, with a variance as large as the change. Nothing is measured inside it.

    Args:
        own: tonight's tree.
        nodes: its measurements.
        expected: users by level and node of `own`, from the nights before.
        errors: of the measured nodes.
        found: the changes.

    Returns:
        Users, and variances that are infinite inside the changed nodes, by level and node of `own`.
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
        full: the tree of the map.
        users, variance: of the map, by level and node.
        tonight: the measured users of the nodes of `full`, with an infinite variance where there is no measurement.
        errors: of the measured nodes.
        found: the changes.

    Returns:
        Users and variance with the changes, by level and node.
    """
    users, variance = [one.copy() for one in users], [one.copy() for one in variance]
    for row, excess in changed_nodes(found):
        level, path = place_of(int(errors.node[row]))
        node = descendants(full, level, path, level)
        before = users[level][node].copy()
        after = np.maximum(before + excess, 0.0)
        variance[level][node] = errors.noise[row] + errors.cohort * np.maximum(after, errors.expected[row])
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
