"""What a page and its pictures show: typed views, made of published artefacts only.

A room (`heatmap`, `histogram`, ...) makes a `PageView` from a release's published files. `transforms/report`, which
imports nothing but schemas, renders it. The page's script reads the same JSON; `web/src/views.ts` has its types.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Literal

import numpy as np
from pydantic import BaseModel, ConfigDict, Field, model_validator

from sfumato.schemas.tile_server import Tiles
from sfumato.schemas.timeline import PlaceChange, Spending

Numbers = list[float | None]  # None where a value is not known


class _Model(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False, defer_build=True)


class Fact(_Model):
    """A term and its text."""

    term: str
    text: str


class FileLink(_Model):
    """A file that lies next to the page."""

    name: str
    description: str


class Table(_Model):
    """A table of texts. `numeric` marks the columns that hold numbers; a reader can sort by each column.

    `links` holds the relative address that each row's first text leads to; it is empty where they lead nowhere.
    """

    title: str
    heads: list[str]
    rows: list[list[str]]
    numeric: list[bool]
    links: list[str] = []

    @model_validator(mode="after")
    def _check(self) -> Table:
        if len(self.numeric) != len(self.heads) or any(len(row) != len(self.heads) for row in self.rows):
            raise ValueError(f"rows: each must have {len(self.heads)} texts, like `heads`")
        if self.links and len(self.links) != len(self.rows):
            raise ValueError(f"links: must hold one for each of {len(self.rows)} rows, got {len(self.links)}")
        return self


class Section(_Model):
    """A part of the report under the first screen. It is plain HTML and needs no script."""

    title: str
    lead: str | None = None
    paragraphs: list[str] = []
    facts: list[Fact] = []
    table: Table | None = None
    folded: bool = False  # shown only when the reader opens it


class Bounds(_Model):
    """A region in degrees."""

    west: float
    south: float
    east: float
    north: float


class Scale(_Model):
    """A scale of colours.

    Attributes:
        kind: `log`: colour position log(1 + value / knee) / log(1 + high / knee), from 0 to `high`; `linear`: from
            `low` to `high`; `diverging`: linear, with the middle colour at 0 and low = -high.
        low, high: the values of the first and last colour.
        knee: of the log scale, in the value's unit; None for the others.
        unit: of the values, such as `users per km²`.
        ticks: (value, text) pairs for the legend, ascending. A text starts with ≥ or ≤ where values lie beyond.
    """

    kind: Literal["log", "linear", "diverging"]
    low: float
    high: float
    knee: float | None = None
    unit: str
    ticks: list[tuple[float, str]]


class Measure(_Model):
    """One number per cell with its 95% interval.

    Attributes:
        name: for the control that selects it, such as `Users` or `Rate of infected`.
        kind: `count`: users of a cell, coloured by users per km²; `rate`: shares in 0..1; `value`: in `unit`;
            `change`: a difference of two counts or rates.
        unit: of the values; empty for shares.
        value, low, high: one per cell; the estimate and the ends of its interval.
        uncertain: one per cell: drawn hatched, because the interval leaves the colour open.
        scale: of the colours.
        listed: cells for the list of the highest (rows of the layer), in the order of what is certainly high, with an
            interval that holds for all cells at once where the method has one; [row, value, low, high].
        listed_note: one sentence on how the list was chosen.
    """

    name: str
    kind: Literal["count", "rate", "value", "change"]
    unit: str
    value: Numbers
    low: Numbers
    high: Numbers
    uncertain: list[bool]
    scale: Scale
    listed: list[tuple[int, float, float, float]] = []
    listed_note: str = ""


Path = list[tuple[float, float]]  # points [longitude, latitude]; a ring's last is its first


class Layer(_Model):
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

    @model_validator(mode="after")
    def _check(self) -> Layer:
        n = len(self.level)
        columns: dict[str, Sequence[object]] = {"x": self.x, "y": self.y, "area": self.area, "cell_id": self.cell_id}
        if self.shapes is not None:
            columns["shapes"] = self.shapes
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


class TimeSlots(_Model):
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


class MapBody(_Model):
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


class Bar(_Model):
    """A ranked item, group or prefix. `parent` is the row of the prefix that it extends, -1 for none."""

    name: str
    value: float
    low: float
    high: float
    share: float | None = None  # of all users
    parent: int = -1
    level: int = 0
    cut: bool = False  # the name is the beginning of longer ones
    users: float | None = None  # who answered for a group


class BarsBody(_Model):
    """Ranked items, groups or prefixes."""

    kind: Literal["bars"] = "bars"
    unit: str
    noun: str  # what a row is: item, prefix, group
    explanation: str  # one sentence: what the number counts
    bars: list[Bar]
    reference: float | None = None  # the value of all users, drawn as a line


class QuantileRow(_Model):
    """A quantile: `share` of the users lie below `value`, which lies in low..high at 95%."""

    share: float
    value: float
    low: float
    high: float


class RangeRow(_Model):
    """Users with a value from `low` to below `high`, with their 95% interval."""

    low: float
    high: float
    users: float
    users_low: float
    users_high: float


class CurveBody(_Model):
    """A distribution function with its 95% band, quantiles and ranges of values.

    Attributes:
        value, share, low, high: points of the function, ascending, and its band.
        points: the only values at which the function was queried, drawn as dots; empty where it is known everywhere.
        histogram: published counts of intervals of equal width, ascending. An absent interval has too few users.
        hidden: the largest number of users that an absent interval can have; None where there is no histogram.
        note: one sentence on the accuracy.
    """

    kind: Literal["curve"] = "curve"
    column: str
    value: list[float]
    share: list[float]
    low: list[float]
    high: list[float]
    quantiles: list[QuantileRow]
    ranges: list[RangeRow]
    points: list[float] = []
    histogram: list[RangeRow] = []
    hidden: float | None = None
    note: str = ""


class StatisticRow(_Model):
    """A statistic of all users with its 95% interval, written with the digits that are known."""

    name: str
    value: float
    low: float
    high: float
    text: str
    range: str


class BitRow(_Model):
    """A bit: its place value, share of users with it set, interval, and whether it was dropped.

    Attributes:
        quantity: the column or function of columns that the bits encode.
        share, low, high: noise may move them outside 0..1; None where nothing is known.
        dropped: probably empty.
    """

    quantity: str
    place: str
    share: float | None
    low: float | None
    high: float | None
    reports: float
    dropped: bool


class BitTexts(_Model):
    """Texts of the chart of bits: for bits of values, or for answers on thresholds.

    Attributes:
        title, about: above the chart; about is a sentence or two.
        share: what a bar's height is.
        place: what its place is, before the name of the quantity.
    """

    title: str = "Bits behind the estimate"
    about: str = "A value is the sum of the place values of its set bits. Each user sent only one or a few bits."
    share: str = "Share of users whose bit is set"
    place: str = "what a set bit adds to"


class MomentsBody(_Model):
    """Statistics of all users, of groups or cells, and the bits that they were computed from.

    Attributes:
        limits: the least and the greatest value that counts.
        deviation: of the values, the square root of their variance; None where no variance was estimated.
        reading: what the interval of the statistic of all users allows for, in a sentence or two.
        bits: empty where a trusted curator added up the values.
    """

    kind: Literal["moments"] = "moments"
    column: str
    limits: tuple[float, float]
    deviation: float | None = None
    statistics: list[StatisticRow]
    reading: str = ""
    groups: list[BarsBody]  # one for each statistic; empty without groups
    map: MapBody | None = None
    bits: list[BitRow]
    bit_texts: BitTexts = BitTexts()


class RangesBody(_Model):
    """A model of range queries: its own arrays, so that the page answers any square.

    Attributes:
        sizes_metres: the side lengths the model was made for, least and largest.
        start: x, y of the centre in degrees and side in metres of the square that is shown first.
        model: arrays and numbers of the model in JSON, by the model's kind.
        background: a coarse map of the model's own answers.
    """

    kind: Literal["ranges"] = "ranges"
    region: Bounds
    sizes_metres: tuple[float, float]
    start: tuple[float, float, float]
    model: dict[str, Any]
    background: MapBody


class FlowTable(_Model):
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


class FlowMatrix(_Model):
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


class FlowsBody(_Model):
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


class Night(_Model):
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


class NightMap(_Model):
    """One night's map, in a script that the timeline's page loads when its date is selected.

    Attributes:
        format: of the file; a page shows only maps of its own format.
        layer: the published cells with one measure, `Users`; fine cells may be added up.
        users: one per cell: estimated without shrinkage where the release has that, so that differences are unbiased.
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
    users: list[float]
    stddev: list[float]
    measured: list[int]
    lower_bound: bool
    noisy_sums: int


class TimelineBody(_Model):
    """Nightly releases: spending, one night's map, the change between two nights."""

    kind: Literal["timeline"] = "timeline"
    map_format: int
    nights: list[Night]
    spending: list[Spending]


Body = Annotated[
    MapBody | BarsBody | CurveBody | MomentsBody | RangesBody | FlowsBody | TimelineBody, Field(discriminator="kind")
]


class Place(_Model):
    """A name on the basemap. `rank` 0 is the most important."""

    name: str
    longitude: float
    latitude: float
    rank: int = 0


class Zone(_Model):
    """A named area of the basemap: its rings, those of its holes among them (even-odd)."""

    name: str
    rings: list[Path]


class Basemap(_Model):
    """Geography under and over the cells, clipped to the region and simplified.

    Attributes:
        source: what to name as its source.
        water, land: areas under the cells; each is its outer ring and then its holes. Shores are drawn over the cells.
        lines: streets, borders and other lines, over the cells.
        zones: named polygons, drawn as outlines over the cells.
        places: names.
    """

    source: str
    water: list[list[Path]] = []
    land: list[list[Path]] = []
    lines: list[Path] = []
    zones: list[Zone] = []
    places: list[Place] = []


class Geography(_Model):
    """Content of `basemap.json`: the geography of a release's maps."""

    basemap: Basemap | None = None
    tiles: Tiles | None = None

    @classmethod
    def of(cls, files: Mapping[str, bytes]) -> Geography:
        """Returns the geography among a release's files; an empty one without such a file. Raises ValueError."""
        content = files.get("basemap.json")
        return cls() if content is None else cls.model_validate_json(content)


class PageView(_Model):
    """A whole page.

    Attributes:
        title: what the page is, such as `Private heatmap`.
        headline: the first line of the first screen.
        description: one sentence for search engines and link previews.
        job: the command that made the release.
        chips: two to four facts next to the title.
        guarantee: two sentences.
        alarm: a warning if the release used a known seed; None for a secret key.
        problems: gaps and warnings of the manifest.
        picture: file name of the preview picture; None without one.
        timeline: relative link to the timeline that contains the release; None if unknown.
        sections: the report.
        manifest: the published manifest, without the list of files.
        tiles: URL pattern of a tile server that the operator named; None without.
    """

    title: str
    headline: str
    description: str
    job: str
    release_id: str
    created: str
    chips: list[Fact] = []
    guarantee: str
    alarm: str | None = None
    problems: list[str] = []
    files: list[FileLink] = []
    picture: str | None = None
    timeline: str | None = None
    sections: list[Section] = []
    manifest: dict[str, Any]
    basemap: Basemap | None = None
    tiles: Tiles | None = None
    body: Body
