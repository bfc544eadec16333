"""A heatmap's cells merged into coarser nodes of the quadtree: exact sums, with the errors of sums. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import shapely
from numpy.typing import NDArray

from sfumato.schemas.region import Grid, area_km2
from sfumato.schemas.release import TOTALS_FILE
from sfumato.schemas.tree import Tree, node_levels, node_names, node_positions, nodes_from_names
from sfumato.transforms.export.map_layer import MapLayer
from sfumato.transforms.heatmap.posterior.unbiased import UnbiasedCounts, user_intervals
from sfumato.transforms.release.published_release import Release

_MERGED = "cells of the published map that the row merges"
_POSITION = ("cell_id", "depth", "west", "south", "east", "north")


@dataclass(frozen=True)
class CellErrors:
    """What is known of the errors of sums of cells.

    Attributes:
        nodes: uint64[n], ascending, of the full tree over the cells; none where the release has no `totals.parquet`.
        variance: float64[n], of the error of each node's users without shrinkage.
        stddev: float64[cells], of each cell's users without shrinkage.
        independent: whether the release states that the errors of cells are independent.
    """

    nodes: NDArray[np.uint64]
    variance: NDArray[np.float64]
    stddev: NDArray[np.float64]
    independent: bool

    @classmethod
    def of(cls, release: Release) -> CellErrors:
        """Those that a release states. Raises RequestError if a file is damaged."""
        sums = str(release.manifest.get("errors", {}).get("sums", ""))
        empty = np.zeros(0)
        if TOTALS_FILE not in sums:
            return cls(empty.astype(np.uint64), empty, empty, "independent" in sums)
        totals = release.arrow_table(TOTALS_FILE)
        node, users, variance = (totals[name].to_numpy() for name in ("node", "users", "variance"))
        found = np.concatenate(UnbiasedCounts.from_nodes(node, users, variance).node_variances())
        return cls(node, found, release.unbiased_cells()[1], False)

    def of_groups(
        self, keys: NDArray[np.uint64], complete: NDArray[np.bool_], group: NDArray[np.int64]
    ) -> NDArray[np.float64]:
        """The standard deviation of the users without shrinkage of groups of cells, float64[groups].

        That of a complete node is exact. Another group's is an upper bound, the sum of its cells' variances: errors of
        disjoint places go together negatively if at all (see `Release.unbiased_cells`).

        Args:
            keys: uint64[groups], the node that a group lies in.
            complete: bool[groups], whether the group has all of the node.
            group: int64[cells], the group of each cell.
        """
        place = np.minimum(np.searchsorted(self.nodes, keys), len(self.nodes) - 1)
        known = complete & (self.nodes[place] == keys)
        bound = np.bincount(group, self.stddev**2, len(keys))
        return np.sqrt(np.where(known, self.variance[place], bound))


def merged_cells(layer: MapLayer, grid: Grid, level: int, errors: CellErrors) -> MapLayer:
    """A heatmap's cells, those below a level merged into their nodes of that level.

    Args:
        layer: a row a cell, by `cells_schema`.
        grid: of the map.
        level: of the nodes.
        errors: of the cells.

    Returns:
        The same columns and `cells`, the number of cells that a row merges. `count`, `count_CATEGORY` and
        `users_unbiased` are exact sums, and `users_low` to `users_high` is a 95% interval for them. What cannot be
        summed is null in merged rows: rates, and a posterior's standard deviation.
    """
    table = layer.table
    nodes = nodes_from_names(table["cell_id"].to_pylist(), grid.depth)
    up = np.maximum(node_levels(nodes) - level, 0).astype(np.uint64)
    keys, first, group, sizes = np.unique(
        nodes >> (np.uint64(2) * up), return_index=True, return_inverse=True, return_counts=True
    )
    merged = (sizes > 1) | (keys != nodes[first])
    at, x, y = node_positions(keys)
    bounds = grid.bounds(x, y, at)
    tree = Tree.of(grid.depth, nodes)
    covered = np.bincount(group, tree.areas[np.searchsorted(tree.entries, nodes)], len(keys))
    share = covered / 4.0 ** (grid.depth - at)  # less than 1 where other rows have parts of the node
    shapes = np.where(merged & (share == 1), shapely.box(*bounds), layer.shapes[first])
    for number in np.flatnonzero(merged & (share < 1)).tolist():
        shapes[number] = shapely.union_all(layer.shapes[group == number])
    sums = {
        name: np.bincount(group, table[name].to_numpy(), len(keys)).astype(np.float64)
        for name in table.column_names
        if name.startswith("count") or name == "users_unbiased"
    }
    area = area_km2(*bounds) * share
    columns: dict[str, Any] = {
        **dict(zip(_POSITION, (node_names(keys), at.astype(np.int8), *bounds), strict=True)),
        **sums,
        "density": _replaced(table["density"], first, merged, sums["count"] / np.where(area > 0, area, np.nan)),
    }
    if len(errors.nodes):
        low, high = user_intervals(sums["users_unbiased"], errors.of_groups(keys, share == 1, group))
        columns["users_low"] = _replaced(table["users_low"], first, merged, low)
        columns["users_high"] = _replaced(table["users_high"], first, merged, high)
    if errors.independent:
        columns["stddev"] = np.sqrt(np.bincount(group, table["stddev"].to_numpy() ** 2, len(keys)))
    for name in set(table.column_names) - set(columns):
        columns[name] = _replaced(table[name], first, merged, np.full(len(keys), np.nan))
    fields = [field.with_nullable(True) for field in table.schema]
    made = pa.table({field.name: columns[field.name] for field in fields}, schema=pa.schema(fields))
    cells = pa.field("cells", pa.int64(), False, {"description": _MERGED})
    return MapLayer(layer.name, made.append_column(cells, pa.array(sizes)), shapes)


def _replaced(
    values: pa.ChunkedArray, first: NDArray[np.int64], merged: NDArray[np.bool_], others: NDArray[np.float64]
) -> pa.Array:
    """The published values of rows that merge nothing, and others elsewhere. NaN becomes null."""
    own = values.to_numpy(zero_copy_only=False)[first]
    return pa.array(np.where(merged, others, own.astype(np.float64)), pa.float64(), from_pandas=True)
