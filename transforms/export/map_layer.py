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
_ANSWER = "the model's answer for the square, 0 or more; squares add up"
_BIASED_ANSWER = "the model's answer for the square, 0 or more; so the sum over squares with few users is too high"


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
        if shapely.is_empty(self.shapes).all():
            return 0.0, 0.0, 0.0, 0.0
        west, south, east, north = map(float, shapely.total_bounds(self.shapes))
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


def layer_of_model(model: RangeModel, size: float) -> MapLayer:
    """The answers of a model of range queries in squares that tile its region.

    Args:
        model: of `sfumato ranges`.
        size: the side in metres of the largest squares that it was made for. The region has 2^k squares along a side,
            with the k in 0..8 whose squares are nearest to it.
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
    columns: dict[str, tuple[Any, dict[str, str]]] = {
        "west": (west, {"unit": "degrees"}),
        "south": (south, {"unit": "degrees"}),
        "east": (east, {"unit": "degrees"}),
        "north": (north, {"unit": "degrees"}),
        "users": (answers.users, {"description": answer}),
        "stddev": (answers.stddev, {"description": error}),
        "density": (answers.users / area, {"unit": "users per square kilometre"}),
    }
    schema = pa.schema([pa.field(name, pa.float64(), False, stated) for name, (_, stated) in columns.items()])
    table = pa.table({name: values for name, (values, _) in columns.items()}, schema=schema)
    return MapLayer("squares", table, shapely.box(west, south, east, north))
