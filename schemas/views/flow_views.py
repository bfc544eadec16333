"""Flows between places, and the page of all days."""

from __future__ import annotations

from typing import Literal

from sfumato.schemas.timeline import PlaceChange
from sfumato.schemas.views.map_views import Layer, MapBody
from sfumato.schemas.views.view_parts import Bounds, ViewPart


class FlowTable(ViewPart):
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


class FlowMatrix(ViewPart):
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


class FlowsBody(ViewPart):
    """Flows: arcs on a map of where trips begin and end, and a matrix.

    Attributes:
        map: where trips begin, and where they end.
        flows: those that the page can show.
        listed: how many flows the release lists.
        matrix: of coarse cells; None for zones.
        reading: one sentence on the intervals.
    """

    kind: Literal["flows"] = "flows"
    map: MapBody
    flows: FlowTable
    listed: int
    matrix: FlowMatrix | None
    reading: str


class Night(ViewPart):
    """A dated release of a timeline; see `schemas.timeline.DatedRelease`.

    Attributes:
        rests_on: first and last days of the periods on whose answers its estimate is based; empty for only its own.
    """

    date: str
    release_id: str
    folder: str
    job: str
    epsilon: float
    delta: float
    users: float | None
    users_stddev: float | None = None
    warm_start: str | None
    map: str | None  # the script that holds the night's map, relative to the page
    safe: bool
    pruned: bool  # its files were removed, all but the manifest
    notes: list[str] = []  # sentences on the queried cohort and the nights its estimate is based on
    rests_on: list[tuple[str, str]] = []
    changes: list[PlaceChange] = []


class NightMap(ViewPart):
    """One night's map, in a script that the timeline's page loads when its date is selected.

    Attributes:
        format: of the file; a page shows only maps of its own format.
        layer: the published cells with one measure, `Users`; fine cells may be added up. Of zones, the layer and what a
            place without a zone means (`missing`) are those of the night's page.
        users: one per cell, empty for zones, as are the next two: estimated without shrinkage where the release has
            that, so that differences are unbiased.
        stddev: one per cell: standard deviation of the error of `users`.
        measured: one per cell: level of the node around it that the last sub-query measured. Above the cell's own an
            earlier sub-query measured it, whose noise decided where to look again: such a cell is biased.
        lower_bound: whether the method states only a lower bound of these deviations.
        noisy_sums: how many sums with a noise of their own were added up.
    """

    format: int
    date: str
    region: Bounds
    depth: int
    finest_metres: tuple[float, float]
    layer: Layer
    missing: str | None = None
    users: list[float]
    stddev: list[float]
    measured: list[int]
    lower_bound: bool
    noisy_sums: int


class TimelineBody(ViewPart):
    """Nightly releases: users by night, one night's map, the change between two nights."""

    kind: Literal["timeline"] = "timeline"
    map_format: int
    nights: list[Night]
