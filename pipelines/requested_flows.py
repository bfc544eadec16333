"""What a request of flows asks for. No Beam: contradictions are found before it is imported."""

from __future__ import annotations

from dataclasses import dataclass

from sfumato.schemas.errors import RequestError
from sfumato.schemas.locations import LocationColumns, TripColumns
from sfumato.schemas.region import Grid, Locator, Region
from sfumato.schemas.requests.flows_request import MAX_GAP, MIN_DISTANCE, FlowsRequest
from sfumato.transforms.flows.flow_plan import FlowPlan
from sfumato.transforms.flows.pair_codes import MAX_PAIR_DEPTH
from sfumato.transforms.flows.user_trips import RecordItems, TripItems, TripRule
from sfumato.transforms.flows.zone_pairs import MAX_ZONES, ZonedCells
from sfumato.transforms.zones.zone_file import Zones, zones_of


@dataclass(frozen=True)
class RequestedFlows:
    """Flows whose options do not contradict each other.

    plan: the budget. region: of the map. zones: of which flows are pairs; None for cells. items: encodes trips, or
    records of which `rule` makes trips; None where rows are trips.
    """

    plan: FlowPlan
    region: Region
    zones: Zones | None
    items: TripItems | RecordItems
    rule: TripRule | None


def requested_flows(request: FlowsRequest) -> RequestedFlows:
    """What a request asks for. Raises RequestError."""
    plan = FlowPlan(request.epsilon, request.max_trips_per_user, request.depth, request.max_bad_fraction)
    zones = _zones_of(request)
    region = request.region if zones is None else zones.region
    assert region is not None  # a request without zones has one
    locator: Locator = Grid(region, MAX_PAIR_DEPTH) if zones is None else ZonedCells(zones)
    if request.origin is not None and request.destination is not None:
        (west, south), (east, north) = request.origin, request.destination
        trips = TripColumns((west, south), (east, north), request.user_id_column)
        return RequestedFlows(plan, region, zones, TripItems(trips, locator), None)
    columns = LocationColumns(
        request.user_id_column, request.latitude_column, request.longitude_column, time=request.time_column
    )
    gap = MAX_GAP if request.max_gap is None else request.max_gap
    distance = MIN_DISTANCE if request.min_distance is None else request.min_distance
    return RequestedFlows(plan, region, zones, RecordItems(columns, locator), TripRule(gap, distance, region))


def _zones_of(request: FlowsRequest) -> Zones | None:
    """The zones of the request's file or index. Raises RequestError where they cannot be used, or are too many."""
    if request.zones is None and request.index is None:
        return None
    zones = zones_of(request.zones, request.id_column, request.index, request.region)
    if len(zones) > MAX_ZONES:
        name = "zones" if request.index is None else request.index[0]
        raise RequestError(
            f"{name}: {len(zones):,} zones have {len(zones) ** 2:,} pairs, and {MAX_ZONES**2:,} are the most; take "
            "larger zones"
        )
    return zones
