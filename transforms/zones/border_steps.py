"""Errors of areas whose border follows a change of density, such as a shore: found on the levels above. Pure.

The share of the area is the expected share of a cut cell's users if the border has nothing to do with the density.
Along a shore it has, and the errors of all cut cells go the same way. Let b be the excess of an area: of the n users of
a cut node, with the share w of its area inside, n (w + b w (1 - w)) are expected inside. Then

    the error of the estimate is     b M      with M = sum of n w (1 - w) over cut leaves, and
    what the last split changed is   D = b G  with G = sum over families of cut leaves of
                                                       n w (1 - w) of the parent - sum of n w (1 - w) of its children.

D is a sum of users of nodes, because a parent's w is the mean of its children's. Along an even border, G is about M:
this is Richardson's extrapolation, cell by cell. D is measured with noise, and has the random spread of the cells
(`posterior.unbiased`). The families one level above give a second figure of the same kind.

b is normal, with a standard deviation s from one of the classes _EXCESS. D and the second figure tell how likely each
class is for an area. Nothing is taken from other areas, so an area's error does not depend on what else is asked. In
the leaves b has _REMAINING of that variance and the correlation _PERSISTENCE with b of D (figures of trials,
benchmarks/release_zones.py). The expected square of b M, given D, is stated with the errors of the estimate. The
estimate itself stays the share of the area, so that areas that share the map out add up to its users.

Source: Richardson (1911), The approximate arithmetical solution by finite differences.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from sfumato.transforms.heatmap.posterior.full_tree import by_family
from sfumato.transforms.heatmap.posterior.unbiased import UnbiasedCounts, WithinCells

Floats = NDArray[np.float64]
Integers = NDArray[np.int64]
_EXCESS = np.array([0.02, 0.05, 0.1, 0.2, 0.4, 0.8, 1.6])  # standard deviations of b, by class
_PRIOR = np.array([15.0, 2.0, 2.0, 1.0, 1.0, 0.5, 0.25])  # how frequent each class is, relative to the others
_PERSISTENCE, _REMAINING = 0.6, 0.8
_NONE = 99  # splits above a cut leaf: the node has no cut leaf


@dataclass(frozen=True)
class _Splits:
    """Families that an area's border cuts: those of cut leaves, or those one level above.

    Attributes:
        nodes: areas, levels, indices and weights of the nodes whose weighted sum is D.
        gain: float64[areas], G.
        spread: float64[areas], the variance of D by the random spread of users.
    """

    nodes: tuple[Integers, Integers, Integers, Floats]
    gain: Floats
    spread: Floats


def border_variances(
    unbiased: UnbiasedCounts,
    within: WithinCells,
    area: Integers,
    level: Integers,
    node: Integers,
    share: Floats,
    areas: int,
) -> Floats:
    """The expected squares of the errors that all cut cells of an area have in common, float64[areas].

    Args:
        unbiased: of the tree.
        within: the spread of users in the same tree.
        area: int64[p], the area of each piece.
        level: int64[p], of the piece's leaf.
        node: int64[p], its index on the level.
        share: float64[p], of the leaf's area that is inside, above 0 and up to 1.
        areas: their number.
    """
    cut_users = np.zeros(areas)
    for at, expected in enumerate(within.node_users):
        here = level == at
        part = expected[node[here]] * share[here] * (1 - share[here])
        cut_users += np.bincount(area[here], part, areas)
    last, before = _splits(unbiased, within, area, level, node, share, areas)
    change, noise = unbiased.node_totals(*last.nodes, areas)
    above, noise_above = unbiased.node_totals(*before.nodes, areas)
    own = noise + last.spread
    squared = _excess(change, own, last.gain, above, noise_above + before.spread, before.gain)
    squared *= last.gain > 0
    known = _PERSISTENCE * squared * cut_users * last.gain / np.maximum(own + squared * last.gain**2, 1e-9)
    left = _REMAINING * squared * cut_users**2 - _PERSISTENCE * known * squared * cut_users * last.gain
    return np.asarray((known * change) ** 2 + left)


def _excess(first: Floats, own: Floats, gain: Floats, second: Floats, own_above: Floats, gain_above: Floats) -> Floats:
    """The expected s^2 of each area, float64[n], from D on two levels, with their variances and G."""
    squares = _EXCESS**2
    a = np.maximum(own[:, None] + squares * gain[:, None] ** 2, 1e-9)
    b = squares * (gain * gain_above)[:, None]
    c = np.maximum(own_above[:, None] + squares * gain_above[:, None] ** 2, 1e-9)
    size = np.maximum(a * c - b**2, 1e-18)
    distance = (c * first[:, None] ** 2 - 2 * b * (first * second)[:, None] + a * second[:, None] ** 2) / size
    log = -0.5 * (np.log(size) + distance)
    member = np.exp(log - log.max(axis=1, keepdims=True)) * _PRIOR
    return np.asarray(member @ squares / member.sum(axis=1))


def _splits(
    unbiased: UnbiasedCounts,
    within: WithinCells,
    area: Integers,
    level: Integers,
    node: Integers,
    share: Floats,
    areas: int,
) -> tuple[_Splits, _Splits]:
    """The families of cut leaves, and the families of their parents."""
    full = unbiased.full
    parts: list[list[tuple[Integers, Integers, Integers, Floats]]] = [[], []]
    gain, spread = np.zeros((2, areas)), np.zeros((2, areas))
    none = np.zeros(0, dtype=np.int64)
    carried = (none, none, np.zeros(0), none)  # areas, nodes, shares and splits above a cut leaf, from below
    for at in range(len(full.codes) - 1, 0, -1):
        here = level == at
        own = (area[here], node[here], share[here], np.where(share[here] < 1, 0, _NONE))
        of, nodes, inside, splits = (np.concatenate(one) for one in zip(own, carried, strict=True))
        families = len(full.parents[at])
        keys, row = np.unique(of * families + nodes // 4, return_inverse=True)
        members = np.zeros((len(keys), 4))
        members[row, nodes % 4] = inside
        fewest = np.full(len(keys), _NONE)
        np.minimum.at(fewest, row, splits + 1)
        of, family = keys // families, keys % families
        parents, mean = full.parents[at][family], members.mean(axis=1)
        apart = members - mean[:, None]
        expected = by_family(within.node_users[at])[family]
        gained = within.node_users[at - 1][parents] * mean * (1 - mean) - (expected * members * (1 - members)).sum(
            axis=1
        )
        varied = within.energy[at][family] / 3 * (apart**2).sum(axis=1)
        for which, found in enumerate(parts):
            some = fewest == which + 1
            gain[which] += np.bincount(of[some], gained[some], areas)
            spread[which] += np.bincount(of[some], varied[some], areas)
            four = (family[some][:, None] * 4 + np.arange(4)).ravel()
            found.append((np.repeat(of[some], 4), np.full(len(four), at), four, apart[some].ravel()))
        carried = (of, parents, mean, fewest)
    first, second = (_Splits(_joined(found), gain[which], spread[which]) for which, found in enumerate(parts))
    return first, second


def _joined(parts: list[tuple[Integers, Integers, Integers, Floats]]) -> tuple[Integers, Integers, Integers, Floats]:
    """Columns of several parts, one after the other."""
    none = np.zeros(0, dtype=np.int64)
    first, second, third, weights = zip((none, none, none, np.zeros(0)), *parts, strict=True)
    return np.concatenate(first), np.concatenate(second), np.concatenate(third), np.concatenate(weights)
