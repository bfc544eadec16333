"""What a request of flows asks for. No Beam: contradictions are found before it is imported."""

from __future__ import annotations

from dataclasses import dataclass

from sfumato.schemas.locations import LocationColumns
from sfumato.schemas.requests.flows_request import MAX_GAP, MIN_DISTANCE, FlowsRequest
from sfumato.schemas.trips import TripColumns
from sfumato.transforms.flows.flow_plan import FlowPlan
from sfumato.transforms.flows.user_trips import RecordItems, TripItems, TripRule


@dataclass(frozen=True)
class RequestedFlows:
    """Flows whose options do not contradict each other.

    plan: the budget. items: encodes trips, or records of which `rule` makes trips; None where rows are trips.
    """

    plan: FlowPlan
    items: TripItems | RecordItems
    rule: TripRule | None


def requested_flows(request: FlowsRequest) -> RequestedFlows:
    """What a request asks for. Raises RequestError."""
    plan = FlowPlan(request.epsilon, request.max_trips_per_user, request.depth, request.max_bad_fraction)
    region = request.region
    if request.origin is not None and request.destination is not None:
        (west, south), (east, north) = request.origin, request.destination
        trips = TripColumns((west, south), (east, north), request.user_id_column)
        return RequestedFlows(plan, TripItems(trips, region), None)
    columns = LocationColumns(
        request.user_id_column, request.latitude_column, request.longitude_column, time=request.time_column
    )
    gap = MAX_GAP if request.max_gap is None else request.max_gap
    distance = MIN_DISTANCE if request.min_distance is None else request.min_distance
    return RequestedFlows(plan, RecordItems(columns, region), TripRule(gap, distance, region))
