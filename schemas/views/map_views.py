"""The map of a page: its layers and measures, slots of time, and the geography under it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated, Literal

import numpy as np
from pydantic import Field, model_validator

from sfumato.schemas.views.view_parts import Bounds, Numbers, Path, Scale, Tiles, ViewPart


class Measure(ViewPart):
    """One number per cell with its 95% interval.

    Attributes:
        name: for the control that selects it, such as `Users` or `Rate of infected`.
        kind: `count`: users of a cell, coloured by users per km², or by users where that is the scale's unit; `rate`:
            shares in 0..1; `value`: in `unit`; `change`: a difference of two counts or rates.
        unit: of the values; empty for shares.
        value, low, high: one per cell; the estimate and the ends of its interval.
        uncertain: one per cell. A count that noise could explain: its cell has no colour, of a count or of a rate. Of
            other kinds an interval that leaves the colour open: drawn hatched.
        smooth: whether uncertain counts follow their surroundings. Then all cells have the colour of their count.
        scale: of the colours.
        listed: cells for the list of the highest (rows of the layer), in the order of what is certainly high, with an
            interval that holds for all cells at once where the method has one; [row, value, low, high].
        listed_note: how the list was chosen.
    """

    name: str
    kind: Literal["count", "rate", "value", "change"]
    unit: str
    value: Numbers
    low: Numbers
    high: Numbers
    uncertain: list[bool]
    smooth: bool = False
    scale: Scale
    listed: list[tuple[int, float, float, float]] = []
    listed_note: str = ""


class Layer(ViewPart):
    """Cells of a quadtree, painted in the order of their levels, or named polygons.

    Attributes:
        title: for the control that selects the layer, such as `Published map` or `Level 5`.
        note: one sentence on it.
        level, x, y: position of each cell: column x from the west, row y from the north, of 2^level a side. Levels
            ascend. A cell's number is about what its descendants in the layer leave over.
        area: the finest cells that it owns, as a share of its own area in 0..1.
        cell_id: names such as r213.
        shapes: the rings of each polygon, those of its holes among them (even-odd); None for cells of the quadtree. A
            polygon's level, x and y are 0, so that `area` is its share of the region.
        zones: each polygon's id and name in the release's table; None for cells of the quadtree.
        named: whether cell_id holds names for people, to be written on the map.
        noun: what readers call a cell or a polygon, such as zone or stop.
        radius: how far polygons reach from the points that they were made around, in metres; None for others.
    """

    title: str
    note: str
    level: list[int]
    x: list[int]
    y: list[int]
    area: list[float]
    cell_id: list[str]
    measures: Annotated[list[Measure], Field(min_length=1)]
    shapes: list[list[Path]] | None = None
    zones: list[tuple[str, str | None]] | None = None
    named: bool = False
    noun: str = "cell"
    radius: float | None = None

    @model_validator(mode="after")
    def _check(self) -> Layer:
        n = len(self.level)
        columns: dict[str, Sequence[object]] = {"x": self.x, "y": self.y, "area": self.area, "cell_id": self.cell_id}
        for name, given in ("shapes", self.shapes), ("zones", self.zones):
            if given is not None:
                columns[name] = given
        for measure in self.measures:
            columns |= {f"{measure.name}.{name}": getattr(measure, name) for name in ("value", "low", "high")}
            columns[f"{measure.name}.uncertain"] = measure.uncertain
        for name, column in columns.items():
            if len(column) != n:
                raise ValueError(f"{name}: must hold one entry for each of {n} cells, got {len(column)}")
        if ((level := np.asarray(self.level))[:-1] > level[1:]).any():
            raise ValueError("level: must ascend, because cells are painted in that order")
        if any(((np.asarray(xs) < 0) | (np.asarray(xs) >= 2.0**level)).any() for xs in (self.x, self.y)):
            raise ValueError("x, y: must be between 0 and 2^level - 1")
        return self


class TimeSlots(ViewPart):
    """Maps of every slot of time, next to the map of all slots.

    Attributes:
        title: of the control, such as `By hour`.
        note: one sentence on what a slot's map counts, with the time zone.
        names: of the slots, such as `08-09 h`.
        ticks: of an axis of slots: the slot, or the number of slots for the end, and its text.
        layer: its cells, with one measure for each slot.
        region: users of the whole region in each slot: the estimate and the ends of its 95% interval.
    """

    title: str
    note: str
    names: list[str]
    ticks: list[tuple[int, str]]
    layer: Layer
    region: list[tuple[float, float, float]]

    @model_validator(mode="after")
    def _check(self) -> TimeSlots:
        if not len(self.names) == len(self.layer.measures) == len(self.region):
            raise ValueError("names, region: must hold one entry for each measure of the layer")
        return self


class MapBody(ViewPart):
    """A map of cells: heatmap, rates, counted cells, hot spots, means by cell, changes.

    Attributes:
        slots: maps of every slot of time; None without slots.
        layers: coarse to fine or first to last; the last is shown first.
        missing: what a place without a cell means, in one sentence; None where cells cover the region.
        finest_metres: width and height of the finest cell.
        start: what is shown first; None for the whole region.
    """

    kind: Literal["map"] = "map"
    region: Bounds
    depth: int
    layers: Annotated[list[Layer], Field(min_length=1)]
    missing: str | None = None
    finest_metres: tuple[float, float]
    start: Bounds | None = None
    slots: TimeSlots | None = None


class Place(ViewPart):
    """A name on the basemap. `rank` 0 is the most important."""

    name: str
    longitude: float
    latitude: float
    rank: int = 0


class Zone(ViewPart):
    """A named area of the basemap: its rings, those of its holes among them (even-odd)."""

    name: str
    rings: list[Path]


class Basemap(ViewPart):
    """Geography under and over the cells, clipped to the region and simplified.

    Attributes:
        source: what to name as its source; empty if the file states none.
        water, land: areas under the cells; each is its outer ring and then its holes. Shores are drawn over the cells.
        lines: streets, borders and other lines, over the cells.
        zones: named polygons, drawn as outlines over the cells.
        places: names.
        bounds: what it covers, where land and water may end earlier, as at an open sea; None if this is not known.
    """

    source: str
    water: list[list[Path]] = []
    land: list[list[Path]] = []
    lines: list[Path] = []
    zones: list[Zone] = []
    places: list[Place] = []
    bounds: Bounds | None = None


class Geography(ViewPart):
    """Content of `basemap.json`: the geography of a release's maps. `place`: the name of the region."""

    basemap: Basemap | None = None
    tiles: Tiles | None = None
    place: str | None = None

    @classmethod
    def of(cls, files: Mapping[str, bytes]) -> Geography:
        """Returns the geography among a release's files; an empty one without such a file. Raises ValueError."""
        content = files.get("basemap.json")
        return cls() if content is None else cls.model_validate_json(content)
