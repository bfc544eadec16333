"""Users of areas from the cells of a heatmap, with the errors of the noise and of cells that a border cuts. Pure.

The estimate of an area is a weighted sum of the users of cells without shrinkage. The weight is 1 for a cell inside the
area, and the share of its own area for a cell that the border cuts. The error has two parts, independent of each other.
One is the noise, with all correlations between cells (`UnbiasedCounts`). The other is, in each cut cell of N users, the
difference between the true share of the users and the expected one, with the variance

    E[N^2] V + E[N] (w (1 - w) - V),

where w is the expected share and V the variance of the density's share. V adds up over the levels below the cell: a
family of the expected squared mass m, of roughness rho, whose four members lie inside by f_c of their area, adds
m rho / 3 sum_c (f_c - mean f)^2, and each member has the expected squared mass m (1 + 4 rho) / 16.

The share of the area is the expected share of a cut cell's users if the border has nothing to do with the density.
Along a shore it has, and the errors of all cut cells go the same way. How large they are is found on the levels above.
Let b be the excess of an area: of the n users of
a cut node, with the share w of its area inside, n (w + b w (1 - w)) are expected inside. Then

    the error of the estimate is     b M      with M = sum of n w (1 - w) over cut leaves, and
    what the last split changed is   D = b G  with G = sum over families of cut leaves of
                                                       n w (1 - w) of the parent - sum of n w (1 - w) of its children.

D is a sum of users of nodes, because a parent's w is the mean of its children's. Along an even border, G is about M:
this is Richardson's extrapolation, cell by cell. D is measured with noise, and has the random spread of the cells
(`posterior.unbiased`). The families one level above give a second figure of the same kind.

b is normal, with a standard deviation s from one of the classes _EXCESS. D and the second figure tell how likely each
class is for an area. Nothing is taken from other areas, so an area's error does not depend on other areas. In
the leaves b has _REMAINING of that variance and the correlation _PERSISTENCE with b of D (figures of trials,
benchmarks/release_zones.py). The expected square of b M, given D, is stated with the errors of the estimate. The
estimate itself stays the share of the area, so that areas that share the map out add up to its users.

Source: Richardson (1911), The approximate arithmetical solution by finite differences.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass

import numpy as np
import shapely
from numpy.typing import NDArray

from sfumato.schemas.known_digits import Z_95
from sfumato.schemas.region import Grid
from sfumato.schemas.tree import node_positions
from sfumato.transforms.statistics.posterior.full_tree import FullTree, by_family
from sfumato.transforms.statistics.posterior.unbiased import UnbiasedCounts, WithinCells, user_intervals

Floats = NDArray[np.float64]
Integers = NDArray[np.int64]
_EXCESS = np.array([0.02, 0.05, 0.1, 0.2, 0.4, 0.8, 1.6])  # standard deviations of b, by class
_PRIOR = np.array([15.0, 2.0, 2.0, 1.0, 1.0, 0.5, 0.25])  # how frequent each class is, relative to the others
_PERSISTENCE, _REMAINING = 0.6, 0.8
_NONE = 99  # splits above a cut leaf: the node has no cut leaf
_WHOLE = 1e-9  # of a cell's area: pieces that lack less are the cell, smaller ones are nothing
_SIDE = 16  # points along a side of a cell that is cut
_FEW = 0.02  # of a cell's area: its grid of points does not show smaller parts
_MAX_SKEWNESS = 2.0  # that the expansion is used for
_CHUNK = 4096  # cells whose points are in memory at a time: 10 MB a coordinate


def _border_variances(unbiased: UnbiasedCounts, within: WithinCells, pieces: _Pieces, zones: int) -> Floats:
    """Returns the expected squares of the errors that all cut cells of a zone have in common, float64[zones]."""
    cut_users = np.zeros(zones)
    for at, expected in enumerate(within.node_users):
        here = pieces.level == at
        share = pieces.area[here]
        cut_users += np.bincount(pieces.zone[here], expected[pieces.node[here]] * share * (1 - share), zones)
    (change, own, gain), above = _splits(unbiased, within, pieces, zones)
    squared = _excess(change, own, gain, *above)
    squared *= gain > 0
    known = _PERSISTENCE * squared * cut_users * gain / np.maximum(own + squared * gain**2, 1e-9)
    left = _REMAINING * squared * cut_users**2 - _PERSISTENCE * known * squared * cut_users * gain
    return np.asarray((known * change) ** 2 + left)


def _excess(first: Floats, own: Floats, gain: Floats, second: Floats, own_above: Floats, gain_above: Floats) -> Floats:
    """Returns the expected s^2 of each area, float64[n], from D on two levels, with their variances and G."""
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
    unbiased: UnbiasedCounts, within: WithinCells, pieces: _Pieces, zones: int
) -> list[tuple[Floats, Floats, Floats]]:
    """Returns D, its variance by the noise and by the random spread of users, and G: float64[zones] each.

    First of the families of cut leaves, then of the families of their parents.
    """
    full, none = unbiased.full, np.zeros(0, dtype=np.int64)
    # Zones, levels, indices and weights of the nodes whose weighted sum is D.
    parts: list[list[tuple[Integers, Integers, Integers, Floats]]] = [[(none, none, none, np.zeros(0))] for _ in "12"]
    gain, spread = np.zeros((2, zones)), np.zeros((2, zones))
    carried = (none, none, np.zeros(0), none)  # zones, nodes, shares and splits above a cut leaf, from below
    for at in range(len(full.codes) - 1, 0, -1):
        here = pieces.level == at
        share = pieces.area[here]
        own = (pieces.zone[here], pieces.node[here], share, np.where(share < 1, 0, _NONE))
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
        below = by_family(within.node_users[at])[family] * members * (1 - members)
        gained = within.node_users[at - 1][parents] * mean * (1 - mean) - below.sum(axis=1)
        varied = within.energy[at][family] / 3 * (apart**2).sum(axis=1)
        for which, found in enumerate(parts):
            some = fewest == which + 1
            gain[which] += np.bincount(of[some], gained[some], zones)
            spread[which] += np.bincount(of[some], varied[some], zones)
            four = (family[some][:, None] * 4 + np.arange(4)).ravel()
            found.append((np.repeat(of[some], 4), np.full(len(four), at), four, apart[some].ravel()))
        carried = (of, parents, mean, fewest)
    totals = []
    for which, found in enumerate(parts):
        zone, level, node, weight = zip(*found, strict=True)
        joined = np.concatenate(zone), np.concatenate(level), np.concatenate(node), np.concatenate(weight)
        change, noise = unbiased.node_totals(*joined, zones)
        totals.append((change, noise + spread[which], gain[which]))
    return totals


@dataclass(frozen=True)
class AreaUsers:
    """Estimates of n areas."""

    users: Floats  # float64[n], unbiased but for cells that a border cuts; may be negative
    noise_variance: Floats  # float64[n], of the noise only
    share_variance: Floats  # float64[n], of the users of cut cells inside the area, errors along borders included
    share_moment: Floats  # float64[n], their third central moment

    @property
    def stddev(self) -> Floats:
        """Standard deviations of the errors: float64[n]."""
        return np.sqrt(self.noise_variance + self.share_variance)

    def intervals(self) -> tuple[Floats, Floats]:
        """Returns the ends of 95% intervals of users, float64[n] each, at least 0.

        The second term of the expansion by Cornish and Fisher (1938) allows for skewness: where few users are expected
        in a part of a cell, nobody is there most often, and sometimes many are.
        """
        stddev = self.stddev
        skewness = np.clip(self.share_moment / np.maximum(stddev, 1e-9) ** 3, -_MAX_SKEWNESS, _MAX_SKEWNESS)
        return user_intervals(self.users + (Z_95**2 - 1) / 6 * skewness * stddev, stddev)


@dataclass(frozen=True)
class _Pieces:
    """The parts of cells in zones: p pieces."""

    zone: Integers  # int64[p]
    leaf: Integers  # int64[p], the cell, in the order of the full tree's entries
    level: Integers  # and node: int64[p], the cell's level and index there
    node: Integers
    area: Floats  # float64[p], the share of the cell's area, above 0 and up to 1


def estimate_areas(
    grid: Grid,
    unbiased: UnbiasedCounts,
    within: WithinCells,
    geometries: NDArray[np.object_],
    *,
    borders: bool = True,
) -> AreaUsers:
    """Returns the users in areas.

    Args:
        grid: of the heatmap.
        unbiased: of the published tree.
        within: the spread inside the leaves of the same tree.
        geometries: object[n], valid polygons in degrees. They may overlap, and leave the region, where nobody is.
        borders: whether the stated errors allow for errors that the cells of a border have in common. Without it those
            of cut cells are independent.
    """
    zones = len(geometries)
    depth, x, y = node_positions(unbiased.full.tree.entries)
    bounds = np.stack(grid.bounds(x, y, depth))  # west, south, east and north of the leaves: float64[4, leaves]
    pieces = _pieces(bounds, geometries, unbiased.full)
    users, noise = unbiased.node_totals(pieces.zone, pieces.level, pieces.node, pieces.area, zones)
    cut = pieces.area < 1
    zone, leaf, share = pieces.zone[cut], pieces.leaf[cut], pieces.area[cut]
    spread = _share_variances(bounds[:, leaf], geometries, zone, share, within.roughness[leaf])
    most = share * (1 - share)
    spread = np.minimum(spread, most)
    squared = within.squared[leaf]
    added = squared * spread + within.users[leaf] * (most - spread)
    # Skewness: of a beta-binomial variable with these moments.
    concentration = most / np.maximum(spread, 1e-300) - 1
    many = np.sqrt(squared)
    third = added * (1 - 2 * share) * (concentration + 2 * many) / (concentration + 2)
    variance, moment = (np.bincount(zone, one, zones).astype(np.float64) for one in (added, third))
    if borders:
        variance += _border_variances(unbiased, within, pieces, zones)
    return AreaUsers(users, noise, variance, moment)


def _pieces(bounds: Floats, geometries: NDArray[np.object_], full: FullTree) -> _Pieces:
    boxes = shapely.box(*bounds)
    shapely.prepare(geometries)
    zone, leaf = shapely.STRtree(boxes).query(geometries, predicate="intersects")
    inside = shapely.covers(geometries[zone], boxes[leaf])
    shape = np.full(len(zone), None, dtype=object)
    shape[~inside] = shapely.intersection(geometries[zone[~inside]], boxes[leaf[~inside]])
    west, south, east, north = bounds[:, leaf]
    area = np.where(inside, 1.0, shapely.area(shape) / ((east - west) * (north - south)))
    area[area > 1 - _WHOLE] = 1.0
    kept = area > _WHOLE
    return _Pieces(zone[kept], leaf[kept], *full.leaf_nodes(leaf[kept]), area[kept])


def _share_variances(
    bounds: Floats, shapes: NDArray[np.object_], zones: NDArray[np.int64], area: Floats, roughness: Floats
) -> Floats:
    """Returns the variances of the density's share in parts of cells, float64[p].

    Points of a regular grid in the cell, which lie in the zone or not, give the parts of the families of four levels. A
    part with next to no points counts as a square that is a member of a family some levels below.

    Args:
        bounds: float64[4, p], of the cells.
        shapes: object[n], the zones, prepared.
        zones: int64[p], the zone of each part.
        area: float64[p], of the parts, as shares of the cells.
        roughness: float64[p, levels], of the families below the cells.
    """
    found = np.empty(len(area))
    middle = (np.arange(_SIDE) + 0.5) / _SIDE
    for first in range(0, len(area), _CHUNK):
        of = slice(first, first + _CHUNK)
        west, south, east, north = bounds[:, of, None]
        x, y = west + (east - west) * middle, south + (north - south) * middle
        held = shapely.contains_xy(shapes[zones[of]][:, None, None], x[:, None, :], y[:, :, None])
        found[of] = _from_points(held, roughness[of])
    few = np.minimum(area, 1 - area) < _FEW
    found[few] = _of_squares(np.minimum(area, 1 - area)[few], roughness[few])
    return found


def _from_points(held: NDArray[np.bool_], roughness: Floats) -> Floats:
    """Variances from whether the points of each cell, bool[p, _SIDE, _SIDE], are in the zone."""
    share = held.astype(np.float64)
    levels = [share]
    while share.shape[1] > 1:
        share = share.reshape(len(share), share.shape[1] // 2, 2, share.shape[2] // 2, 2).mean(axis=(2, 4))
        levels.append(share)
    variance, mass = np.zeros(len(held)), np.ones(len(held))
    for step, (parent, children) in enumerate(itertools.pairwise(levels[::-1])):
        rho = roughness[:, step]
        apart = children - np.repeat(np.repeat(parent, 2, axis=1), 2, axis=2)
        variance += mass * rho / 3 * (apart**2).sum(axis=(1, 2))
        mass *= (1 + 4 * rho) / 16
    return variance


def _of_squares(area: Floats, roughness: Floats) -> Floats:
    """Variances of a member with this area of a family some levels below: mass less squared share, float64[p]."""
    levels = np.log(np.maximum(area, 1e-30)) / -np.log(4)
    steps = np.clip(levels[:, None] - np.arange(roughness.shape[1]), 0.0, 1.0)
    return np.asarray(area**2 * np.expm1((steps * np.log1p(4 * roughness)).sum(axis=1)))
