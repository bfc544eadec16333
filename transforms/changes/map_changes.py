"""Changes between two published heatmaps, over the nodes of the quadtree that both know. Pure post-processing."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import shapely
from numpy.typing import NDArray

from sfumato.schemas.errors import RequestError
from sfumato.schemas.region import EARTH_RADIUS_KM, Grid, Region
from sfumato.schemas.release import TOTALS_FILE, changes_schema
from sfumato.schemas.tree import Tree, node_levels, node_names, node_positions
from sfumato.transforms.changes.differences import FALSE_DISCOVERY_RATE, Changes, Side, differences
from sfumato.transforms.geo.cell_indexes import index_columns
from sfumato.transforms.release.published_release import Release
from sfumato.transforms.report.numbers import coordinates
from sfumato.transforms.report.sections import tail_sums
from sfumato.transforms.statistics.posterior.full_tree import by_family
from sfumato.transforms.statistics.posterior.unbiased import UnbiasedCounts

Floats = NDArray[np.float64]


@dataclass(frozen=True)
class MapCounts:
    """Users of a map's nodes without shrinkage."""

    region: Region
    counts: UnbiasedCounts  # of the full tree over the map's cells
    # The tree of the last sub-query. Its noise is independent of every tree, so a node is unbiased if it is a union of
    # this tree's entries. What is finer has the counts of an earlier sub-query only, whose noise decided where not to
    # look again, or is spread by area.
    measured: Tree
    tail_sums: int  # see `report.sections.tail_sums`

    def known(self) -> list[NDArray[np.bool_]]:
        """Returns by level whether each node is a union of entries that the last sub-query measured."""
        full = self.counts.full
        entry_levels = node_levels(self.measured.entries)[full.owners(self.measured)]
        least = full.by_level(entry_levels.astype(np.float64))
        for level in range(len(full.codes) - 1, 0, -1):
            least[level - 1][full.parents[level]] = by_family(least[level]).min(axis=1)
        return [values >= level for level, values in enumerate(least)]


@dataclass(frozen=True, eq=False)
class MapChanges(Changes):
    """The nodes that two maps share, level by level, and how their users differ."""

    node: NDArray[np.uint64]  # uint64[n], a 1 and then the node's path
    leaf: NDArray[np.bool_]  # bool[n], whether it is a cell; others are merged regions
    grid: Grid  # the region, and the depth of the finer map

    @property
    def content(self) -> dict[str, Any]:
        """Returns the manifest's entries about the places."""
        return {"region": asdict(self.grid.region), "grid": {"depth": self.grid.depth, "side": self.grid.side}}

    @property
    def whole(self) -> int | None:
        """Returns the row of the region, which is the first."""
        return 0

    def table(self) -> pa.Table:
        """Returns one row per node as GeoParquet (`changes_schema`)."""
        level, x, y = node_positions(self.node)
        bounds = self.grid.bounds(x, y, level)
        columns = {
            "cell_id": node_names(self.node),
            "depth": level.astype(np.int8),
            **dict(zip(("west", "south", "east", "north"), bounds, strict=True)),
            "leaf": self.leaf,
            **self.columns,
            **index_columns(self.grid, level, *bounds),
            "geometry": shapely.to_wkb(shapely.box(*bounds)),
        }
        return pa.table(columns, schema=changes_schema())

    def texts(self, rows: NDArray[np.int64]) -> list[str]:
        """Returns the middle and the size of some nodes."""
        level, x, y = node_positions(self.node[rows])
        found = []
        for west, south, east, north in zip(*self.grid.bounds(x, y, level), strict=True):
            finest = min(east - west, north - south)
            metres = np.radians(north - south) * EARTH_RADIUS_KM * 1000
            size = f"{metres / 1000:.1f} km" if metres >= 1000 else f"{metres:.0f} m"
            middle = coordinates((south + north) / 2, (west + east) / 2, finest)
            found.append(f"latitude, longitude {middle} ({size})")
        return found


def find_changes(
    before: MapCounts, after: MapCounts, rate: float = FALSE_DISCOVERY_RATE, *, shares: bool = False
) -> MapChanges:
    """Tests every node that two maps of the same region share; see `differences`."""
    rows = [_known_nodes(one) for one in (before, after)]
    node, *places = np.intersect1d(rows[0][0], rows[1][0], assume_unique=True, return_indices=True)
    sides = [
        Side(users[place], variance[place], (float(users[0]), float(variance[0])), one.tail_sums)
        for one, (_, users, variance), place in zip((before, after), rows, places, strict=True)
    ]
    # Both maps know the parent of a node that they know.
    parents = np.where(node > 1, np.searchsorted(node, node >> np.uint64(2)), -1)
    return MapChanges(
        **vars(differences(sides[0], sides[1], parents, rate, shares=shares)),
        node=node,
        leaf=~np.isin(node, node >> np.uint64(2)),
        grid=Grid(before.region, max(before.counts.full.depth, after.counts.full.depth)),
    )


def _known_nodes(one: MapCounts) -> tuple[NDArray[np.uint64], Floats, Floats]:
    """Returns (node, users, variance of their noise) of the nodes that a map knows, level by level."""
    counts, known = one.counts, np.concatenate(one.known())
    users, variance = (np.concatenate(values)[known] for values in (counts.users, counts.node_variances()))
    return counts.full.tree.nodes[known], users, np.maximum(variance, np.finfo(np.float64).tiny)


def map_counts(release: Release) -> MapCounts:
    """Returns the unbiased users of a published heatmap. Raises RequestError where the release states none."""
    where, manifest, grid = release.path, release.manifest, release.grid
    if grid is None:
        raise RequestError(f"{where}: the release is damaged (no region or depth)")
    if TOTALS_FILE not in manifest.get("errors", {}).get("sums", ""):
        raise RequestError(
            f"{where}: this heatmap does not state the errors of sums ({TOTALS_FILE}); create both maps with "
            "--method adaptive"
        )
    totals = release.arrow_table(TOTALS_FILE)
    node, users, variance = (totals[name].to_numpy() for name in ("node", "users", "variance"))
    try:
        last = manifest["privacy"]["sub_queries"][-1]
        measured = release.answered_tree(last["index"])
        counts = UnbiasedCounts.from_nodes(node, users, variance, grid.depth)
        return MapCounts(grid.region, counts, measured, tail_sums(manifest, last))
    except (KeyError, IndexError, TypeError, ValueError) as error:
        raise RequestError(f"{where}: the release is damaged ({error})") from None


def compare_maps(before: Release, after: Release, rate: float, *, shares: bool) -> MapChanges:
    """Returns the changes between two published heatmaps; see `differences`. Raises RequestError."""
    counts = map_counts(before), map_counts(after)
    if counts[0].region != counts[1].region:
        raise RequestError(
            f"{after.path}: region {counts[1].region} differs from {counts[0].region} of {before.path}; changes "
            "require the same region"
        )
    return find_changes(*counts, rate, shares=shares)
