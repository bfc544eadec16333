"""Errors of areas whose border follows a change of density, such as a shore: found on the levels above. Pure.

The share of the area is the expected share of a cut cell's users if the border has nothing to do with the density.
Along a shore it has, and the errors of all cut cells go the same way. Let b be the excess of an area: of the n users of
a cut node, with the share w of its area inside, n (w + b w (1 - w)) are expected inside. Then

    the error of the estimate is     b M      with M = sum of n w (1 - w) over cut leaves, and
    what the last split changed is   D = b G  with G = sum over families of cut leaves of
                                                       n w (1 - w) of the parent - sum of n w (1 - w) of its children.

D is a sum of users of nodes, because a parent's w is the mean of its children's. Along an even border, G is about M:
this is Richardson's extrapolation, cell by cell. D is measured with noise, and has the random spread of the cells
(`within_cells`). The families one level above give a second figure of the same kind.

b is normal, with a standard deviation that the areas of a request share by classes: expectation maximisation finds how
many areas are in each class. The excess in the leaves has the correlation _PERSISTENCE with that of D and _REMAINING of
its variance; both are figures of trials (benchmarks/release_zones.py). The correction is beta D, where beta minimises

    noise of (estimate + beta D) + beta^2 spread of D + s^2 (_REMAINING M^2 - 2 _PERSISTENCE beta M G + beta^2 G^2)

with the standard deviation s of b, or is 0 where it would be negative. The minimum, plus the spread of the users in the
leaves, is the stated variance.

Source: Richardson (1911), The approximate arithmetical solution by finite differences; Efron (2010), Large-scale
inference, chapter 1 (empirical Bayes).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from sfumato.transforms.heatmap.posterior.full_tree import by_family
from sfumato.transforms.heatmap.posterior.unbiased import UnbiasedCounts
from sfumato.transforms.heatmap.posterior.within_cells import WithinCells

Floats = NDArray[np.float64]
Integers = NDArray[np.int64]
_EXCESS = np.array([0.02, 0.05, 0.1, 0.2, 0.4, 0.8, 1.6])  # standard deviations of b, by class
_PRIOR = np.array([2.0, 0.25, 0.25, 0.25, 0.25, 0.125, 0.0625])  # areas in each class before any is seen
_STEPS = 60  # of expectation maximisation
_PERSISTENCE, _REMAINING = 0.6, 0.8
_NONE = 99  # splits above a cut leaf: the node has no cut leaf


@dataclass(frozen=True)
class Corrected:
    """Areas after the correction.

    Attributes:
        users: float64[n].
        noise_variance: float64[n], of the noise alone.
        share_variance: float64[n], what the correction adds to the variance of the users of cut cells.
    """

    users: Floats
    noise_variance: Floats
    share_variance: Floats


@dataclass(frozen=True)
class _Splits:
    """Families that an area's border cuts: those of cut leaves, or those one level above.

    Attributes:
        group, level, node, weights: of the nodes whose weighted sum is D, as `UnbiasedCounts.node_totals` has them.
        gain: float64[areas], G.
        spread: float64[areas], the variance of D by the random spread of users.
    """

    group: Integers
    level: Integers
    node: Integers
    weights: Floats
    gain: Floats
    spread: Floats


def correct_borders(
    unbiased: UnbiasedCounts,
    within: WithinCells,
    area: Integers,
    level: Integers,
    node: Integers,
    share: Floats,
    users: Floats,
    noise: Floats,
) -> Corrected:
    """Corrects the users of areas by what the splits of cells along their borders changed.

    Args:
        unbiased: of the tree.
        within: the spread of users in the same tree.
        area: int64[p], the area of each piece.
        level: int64[p], of the piece's leaf.
        node: int64[p], its index on the level.
        share: float64[p], of the leaf's area that is inside, above 0 and up to 1.
        users: float64[areas], of the estimates.
        noise: float64[areas], variances of the noise of these.
    """
    areas = len(users)
    cut_users = np.zeros(areas)
    for at, expected in enumerate(within.node_users):
        here = level == at
        part = expected[node[here]] * share[here] * (1 - share[here])
        cut_users += np.bincount(area[here], part, areas)
    last, before = _splits(unbiased, within, area, level, node, share, areas)
    change, change_noise = unbiased.node_totals(last.group, last.level, last.node, last.weights, areas)
    above, above_noise = unbiased.node_totals(before.group, before.level, before.node, before.weights, areas)
    both = ((area, last.group), (level, last.level), (node, last.node), (share, last.weights))
    group, levels, nodes, weights = (np.concatenate(one) for one in both)
    _, summed = unbiased.node_totals(group, levels, nodes, weights, areas)
    shared = (summed - noise - change_noise) / 2  # covariance of the noise of the estimate and of D
    own = change_noise + last.spread
    squared = _excess(change, own, last.gain, above, above_noise + before.spread, before.gain)
    wanted = _PERSISTENCE * squared * cut_users * last.gain - shared
    beta = np.maximum(wanted, 0.0) / np.maximum(own + squared * last.gain**2, 1e-9) * (last.gain > 0)
    explained = _PERSISTENCE * cut_users * beta * last.gain
    systematic = squared * (_REMAINING * cut_users**2 - 2 * explained + (beta * last.gain) ** 2)
    with_noise = noise + 2 * beta * shared + beta**2 * change_noise
    return Corrected(users + beta * change, with_noise, beta**2 * last.spread + systematic)


def _excess(first: Floats, own: Floats, gain: Floats, second: Floats, own_above: Floats, gain_above: Floats) -> Floats:
    """The expected square of b of each area, float64[n], from D on two levels, with their variances and G."""
    squares = _EXCESS**2
    a = np.maximum(own[:, None] + squares * gain[:, None] ** 2, 1e-9)
    b = squares * (gain * gain_above)[:, None]
    c = np.maximum(own_above[:, None] + squares * gain_above[:, None] ** 2, 1e-9)
    size = np.maximum(a * c - b**2, 1e-18)
    distance = (c * first[:, None] ** 2 - 2 * b * (first * second)[:, None] + a * second[:, None] ** 2) / size
    log = -0.5 * (np.log(size) + distance)
    likelihood = np.exp(log - log.max(axis=1, keepdims=True))
    seen = gain > 0
    classes = _PRIOR / _PRIOR.sum()
    for _ in range(_STEPS):
        member = likelihood[seen] * classes
        classes = (member / member.sum(axis=1, keepdims=True)).sum(axis=0) + _PRIOR
        classes /= classes.sum()
    member = likelihood * classes
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
    first, second = (
        _Splits(*(np.concatenate(one) for one in zip(*found, strict=True)), gain[which], spread[which])
        if found
        else _Splits(none, none, none, np.zeros(0), gain[which], spread[which])
        for which, found in enumerate(parts)
    )
    return first, second
