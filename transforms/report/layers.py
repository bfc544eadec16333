"""Layers of a map: cells of a quadtree by their nodes, and public zones by their polygons. Pure."""

from __future__ import annotations

import math
from collections import Counter

import numpy as np
import pyarrow as pa
import shapely
from numpy.typing import NDArray

from sfumato.schemas.charts import readable
from sfumato.schemas.region import CLOSE, Region, area_km2, close_points, ground_metres
from sfumato.schemas.tree import node_names, node_positions
from sfumato.schemas.views.map_views import Layer, Measure
from sfumato.schemas.views.view_parts import Bounds, Path

_MOST_OF_REGION = 0.5  # of its area: cells that fill more are shown in the whole region
_MOST_POINTS = 150_000  # of the borders of a level
_RESOLUTION = 2048  # of the region's longer side: finer parts of a border are left out


def cell_layer(
    title: str, note: str, nodes: NDArray[np.uint64], measures: list[Measure], area: list[float] | None = None
) -> Layer:
    """Returns a layer of cells, uint64[n], levels ascending.

    area: the share of each cell that it owns; None for whole cells.
    """
    level, x, y = (position.tolist() for position in node_positions(nodes))
    area = [1.0] * len(nodes) if area is None else area
    return Layer(title=title, note=note, level=level, x=x, y=y, area=area, cell_id=node_names(nodes), measures=measures)


def around_cells(layer: Layer, region: Region) -> Bounds | None:
    """Returns the part of the region around the cells; None if they fill most of the region."""
    if not layer.level:
        return None
    x, y, side = np.array(layer.x), np.array(layer.y), 1 << layer.level[0]
    ends = [(int(one.min()), int(one.max()) + 1) for one in (x, y)]
    reach = max(high - low for low, high in ends)
    (west, east), (north, south) = (
        (max(low - reach / 2, 0) / side, min(high + reach / 2, side) / side) for low, high in ends
    )
    if (east - west) * (south - north) > _MOST_OF_REGION:
        return None
    wide, tall = region.east - region.west, region.north - region.south
    return Bounds(
        west=region.west + west * wide,
        east=region.west + east * wide,
        north=region.north - north * tall,
        south=region.north - south * tall,
    )


def zone_names(table: pa.Table) -> list[str]:
    """Returns the name of each zone of a table for people: its id where it has none, and with it where others have it.

    table: with a column `zone` of ids, and `name` where zones have names.
    """
    ids: list[str] = table["zone"].to_pylist()
    if "name" not in table.column_names:
        return ids
    names = table["name"].to_pylist()
    number = Counter(names)
    return [
        one if name is None else name if number[name] == 1 else f"{name} ({one})"
        for one, name in zip(ids, names, strict=True)
    ]


def zone_layer(
    title: str,
    note: str,
    rows: pa.Table,
    shapes: NDArray[np.object_],
    areas: NDArray[np.float64],
    region: Region,
    measures: list[Measure],
    named: bool = True,
    noun: str = "zone",
    radius: float | None = None,
) -> Layer:
    """Returns a layer of the polygons of zones, object[n].

    rows: of the zones in the release's table, see `zone_names`.
    areas: square kilometres. region: that holds them. named: whether names are for people, not ids of an index.
    noun, radius: see `sections.zone_noun` and `sections.radius_of`.
    """
    whole = float(area_km2(*(np.array([side]) for side in (region.west, region.south, region.east, region.north)))[0])
    names = zone_names(rows)
    labels = rows["name"].to_pylist() if "name" in rows.column_names else [None] * len(rows)
    if radius is not None and (close := _close(rows, names, noun)):
        measures = [measures[0].model_copy(update={"listed_note": measures[0].listed_note + close}), *measures[1:]]
    return Layer(
        title=title,
        note=note,
        level=[0] * len(names),
        x=[0] * len(names),
        y=[0] * len(names),
        area=[float(f"{area / whole:.6g}") for area in areas.tolist()],
        cell_id=[readable(name) for name in names],
        measures=measures,
        shapes=simple_paths(shapes, region),
        zones=list(zip(rows["zone"].to_pylist(), labels, strict=True)),
        named=named,
        noun=noun,
        radius=radius,
    )


def _close(rows: pa.Table, names: list[str], noun: str) -> str:
    """Returns a sentence on points whose numbers mix, with a space before it; empty if all are far from each other."""
    if not {"longitude", "latitude"} <= set(rows.column_names):  # of an earlier version
        return ""
    found = close_points(np.asarray(rows["longitude"]), np.asarray(rows["latitude"]), list(map(readable, names)), 1)
    if found is None:
        return ""
    return (
        f" {found[0]:,} {noun}s are within {CLOSE:g} m of another, such as {found[1]}: errors of position move users "
        "between them, which no interval includes."
    )


def simple_paths(shapes: NDArray[np.object_], region: Region) -> list[list[Path]]:
    """Returns the rings of each zone, those of its holes among them, simplified to what a page can show.

    Borders that two zones share stay shared where the file draws them with the same points.
    """
    longer = max(region.east - region.west, region.north - region.south)
    simplify = shapely.coverage_simplify if shapely.coverage_is_valid(shapes) else shapely.simplify
    step = longer / _RESOLUTION
    simple = simplify(shapes, step / 2)
    while shapely.get_num_coordinates(simple).sum() > _MOST_POINTS and step <= longer / 16:
        step *= 2
        simple = simplify(shapes, step / 2)
    digits = max(math.ceil(1 - math.log10(longer / _RESOLUTION)), 0)
    found = []
    for shape in simple:
        rings = shapely.get_rings(shapely.get_parts(shape))
        points = [np.round(shapely.get_coordinates(ring), digits) for ring in rings]
        found.append([[(x, y) for x, y in ring.tolist()] for ring in points])
    return found


def finest_metres(areas: NDArray[np.float64], region: Region) -> tuple[float, float]:
    """Returns the precision of places and the zoom limit, metres: a tenth of the side of the smallest zone.

    areas: of the zones, square kilometres. region: that holds them.
    """
    wide, tall = ground_metres(region)
    side = 100 * math.sqrt(max(float(areas.min(initial=np.inf)), 1e-6))
    return min(side, wide), min(side, tall)
