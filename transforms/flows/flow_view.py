"""The page of a release of flows as a view, made of its published files alone. Pure."""

from __future__ import annotations

import io
import json
from collections.abc import Mapping
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray

from sfumato.schemas.flow_tables import FlowMatrix, FlowTable
from sfumato.schemas.known_digits import about, with_interval
from sfumato.schemas.region import Grid, Region, area_km2, ground_metres
from sfumato.schemas.release import FLOW_ZONES_FILE, FLOWS_CSV, FLOWS_FILE, FLOWS_PICTURE, MANIFEST_FILE
from sfumato.schemas.tree import node_names, node_positions, nodes_from_names
from sfumato.schemas.views import (
    Bounds,
    Fact,
    FileLink,
    FlowsBody,
    Geography,
    Layer,
    MapBody,
    PageView,
    Section,
    Table,
)
from sfumato.transforms.flows.zone_flow_view import ZoneRows, trips_measure
from sfumato.transforms.report.numbers import coordinates, length, plural
from sfumato.transforms.report.scales import density_scale
from sfumato.transforms.report.sections import Manifest, alarm, chips, facts, get, guarantee, problems

_FLOWS = 5_000  # the most that a page holds
_LISTED = 20  # in the report's table
_Z = 1.959964
_FILES = {
    FLOWS_FILE: "one row for each flow and each rest: cells, trips with their intervals, unbiased counts, a line",
    FLOW_ZONES_FILE: "the zones: ids, a point in each, areas, polygons",
    FLOWS_CSV: "the same as text, without the lines",
    FLOWS_PICTURE: "the largest flows as a picture",
    MANIFEST_FILE: "the guarantee, every parameter, every version",
}
_READING = (
    "An interval holds the true number of trips about 95 times in 100, on average over flows, also over the largest: "
    "it allows for how flows are chosen."
)
Array = NDArray[np.float64]


class _Table:
    """The published rows as arrays."""

    def __init__(self, table: pa.Table, depth: int):
        def cells(name: str) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int64]]:
            names = table[name].to_pylist()
            order, places = np.unique(np.array(names, dtype=object), return_inverse=True)
            nodes = nodes_from_names(order.tolist(), depth)
            level, x, y = node_positions(nodes)
            return level[places], x[places], y[places]

        self.level, self.origin_x, self.origin_y = cells("origin_cell")
        _, self.destination_x, self.destination_y = cells("destination_cell")
        self.trips, self.stddev, self.low, self.high, self.noise_stddev = (
            np.asarray(table[name], dtype=np.float64) for name in ("trips", "stddev", "low", "high", "noise_stddev")
        )
        self.is_rest = np.asarray(table["is_rest"])
        self.names = [table[name].to_pylist() for name in ("origin_cell", "destination_cell")]

    def coarse(self, name: str, level: int, rows: NDArray[np.int64]) -> NDArray[np.int64]:
        """The row-major number of the origin's or destination's cell of a coarser level."""
        up = self.level[rows] - level
        x, y = (getattr(self, f"{name}_{axis}")[rows] >> up for axis in "xy")
        return np.asarray((y << level) + x)


def flows_view(files: Mapping[str, bytes]) -> PageView:
    """The page of a release of `sfumato flows`.

    Args:
        files: the release's files by name. Those that the page is not made of may be missing.
    """
    manifest = {name: entry for name, entry in json.loads(files[MANIFEST_FILE]).items() if name != "files"}
    geography, region = Geography.of(files), Region(**manifest["region"])
    table, zones = pq.read_table(io.BytesIO(files[FLOWS_FILE])), None
    if "zones" in manifest:
        zones = ZoneRows(table, pq.read_table(io.BytesIO(files[FLOW_ZONES_FILE])))
    results = manifest["results"]
    wide, tall = ground_metres(region)
    trips = about(results["trips"], max(results["trips_stddev"], results["trips"] / 200))
    listed = int(results["published"])
    headline = f"{plural(listed, 'flow')} of about {trips} trips" if listed else f"About {trips} trips, no single flow"
    matrix: FlowMatrix | None
    if zones is None:
        grid = Grid(region, int(manifest["grid"]["depth"]))
        rows = _Table(table, grid.depth)
        shown, flows, matrix = _map(rows, grid, manifest), _flows(rows), _matrix(rows)
        size = Fact(term="Finest cell", text=length(wide / grid.side))
        sections = [_how_to_read(rows, manifest), _largest(rows, grid), _how_it_was_made(manifest)]
    else:
        shown, flows, matrix = zones.map(region), zones.flows(_FLOWS), None
        size = Fact(term="Zones", text=f"{len(zones.names):,}")
        sections = zones.sections(manifest, _READING)
    body = FlowsBody(map=shown, flows=flows, listed=listed, matrix=matrix, reading=_READING)
    ground = f"{length(wide)} × {length(tall)}"
    return PageView(
        title="Private flows",
        headline=headline,
        description=f"How about {trips} trips lead from place to place, on {ground}, without exposing anyone.",
        job="flows",
        release_id=manifest["release_id"],
        created=manifest["created"],
        chips=chips(manifest, *facts(("Area", ground)), size),
        guarantee=guarantee(manifest),
        alarm=alarm(manifest),
        problems=problems(manifest),
        files=[
            FileLink(name=name, description=text) for name, text in _FILES.items() if name in {*files, FLOWS_PICTURE}
        ],
        picture=FLOWS_PICTURE,
        sections=sections,
        timeline=get(manifest, "timeline"),
        manifest=manifest,
        basemap=geography.basemap,
        tiles=geography.tiles,
        body=body,
    )


def _shown(rows: _Table) -> NDArray[np.int64]:
    """The listed flows, largest first, as the table has them."""
    return np.flatnonzero(~rows.is_rest)


def _flows(rows: _Table) -> FlowTable:
    at = _shown(rows)[:_FLOWS]
    places = ("level", "origin_x", "origin_y", "destination_x", "destination_y")
    return FlowTable(
        **{name: getattr(rows, name)[at].tolist() for name in places},
        trips=np.round(rows.trips[at], 1).tolist(),
        low=rows.low[at].tolist(),
        high=rows.high[at].tolist(),
    )


def _map(rows: _Table, grid: Grid, manifest: Manifest) -> MapBody:
    """Where the trips of the listed flows begin and end, by the cells of the level at which the tree starts."""
    level = int(get(manifest, "privacy.rounds")[0]["level"])
    at = np.flatnonzero(~rows.is_rest)
    size = 4**level
    measures, present = [], np.zeros(size, dtype=bool)
    sums: list[tuple[str, Array, Array, Array]] = []
    for title, end in (("Listed trips from here", "origin"), ("Listed trips to here", "destination")):
        cells = rows.coarse(end, level, at)
        total = np.bincount(cells, rows.trips[at], size).astype(np.float64)
        # The ends are added up, too: flows are listed for what their noise added, so their errors do not cancel.
        low, high = (np.bincount(cells, ends[at], size).astype(np.float64) for ends in (rows.low, rows.high))
        present |= total > 0
        sums.append((title, total, low, high))
    kept = np.flatnonzero(present)
    y, x = kept >> level, kept & ((1 << level) - 1)
    areas = area_km2(*grid.bounds(x, y, np.full(len(kept), level)))
    for title, *columns in sums:
        value, low, high = (column[kept] for column in columns)
        scale = density_scale(value / areas, low, f"{title.lower()} per km²")
        measures.append(trips_measure(title, value, low, high, scale))
    nodes = np.array([_node(a, b, level) for a, b in zip(x.tolist(), y.tolist(), strict=True)], dtype=np.uint64)
    wide, tall = ground_metres(grid.region)
    layer = Layer(
        title="Where trips begin and end",
        note="Sums over the flows that are listed; trips of rarer pairs are missing.",
        level=[level] * len(kept),
        x=x.tolist(),
        y=y.tolist(),
        area=[1.0] * len(kept),
        cell_id=node_names(nodes),
        measures=measures,
    )
    return MapBody(
        region=Bounds(west=grid.region.west, south=grid.region.south, east=grid.region.east, north=grid.region.north),
        depth=grid.depth,
        layers=[layer],
        missing="No listed flow begins or ends here",
        finest_metres=(wide / grid.side, tall / grid.side),
    )


def _node(x: int, y: int, level: int) -> int:
    node = 1
    for bit in reversed(range(level)):
        node = node << 2 | (x >> bit & 1) << 1 | (y >> bit & 1)
    return node


def _matrix(rows: _Table) -> FlowMatrix:
    """The noisy counts between large cells: what all rows within each pair add up to, with the noise's own error."""
    level = int(rows.level[rows.is_rest][0])
    at, size = np.arange(len(rows.level)), 4**level
    codes = rows.coarse("origin", level, at) * size + rows.coarse("destination", level, at)
    trips = np.bincount(codes, rows.trips, size**2).reshape(size, size).astype(np.float64)
    # The rows' noise, also of listed ones: their estimates and the rest share it.
    margin = _Z * np.sqrt(np.bincount(codes, rows.noise_stddev**2, size**2)).reshape(size, size)
    kept = np.arange(size)

    def part(values: Array) -> list[list[float]]:
        return [[float(one) for one in row] for row in np.round(values, 1)]

    return FlowMatrix(
        level=level,
        x=(kept & ((1 << level) - 1)).tolist(),
        y=(kept >> level).tolist(),
        trips=part(trips),
        low=part(np.maximum(trips - margin, 0)),
        high=part(np.maximum(trips + margin, 0)),
    )


def _how_to_read(rows: _Table, manifest: Manifest) -> Section:
    rest = float(rows.trips[rows.is_rest].sum())
    total = max(float(rows.trips.sum()), 1.0)
    paragraphs = [
        "A flow is a pair of cells: trips that begin in the one and end in the other. Cells are smaller where there "
        "are more trips. A flow is listed if it has a trip with a probability of 50% at least; the column "
        "“present” has the probability.",
        f"All other trips, about {rest / total:.0%}, are added up in rows that are marked as rests: pairs of large "
        "cells, without the flows within them that are listed. So all rows together hold every trip once.",
        _READING + " The trips of a flow are shrunk: what noise alone explains is taken away. All rows of a pair of "
        "large cells, its rest among them, add up to its unbiased noisy count; so do the cells of the matrix.",
    ]
    bound = get(manifest, "privacy.contribution_bound", "")
    return Section(title="How to read it", paragraphs=paragraphs, facts=[Fact(term="What counts", text=bound)])


def _largest(rows: _Table, grid: Grid) -> Section:
    """The largest flows as a table, for readers without a script."""
    at = _shown(rows)[:_LISTED]
    texts = []
    for row in at.tolist():
        ends = [
            _place(getattr(rows, f"{end}_x")[row], getattr(rows, f"{end}_y")[row], rows.level[row], grid)
            for end in ("origin", "destination")
        ]
        trips, low, high = with_interval(rows.trips[row], rows.low[row], rows.high[row])
        texts.append([*ends, trips, f"{low} to {high}"])
    heads = ["From (centre of a cell)", "To", "Trips", "95% interval"]
    table = Table(title="The largest flows", heads=heads, rows=texts, numeric=[False, False, True, False])
    return Section(title="The largest flows", table=table if texts else None)


def _place(x: int, y: int, level: int, grid: Grid) -> str:
    west, south, east, north = (
        float(one[0]) for one in grid.bounds(*(np.array([one], dtype=np.int64) for one in (x, y, level)))
    )
    return coordinates((south + north) / 2, (west + east) / 2, min(north - south, east - west))


def _how_it_was_made(manifest: Manifest) -> Section:
    rounds: list[dict[str, Any]] = get(manifest, "privacy.rounds", [])
    paragraphs = [
        "The operator of the job was trusted: it saw the logs and the exact counts, and added noise to them once.",
        f"All pairs of the {plural(4 ** rounds[0]['level'], 'cell')} of level {rounds[0]['level']} were counted with "
        "noise, also where nobody travelled. Pairs with many trips were split into 16 smaller ones, which were counted "
        "in their place.",
    ]
    heads = ["Level", "Pairs", "Split", "Listed", "Standard deviation of the noise"]
    texts = [
        [
            str(one["level"]),
            f"{one['pairs']:,}",
            f"{one['split']:,}",
            f"{one['published']:,}",
            f"{one['noise_stddev']:.3g}",
        ]
        for one in rounds
    ]
    table = Table(title="Level by level", heads=heads, rows=texts, numeric=[True] * len(heads))
    return Section(title="How it was made", paragraphs=paragraphs, table=table)
