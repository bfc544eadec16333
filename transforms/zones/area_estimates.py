"""Users of areas from the cells of a heatmap, with the errors of the noise and of cells that a border cuts. Pure.

The estimate of an area is a weighted sum of the users of cells without shrinkage. The weight is 1 for a cell inside the
area, and the share of its own area for a cell that the border cuts. The error has two parts, independent of each other.
One is the noise, with all correlations between cells (`UnbiasedCounts`). The other is, in each cut cell of N users, the
difference between the true share of the users and the expected one, with the variance

    E[N^2] V + E[N] (w (1 - w) - V),

where w is the expected share and V the variance of the density's share. V adds up over the levels below the cell: a
family of the expected squared mass m, of roughness rho, whose four members lie inside by f_c of their area, adds
m rho / 3 sum_c (f_c - mean f)^2, and each member has the expected squared mass m (1 + 4 rho) / 16.

Where a border follows a change of density, such as a shore, the errors of cut cells go the same way. `border_steps`
finds how large they are from the levels above.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass

import numpy as np
import shapely
from numpy.typing import NDArray

from sfumato.schemas.region import Grid
from sfumato.schemas.tree import node_positions
from sfumato.transforms.heatmap.posterior.unbiased import Z_95, UnbiasedCounts, WithinCells, user_intervals
from sfumato.transforms.zones.border_steps import border_variances

Floats = NDArray[np.float64]
_WHOLE = 1e-9  # of a cell's area: pieces that lack less are the cell, smaller ones are nothing
_SIDE = 16  # points along a side of a cell that is cut
_FEW = 0.02  # of a cell's area: its grid of points does not show smaller parts
_MAX_SKEWNESS = 2.0  # that the expansion is used for
_CHUNK = 4096  # cells whose points are in memory at a time: 10 MB a coordinate


@dataclass(frozen=True)
class AreaUsers:
    """Estimates of n areas.

    Attributes:
        users: float64[n], unbiased but for cells that a border cuts; may be negative.
        noise_variance: float64[n], of the noise alone.
        share_variance: float64[n], of the users of cut cells inside the area, systematic errors along borders included.
        share_moment: float64[n], their third central moment.
    """

    users: Floats
    noise_variance: Floats
    share_variance: Floats
    share_moment: Floats

    @property
    def stddev(self) -> Floats:
        """Standard deviations of the errors: float64[n]."""
        return np.sqrt(self.noise_variance + self.share_variance)

    def intervals(self) -> tuple[Floats, Floats]:
        """The ends of 95% intervals of users, float64[n] each, at least 0.

        The second term of the expansion by Cornish and Fisher (1938) allows for skewness: where few users are expected
        in a part of a cell, nobody is there most often, and sometimes many are.
        """
        stddev = self.stddev
        skewness = np.clip(self.share_moment / np.maximum(stddev, 1e-9) ** 3, -_MAX_SKEWNESS, _MAX_SKEWNESS)
        return user_intervals(self.users + (Z_95**2 - 1) / 6 * skewness * stddev, stddev)


@dataclass(frozen=True)
class _Pieces:
    """The parts of cells in zones: p pieces.

    Attributes:
        zone: int64[p].
        leaf: int64[p], the cell, in the order of the full tree's entries.
        area: float64[p], the share of the cell's area.
    """

    zone: NDArray[np.int64]
    leaf: NDArray[np.int64]
    area: Floats


def estimate_areas(
    grid: Grid,
    unbiased: UnbiasedCounts,
    within: WithinCells,
    geometries: NDArray[np.object_],
    *,
    borders: bool = True,
) -> AreaUsers:
    """The users in areas.

    Args:
        grid: of the heatmap.
        unbiased: of the published tree.
        within: the spread inside the leaves of the same tree.
        geometries: object[n], valid polygons in degrees. They may overlap, and leave the region, where nobody is.
        borders: whether the stated errors allow for errors that the cells of a border have in common. Without it those
            of cut cells are independent.
    """
    zones = len(geometries)
    bounds = _bounds(grid, unbiased)
    pieces = _pieces(bounds, geometries)
    level, node = unbiased.full.leaf_nodes(pieces.leaf)
    users, noise = unbiased.node_totals(pieces.zone, level, node, pieces.area, zones)
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
        variance += border_variances(unbiased, within, pieces.zone, level, node, pieces.area, zones)
    return AreaUsers(users, noise, variance, moment)


def _bounds(grid: Grid, unbiased: UnbiasedCounts) -> Floats:
    """West, south, east and north of the leaves, degrees: float64[4, leaves]."""
    level, x, y = node_positions(unbiased.full.tree.entries)
    return np.stack(grid.bounds(x, y, level))


def _pieces(bounds: Floats, geometries: NDArray[np.object_]) -> _Pieces:
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
    return _Pieces(zone[kept], leaf[kept], area[kept])


def _share_variances(
    bounds: Floats, shapes: NDArray[np.object_], zones: NDArray[np.int64], area: Floats, roughness: Floats
) -> Floats:
    """The variances of the density's share in parts of cells, float64[p].

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
