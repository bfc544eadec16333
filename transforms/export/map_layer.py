"""A table of a release with the shape of each row: what vector formats write. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import shapely
from numpy.typing import NDArray

from sfumato.schemas.errors import RequestError
from sfumato.schemas.ranges import Boxes
from sfumato.schemas.region import area_km2
from sfumato.transforms.ranges.model import RangeModel

GEOMETRY = "geometry"
_MAX_LEVEL = 8  # of the squares that a model of range queries is asked for: 65,536 rows at most


@dataclass(frozen=True)
class MapLayer:
    """Rows with shapes.

    Attributes:
        name: of the table, such as `cells`.
        table: the columns without the geometry.
        shapes: object[n], shapely geometries in longitude and latitude, degrees.
    """

    name: str
    table: pa.Table
    shapes: NDArray[np.object_]

    @property
    def bounds(self) -> tuple[float, float, float, float]:
        """West, south, east and north of all shapes, in degrees; zeros without a shape."""
        found = shapely.total_bounds(self.shapes)
        west, south, east, north = (0.0 if np.isnan(one) else float(one) for one in found)
        return west, south, east, north

    @property
    def columns(self) -> dict[str, str]:
        """What each column says: its description and unit, by name."""
        return {field.name: column_text(field) for field in self.table.schema}


def column_text(field: pa.Field) -> str:
    """What a column says: its description and unit, as the release's schema states them; may be empty."""
    stated = {key.decode(): value.decode() for key, value in (field.metadata or {}).items()}
    return "; ".join(stated[key] for key in ("description", "unit") if key in stated)


def layer_of_table(name: str, table: pa.Table) -> MapLayer:
    """The layer of a table with a column `geometry` of WKB. Raises RequestError for damaged shapes."""
    try:
        shapes = shapely.from_wkb(table[GEOMETRY].to_numpy(zero_copy_only=False))
    except shapely.errors.ShapelyError as error:
        raise RequestError(f"{name}.parquet: {GEOMETRY} is damaged ({error})") from None
    return MapLayer(name, table.drop_columns([GEOMETRY]), shapes)


def layer_of_model(model: RangeModel, low: float, high: float) -> MapLayer:
    """The answers of a model of range queries in squares that tile its region.

    Args:
        model: of `sfumato ranges`.
        low, high: the sides in metres of the squares that it was made for. The squares have 2^k along a side, with the
            side that is nearest to the geometric mean of the two, and k at most 8.
    """
    field = model.field
    level = round(np.log2(max(field.metres) / np.sqrt(low * high)))
    level = int(np.clip(level, 0, min(_MAX_LEVEL, field.grid.depth)))
    edges = np.linspace(0.0, field.side, (1 << level) + 1)
    boxes = Boxes.between(edges, edges)
    answers = model.model.answer(boxes)
    region = field.grid.region
    x = region.west + (region.east - region.west) / field.side * np.stack([boxes.x0, boxes.x1])
    y = region.north - (region.north - region.south) / field.side * np.stack([boxes.y1, boxes.y0])
    (west, east), (south, north) = x, y
    area = area_km2(west, south, east, north)
    error = f"root mean square error of users around people: {model.model.ERROR}"
    columns: dict[str, tuple[Any, dict[str, str]]] = {
        "west": (west, {"unit": "degrees"}),
        "south": (south, {"unit": "degrees"}),
        "east": (east, {"unit": "degrees"}),
        "north": (north, {"unit": "degrees"}),
        "users": (answers.users, {"description": "the model's answer for the square, 0 or more"}),
        "stddev": (answers.stddev, {"description": error}),
        "density": (answers.users / area, {"unit": "users per square kilometre"}),
    }
    schema = pa.schema([pa.field(name, pa.float64(), False, stated) for name, (_, stated) in columns.items()])
    table = pa.table({name: values for name, (values, _) in columns.items()}, schema=schema)
    return MapLayer("squares", table, shapely.box(west, south, east, north))
