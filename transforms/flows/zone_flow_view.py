"""The parts of a page of flows that differ for pairs of zones: map, table of flows, report. Pure."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import shapely
from numpy.typing import NDArray

from sfumato.schemas.charts import readable
from sfumato.schemas.flow_tables import FlowTable
from sfumato.schemas.known_digits import not_negative, with_interval
from sfumato.schemas.region import Region, area_km2, ground_metres
from sfumato.schemas.views import Bounds, Fact, Layer, MapBody, Measure, Scale, Section, Table
from sfumato.transforms.heatmap.count_measures import simultaneous_deviations
from sfumato.transforms.report.numbers import plural
from sfumato.transforms.report.scales import density_scale
from sfumato.transforms.report.sections import Manifest, get
from sfumato.transforms.zones.zones_view import simple_paths

_LISTED = 20  # in a table of the report


class ZoneRows:
    """The published rows and zones as arrays."""

    def __init__(self, table: pa.Table, zones: pa.Table):
        self.zones, self.names = zones, [readable(one) for one in zones["zone"].to_pylist()]
        self.origin, self.destination = (
            np.asarray(pc.fill_null(pc.index_in(table[name], zones["zone"].combine_chunks()), -1), dtype=np.int64)
            for name in ("origin_zone", "destination_zone")
        )
        self.trips, self.stddev, self.low, self.high, self.noise_stddev = (
            np.asarray(table[name], dtype=np.float64) for name in ("trips", "stddev", "low", "high", "noise_stddev")
        )
        self.is_rest = np.asarray(table["is_rest"])

    def flows(self, most: int) -> FlowTable:
        """The largest listed flows."""
        at = np.flatnonzero(~self.is_rest)[:most]
        zeros = [0] * len(at)
        points = zip(self.zones["longitude"].to_pylist(), self.zones["latitude"].to_pylist(), strict=True)
        return FlowTable(
            level=zeros,
            origin_x=self.origin[at].tolist(),
            origin_y=zeros,
            destination_x=self.destination[at].tolist(),
            destination_y=zeros,
            trips=np.round(self.trips[at], 1).tolist(),
            low=self.low[at].tolist(),
            high=self.high[at].tolist(),
            centres=list(points),
        )

    def map(self, region: Region) -> MapBody:
        """Where the trips of the listed flows begin and end, zone by zone."""
        areas = np.asarray(self.zones["area"], dtype=np.float64)
        sides = (np.array([side]) for side in (region.west, region.south, region.east, region.north))
        whole, zeros = float(area_km2(*sides)[0]), [0] * len(areas)
        layer = Layer(
            title="Where trips begin and end",
            note="Sums over the flows that are listed; trips of rarer pairs are missing.",
            level=zeros,
            x=zeros,
            y=zeros,
            area=[float(f"{area / whole:.6g}") for area in areas.tolist()],
            cell_id=self.names,
            measures=[
                self._measure("Listed trips from here", self.origin, areas),
                self._measure("Listed trips to here", self.destination, areas),
            ],
            shapes=simple_paths(shapely.from_wkb(self.zones["geometry"].to_numpy(zero_copy_only=False)), region),
        )
        wide, tall = ground_metres(region)
        side = 100 * float(np.sqrt(max(areas.min(), 1e-6)))  # a tenth of the side of the smallest zone
        return MapBody(
            region=Bounds(west=region.west, south=region.south, east=region.east, north=region.north),
            depth=0,
            layers=[layer],
            missing="No zone here.",
            finest_metres=(min(side, wide), min(side, tall)),
        )

    def _measure(self, title: str, zone: NDArray[np.int64], areas: NDArray[np.float64]) -> Measure:
        listed = ~self.is_rest
        # Flows are listed partly for their noise, so errors do not cancel: the ends of the intervals are added up.
        value, low, high = (
            np.bincount(zone[listed], one[listed], len(areas)).astype(np.float64)
            for one in (self.trips, self.low, self.high)
        )
        return trips_measure(title, value, low, high, density_scale(value / areas, low, "trips per km²"))

    def sections(self, manifest: Manifest, reading: str) -> list[Section]:
        """The report."""
        rest, total = float(self.trips[self.is_rest].sum()), max(float(self.trips.sum()), 1.0)
        pairs, bound = get(manifest, "privacy.rounds")[0], get(manifest, "privacy.contribution_bound", "")
        read = [
            "A flow is a pair of zones: trips that begin in the one and end in the other. A flow is listed if it has a "
            "trip with a probability of 50% at least; the column `present` has the probability.",
            f"All other trips, about {rest / total:.0%}, are added up in rows that are marked as rests: one for each "
            "zone where they begin. So all rows together hold every trip once.",
            reading + " The trips of a flow are shrunk: what noise alone explains is taken away. All rows of an "
            "origin, its rest among them, add up to its unbiased noisy count.",
        ]
        made = [
            "The operator of the job was trusted: it saw the logs and the exact counts, and added noise to them once.",
            f"All {pairs['pairs']:,} pairs of {plural(len(self.names), 'zone')} were counted with noise, also where "
            f"nobody travelled. The noise of a pair has a standard deviation of {pairs['noise_stddev']:.3g} trips. The "
            "list of zones is public, so it says nothing about anyone.",
        ]
        return [
            Section(title="How to read it", paragraphs=read, facts=[Fact(term="What counts", text=bound)]),
            self._largest(),
            self._origins(),
            Section(title="How it was made", paragraphs=made),
        ]

    def _largest(self) -> Section:
        """The largest flows as a table, for readers without a script."""
        texts = []
        for row in np.flatnonzero(~self.is_rest)[:_LISTED].tolist():
            trips, low, high = with_interval(self.trips[row], self.low[row], self.high[row])
            texts.append([self.names[self.origin[row]], self.names[self.destination[row]], trips, f"{low} to {high}"])
        heads = ["From", "To", "Trips", "95% interval"]
        table = Table(title="The largest flows", heads=heads, rows=texts, numeric=[False, False, True, False])
        return Section(title="The largest flows", table=table if texts else None)

    def _origins(self) -> Section:
        """All trips from each zone: unbiased noisy counts, of all rows of an origin."""
        size = len(self.names)
        trips = np.bincount(self.origin, self.trips, size)
        spread = np.sqrt(np.bincount(self.origin, self.noise_stddev**2, size))
        wide = simultaneous_deviations(size, size)  # an origin's trips have the noise of all its pairs
        texts = []
        for zone in np.argsort(-trips, kind="stable")[:_LISTED].tolist():
            margin = wide * spread[zone]
            all_trips = not_negative(trips[zone], trips[zone] - margin, trips[zone] + margin)
            value, low, high = with_interval(*all_trips)
            texts.append([self.names[zone], value, f"{low} to {high}"])
        table = Table(
            title="Where most trips begin",
            heads=["From", "All trips", "95% interval, of all zones at once"],
            rows=texts,
            numeric=[False, True, False],
        )
        return Section(title="Where most trips begin", table=table)


def trips_measure(
    title: str, value: NDArray[np.float64], low: NDArray[np.float64], high: NDArray[np.float64], scale: Scale
) -> Measure:
    """Returns numbers of trips by place, with the ends of their intervals, as a measure of a map."""
    return Measure(
        name=title,
        kind="count",
        unit="trips",
        value=np.round(value, 1).tolist(),
        low=np.round(low, 1).tolist(),
        high=np.round(high, 1).tolist(),
        uncertain=(low <= 0).tolist(),
        scale=scale,
    )
