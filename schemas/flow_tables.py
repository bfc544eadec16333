"""Flows as a page gets them: a table of the largest, and a matrix of large cells. Parts of `views`."""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict


class _Part(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False, defer_build=True)


class FlowTable(_Part):
    """Flows, largest first: columns of equal length.

    Attributes:
        level: of both cells of a flow; 0 for zones.
        origin_x, origin_y, destination_x, destination_y: columns from the west and rows from the north, of 2^level. Of
            zones x is the row in the map's layer, and y is 0.
        trips, low, high: the estimate and the ends of its 95% interval.
        centres: longitude and latitude of a point in each zone, by the rows of the map's layer; None for cells.
    """

    level: list[int]
    origin_x: list[int]
    origin_y: list[int]
    destination_x: list[int]
    destination_y: list[int]
    trips: list[float]
    low: list[float]
    high: list[float]
    centres: list[tuple[float, float]] | None = None


class FlowMatrix(_Part):
    """Trips between coarse cells.

    Attributes:
        level: of the cells.
        x, y: of each cell, as in FlowTable.
        trips, low, high: one row an origin, one column a destination; unbiased, so that trips may be below 0.
    """

    level: int
    x: list[int]
    y: list[int]
    trips: list[list[float]]
    low: list[list[float]]
    high: list[list[float]]
