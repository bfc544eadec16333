"""The files of a heatmap's release, made of the final state only: all of it is post-processing. Pure."""

from __future__ import annotations

import io
from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import shapely
from numpy.typing import NDArray

from sfumato.schemas.region import Grid, area_km2
from sfumato.schemas.release import (
    ANSWERS_FILE,
    ANSWERS_SCHEMA,
    CELLS_FILE,
    DENSITY_FILE,
    NIGHTS_FILE,
    SLOT_MAPS_FILE,
    SLOTS_FILE,
    TOTALS_FILE,
    TOTALS_SCHEMA,
    cells_schema,
)
from sfumato.schemas.tree import node_names, node_positions
from sfumato.transforms.counting.estimator import estimate_density, unbiased_counts
from sfumato.transforms.counting.manifest import category_names, heatmap_manifest
from sfumato.transforms.counting.parameters import CountParameters
from sfumato.transforms.counting.rates import Rates, auxiliary_columns, estimate_rates
from sfumato.transforms.counting.state import CountState, Estimate, NoisyCounts
from sfumato.transforms.geo.cell_indexes import index_columns
from sfumato.transforms.heatmap.slot_maps import SlotMaps
from sfumato.transforms.heatmap.view import heatmap_view
from sfumato.transforms.release.builder import build_release
from sfumato.transforms.release.metadata import ReleaseMetadata
from sfumato.transforms.secagg.encodings import TreeEncoding
from sfumato.transforms.statistics.posterior.unbiased import UnbiasedCounts, user_intervals

if TYPE_CHECKING:
    from sfumato.transforms.nights.night import Night


def cells_table(
    estimate: Estimate,
    grid: Grid,
    categories: Sequence[str] = (),
    rates: Rates | None = None,
    unbiased: UnbiasedCounts | None = None,
    intervals: Sequence[NDArray[np.float64]] | None = None,
) -> pa.Table:
    """Returns the cells of an estimate by `cells_schema`, in the order of the tree's entries.

    Args:
        estimate: of T entries.
        categories: names, in the order of `estimate.by_category`; none without auxiliary data.
        rates: of the estimate; None without auxiliary data.
        unbiased: of the same tree; None leaves out the intervals of users.
        intervals: the ends of the users' 95% intervals, float64[T] each; None makes them of `unbiased`.
    """
    tree, counts, by_category = estimate.tree, estimate.counts, estimate.by_category
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
        **({} if rates is None or by_category is None else auxiliary_columns(by_category, categories, rates)),
        **index_columns(grid, level[entry], *bounds),
        "geometry": shapely.to_wkb(_geometries(shapely.box(west, south, east, north), parents, entry)),
    }
    return pa.table(table, schema=cells_schema(categories, rates.names if rates else (), unbiased is not None))


def totals_table(estimate: Estimate, unbiased: UnbiasedCounts) -> pa.Table:
    """Returns the table from which a reader computes errors of sums of the estimate's cells, by TOTALS_SCHEMA."""
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


def answers_table(results: Sequence[NoisyCounts], rotation: int) -> pa.Table:
    """Returns the noisy answers of sub-queries of trees, over all categories, by ANSWERS_SCHEMA.

    rotation: the number of rotating cohorts; the answers of one are scaled to all users.
    """
    parts = []
    for result in results:
        estimate = result.to_estimate()
        columns = {
            "sub_query": np.full(len(estimate.counts), result.query.index, dtype=np.int16),
            "cell_id": node_names(estimate.tree.entries),
            "users": rotation * estimate.counts,
            "stddev": rotation * estimate.stddev,
        }
        parts.append(pa.table(columns, schema=ANSWERS_SCHEMA))
    return pa.concat_tables(parts)


def interval_columns(estimate: Estimate, unbiased: UnbiasedCounts | None) -> dict[str, NDArray[np.float64]]:
    """Returns unbiased users of each entry and their 95% intervals: float64[T] by column; no columns without
    `unbiased`.
    """
    if unbiased is None:
        return {}
    owner, cells = unbiased.full.owners(estimate.tree), len(estimate.counts)
    users = np.bincount(owner, unbiased.leaf_users, cells).astype(np.float64)
    low, high = user_intervals(users, np.sqrt(np.bincount(owner, unbiased.leaf_variances(), cells)))
    return {"users_unbiased": users, "users_low": low, "users_high": high}


def _geometries(
    boxes: NDArray[np.object_], parents: NDArray[np.int64], entry: NDArray[np.int64]
) -> NDArray[np.object_]:
    """Returns the shapes of entries: the box of a node without the boxes of its children in the tree.

    boxes: object[n], of the tree's nodes; parents: int64[n]; entry: int64[T], the index of each entry among the nodes.
    """
    geometries = boxes[entry]
    children = np.argsort(parents, kind="stable")[1:]  # the root, whose parent is -1, comes first
    first, end = (np.searchsorted(parents[children], entry, side) for side in ("left", "right"))
    for index in np.flatnonzero(end > first).tolist():
        covered = shapely.union_all(boxes[children[first[index] : end[index]]])
        geometries[index] = shapely.difference(geometries[index], covered)
    return geometries


def add_up_to(estimate: Estimate, users: float) -> Estimate:
    """Returns the estimate with cells that add up to this many users, the number that the release states.

    Where no cell is negative, all are scaled. Otherwise the difference is spread over the cells by their variances, as
    least squares does: among n cells of equal noise a cell moves by about 1 / sqrt(n) of its standard deviation.
    Counts by category do not change, and nothing does where nothing can be scaled. users: at least 0.
    """
    counts, variance = estimate.counts, estimate.stddev**2
    total, spread = float(counts.sum()), float(variance.sum())
    if counts.min() >= 0:
        return replace(estimate, counts=counts * (users / total)) if total > 0 else estimate
    return replace(estimate, counts=counts + variance * ((users - total) / spread)) if spread > 0 else estimate


def published_estimate(
    state: CountState, parameters: CountParameters, grid: Grid, categories: Sequence[str] = ()
) -> tuple[Estimate, UnbiasedCounts | None, Rates | None]:
    """Returns what the table of cells is made of. With a rotation it is scaled from the queried users to all users.

    Returns:
        The map, which adds up to the estimated number of users; the unbiased counts, None where their errors are
        independent or unknown; the rates of the categories, None without categories.
    """
    users, _ = state.users_estimate()
    estimate = add_up_to(parameters.method.decode(state, grid.depth), users)
    unbiased = unbiased_counts(estimate, state) if parameters.method.errors == "posterior" else None
    answered = state.results[-1].shards_answered  # for the users by category
    rates = estimate_rates(estimate, categories, state.answered_tail_sums, state.shard_plan.shards / answered)
    if state.rotation == 1:
        return estimate, unbiased, rates
    if unbiased is None:  # the posterior's deviations hold the sampling of users, those of the noise do not
        sampling = (1 - 1 / state.rotation) * np.maximum(estimate.counts, 0)
        estimate = replace(estimate, stddev=np.sqrt(estimate.stddev**2 + sampling))
    return estimate.scaled(state.rotation), None if unbiased is None else unbiased.scaled(state.rotation), rates


def release_files(
    state: CountState,
    parameters: CountParameters,
    metadata: ReleaseMetadata,
    grid: Grid,
    night: Night | None = None,
) -> dict[str, bytes]:
    """Returns the release's files by name, the manifest last.

    With two categories a picture of their rate is among them.

    night: whose map it is, and those that it continues; None makes the map of the answers only.
    """
    categories = category_names(parameters, metadata)
    estimate, unbiased, rates = published_estimate(state, parameters, grid, categories)
    slots = SlotMaps.from_state(state, estimate)
    manifest = heatmap_manifest(state, parameters, metadata, grid, None if slots is None else slots.profile())
    finest, intervals, parts = estimate, None, dict[str, pa.Table | bytes](metadata.geography_files)
    if night is not None:
        after, tonight = night.map_of(state)
        finest = tonight.estimate
        estimate, *intervals = tonight.on(estimate.tree)
        manifest["nights"] = night.content(after, tonight)
        manifest["errors"] |= night.ERRORS
        parts[NIGHTS_FILE] = after.to_table()
    parts[CELLS_FILE] = cells_table(estimate, grid, categories, rates, unbiased, intervals)
    parts[DENSITY_FILE] = _array_bytes(estimate_density(finest))
    if unbiased is not None:
        parts[TOTALS_FILE] = totals_table(estimate, unbiased)
    if answers := [result for result in state.map_results if isinstance(result.encoding, TreeEncoding)]:
        parts[ANSWERS_FILE] = answers_table(answers, state.rotation)
    if slots is not None:
        parts[SLOTS_FILE] = slots.table(grid, tuple(manifest["slots"]["names"]))
        parts[SLOT_MAPS_FILE] = _array_bytes(slots.raster(estimate))
    return build_release(parts, manifest, heatmap_view)


def _array_bytes(array: NDArray[Any]) -> bytes:
    """Returns an array as an npy file."""
    file = io.BytesIO()
    np.save(file, array)
    return file.getvalue()
