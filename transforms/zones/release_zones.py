"""Users of zones from a published heatmap, at no privacy cost, with errors of the noise and of cells that are cut.

The estimate of a zone is a weighted sum of the users of cells without shrinkage: 1 for a cell inside the zone, and for a
cell that a border cuts the expected share of its users, by area and slope (`within_cells`). Its error has two parts,
independent of each other: the noise, with all correlations between cells (`UnbiasedCounts`), and in each cut cell of N
users the difference between the true share and the expected one, with the variance

    E[N^2] V + E[N] (w (1 - w) - V),

where w is the expected share and V the variance of the density's share. V adds up over the levels below the cell: a
family of the expected squared mass m, of roughness rho, whose four members lie in the zone by f_c of their area, adds
m rho / 3 sum_c (f_c - mean f)^2, and each member has the expected squared mass m (1 + 4 rho) / 16.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import shapely
from numpy.typing import NDArray

from sfumato.schemas.region import Grid
from sfumato.schemas.tree import node_positions
from sfumato.transforms.heatmap.posterior.unbiased import UnbiasedCounts
from sfumato.transforms.heatmap.posterior.within_cells import WithinCells

Floats = NDArray[np.float64]
_WHOLE = 1e-9  # of a cell's area: pieces that lack less are the cell, smaller ones are nothing
_EXACT_LEVELS = 2  # below a cut cell, see `_share_variances`
_SMALL = 0.1  # of a cell's area: smaller pieces are followed further down
_NEGLIGIBLE = 0.01  # of a zone's noise variance: what all its cut cells together may add is not refined


@dataclass(frozen=True)
class ZoneUsers:
    """Estimates of n zones.

    Attributes:
        users: float64[n], unbiased but for cells that a border cuts; may be negative.
        noise_variance: float64[n], of the noise alone.
        share_variance: float64[n], of the shares of cut cells.
    """

    users: Floats
    noise_variance: Floats
    share_variance: Floats

    @property
    def stddev(self) -> Floats:
        """Standard deviations of the errors: float64[n]."""
        return np.sqrt(self.noise_variance + self.share_variance)


@dataclass(frozen=True)
class _Pieces:
    """The parts of cells in zones: p pieces.

    Attributes:
        zone: int64[p].
        leaf: int64[p], the cell, in the order of the full tree's entries.
        shape: object[p]; None for complete cells.
        area: float64[p], the share of the cell's area.
        east, south: float64[p], from the cell's centre to the piece's centroid, in widths and heights of the cell.
    """

    zone: NDArray[np.int64]
    leaf: NDArray[np.int64]
    shape: NDArray[np.object_]
    area: Floats
    east: Floats
    south: Floats


def estimate_zones(
    grid: Grid, unbiased: UnbiasedCounts, within: WithinCells, geometries: NDArray[np.object_]
) -> ZoneUsers:
    """The users in zones.

    Args:
        grid: of the heatmap.
        unbiased: of the published tree.
        within: the spread inside the leaves of the same tree.
        geometries: object[n], valid polygons in degrees. They may overlap, and leave the region, where nobody is.
    """
    zones = len(geometries)
    bounds = _bounds(grid, unbiased)
    pieces = _pieces(bounds, geometries)
    weights = within.shares(pieces.leaf, pieces.area, pieces.east, pieces.south)
    users, noise = unbiased.totals(pieces.zone, pieces.leaf, weights, zones)
    cut = np.flatnonzero(pieces.area < 1)
    zone, leaf, share = pieces.zone[cut], pieces.leaf[cut], weights[cut]
    largest = within.squared[leaf] * share * (1 - share)  # as if all users of a cell stood at one point
    refined = np.bincount(zone, largest, zones)[zone] > _NEGLIGIBLE * noise[zone]
    spread = _share_variances(bounds[:, leaf], pieces.shape[cut], pieces.area[cut], within.roughness[leaf], refined)
    spread = np.minimum(spread, share * (1 - share))
    added = within.squared[leaf] * spread + within.users[leaf] * (share * (1 - share) - spread)
    return ZoneUsers(users, noise, np.bincount(zone, added, zones).astype(np.float64))


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
    centroid = shapely.centroid(shape)
    across = (shapely.get_x(centroid) - (west + east) / 2) / (east - west)
    down = ((south + north) / 2 - shapely.get_y(centroid)) / (north - south)
    whole = area == 1
    across, down = np.where(whole, 0.0, across), np.where(whole, 0.0, down)
    kept = area > _WHOLE
    return _Pieces(zone[kept], leaf[kept], shape[kept], area[kept], across[kept], down[kept])


def _share_variances(
    bounds: Floats, shapes: NDArray[np.object_], area: Floats, roughness: Floats, refined: NDArray[np.bool_]
) -> Floats:
    """The variances of the density's share in parts of cells, float64[p].

    Two levels below the cell are exact, and further ones where a part is small in a cell. The rest is 4/3 rho f (1 - f)
    of the mass of a cell with the share f, which is exact where all users of the cell stand at one point, and too much
    where they are spread.

    Args:
        bounds: float64[4, p], of the cells.
        shapes: object[p], their parts in the zones.
        area: float64[p], of the parts, as shares of the cells.
        roughness: float64[p, levels], of the families below the cells.
        refined: bool[p], whether to look below the cell at all.
    """
    variance = np.zeros(len(area))
    part, mass = np.arange(len(area)), np.ones(len(area))
    for step in range(roughness.shape[1]):
        rho = roughness[part, step]
        last = step == roughness.shape[1] - 1
        down = refined[part] & ((step < _EXACT_LEVELS) | (area < _SMALL)) & (not last)
        rest = mass * 4 / 3 * rho * area * (1 - area)
        variance += np.bincount(part[~down], rest[~down], len(variance))
        part, mass, area, rho, shapes, bounds = (
            part[down],
            mass[down],
            area[down],
            rho[down],
            shapes[down],
            bounds[:, down],
        )
        if not len(part):
            break
        bounds = _children(bounds)
        shapes = shapely.intersection(np.repeat(shapes, 4), shapely.box(*bounds))
        share = shapely.area(shapes) / ((bounds[2] - bounds[0]) * (bounds[3] - bounds[1]))
        family = np.clip(share, 0.0, 1.0).reshape(-1, 4)
        apart = ((family - family.mean(axis=1, keepdims=True)) ** 2).sum(axis=1)
        variance += np.bincount(part, mass * rho / 3 * apart, len(variance))
        open_ = (share > _WHOLE) & (share < 1 - _WHOLE)
        part, mass = np.repeat(part, 4)[open_], np.repeat(mass * (1 + 4 * rho) / 16, 4)[open_]
        area, shapes, bounds = share[open_], shapes[open_], bounds[:, open_]
    return variance


def _children(bounds: Floats) -> Floats:
    """West, south, east and north of the four quarters of rectangles: float64[4, p] -> float64[4, 4 p]."""
    west, south, east, north = bounds
    middle, centre = (west + east) / 2, (south + north) / 2
    quarters = [
        [west, west, middle, middle],
        [south, centre, south, centre],
        [middle, middle, east, east],
        [centre, north, centre, north],
    ]
    return np.array(quarters).transpose(0, 2, 1).reshape(4, -1)
