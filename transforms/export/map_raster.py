"""The map of a release as rows with shapes and as bands of pixels, from its table only. Pure.

A pixel has the value of its cell: nothing finer than the cells was measured, so pixels of one cell are not independent.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import shapely
from numpy.typing import NDArray

from sfumato.schemas.errors import RequestError
from sfumato.schemas.ranges import Boxes
from sfumato.schemas.region import Grid, Region, area_km2
from sfumato.schemas.tree import Tree, node_positions, nodes_from_names
from sfumato.transforms.ranges.model import RangeModel

GEOMETRY = "geometry"
_MAX_LEVEL = 8  # of the squares for which a model of range queries is queried: at most 65,536 rows
_ANSWER = "the model's answer for the square, 0 or more; squares add up"
_BIASED_ANSWER = "the model's answer for the square, 0 or more; so the sum over squares with few users is too high"
MAX_LEVEL = 12  # 4096 x 4096 pixels; finer cells are combined
_USERS_KM2 = "users per square kilometre"
_OF_ITS_CELL = "of the pixel's cell, per square kilometre of the cell"
_END = "end of the 95% interval of the users without shrinkage"

# Bands in users per square kilometre of the cell, by column: name and text.
_USERS = {
    "count": ("density", "estimated users"),
    "users": ("density", "estimated users"),
    "users_low": ("density_low", f"lower {_END}"),
    "users_high": ("density_high", f"upper {_END}"),
    "low": ("density_low", f"lower {_END}"),
    "high": ("density_high", f"upper {_END}"),
    "stddev": ("density_stddev", "standard deviation of the estimated users"),
    "expected": ("density_expected", "expected users by the pattern of all cells"),
}
_CHANGES = {
    "difference": ("difference", "users after minus users before"),
    "low": ("difference_low", "lower end of the difference's 95% interval"),
    "high": ("difference_high", "upper end of the difference's 95% interval"),
    "stddev": ("difference_stddev", "standard deviation of the difference if nothing changed"),
    "before": ("before", "users of the first map, without shrinkage"),
    "after": ("after", "users of the second map, without shrinkage"),
}
_ADDITIVE = ("density", "density_expected", "difference", "before", "after")  # whose mean over an area has a meaning
_VALUES = ("_value", "_low", "_high", "_stddev", "_clients")  # columns of moments by cell, after a statistic's name


@dataclass(frozen=True)
class MapLayer:
    """Rows with shapes."""

    name: str  # of the table, such as `cells`
    table: pa.Table  # the columns without the geometry
    shapes: NDArray[np.object_]  # object[n], shapely geometries in longitude and latitude, degrees

    @property
    def bounds(self) -> tuple[float, float, float, float]:
        """Returns west, south, east and north of all shapes, in degrees; zeros without a shape."""
        if shapely.is_empty(self.shapes).all():
            return 0.0, 0.0, 0.0, 0.0
        west, south, east, north = map(float, shapely.total_bounds(self.shapes))
        return west, south, east, north

    @property
    def columns(self) -> dict[str, str]:
        """Returns the description and unit of each column, by name."""
        return {field.name: column_text(field) for field in self.table.schema}


def column_text(field: pa.Field) -> str:
    """Returns a column's description and unit as the release's schema states them; may be empty."""
    stated = {key.decode(): value.decode() for key, value in (field.metadata or {}).items()}
    return "; ".join(stated[key] for key in ("description", "unit") if key in stated)


def layer_of_table(name: str, table: pa.Table) -> MapLayer:
    """Returns the layer of a table with a column `geometry` of WKB. Raises RequestError for damaged shapes."""
    try:
        shapes = shapely.from_wkb(table[GEOMETRY].to_numpy(zero_copy_only=False))
    except shapely.errors.ShapelyError as error:
        raise RequestError(f"{name}.parquet: {GEOMETRY} is damaged ({error})") from None
    return MapLayer(name, table.drop_columns([GEOMETRY]), shapes)


def layer_of_model(model: RangeModel, size: float) -> MapLayer:
    """Returns the answers of a model of range queries in squares that tile its region.

    size: the side in metres of the largest squares that it was made for. The region has 2^k squares along a side, with
    the k in 0..8 whose squares are nearest to it.
    """
    field = model.field
    level = round(np.log2(max(field.metres) / size))
    level = int(np.clip(level, 0, min(_MAX_LEVEL, field.grid.depth)))
    edges = np.linspace(0.0, field.side, (1 << level) + 1)
    boxes = Boxes.between(edges, edges)
    answers = model.model.answer_additive(boxes)
    region = field.grid.region
    x = region.west + (region.east - region.west) / field.side * np.stack([boxes.x0, boxes.x1])
    y = region.north - (region.north - region.south) / field.side * np.stack([boxes.y1, boxes.y0])
    (west, east), (south, north) = x, y
    area = area_km2(west, south, east, north)
    error = f"root mean square error of users around people: {model.model.ERROR}"
    answer = _BIASED_ANSWER if model.model.additive_table is None else _ANSWER
    sides = {"west": west, "south": south, "east": east, "north": north}
    columns: dict[str, tuple[Any, dict[str, str]]] = {
        **{name: (values, {"unit": "degrees"}) for name, values in sides.items()},
        "users": (answers.users, {"description": answer}),
        "stddev": (answers.stddev, {"description": error}),
        "density": (answers.users / area, {"unit": "users per square kilometre"}),
    }
    schema = pa.schema([pa.field(name, pa.float64(), False, stated) for name, (_, stated) in columns.items()])
    table = pa.table({name: values for name, (values, _) in columns.items()}, schema=schema)
    return MapLayer("squares", table, shapely.box(west, south, east, north))


@dataclass(frozen=True)
class Band:
    """One value a pixel."""

    name: str  # such as `density`
    unit: str  # of the values; empty for shares
    text: str  # what a value means
    values: NDArray[np.float64]  # float64[rows, columns], row 0 in the north; NaN where there is none


@dataclass(frozen=True)
class MapRaster:
    """Bands of one shape over equal pixels. region: the outer edges of the pixels, in degrees."""

    region: Region
    bands: tuple[Band, ...]

    @property
    def shape(self) -> tuple[int, int]:
        """Returns rows and columns."""
        rows, columns = self.bands[0].values.shape
        return rows, columns

    @property
    def longitudes(self) -> NDArray[np.float64]:
        """Returns the longitudes of pixel centres, from the west."""
        return self.region.west + (np.arange(self.shape[1]) + 0.5) / self.shape[1] * (
            self.region.east - self.region.west
        )

    @property
    def latitudes(self) -> NDArray[np.float64]:
        """Returns the latitudes of pixel centres, from the north."""
        return self.region.north - (np.arange(self.shape[0]) + 0.5) / self.shape[0] * (
            self.region.north - self.region.south
        )


def raster_of_cells(name: str, table: pa.Table, grid: Grid, *, nested: bool) -> MapRaster:
    """Returns bands of cells of a quadtree, from a table with the columns `cell_id` and `depth`.

    `users` has the users of each pixel: the density times the pixel's area, so that a cell's pixels add up to its
    count. The other bands have the value of the pixel's cell, those of users per square kilometre of the cell. A pixel
    without a cell has no value. Where rows lie within each other only the finest level is shown. Where cells are finer
    than level 12, a pixel holds several. It has their mean density, but its interval and deviation are not known.

    nested: whether each row has all users of its node, so that rows may lie within each other, as with hot spots.
    Otherwise a row is a node without its descendants.
    """
    if "leaf" in table.column_names:
        table = table.filter(table["leaf"])
    elif nested and table.num_rows:
        table = table.filter(pc.equal(table["depth"], pc.max(table["depth"])))
    nodes = nodes_from_names(table["cell_id"].to_pylist(), grid.depth)
    tree = Tree.of(grid.depth, nodes)
    entry = np.searchsorted(tree.entries, nodes)
    side, paint = _pixels(nodes, tree.areas[entry], grid.depth)
    area = _pixel_areas(grid.region, side)
    level, x, y = node_positions(tree.nodes)
    areas = area_km2(*grid.bounds(x, y, level))
    own = areas.copy()  # of each node without its descendants, km^2
    np.subtract.at(own, tree.parents()[1:], areas[1:])
    own = np.where(tree.areas > 0, own[np.searchsorted(tree.nodes, tree.entries)], 0.0)[entry]
    bands = []
    for column, band, text, per_area in _sources(name, table):
        values = table[column].to_numpy(zero_copy_only=False).astype(np.float64)
        values = values / np.where(own > 0, own, np.nan) if per_area else values
        bands.append(Band(band, _USERS_KM2 if per_area else "", text, paint(values, band in _ADDITIVE)))
    return MapRaster(grid.region, _with_users(bands, area))


def raster_of_squares(layer: MapLayer, region: Region) -> MapRaster:
    """Returns bands of squares that tile a region row by row; each square is a pixel."""
    side = int(np.sqrt(layer.table.num_rows))
    area = _pixel_areas(region, side)
    bands = [
        Band(band, _USERS_KM2, text, layer.table[column].to_numpy().reshape(side, side) / area)
        for column, band, text, _ in _sources(layer.name, layer.table)
    ]
    return MapRaster(region, _with_users(bands, area))


def _with_users(bands: list[Band], area: NDArray[np.float64]) -> tuple[Band, ...]:
    text = "estimated users of the pixel, if its cell's users are spread evenly; the pixels of a cell add up to it"
    return (*(Band("users", "users", text, one.values * area) for one in bands if one.name == "density"), *bands)


def _sources(name: str, table: pa.Table) -> list[tuple[str, str, str, bool]]:
    """Returns column, band and text of each band, and whether it is the column divided by the cell's area."""
    columns, users = table.column_names, _CHANGES if name == "changes" else _USERS
    found = [(one, band, f"{text} {_OF_ITS_CELL}", True) for one, (band, text) in users.items() if one in columns]
    if name == "changes":
        return found
    rates = [one for one in columns if one.startswith(("rate", "simultaneous"))]
    moments = [one for one in columns if one.endswith(_VALUES) and f"{one.rsplit('_', 1)[0]}_value" in columns]
    for one in (*rates, *moments):
        text = (table.schema.field(one).metadata or {}).get(b"description", b"").decode()
        found.append((one, one, text or one, False))
    return found


def _pixels(
    nodes: NDArray[np.uint64], areas: NDArray[np.int64], depth: int
) -> tuple[int, Callable[[NDArray[np.float64], bool], NDArray[np.float64]]]:
    """Returns the pixels along a side, and what paints the values of nodes, float64[n], on them.

    Nodes are uint64[n], each less its descendants, with areas int64[n] in cells of a grid of this depth. A pixel with
    finer cells has their mean by area if values are averaged, or NaN.
    """
    levels, x, y = node_positions(nodes)
    level = min(int(levels.max(initial=0)), MAX_LEVEL)
    row = np.full((1, 1), -1, dtype=np.int32)  # of the table: what covers a pixel, or what finer cells leave of it
    for one in range(level + 1):  # a deeper node takes the place of those above it
        row = np.repeat(np.repeat(row, 2, axis=0), 2, axis=1) if one else row
        here = np.flatnonzero(levels == one)
        row[y[here], x[here]] = here
    finer = np.flatnonzero(levels > level)  # cells smaller than a pixel
    below = levels[finer] - level
    pixels, of = np.unique(((y[finer] >> below) << level) + (x[finer] >> below), return_inverse=True)
    share = areas[finer] / 4.0 ** (depth - level)

    def paint(values: NDArray[np.float64], averaged: bool) -> NDArray[np.float64]:
        painted = np.append(values, np.nan)[row]  # -1 is the last, for no row
        if len(finer):
            flat = painted.ravel()
            held, mean = (np.bincount(of, one) for one in (share, share * values[finer]))
            rest = np.where(held < 1, (1 - held) * flat[pixels], 0.0)
            flat[pixels] = mean + rest if averaged else np.nan
        return painted

    return 1 << level, paint


def _pixel_areas(region: Region, side: int) -> NDArray[np.float64]:
    """Returns the area of a pixel of each row, float64[side, 1], in square kilometres."""
    edges = np.linspace(region.north, region.south, side + 1, dtype=np.float64)
    width = (region.east - region.west) / side
    return area_km2(np.zeros(side), edges[1:], np.full(side, width), edges[:-1])[:, None]
