"""The tables of a heatmap's release: `cells.parquet`, a row for each entry of the tree, and `totals.parquet`. Pure."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pyarrow as pa
import shapely
from numpy.typing import NDArray

from sfumato.schemas.region import Grid, area_km2
from sfumato.schemas.release import ANSWERS_SCHEMA, TOTALS_SCHEMA, cells_schema, rate_columns
from sfumato.schemas.tree import node_names, node_positions
from sfumato.transforms.cell_indexes import index_columns
from sfumato.transforms.heatmap.posterior.unbiased import UnbiasedCounts, user_intervals
from sfumato.transforms.heatmap.rates import Rates
from sfumato.transforms.heatmap.state import Estimate, NoisyCounts


def cells_table(
    estimate: Estimate,
    grid: Grid,
    categories: Sequence[str] = (),
    rates: Rates | None = None,
    unbiased: UnbiasedCounts | None = None,
    intervals: Sequence[NDArray[np.float64]] | None = None,
) -> pa.Table:
    """The cells of an estimate by `cells_schema`, in the order of the tree's entries.

    Args:
        estimate: of T entries.
        grid: of the heatmap.
        categories: names, in the order of `estimate.by_category`; none without auxiliary data.
        rates: of the estimate; None without auxiliary data.
        unbiased: of the same tree; None leaves out the intervals of users.
        intervals: the ends of the users' 95% intervals, float64[T] each; None makes them of `unbiased`.
    """
    tree, counts = estimate.tree, estimate.counts
    level, x, y = node_positions(tree.nodes)
    west, south, east, north = grid.bounds(x, y, level)
    parents = tree.parents()
    node_area = area_km2(west, south, east, north)
    own_area = node_area.copy()  # without the area of the children in the tree
    np.subtract.at(own_area, parents[1:], node_area[1:])
    entry = np.searchsorted(tree.nodes, tree.entries)
    covers_area = tree.areas > 0
    bounds = west[entry], south[entry], east[entry], north[entry]
    table = {
        "cell_id": node_names(tree.entries),
        "depth": level[entry].astype(np.int8),
        **dict(zip(("west", "south", "east", "north"), bounds, strict=True)),
        "count": counts,
        "stddev": estimate.stddev,
        "density": pa.array(counts / np.where(covers_area, own_area[entry], 1), mask=~covers_area),
        **interval_columns(estimate, unbiased),
        **({} if intervals is None else dict(zip(("users_low", "users_high"), intervals, strict=True))),
        **_rates_of(estimate, categories, rates),
        **index_columns(grid, level[entry], *bounds),
        "geometry": shapely.to_wkb(_geometries(shapely.box(west, south, east, north), parents, entry)),
    }
    return pa.table(table, schema=cells_schema(categories, rates.names if rates else (), unbiased is not None))


def totals_table(estimate: Estimate, unbiased: UnbiasedCounts) -> pa.Table:
    """The table from which a reader computes errors of sums of cells, by TOTALS_SCHEMA.

    Args:
        estimate: whose cells are published.
        unbiased: of the same tree.
    """
    full = unbiased.full
    owner = full.by_level(full.owners(estimate.tree).astype(np.float64))
    cell = [np.where(leaf, one, -1) for leaf, one in zip(full.leaves, owner, strict=True)]
    variance = [np.array([unbiased.total_variance]), *unbiased.measured_variance[1:]]
    table = {
        "node": full.tree.nodes,
        "cell": np.concatenate(cell).astype(np.int64),
        "users": np.concatenate(unbiased.users),
        "variance": np.concatenate(variance),
    }
    return pa.table(table, schema=TOTALS_SCHEMA)


def answers_table(results: Sequence[NoisyCounts], rotation: int = 1) -> pa.Table:
    """The noisy answers of sub-queries of trees, over all categories, by ANSWERS_SCHEMA.

    rotation: the number of rotating cohorts; the answers of one are scaled to all users.
    """
    parts = []
    for result in results:
        estimate = result.to_estimate()
        columns = {
            "sub_query": np.full(len(estimate.counts), result.spent.index, dtype=np.int16),
            "cell_id": node_names(estimate.tree.entries),
            "users": rotation * estimate.counts,
            "stddev": rotation * estimate.stddev,
        }
        parts.append(pa.table(columns, schema=ANSWERS_SCHEMA))
    return pa.concat_tables(parts)


def interval_columns(estimate: Estimate, unbiased: UnbiasedCounts | None) -> dict[str, NDArray[np.float64]]:
    """Unbiased users of each entry and their 95% intervals: float64[T] by column; no columns without `unbiased`."""
    if unbiased is None:
        return {}
    owner, cells = unbiased.full.owners(estimate.tree), len(estimate.counts)
    users = np.bincount(owner, unbiased.leaf_users, cells).astype(np.float64)
    low, high = user_intervals(users, np.sqrt(np.bincount(owner, unbiased.leaf_variances(), cells)))
    return {"users_unbiased": users, "users_low": low, "users_high": high}


def _rates_of(estimate: Estimate, categories: Sequence[str], rates: Rates | None) -> dict[str, pa.Array]:
    if rates is None or estimate.by_category is None:
        return {}
    return auxiliary_columns(estimate.by_category, categories, rates)


def auxiliary_columns(by_category: NDArray[np.float64], categories: Sequence[str], rates: Rates) -> dict[str, pa.Array]:
    """Rates with their intervals, and counts by category, of cells or of zones.

    Args:
        by_category: float64[k, T], users.
        categories: k names.
        rates: of the same T cells.
    """
    columns = {}
    kinds = (rates.rate, rates.low, rates.high, rates.shrunk, rates.simultaneous_low, rates.simultaneous_high)
    for category, name in enumerate(rates.names):
        for column, values in zip(rate_columns(name, rates.names), kinds, strict=True):
            columns[column] = pa.array(values[category], mask=np.isnan(values[category]))
    for name, counts in zip(categories, by_category, strict=True):
        columns[f"count_{name}"] = pa.array(counts)
    return columns


def _geometries(
    boxes: NDArray[np.object_], parents: NDArray[np.int64], entry: NDArray[np.int64]
) -> NDArray[np.object_]:
    """The shapes of entries: the box of a node without the boxes of its children in the tree.

    Args:
        boxes: object[n], of the tree's nodes.
        parents: int64[n], see `Tree.parents`.
        entry: int64[T], the index of each entry among the nodes.
    """
    geometries = boxes[entry]
    children = np.argsort(parents, kind="stable")[1:]  # the root, whose parent is -1, comes first
    first, end = (np.searchsorted(parents[children], entry, side) for side in ("left", "right"))
    for index in np.flatnonzero(end > first).tolist():
        covered = shapely.union_all(boxes[children[first[index] : end[index]]])
        geometries[index] = shapely.difference(geometries[index], covered)
    return geometries
