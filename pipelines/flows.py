"""`sfumato flows`: origin-destination flows of trips, with a trusted curator's noise."""

from __future__ import annotations

from dataclasses import asdict, dataclass, replace
from typing import Any, ClassVar

import apache_beam as beam

from sfumato.pipelines.frame.job import Inputs, ReleaseJob, ResultsAndFiles
from sfumato.schemas.ledger import Cost
from sfumato.schemas.locations import LocationColumns, TripColumns
from sfumato.schemas.requests.log_columns import IN_COLUMNS
from sfumato.transforms.flows.plan import FlowPlan
from sfumato.transforms.flows.release import FlowMetadata, flow_files
from sfumato.transforms.flows.request import FlowsRequest, RequestedFlows
from sfumato.transforms.flows.transform import CountFlows, Measured
from sfumato.transforms.geo.zone_file import Zones
from sfumato.transforms.histogram.transform import CountOptions
from sfumato.transforms.privacy.admission import AdmissionRule
from sfumato.transforms.privacy.keys import RunKey
from sfumato.transforms.release.metadata import ReleaseMetadata


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

    @property
    def zones_counted(self) -> Zones | None:
        return self.requested.zones

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

    def stated(self) -> dict[str, Any]:
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
        return self.plan.text(self._zones)

    def accuracy(self) -> str:
        return self.plan.accuracy(self._zones)

    @property
    def _zones(self) -> int | None:
        """The number of zones; None for cells."""
        return None if self.requested.zones is None else len(self.requested.zones)

    def build(self, logs: beam.PCollection, inputs: Inputs, key: RunKey) -> ResultsAndFiles:
        plan, rule, region, zones = self.plan, self.requested.rule, self.requested.region, self.requested.zones
        options: CountOptions = {"admit": inputs.charge_and_admit, "spill": inputs.spill}
        flows = CountFlows(self.requested.items, rule, plan, key, zones, **options)

        def files_of(measured: Measured, metadata: ReleaseMetadata) -> dict[str, bytes]:
            levels, admission = measured
            return flow_files(levels, FlowMetadata(metadata, plan, region, rule, admission, zones))

        return logs | "Flows" >> flows, files_of  # PCollection[Measured]
