"""Rasters of a release: bands over the pixels of its region, from the table of cells alone. Pure.

A pixel has the value of its cell: nothing finer than the cells was measured, so pixels of one cell are not independent.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from sfumato.schemas.region import Grid, Region, area_km2, by_row
from sfumato.schemas.tree import Tree, node_positions, nodes_from_names
from sfumato.transforms.export.map_layer import MapLayer

MAX_LEVEL = 12  # 4096 x 4096 pixels; finer cells are combined
_USERS_KM2 = "users per square kilometre"
_OF_ITS_CELL = "of the pixel's cell, per square kilometre of the cell"
_END = "end of the 95% interval of the users without shrinkage"


@dataclass(frozen=True)
class Band:
    """One value a pixel.

    Attributes:
        name: such as `density`.
        unit: of the values; empty for shares.
        text: what a value says.
        values: float64[rows, columns], row 0 in the north; NaN where there is none.
    """

    name: str
    unit: str
    text: str
    values: NDArray[np.float64]


@dataclass(frozen=True)
class MapRaster:
    """Bands over equal pixels of a region, in degrees.

    Attributes:
        region: the outer edges of the pixels.
        bands: of one shape.
    """

    region: Region
    bands: tuple[Band, ...]

    @property
    def shape(self) -> tuple[int, int]:
        """Rows and columns."""
        rows, columns = self.bands[0].values.shape
        return rows, columns

    @property
    def longitudes(self) -> NDArray[np.float64]:
        """Of the centres of columns, from the west."""
        columns = self.shape[1]
        return self.region.west + (np.arange(columns) + 0.5) / columns * (self.region.east - self.region.west)

    @property
    def latitudes(self) -> NDArray[np.float64]:
        """Of the centres of rows, from the north."""
        rows = self.shape[0]
        return self.region.north - (np.arange(rows) + 0.5) / rows * (self.region.north - self.region.south)


@dataclass(frozen=True)
class _Source:
    """The column of a band. per_area: the band is the column divided by the cell's area."""

    column: str
    band: str
    text: str
    per_area: bool = True


_USERS = (
    _Source("count", "density", f"estimated users {_OF_ITS_CELL}"),
    _Source("users", "density", f"estimated users {_OF_ITS_CELL}"),
    _Source("users_low", "density_low", f"lower {_END} {_OF_ITS_CELL}"),
    _Source("users_high", "density_high", f"upper {_END} {_OF_ITS_CELL}"),
    _Source("low", "density_low", f"lower {_END} {_OF_ITS_CELL}"),
    _Source("high", "density_high", f"upper {_END} {_OF_ITS_CELL}"),
    _Source("stddev", "density_stddev", f"standard deviation of the estimated users {_OF_ITS_CELL}"),
)
_CHANGES = (
    _Source("difference", "difference", f"users after less users before {_OF_ITS_CELL}"),
    _Source("low", "difference_low", f"lower end of the difference's 95% interval {_OF_ITS_CELL}"),
    _Source("high", "difference_high", f"upper end of the difference's 95% interval {_OF_ITS_CELL}"),
    _Source("stddev", "difference_stddev", f"standard deviation of the difference if nothing changed {_OF_ITS_CELL}"),
    _Source("before", "before", f"users of the first map, without shrinkage {_OF_ITS_CELL}"),
    _Source("after", "after", f"users of the second map, without shrinkage {_OF_ITS_CELL}"),
)
_VALUES = ("_value", "_low", "_high", "_stddev", "_clients")  # columns of moments by cell, after a statistic's name


def raster_of_cells(name: str, table: pa.Table, grid: Grid, *, nested: bool) -> MapRaster:
    """Bands of cells of a quadtree.

    `users` has the users of each pixel: the density times the pixel's area, so that a cell's pixels add up to its
    count. The other bands have the value of the pixel's cell, those of users per square kilometre of the cell. A pixel
    without a cell has no value. Where rows lie within each other only the finest level is shown. Where cells are finer
    than level 12, a pixel holds several. It has their mean density, but its interval and deviation are not known.

    Args:
        name: of the table.
        table: with the columns `cell_id` and `depth`.
        grid: of the release.
        nested: whether each row has all users of its node, so that rows may lie within each other, as with hot spots.
            Otherwise a row is a node without its descendants.
    """
    table = _disjoint(table, nested)
    nodes = nodes_from_names(table["cell_id"].to_pylist(), grid.depth)
    tree = Tree.of(grid.depth, nodes)
    level = min(tree.level, MAX_LEVEL)
    area = _pixel_areas(grid.region, 1 << level)
    row = np.full(len(tree.entries), -1)
    row[np.searchsorted(tree.entries, nodes)] = np.arange(len(nodes))
    piece = _Pieces.of(tree, level, row)
    own = _own_areas(tree, grid)[np.searchsorted(tree.entries, nodes)]
    bands = []
    for source in _sources(name, table):
        values = table[source.column].to_numpy(zero_copy_only=False).astype(np.float64)
        values = values / np.where(own > 0, own, np.nan) if source.per_area else values
        averaged = source.band in ("density", "difference", "before", "after")
        bands.append(
            Band(source.band, _USERS_KM2 if source.per_area else "", source.text, piece.paint(values, averaged))
        )
    return MapRaster(grid.region, (*_users_band(bands, area), *bands))


def raster_of_squares(layer: MapLayer, region: Region) -> MapRaster:
    """Bands of squares that tile a region row by row, each of which is a pixel."""
    side = int(np.sqrt(layer.table.num_rows))
    area = _pixel_areas(region, side)
    bands = [
        Band(
            source.band, _USERS_KM2, source.text, layer.table[source.column].to_numpy().reshape(side, side) / area
        )
        for source in _sources(layer.name, layer.table)
    ]  # fmt: skip
    return MapRaster(region, (*_users_band(bands, area), *bands))


def _users_band(bands: list[Band], area: NDArray[np.float64]) -> list[Band]:
    text = "estimated users of the pixel, if its cell's users are spread evenly; the pixels of a cell add up to it"
    return [Band("users", "users", text, band.values * area) for band in bands if band.name == "density"]


def _disjoint(table: pa.Table, nested: bool) -> pa.Table:
    """The rows that do not lie within each other."""
    if "leaf" in table.column_names:
        return table.filter(table["leaf"])
    return table.filter(pc.equal(table["depth"], pc.max(table["depth"]))) if nested and table.num_rows else table


def _sources(name: str, table: pa.Table) -> list[_Source]:
    columns = table.column_names
    if name == "changes":
        return list(_CHANGES)
    found = [one for one in _USERS if one.column in columns]
    rates = [one for one in columns if one.startswith(("rate", "simultaneous"))]
    moments = [one for one in columns if one.endswith(_VALUES) and f"{one.rsplit('_', 1)[0]}_value" in columns]
    texts: Mapping[str, str] = {
        field.name: (field.metadata or {}).get(b"description", b"").decode() for field in table.schema
    }
    return [*found, *(_Source(one, one, texts[one] or one, per_area=False) for one in (*rates, *moments))]


@dataclass(frozen=True)
class _Pieces:
    """The pieces that the borders of cells cut pixels into, in the order of codes.

    Attributes:
        row: int64[p], the row of the table that a piece counts for; -1 for none.
        share: float64[p], of the pixel's area.
        first: int64[pixels], the first piece of each pixel, by code.
        alone: bool[pixels], whether a pixel lies in one cell.
    """

    row: NDArray[np.int64]
    share: NDArray[np.float64]
    first: NDArray[np.int64]
    alone: NDArray[np.bool_]

    @classmethod
    def of(cls, tree: Tree, level: int, row: NDArray[np.int64]) -> _Pieces:
        """Of the pixels of a level. row: int64[T], of each entry."""
        step = np.uint64(1 << (2 * (tree.depth - level)))
        pixels = np.arange(1 << (2 * level), dtype=np.uint64) * step
        borders = np.union1d(pixels, tree.index.boundaries[:-1])
        sizes = np.diff(np.append(borders, np.uint64(1 << (2 * tree.depth))))
        first = np.searchsorted(borders, pixels)
        return cls(
            row[tree.index.owners(borders)],
            sizes.astype(np.float64) / float(step),
            first,
            np.diff(np.append(first, len(borders))) == 1,
        )

    def paint(self, values: NDArray[np.float64], averaged: bool) -> NDArray[np.float64]:
        """Values float64[rows of the table] by pixel; a pixel of several cells has their mean, or NaN."""
        of_piece = np.append(values, np.nan)[self.row]  # -1 is the last, for no row
        if self.alone.all():
            return by_row(of_piece)
        mean = np.add.reduceat(of_piece * self.share, self.first)
        return by_row(mean if averaged else np.where(self.alone, of_piece[self.first], np.nan))


def _pixel_areas(region: Region, side: int) -> NDArray[np.float64]:
    """The area of a pixel of each row, float64[side, 1], in square kilometres."""
    edges = np.linspace(region.north, region.south, side + 1, dtype=np.float64)
    width = (region.east - region.west) / side
    return area_km2(np.zeros(side), edges[1:], np.full(side, width), edges[:-1])[:, None]


def _own_areas(tree: Tree, grid: Grid) -> NDArray[np.float64]:
    """The area of each entry without its descendants, float64[T], in square kilometres."""
    level, x, y = node_positions(tree.nodes)
    area = area_km2(*grid.bounds(x, y, level))
    own = area.copy()
    np.subtract.at(own, tree.parents()[1:], area[1:])
    covered = tree.areas > 0
    return np.where(covered, own[np.searchsorted(tree.nodes, tree.entries)], 0.0)
