"""The table of cells: one row a tree node that owns an entry, with its geometry. Pure."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pyarrow as pa
import shapely
from numpy.typing import NDArray

from sfumato.schemas.region import Grid, area_km2
from sfumato.schemas.release import ANSWERS_SCHEMA, TOTALS_SCHEMA, cells_schema, rate_columns
from sfumato.schemas.tree import node_names, node_positions
from sfumato.transforms.heatmap.posterior.unbiased import UnbiasedCounts, interval
from sfumato.transforms.heatmap.rates import Rates
from sfumato.transforms.heatmap.state import Estimate, NoisyCounts


def cells_table(
    estimate: Estimate,
    grid: Grid,
    categories: Sequence[str] = (),
    rates: Rates | None = None,
    unbiased: UnbiasedCounts | None = None,
) -> pa.Table:
    """The cells of an estimate's tree by `cells_schema`, in the order of the tree's entries.

    categories, rates: names in the order of estimate.by_category and what its rates are, where it has auxiliary data.
    unbiased: of the same tree, with intervals of the cells' users.
    """
    tree, counts = estimate.tree, estimate.counts
    level, x, y = node_positions(tree.nodes)
    west, south, east, north = grid.bounds(x, y, level)
    area = area_km2(west, south, east, north)
    parents = tree.parents()
    left = area.copy()
    np.subtract.at(left, parents[1:], area[1:])
    entry = np.searchsorted(tree.nodes, tree.entries)
    covers = tree.areas > 0
    geometries = _geometries(shapely.box(west, south, east, north), parents, entry)
    told = rates.names if rates else ()
    table = {
        "cell_id": node_names(tree.entries),
        "depth": level[entry].astype(np.int8),
        "west": west[entry],
        "south": south[entry],
        "east": east[entry],
        "north": north[entry],
        "count": counts,
        "stddev": estimate.stddev,
        "density": pa.array(counts / np.where(covers, left[entry], 1), mask=~covers),
        **interval_columns(estimate, unbiased),
        **_auxiliary_columns(estimate, categories, rates),
        "geometry": shapely.to_wkb(geometries),
    }
    return pa.table(table, schema=cells_schema(categories, told, unbiased is not None))


def totals_table(estimate: Estimate, unbiased: UnbiasedCounts) -> pa.Table:
    """What adds up errors of cells, by TOTALS_SCHEMA. unbiased: of the estimate's tree."""
    full = unbiased.full
    owner = full.by_level(full.owners(estimate.tree).astype(np.float64))
    cell = [np.where(leaf, one, -1) for leaf, one in zip(full.leaves, owner, strict=True)]
    variance = [np.array([unbiased.total_variance]), *unbiased.variance[1:]]
    table = {
        "node": np.concatenate([codes | np.uint64(1 << (2 * level)) for level, codes in enumerate(full.codes)]),
        "cell": np.concatenate(cell).astype(np.int64),
        "users": np.concatenate(unbiased.users),
        "variance": np.concatenate(variance),
    }
    return pa.table(table, schema=TOTALS_SCHEMA)


def answers_table(results: Sequence[NoisyCounts]) -> pa.Table:
    """The noisy answers of sub-queries of trees, over all categories, by ANSWERS_SCHEMA."""
    parts = []
    for result in results:
        estimate = result.to_estimate()
        columns = {
            "sub_query": np.full(len(estimate.counts), result.spent.index, dtype=np.int16),
            "cell_id": node_names(estimate.tree.entries),
            "users": estimate.counts,
            "stddev": estimate.stddev,
        }
        parts.append(pa.table(columns, schema=ANSWERS_SCHEMA))
    return pa.concat_tables(parts)


def interval_columns(estimate: Estimate, unbiased: UnbiasedCounts | None) -> dict[str, NDArray[np.float64]]:
    """Unbiased users and their intervals, a cell's pieces added up; nothing where they are not known."""
    if unbiased is None:
        return {}
    owner, cells = unbiased.full.owners(estimate.tree), len(estimate.counts)
    users = np.bincount(owner, unbiased.leaf_users, cells).astype(np.float64)
    low, high = interval(users, np.sqrt(np.bincount(owner, unbiased.leaf_variances(), cells)))
    return {"users_unbiased": users, "users_low": low, "users_high": high}


def _auxiliary_columns(estimate: Estimate, categories: Sequence[str], rates: Rates | None) -> dict[str, pa.Array]:
    """Rates with their intervals, and counts by category; nothing without auxiliary data."""
    if rates is None or estimate.by_category is None:
        return {}
    columns = {}
    for name, *values in zip(
        rates.names, rates.rate, rates.low, rates.high, rates.shrunk, rates.listed_low, rates.listed_high, strict=True
    ):
        for column, value in zip(rate_columns(name, rates.names), values, strict=True):
            columns[column] = pa.array(value, mask=np.isnan(value))
    for name, counts in zip(categories, estimate.by_category, strict=True):
        columns[f"count_{name}"] = pa.array(counts)
    return columns


def _geometries(
    boxes: NDArray[np.object_], parents: NDArray[np.int64], wanted: NDArray[np.int64]
) -> NDArray[np.object_]:
    """The boxes of the wanted nodes, each less the boxes of the nodes right under it: object[len(wanted)]."""
    geometries = boxes[wanted]
    children = np.argsort(parents, kind="stable")[1:]  # the root, whose parent is -1, comes first
    first, last = (np.searchsorted(parents[children], wanted, side) for side in ("left", "right"))
    for place in np.flatnonzero(last > first).tolist():
        inner = shapely.union_all(boxes[children[first[place] : last[place]]])
        geometries[place] = shapely.difference(geometries[place], inner)
    return geometries
