"""The request of `sfumato flows`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar, Literal, Self

from pydantic import model_validator

from sfumato.schemas.errors import RequestError
from sfumato.schemas.guarantee import Trust
from sfumato.schemas.locations import LocationColumns, TripColumns
from sfumato.schemas.region import Grid, Locator, Region
from sfumato.schemas.requests.counting_options import EPSILON_HELP
from sfumato.schemas.requests.log_columns import PlaceColumns, UserColumn
from sfumato.schemas.requests.publish_request import REGION_HELP, REGION_METAVAR, MapGeography, RegionOption
from sfumato.schemas.requests.request_base import COLUMNS, MAP, PRIVACY, Several, option
from sfumato.transforms.flows.flow_tree import ZonedCells
from sfumato.transforms.flows.plan import MAX_TRIPS, MAX_ZONES, FlowPlan
from sfumato.transforms.flows.user_trips import MAX_PAIR_DEPTH, RecordItems, TripItems, TripRule
from sfumato.transforms.geo.zone_file import Zones
from sfumato.transforms.geo.zone_options import ZoneOptions

DEPTH = 10  # where it is not given
MAX_GAP, MIN_DISTANCE = 4 * 3600.0, 100.0  # where they are not given
_OF_RECORDS = (*PlaceColumns.model_fields, "max_gap", "min_distance")


@dataclass(frozen=True)
class RequestedFlows:
    """Checked flows: the plan, and what makes trips of rows.

    Attributes:
        zones: the zones of origins and destinations; None for cells.
        items: encodes trips, or records from which `rule` makes trips.
        rule: None if rows are trips.
    """

    plan: FlowPlan
    region: Region
    zones: Zones | None
    items: TripItems | RecordItems
    rule: TripRule | None


class FlowsRequest(ZoneOptions, PlaceColumns, UserColumn, MapGeography):
    """Publishes origin-destination flows: how many trips begin in one cell of a map and end in another, for cells as
    small as the number of trips allows, or for public zones. A trip is a row with two places, or two consecutive
    records of a user. The operator is a trusted curator and adds noise once.
    """

    JOB: ClassVar[str] = "flows"
    EXAMPLE: ClassVar[str] = (
        "--input 'trips/*.parquet' --region 3.00,1.00,3.13,1.13 --origin origin_longitude,origin_latitude "
        "--destination destination_longitude,destination_latitude --output flows"
    )

    region: RegionOption | None = option(
        None, f"{REGION_HELP}; not with --zones, which define it", MAP, common=True, metavar=REGION_METAVAR
    )
    epsilon: float = option(1.0, EPSILON_HELP, PRIVACY, common=True)
    trust: Literal[Trust.CENTRAL] = option(
        Trust.CENTRAL, "central: the operator sees exact counts and adds noise once; the only choice", PRIVACY
    )
    max_trips_per_user: int = option(
        1,
        "largest number of a user's trips that are counted, sampled from all their trips; noise grows in proportion",
        PRIVACY,
        common=True,
        metavar="K",
        ge=1,
        le=MAX_TRIPS,
    )
    depth: int = option(
        DEPTH, "finest level of the quadtree: a cell's sides are the region's sides / 2^DEPTH", MAP, ge=1, le=15
    )
    origin: Several[str] | None = option(
        None,
        "columns of the longitude and latitude where a row's trip begins, in degrees",
        COLUMNS,
        common=True,
        metavar="LON,LAT",
    )
    destination: Several[str] | None = option(
        None, "columns of the longitude and latitude where it ends", COLUMNS, common=True, metavar="LON,LAT"
    )
    time_column: str | None = option(
        None,
        "column of timestamps, or of seconds since 1970: a trip is two consecutive records of a user in the region "
        "(instead of --origin and --destination)",
        COLUMNS,
        common=True,
        metavar="NAME",
    )
    max_gap: float | None = option(
        None,
        f"largest time between the two records of a trip, with --time_column (default: {MAX_GAP:g})",
        COLUMNS,
        metavar="SECONDS",
        gt=0,
    )
    min_distance: float | None = option(
        None,
        f"smallest distance between the two records of a trip, with --time_column (default: {MIN_DISTANCE:g}; 0: also "
        "count stays)",
        COLUMNS,
        metavar="METRES",
        ge=0,
    )

    def shaping(self) -> dict[str, Any]:
        """See ReleaseRequest.shaping."""
        left_out = {*(() if self.time_column else _OF_RECORDS), *(("depth",) if self.has_zones else ())}
        return {name: value for name, value in super().shaping().items() if name not in left_out}

    @property
    def has_zones(self) -> bool:
        """Returns whether flows connect zones, rather than cells of a quadtree."""
        return bool(self.zone_sources)

    @model_validator(mode="after")
    def _one_map(self) -> Self:
        if self.has_zones:
            source = self.one_zone_source()
            self.refuse(("depth",), f"cannot be combined with --{source}: flows then connect whole zones")
        self.check_zone_file()
        if self.zones is None:
            if self.region is None:
                raise RequestError("region: required, as W,S,E,N, or give --zones FILE")
        else:
            self.refuse(("region",), "cannot be combined with --zones, because the zones define the region")
        return self

    @model_validator(mode="after")
    def _one_form(self) -> Self:
        if self.time_column is not None:
            self.refuse(("origin", "destination"), "cannot be combined with --time_column; give one of them")
            return self
        for name, columns in (("origin", self.origin), ("destination", self.destination)):
            if columns is None:
                raise RequestError(
                    f"{name}: required, or give --time_column NAME to make trips from consecutive records; for "
                    f"example: sfumato {self.COMMAND} {self.EXAMPLE}"
                )
            if len(columns) != 2 or not all(columns):
                raise RequestError(f"{name}: must be two columns, LON,LAT, got {','.join(columns)!r}")
        self.refuse(_OF_RECORDS, "requires --time_column NAME")
        return self

    def resolve(self) -> RequestedFlows:
        """Returns the budget, the map or zones, and what makes trips of rows. Raises RequestError."""
        plan = FlowPlan(self.epsilon, self.max_trips_per_user, self.depth, self.max_bad_fraction)
        zones = None
        if self.has_zones:
            zones = self.public_zones(self.region)
            if len(zones) > MAX_ZONES:
                name = "zones" if self.index is None else self.index[0]
                raise RequestError(
                    f"{name}: must have at most {MAX_ZONES:,} zones, got {len(zones):,}; use larger zones"
                )
        region = self.region if zones is None else zones.region
        assert region is not None  # a request without zones has a region
        locator: Locator = Grid(region, MAX_PAIR_DEPTH) if zones is None else ZonedCells(zones)
        if self.origin is not None and self.destination is not None:
            (west, south), (east, north) = self.origin, self.destination
            trips = TripColumns((west, south), (east, north), self.user_id_column)
            return RequestedFlows(plan, region, zones, TripItems(trips, locator), None)
        columns = LocationColumns(
            self.user_id_column, self.latitude_column, self.longitude_column, time=self.time_column
        )
        gap = MAX_GAP if self.max_gap is None else self.max_gap
        distance = MIN_DISTANCE if self.min_distance is None else self.min_distance
        return RequestedFlows(plan, region, zones, RecordItems(columns, locator), TripRule(gap, distance, region))
