"""The page of a release of flows as a view, made of its published files only. Pure."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow.compute as pc
import shapely
from numpy.typing import NDArray

from sfumato.schemas.charts import readable
from sfumato.schemas.known_digits import Z_95, about, not_negative, with_interval
from sfumato.schemas.region import Grid, area_km2, ground_metres, interleave
from sfumato.schemas.release import FLOW_ZONES_FILE, FLOWS_CSV, FLOWS_FILE, FLOWS_PICTURE, MANIFEST_FILE
from sfumato.schemas.tree import node_positions, nodes_from_names
from sfumato.schemas.views import PageView
from sfumato.schemas.views.flow_views import FlowMatrix, FlowsBody, FlowTable
from sfumato.schemas.views.map_views import Layer, MapBody, Measure
from sfumato.schemas.views.view_parts import Fact, Section, Table
from sfumato.transforms.report.count_measures import simultaneous_deviations
from sfumato.transforms.report.layers import cell_layer, finest_metres, zone_layer, zone_names
from sfumato.transforms.report.numbers import length, plural
from sfumato.transforms.report.released import Files, Released
from sfumato.transforms.report.scales import density_scale
from sfumato.transforms.report.sections import facts, get, no_zone_here, radius_of, table_section, zone_noun

_FLOWS = 5_000  # the most that a page holds
_LISTED = 20  # in a table of the report
_FILES = {
    FLOWS_FILE: "one row for each flow and each rest: cells, trips with their intervals, unbiased counts, a line",
    FLOW_ZONES_FILE: "the zones: ids, a point in each, areas, polygons",
    FLOWS_CSV: "the same as text, without the lines",
    FLOWS_PICTURE: "the largest flows as a picture",
    MANIFEST_FILE: "the guarantee, every parameter, every version",
}
_READING = (
    "An interval contains the true number of trips about 95 times in 100, on average over flows, including the "
    "largest: it allows for how flows are selected."
)
_OPERATOR = "A trusted curator, the operator of this job, saw the logs and the exact counts and added noise once."
_LAYER = "Where trips begin and end", "Sums over the listed flows; trips of rarer pairs are missing."
_ENDS = (("Listed trips from here", "origin"), ("Listed trips to here", "destination"))
Array = NDArray[np.float64]
Places = NDArray[np.int64]


def flows_view(files: Files) -> PageView:
    """Returns the page of a release of `sfumato flows`. files: by name."""
    release = Released(files)
    manifest, results = release.manifest, release.manifest["results"]
    rows = ZoneFlows(release) if "zones" in manifest else CellFlows(release)
    wide, tall = ground_metres(release.region)
    trips = about(results["trips"], max(results["trips_stddev"], results["trips"] / 200))
    most = int(get(manifest, "parameters.max_trips", 1))
    counted = "one per user" if most == 1 else f"at most {most} per user"
    listed, ground = int(results["published"]), f"{length(wide)} × {length(tall)}"
    matrix = rows.matrix() if isinstance(rows, CellFlows) else None
    return release.page(
        FlowsBody(map=rows.map(), flows=rows.flows(), listed=listed, matrix=matrix, reading=_READING),
        [_how_to_read_it(rows), _largest(rows), *rows.made()],
        facts(("Area", ground), rows.size),
        _FILES,
        [FLOWS_PICTURE],
        title="Private flows",
        headline=f"{plural(listed, 'flow')} of about {trips} trips, {counted}"
        if listed
        else f"About {trips} trips, {counted}, no flow large enough to list",
        description=f"Origins and destinations of about {trips} trips, on {ground}, without exposing anyone.",
    )


class FlowPage:
    """The published rows as arrays. What the pages of cells and of zones have in common.

    Attributes:
        trips, stddev, low, high, noise_stddev: float64[rows].
        is_rest: bool[rows].
        listed: the rows that are no rests, largest first, as the table has them.
    """

    def __init__(self, release: Released):
        self.release, self.region, self.rows = release, release.region, release.table(FLOWS_FILE)
        self.rounds = get(release.manifest, "privacy.rounds")
        self.trips, self.stddev, self.low, self.high, self.noise_stddev = (
            np.asarray(self.rows[name], dtype=np.float64) for name in ("trips", "stddev", "low", "high", "noise_stddev")
        )
        self.is_rest = np.asarray(self.rows["is_rest"])
        self.listed = np.flatnonzero(~self.is_rest)

    def _columns(self) -> dict[str, Any]:
        """Returns the trips of the flows that a page holds."""
        at = self.listed[:_FLOWS]
        return {
            "trips": np.round(self.trips[at], 1).tolist(),
            "low": self.low[at].tolist(),
            "high": self.high[at].tolist(),
        }

    def _sums(self, places: Places, size: int) -> list[Array]:
        """Returns trips of the listed flows by place, and the ends of their intervals: float64[size] each.

        The ends are added up, too: flows are listed for what their noise added, so their errors do not cancel.
        """
        return [
            np.bincount(places[self.listed], one[self.listed], size).astype(np.float64)
            for one in (self.trips, self.low, self.high)
        ]

    def _measure(self, title: str, sums: list[Array], areas: Array, unit: str) -> Measure:
        value, low, high = sums
        return Measure(
            name=title,
            kind="count",
            unit="trips",
            value=np.round(value, 1).tolist(),
            low=np.round(low, 1).tolist(),
            high=np.round(high, 1).tolist(),
            uncertain=(low <= 0).tolist(),
            scale=density_scale(value / areas, low, unit),
        )

    def _map(self, layer: Layer, depth: int, missing: str, finest: tuple[float, float]) -> MapBody:
        return MapBody(region=self.release.bounds, depth=depth, layers=[layer], missing=missing, finest_metres=finest)


class CellFlows(FlowPage):
    """Flows between cells of an adaptive tree.

    FLOW: what a flow is and what the rests hold, in three parts, between them the threshold and the share of rests.
    """

    FROM = "From (centre of a cell)"
    FLOW = (
        "cells: trips that begin in the first and end in the second. Cells are smaller where there are more trips. A "
        "flow is listed if the probability that it has a trip is at least 50% (column “present”).",
        "pairs of large cells, without the listed flows within them.",
        "a pair of large cells, including its rest, add up to its unbiased noisy count; so do the cells of the matrix.",
    )

    def __init__(self, release: Released):
        super().__init__(release)
        self.grid = Grid(self.region, int(release.manifest["grid"]["depth"]))
        self.level, *origin = self._cells("origin_cell")
        self._ends = {"origin": origin, "destination": list(self._cells("destination_cell")[1:])}
        self._place_names = release.place_names
        self.size = "Finest cell", length(ground_metres(self.region)[0] / self.grid.side)

    def _cells(self, name: str) -> tuple[Places, Places, Places]:
        order, places = np.unique(np.array(self.rows[name].to_pylist(), dtype=object), return_inverse=True)
        level, x, y = node_positions(nodes_from_names(order.tolist(), self.grid.depth))
        return level[places], x[places], y[places]

    def _coarse(self, name: str, level: int) -> Places:
        """Returns the row-major number of the origin's or destination's cell of a coarser level, of every row."""
        x, y = (position >> (self.level - level) for position in self._ends[name])
        return np.asarray((y << level) + x)

    def map(self) -> MapBody:
        """Returns the matrix of the cells of the level at which the tree starts."""
        level = int(self.rounds[0]["level"])
        sums = [self._sums(self._coarse(end, level), 4**level) for _, end in _ENDS]
        kept = np.flatnonzero((sums[0][0] > 0) | (sums[1][0] > 0))
        y, x = kept >> level, kept & ((1 << level) - 1)
        areas = area_km2(*self.grid.bounds(x, y, np.full(len(kept), level)))
        measures = [
            self._measure(title, [column[kept] for column in columns], areas, f"{title.lower()} per km²")
            for (title, _), columns in zip(_ENDS, sums, strict=True)
        ]
        nodes = interleave(x.astype(np.uint32), y.astype(np.uint32)) | np.uint64(4**level)
        wide, tall = ground_metres(self.region)
        finest = (wide / self.grid.side, tall / self.grid.side)
        layer = cell_layer(*_LAYER, nodes, measures)
        return self._map(layer, self.grid.depth, "No listed flow begins or ends here", finest)

    def flows(self) -> FlowTable:
        at = self.listed[:_FLOWS]
        cells: dict[str, Any] = {
            f"{end}_{axis}": xy[i][at].tolist() for end, xy in self._ends.items() for i, axis in enumerate("xy")
        }
        return FlowTable(level=self.level[at].tolist(), **cells, **self._columns())

    def matrix(self) -> FlowMatrix:
        """Returns the sums of all rows within each pair, with the error of their noise."""
        level = int(self.level[self.is_rest][0])
        size = 4**level
        codes = self._coarse("origin", level) * size + self._coarse("destination", level)
        trips = np.bincount(codes, self.trips, size**2).reshape(size, size).astype(np.float64)
        # The rows' noise, also of listed ones: their estimates and the rest share it.
        margin = Z_95 * np.sqrt(np.bincount(codes, self.noise_stddev**2, size**2)).reshape(size, size)
        kept = np.arange(size)
        return FlowMatrix(
            level=level,
            x=(kept & ((1 << level) - 1)).tolist(),
            y=(kept >> level).tolist(),
            trips=np.round(trips, 1).tolist(),
            low=np.round(np.maximum(trips - margin, 0), 1).tolist(),
            high=np.round(np.maximum(trips + margin, 0), 1).tolist(),
        )

    def places(self, row: int) -> list[str]:
        """Returns the names of a row's two places."""
        found = []
        for end in ("origin", "destination"):
            x, y, level = (one[row : row + 1] for one in (*self._ends[end], self.level))
            west, south, east, north = (float(one[0]) for one in self.grid.bounds(x, y, level))
            size = min(north - south, east - west)
            found.append(self._place_names.of((south + north) / 2, (west + east) / 2, size))
        return found

    def made(self) -> list[Section]:
        """Describes how the counts were made."""
        first = self.rounds[0]["level"]
        paragraphs = [
            _OPERATOR,
            f"All pairs of the {plural(4**first, 'cell')} of level {first} were counted with noise, even those "
            "without trips. Pairs with many trips were split into 16 smaller pairs, which were counted instead.",
        ]
        heads = ["Level", "Pairs", "Split", "Listed", "Standard deviation of the noise"]
        texts = []
        for one in self.rounds:
            counts = (f"{one[name]:,}" for name in ("pairs", "split", "published"))
            texts.append([str(one["level"]), *counts, f"{one['noise_stddev']:.3g}"])
        table = table_section("Level by level", heads, texts).table
        return [Section(title="How it was made", paragraphs=paragraphs, table=table)]


class ZoneFlows(FlowPage):
    """Flows between public zones."""

    FROM = "From"
    FLOW = (
        "places: trips that begin in the first and end in the second. A flow is listed if the probability that it has "
        "a trip is at least 50% (column `present`).",
        "one row for each place of origin.",
        "an origin, including its rest, add up to its unbiased noisy count.",
    )

    def __init__(self, release: Released):
        super().__init__(release)
        self.noun = zone_noun(release.manifest)
        self.zones = release.table(FLOW_ZONES_FILE)
        self.names = [readable(one) for one in zone_names(self.zones)]
        self.size = f"{self.noun.capitalize()}s", f"{len(self.names):,}"
        self.origin, self.destination = (
            np.asarray(
                pc.fill_null(pc.index_in(self.rows[name], self.zones["zone"].combine_chunks()), -1), dtype=np.int64
            )
            for name in ("origin_zone", "destination_zone")
        )

    def map(self) -> MapBody:
        areas = np.asarray(self.zones["area"], dtype=np.float64)
        shapes = shapely.from_wkb(self.zones["geometry"].to_numpy(zero_copy_only=False))
        unit, sizes = "trips per km²", areas
        radius = radius_of(self.release.manifest)
        if radius is not None:  # areas around points are cut where they overlap
            unit, sizes = "trips", np.ones(len(areas))
        measures = [
            self._measure(title, self._sums(getattr(self, end), len(areas)), sizes, unit) for title, end in _ENDS
        ]
        layer = zone_layer(*_LAYER, self.zones, shapes, areas, self.region, measures, True, self.noun, radius)
        return self._map(layer, 0, f"{no_zone_here(self.release.manifest)}.", finest_metres(areas, self.region))

    def flows(self) -> FlowTable:
        at = self.listed[:_FLOWS]
        zeros = [0] * len(at)
        points = zip(self.zones["longitude"].to_pylist(), self.zones["latitude"].to_pylist(), strict=True)
        return FlowTable(
            level=zeros,
            origin_x=self.origin[at].tolist(),
            origin_y=zeros,
            destination_x=self.destination[at].tolist(),
            destination_y=zeros,
            centres=list(points),
            **self._columns(),
        )

    def places(self, row: int) -> list[str]:
        return [self.names[self.origin[row]], self.names[self.destination[row]]]

    def made(self) -> list[Section]:
        """Describes how the counts were made."""
        paragraphs = [
            _OPERATOR,
            f"All {self.rounds[0]['pairs']:,} pairs of {plural(len(self.names), self.noun)} were counted with noise, "
            f"even those without trips. The noise of a pair has a standard deviation of "
            f"{self.rounds[0]['noise_stddev']:.3g} trips. The list of {self.noun}s is public, so it reveals nothing "
            "about anyone.",
        ]
        return [self._origins(), Section(title="How it was made", paragraphs=paragraphs)]

    def _origins(self) -> Section:
        """Returns all trips from each zone: unbiased noisy counts, of all rows of an origin."""
        size = len(self.names)
        trips = np.bincount(self.origin, self.trips, size)
        margins = np.sqrt(np.bincount(self.origin, self.noise_stddev**2, size))
        margins *= simultaneous_deviations(size, size)  # an origin's trips have the noise of all its pairs
        texts = []
        for zone in np.argsort(-trips, kind="stable")[:_LISTED].tolist():
            all_trips = not_negative(trips[zone], trips[zone] - margins[zone], trips[zone] + margins[zone])
            value, low, high = with_interval(*all_trips)
            texts.append([self.names[zone], value, f"{low} to {high}"])
        heads = ["From", "All trips", f"95% interval, for all {self.noun}s at once"]
        table = Table(title="Where most trips begin", heads=heads, rows=texts, numeric=[False, True, False])
        return Section(title="Where most trips begin", table=table)


def _how_to_read_it(page: CellFlows | ZoneFlows) -> Section:
    total = max(float(page.trips.sum()), 1.0)
    rest = max(float(page.trips[page.is_rest].sum()), 0.0) / total  # noise can lead below 0
    flow, rests, sums = page.FLOW
    paragraphs = [
        f"A flow is a pair of {flow}",
        f"All other trips, about {rest:.0%}, are summed in rows marked as rests: {rests} So all rows together "
        "count every trip once.",
        f"{_READING} The trips of a flow are shrunk: the part that noise explains is removed. All rows of {sums}",
    ]
    bound = Fact(term="What counts", text=get(page.release.manifest, "privacy.contribution_bound", ""))
    return Section(title="How to read it", paragraphs=paragraphs, facts=[bound])


def _largest(page: CellFlows | ZoneFlows) -> Section:
    """Returns the largest flows as a table, for readers without a script."""
    texts = []
    for row in page.listed[:_LISTED].tolist():
        trips, low, high = with_interval(page.trips[row], page.low[row], page.high[row])
        texts.append([*page.places(row), trips, f"{low} to {high}"])
    heads = [page.FROM, "To", "Trips", "95% interval"]
    table = Table(title="The largest flows", heads=heads, rows=texts, numeric=[False, False, True, False])
    return Section(title="The largest flows", table=table if texts else None)
