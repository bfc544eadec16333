"""Tables of zones from a published heatmap: post-processing of its files, at no privacy cost."""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.csv
import shapely
from numpy.typing import NDArray

from sfumato.schemas.errors import RequestError
from sfumato.schemas.region import Grid
from sfumato.schemas.release import CELLS_FILE, TOTALS_FILE, release_zones_schema
from sfumato.schemas.tree import Tree, nodes_from_names
from sfumato.transforms.geo.feature_files import in_degrees
from sfumato.transforms.geo.zone_file import Zones, areas_of_points, check_zones, read_zones
from sfumato.transforms.statistics.posterior.full_tree import FullTree
from sfumato.transforms.statistics.posterior.unbiased import UnbiasedCounts, WithinCells, learn_within_cells
from sfumato.transforms.zones.area_estimates import estimate_areas

if TYPE_CHECKING:
    from sfumato.transforms.release.published_release import Release


def zones_of_release(release: Release, zones: Zones) -> pa.Table:
    """Returns the users of zones by a published heatmap, by release_zones_schema.

    What is estimated is the number of users whose counted location is in the zone. A user's other
    locations are not in it. Zones may leave the map, where nobody is counted; `share_in_map` says how much of a zone is
    on it.

    Raises:
        RequestError: the release is no heatmap, does not state the errors of its cells, or no zone meets its map.
    """
    grid = check_heatmap(release)
    unbiased, within = _cells_of(release, grid)
    region = grid.region
    box = shapely.box(region.west, region.south, region.east, region.north)
    share = shapely.area(shapely.intersection(zones.geometries, box)) / shapely.area(zones.geometries)
    if not (share > 0).any():
        west, south, east, north = shapely.total_bounds(zones.geometries)
        raise RequestError(
            f"zones: none meets the map of {release.path} ({region}); they span {west:g},{south:g},{east:g},{north:g}; "
            "longitude comes first"
        )
    found = estimate_areas(grid, unbiased, within, zones.geometries)
    low, high = found.intervals()
    users = {"users": found.users, "stddev": found.stddev, "low": low, "high": high}
    users["noise_stddev"] = np.sqrt(found.noise_variance)
    columns = {
        "zone": list(zones.ids),
        **({} if zones.labels is None else {"name": list(zones.labels)}),
        **{name: pa.array(values, mask=share <= 0) for name, values in users.items()},
        "share_in_map": np.clip(share, 0.0, 1.0),
        "geometry": shapely.to_wkb(zones.geometries),
    }
    privacy = release.manifest.get("privacy", {})
    origin = {
        "release_id": release.manifest.get("release_id"),
        "manifest_sha256": release.digest,
        **{name: privacy.get(name) for name in ("epsilon", "delta", "unit", "adjacency", "trust")},
        "guarantee": release.guarantee,
        "zones_sha256": zones.digest,
    }
    schema = release_zones_schema(zones.labels is not None)
    metadata = {**(schema.metadata or {}), b"sfumato": json.dumps(origin).encode()}
    return pa.table(columns, schema=schema).replace_schema_metadata(metadata)


def zones_from(shapes: Any, id_column: str | None = None, radius: float | None = None) -> Zones:
    """Zones from what Python programs have.

    Args:
        shapes: a path of a file, a geopandas GeoDataFrame or GeoSeries, or shapely polygons or points.
        id_column: the property or column of ids. Without it a frame's index or a shape's number is its id.
        radius: in metres, of the zones around points, see `areas_of_points`; None for polygons.

    Raises:
        RequestError: as `read_zones`, or a file has no id_column.
    """
    if radius is not None and not 0 < radius < np.inf:
        raise RequestError(f"radius: must be a number of metres > 0, got {radius}")
    if isinstance(shapes, str | os.PathLike):
        if id_column is None:
            raise RequestError("id_column: name the property or column of the zones' ids, such as id_column='tract'")
        return read_zones(os.fspath(shapes), id_column, radius=radius)
    ids: Sequence[Any]
    if hasattr(shapes, "geometry") and hasattr(shapes, "crs"):  # of geopandas
        if id_column is not None and id_column not in getattr(shapes, "columns", ()):
            raise RequestError(f"id_column: the frame has no column {id_column!r}")
        ids = list(shapes.index if id_column is None else shapes[id_column])
        found = list(in_degrees("zones", shapes).geometry)
    else:
        if id_column is not None:
            raise RequestError("id_column: shapely polygons have no columns; leave it out, or give a GeoDataFrame")
        try:
            found = list(shapes)
        except TypeError:
            found = [shapes]
        ids = range(len(found))
    kinds = ("Polygon", "MultiPolygon") if radius is None else ("Point",)
    bad = [i for i, one in enumerate(found) if getattr(one, "geom_type", None) not in kinds or one.is_empty]
    if bad or not found:
        what = f"number {bad[0]} is {type(found[bad[0]]).__name__}" if bad else "there are none"
        advice = "points with radius" if radius is not None else "polygons; for points give radius=METRES"
        raise RequestError(f"zones: must be a file, a GeoDataFrame or {advice}; {what}")
    texts, geometries, points = tuple(map(str, ids)), shapely.force_2d(np.array(found, dtype=object)), None
    if radius is not None:
        points, geometries = geometries, areas_of_points(geometries, radius, texts)
    zones = Zones(texts, geometries, id_column or "zone", given=points)
    check_zones(zones, "the zones")
    return zones


def check_heatmap(release: Release) -> Grid:
    """Returns the grid of a heatmap. Raises RequestError for another release."""
    job = release.manifest.get("job")
    if job != "heatmap":
        raise RequestError(
            f"release: {release.path} must be a release of `sfumato heatmap`, whose cells cover its map, got one of "
            f"`sfumato {job}`"
        )
    if release.grid is None:
        raise RequestError(f"release: {release.path}: the manifest lacks the map's region or depth")
    return release.grid


def _cells_of(release: Release, grid: Grid) -> tuple[UnbiasedCounts, WithinCells]:
    """Returns the users of a heatmap's cells, their errors, and the spread inside them. Raises RequestError."""
    errors = release.manifest.get("errors", {})
    sums = str(errors.get("sums", ""))
    privacy = release.manifest.get("privacy", {})
    last = (privacy.get("sub_queries") or [{}])[-1]
    # Then every user was counted in the last sub-query, so that noise is all of a cell's error.
    all_counted = privacy.get("composition") != "parallel" and not last.get("shards_lost")
    # "independent": the manifest's word for errors of cells that add up by their variances
    if TOTALS_FILE not in sums and not ("independent" in sums and all_counted):
        raise RequestError(
            f"release: {release.path} does not state errors of sums of cells, only a lower bound, so zones would have "
            "none; publish the heatmap with the method adaptive or flat"
        )
    table = release.arrow_table(CELLS_FILE)
    count, variance = table["count"].to_numpy(), table["stddev"].to_numpy() ** 2
    if TOTALS_FILE in sums:
        nodes = release.arrow_table(TOTALS_FILE)
        node, cell, users, measured = (nodes[name].to_numpy() for name in ("node", "cell", "users", "variance"))
        unbiased = UnbiasedCounts.from_nodes(node, users, measured, grid.depth)
        cell = cell[cell >= 0]
        share = _area_shares(unbiased.full, cell, len(count))
    else:
        unbiased, cell, share = _independent(release, grid, table["cell_id"].to_pylist(), count, variance)
    return unbiased, learn_within_cells(unbiased, count[cell] * share, variance[cell] * share)


def _independent(
    release: Release, grid: Grid, names: list[str], count: NDArray[np.float64], variance: NDArray[np.float64]
) -> tuple[UnbiasedCounts, NDArray[np.int64], NDArray[np.float64]]:
    """Returns the users of cells of independent errors, the cell of each leaf and its share of the cell's area."""
    try:
        nodes = nodes_from_names(names, grid.depth)
        tree = Tree.of(grid.depth, nodes)
    except ValueError as error:
        raise RequestError(f"{release.path}: {CELLS_FILE} is damaged ({error})") from None
    full = FullTree.from_trees(tree)
    order = np.argsort(nodes)
    owner = tree.entries[full.owners(tree)]
    cell = order[np.minimum(np.searchsorted(nodes[order], owner), len(nodes) - 1)]
    share = _area_shares(full, cell, len(names))
    users, spread = (full.sums(full.by_level(one[cell] * share)) for one in (count, variance))
    return UnbiasedCounts(full, users, spread, float(spread[0][0])), cell, share


def _area_shares(full: FullTree, cell: NDArray[np.int64], cells: int) -> NDArray[np.float64]:
    """Returns the share of each leaf's area in its cell: float64[leaves]."""
    area = np.concatenate([np.full(int(leaf.sum()), 0.25**level) for level, leaf in enumerate(full.leaves)])
    return np.asarray(area / np.bincount(cell, area, cells)[cell])
