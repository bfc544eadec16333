"""The table of cells: one row a tree node that owns an entry, with its geometry. Pure."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import shapely
from numpy.typing import NDArray

from sfumato.schemas.region import Grid, area_km2
from sfumato.schemas.release import CELLS_SCHEMA
from sfumato.schemas.tree import Tree, node_names, node_positions


def cells_table(tree: Tree, counts: NDArray[np.float64], stddev: float, grid: Grid) -> pa.Table:
    """The cells of a tree by CELLS_SCHEMA. counts: float64[T] in the order of the tree's entries."""
    level, x, y = node_positions(tree.nodes)
    west, south, east, north = grid.bounds(x, y, level)
    area = area_km2(west, south, east, north)
    parents = tree.parents()
    left = area.copy()
    np.subtract.at(left, parents[1:], area[1:])
    entry = np.searchsorted(tree.nodes, tree.entries)
    covers = tree.areas > 0
    table = {
        "cell_id": node_names(tree.entries),
        "depth": level[entry].astype(np.int8),
        "west": west[entry],
        "south": south[entry],
        "east": east[entry],
        "north": north[entry],
        "count": counts,
        "stddev": np.full(len(counts), stddev),
        "density": pa.array(counts / np.where(covers, left[entry], 1), mask=~covers),
        "geometry": shapely.to_wkb(_geometries(shapely.box(west, south, east, north), parents)[entry]),
    }
    return pa.table(table, schema=CELLS_SCHEMA)


def _geometries(boxes: NDArray[np.object_], parents: NDArray[np.int64]) -> NDArray[np.object_]:
    """Each node's box less the boxes of the nodes right under it."""
    geometries = boxes.copy()
    children = np.argsort(parents, kind="stable")[1:]  # the root, whose parent is -1, comes first
    for group in np.split(children, np.flatnonzero(np.diff(parents[children])) + 1):
        if len(group):
            parent = parents[group[0]]
            geometries[parent] = shapely.difference(boxes[parent], shapely.union_all(boxes[group]))
    return geometries
