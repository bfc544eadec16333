"""The zone of each point: a raster answers inside zones, and exact tests at their borders only. Pure.

The raster's cells are small rectangles of degrees. A cell that no border touches lies in one zone, or in none, and
holds its index. The other cells hold a list of the zones whose bounding boxes they meet, and a point there is tested
against these polygons. A point on a border, or in an overlap, belongs to the first of them in the file.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np
import scipy
import shapely
from numpy.typing import NDArray

from sfumato.schemas.rectangle import MAX_DEPTH
from sfumato.schemas.region import Region
from sfumato.transforms.geo.zone_file import Zones

Floats = NDArray[np.float64]
_CELLS_PER_ZONE = 1600  # of the raster, on average, within these bounds of its longer side
_LEAST_SIDE, _LARGEST_SIDE = 512, 4096
_SPARE = 1e-6  # cells: rounding of coordinates does not hide a border
OUTSIDE, _BORDER = -1, -2


@dataclass(frozen=True)
class ZoneLocator:
    """A `Locator` of points in zones: the code of a location is the index of its zone.

    The raster is built where it is first used, and does not travel with a pickled locator.
    """

    zones: Zones

    @property
    def depth(self) -> int:
        """The least depth at which the codes 0 .. 4^depth - 1 have an index for every zone; at least 1."""
        depth = max(1, math.ceil((len(self.zones) - 1).bit_length() / 2))
        assert depth <= MAX_DEPTH
        return depth

    @cached_property
    def _raster(self) -> _Raster:
        return _Raster.of(self.zones)

    def __getstate__(self) -> dict[str, Any]:
        return {"zones": self.zones}

    def locate(self, longitude: Floats, latitude: Floats) -> tuple[NDArray[np.bool_], NDArray[np.uint64]]:
        """Returns which points are in a zone, bool[n], and the indexes of the zones of these points, uint64[points
        inside].
        """
        found = self.zone_of(longitude, latitude)
        inside = found >= 0
        return inside, found[inside].astype(np.uint64)

    def zone_of(self, longitude: Floats, latitude: Floats) -> NDArray[np.int64]:
        """Returns the index of each point's zone, int64[n]; OUTSIDE for points in no zone and for NaN. In degrees."""
        raster = self._raster
        found = np.full(len(longitude), OUTSIDE, dtype=np.int64)
        inside = np.flatnonzero(raster.region.holds(longitude, latitude))
        cell = raster.cell_of(longitude[inside], latitude[inside])
        zone = raster.zone[cell]
        found[inside] = zone
        at_border = np.flatnonzero(zone == _BORDER)
        if len(at_border):
            points = inside[at_border]
            found[points] = raster.tested(cell[at_border], longitude[points], latitude[points])
        return found


@dataclass(frozen=True)
class _Raster:
    """The cells over the zones' region, row by row from the north."""

    region: Region  # of the zones
    columns: int  # and rows: numbers of cells
    rows: int
    zone: NDArray[np.int32]  # int32[cells], a zone's index, OUTSIDE or _BORDER
    polygons: NDArray[np.object_]  # object[n], prepared
    first: NDArray[np.int64]  # int64[cells + 1], where each cell's candidates start; only border cells have any
    candidates: NDArray[np.int64]  # int64[...], indexes of zones, ascending in a cell

    @classmethod
    def of(cls, zones: Zones) -> _Raster:
        """Returns the raster of zones, with border cells and their candidates."""
        region = zones.region
        width, height = region.east - region.west, region.north - region.south
        side = min(max(math.sqrt(len(zones) * _CELLS_PER_ZONE), _LEAST_SIDE), _LARGEST_SIDE)
        scale = side / math.sqrt(width * height)
        columns, rows = (min(max(round(one * scale), 1), _LARGEST_SIDE) for one in (width, height))
        empty = np.zeros(0, dtype=np.int64)
        polygons = zones.geometries.copy()
        shapely.prepare(polygons)
        # The cells' places follow from the grid, so it comes first, and then what lies in them.
        return cls(region, columns, rows, np.zeros(0, np.int32), polygons, empty, empty)._filled()

    def cell_of(self, longitude: Floats, latitude: Floats) -> NDArray[np.int64]:
        """Returns the cell of each point in the region, int64[n]."""
        x, y = self._position(longitude, latitude)
        column = np.minimum(x.astype(np.int64), self.columns - 1)
        return np.minimum(y.astype(np.int64), self.rows - 1) * self.columns + column

    def tested(self, cell: NDArray[np.int64], longitude: Floats, latitude: Floats) -> NDArray[np.int64]:
        """Returns the first zone that holds each point, borders included, of its cell's candidates; OUTSIDE without
        one.
        """
        starts, numbers = self.first[cell], self.first[cell + 1] - self.first[cell]
        point = np.repeat(np.arange(len(cell)), numbers)
        place = np.arange(len(point)) - np.repeat(np.cumsum(numbers) - numbers, numbers)
        zone = self.candidates[starts[point] + place]
        held = shapely.intersects_xy(self.polygons[zone], longitude[point], latitude[point])
        found = np.full(len(cell), OUTSIDE, dtype=np.int64)
        # The candidates of a point ascend, so that written from the back the first one stays.
        found[point[held][::-1]] = zone[held][::-1]
        return found

    def _filled(self) -> _Raster:
        """Returns the raster with zones, border cells and their candidates."""
        border = self._border_cells()
        is_border = np.zeros(self.rows * self.columns, dtype=bool)
        is_border[border] = True
        boxes = self._boxes(border)
        tree = shapely.STRtree(self.polygons)
        box, candidate = tree.query(boxes)  # zones whose bounding boxes meet the cell
        order = np.lexsort((candidate, box))
        first = np.zeros(self.rows * self.columns + 1, dtype=np.int64)
        first[border + 1] = np.bincount(box, minlength=len(border))
        # Cells that no border touches and that lie side by side are in the same zone: one test for each such patch.
        label, patches = scipy.ndimage.label(~is_border.reshape(self.rows, self.columns))
        label = label.ravel()
        first_cell = np.full(patches + 1, -1, dtype=np.int64)
        first_cell[label[::-1]] = np.arange(len(label))[::-1]  # written from the back: a patch's first cell stays
        west, south, east, north = shapely.bounds(self._boxes(first_cell[1:])).T
        middle = (west + east) / 2, (south + north) / 2
        point, zone = tree.query(shapely.points(*middle), predicate="intersects")
        of_patch = np.full(patches + 1, OUTSIDE, dtype=np.int32)
        order_of_points = np.lexsort((-zone, point))  # descending zones: where zones overlap, the first one stays
        of_patch[1 + point[order_of_points]] = zone[order_of_points]
        of_patch[0] = _BORDER
        return replace(self, zone=of_patch[label], first=np.cumsum(first), candidates=candidate[order])

    def _border_cells(self) -> NDArray[np.int64]:
        """Returns the cells that any border touches, ascending, and perhaps some of their neighbours."""
        region = self.region
        step = 0.5 * min((region.east - region.west) / self.columns, (region.north - region.south) / self.rows)
        lines = shapely.get_parts(shapely.boundary(self.polygons))
        # Two points of a line that follow each other are at most half a cell apart: they lie in a block of 2 x 2 cells.
        points, line = shapely.get_coordinates(shapely.segmentize(lines, step), return_index=True)
        x, y = self._position(points[:, 0], points[:, 1])
        marked = np.zeros(self.rows * self.columns, dtype=bool)
        follows = np.flatnonzero(line[1:] == line[:-1])
        spans = []
        for along, count in ((x, self.columns), (y, self.rows)):
            low = np.minimum(along[follows], along[follows + 1]) - _SPARE
            high = np.maximum(along[follows], along[follows + 1]) + _SPARE
            spans.append([np.clip(np.floor(end), 0, count - 1).astype(np.int64) for end in (low, high)])
        for column in spans[0]:
            for row in spans[1]:
                marked[row * self.columns + column] = True
        return np.flatnonzero(marked)

    def _position(self, longitude: Floats, latitude: Floats) -> tuple[Floats, Floats]:
        region = self.region
        return (
            (longitude - region.west) * (self.columns / (region.east - region.west)),
            (region.north - latitude) * (self.rows / (region.north - region.south)),
        )

    def _boxes(self, cells: NDArray[np.int64]) -> NDArray[np.object_]:
        """Returns the rectangles of cells in degrees, a little larger than they are: object[n]."""
        row, column = np.divmod(cells, self.columns)
        region = self.region
        width, height = (region.east - region.west) / self.columns, (region.north - region.south) / self.rows
        west, north = region.west + column * width, region.north - row * height
        boxes: NDArray[np.object_] = shapely.box(
            west - _SPARE * width, north - (1 + _SPARE) * height, west + (1 + _SPARE) * width, north + _SPARE * height
        )
        return boxes
