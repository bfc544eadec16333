"""`sfumato flows`: origin-destination flows of trips, with a trusted curator's noise."""

from __future__ import annotations

from dataclasses import asdict, dataclass, replace
from functools import cached_property, partial
from typing import Any, ClassVar

import apache_beam as beam

from sfumato.pipelines.frame.job import Inputs, ReleaseJob, geography_of
from sfumato.schemas.known_digits import NOISE_Z
from sfumato.schemas.ledger import Cost
from sfumato.schemas.locations import LocationColumns, TripColumns
from sfumato.schemas.requests.log_columns import IN_COLUMNS
from sfumato.transforms.flows.flow_tree import FlowPlan, ZonedCells, measure_flows, measure_zone_flows
from sfumato.transforms.flows.release import FlowMetadata, flow_files
from sfumato.transforms.flows.request import FlowsRequest, RequestedFlows
from sfumato.transforms.flows.user_trips import PAIR_BITS, count_trips
from sfumato.transforms.histogram.transform import CountedRounds, CountRounds
from sfumato.transforms.histogram.user_sample import Everybody
from sfumato.transforms.observability.text_tables import significant
from sfumato.transforms.privacy.admission import AdmissionRule
from sfumato.transforms.privacy.keys import RunKey
from sfumato.transforms.privacy.mechanism import discrete_laplace_stddev
from sfumato.transforms.release.metadata import ReleaseMetadata
from sfumato.transforms.release.publishing import with_charge


@dataclass(frozen=True)
class FlowsJob(ReleaseJob):
    """Requested flows."""

    STATED_AS: ClassVar[dict[str, str]] = {
        **IN_COLUMNS,
        **dict.fromkeys(("origin", "destination"), "columns"),
        **dict.fromkeys(("max_gap", "min_distance"), "rule"),
    }

    request: FlowsRequest
    requested: RequestedFlows

    @cached_property
    def geography(self) -> bytes | None:
        return geography_of(self.request, self.requested.region)

    @property
    def plan(self) -> FlowPlan:
        """Its budget."""
        return self.requested.plan

    def columns(self) -> TripColumns | LocationColumns:
        return self.requested.items.columns

    def cost(self) -> Cost:
        return Cost(self.plan.epsilon, trust=self.request.trust)

    def admission(self) -> AdmissionRule:
        return replace(self.plan.admission_rule, min_users=self.request.min_users)

    def accuracy(self) -> str:
        epsilon = self.plan.final_epsilon(0, False) if self.requested.zones is None else self.plan.tree_epsilon
        stddev = discrete_laplace_stddev(epsilon, self.plan.max_trips)
        return f"noise of ±{significant(NOISE_Z * stddev)} trips (95%) on a pair"

    def resolved(self) -> dict[str, Any]:
        rule, zones, plan = self.requested.rule, self.requested.zones, asdict(self.plan)
        if zones is not None:
            del plan["depth"]
            plan["zones"] = {"sha256": zones.digest, "column": zones.name, "zones": len(zones)}
        return {
            **plan,
            "region": asdict(self.requested.region),
            "columns": asdict(self.columns()),
            "rule": None if rule is None else {"max_gap": rule.max_gap, "min_distance": rule.min_distance},
        }

    def plan_text(self) -> str:
        plan, zones = self.plan, self.requested.zones
        tree = (
            f"splits: epsilon {plan.split_epsilon:.3g} a level, at most twice, to choose the pairs that are split\n"
            f"trips: {self.accuracy()}\n"
            f"the parts of a pair that was split get {plan.split_epsilon / plan.tree_epsilon:.0%} less of the budget\n"
        )
        return (
            f"trusted curator: epsilon {plan.epsilon:g}, delta 0; at most {plan.max_trips} trips of a user count\n"
            f"admission: epsilon {plan.admission_rule.epsilon:g}, for two noisy counts of users\n"
            + (tree if zones is None else f"trips: {self.accuracy()}, of {len(zones):,} x {len(zones):,} zones\n")
        )

    def build(self, logs: beam.PCollection, inputs: Inputs, key: RunKey, metadata: ReleaseMetadata) -> beam.PCollection:
        plan, items, rule, region = self.plan, self.requested.items, self.requested.rule, self.requested.region
        zones = self.requested.zones
        count = partial(count_trips, max_trips=plan.max_trips, rule=rule, key=key)

        def files_of(counted: CountedRounds) -> dict[str, bytes]:
            assert counted.admission is not None  # charged: what follows draws the noise
            trips = counted.counts[0]
            exact = trips.items, trips.counts
            if zones is None:
                levels = measure_flows(*exact, PAIR_BITS, plan, counted.admission.users, key)
            else:
                levels = [measure_zone_flows(*exact, ZonedCells(zones), plan, key)]
            described = FlowMetadata(with_charge(metadata), plan, region, rule, counted.admission, zones)
            return flow_files(levels, described)

        return (
            logs
            | "CountTrips" >> CountRounds(items, Everybody(key), count, 1, admit=inputs.admit, spill=inputs.spill)
            # PCollection[CountedRounds]
            | "AddNoise" >> beam.Map(files_of)  # PCollection[dict[file name, bytes]]
        )
