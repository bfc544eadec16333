"""`sfumato moments`: means, variances and moments of a number over users, from one bit of each or from their sums."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from functools import cached_property
from typing import Any, ClassVar

import apache_beam as beam

from sfumato.pipelines.frame.job import Inputs, ReleaseJob, ResultsAndFiles, geography_of
from sfumato.schemas.ledger import Cost
from sfumato.schemas.moments import ValueColumns
from sfumato.transforms.moments.central.plan import CentralMomentsPlan
from sfumato.transforms.moments.central.release import central_files
from sfumato.transforms.moments.central.transform import SumMoments
from sfumato.transforms.moments.groups import ZoneGroups
from sfumato.transforms.moments.local.plan import MomentsPlan
from sfumato.transforms.moments.local.release import moments_files
from sfumato.transforms.moments.local.transform import PushBits
from sfumato.transforms.moments.release import MomentsMetadata
from sfumato.transforms.moments.request import MomentsRequest, RequestedMoments
from sfumato.transforms.privacy.admission import AdmissionRule
from sfumato.transforms.privacy.keys import RunKey
from sfumato.transforms.release.metadata import ReleaseMetadata


@dataclass(frozen=True)
class MomentsJob(ReleaseJob):
    """Requested moments."""

    STATED_AS: ClassVar[Mapping[str, str]] = {
        "user_id_column": "user_id",
        "rows_are_users": "user_id",
        "latitude_column": "latitude",
        "longitude_column": "longitude",
        "group_by": "group",
        "no_dp": "epsilon",
        "tuning": "first_share",
        "group_epsilon": "release_epsilon",
        "second_column": "second",
        **dict.fromkeys(("groups_file", "cells", "region", "zones", "id_column", "min_group"), "groups"),
    }

    request: MomentsRequest
    requested: RequestedMoments

    @property
    def plan(self) -> MomentsPlan | CentralMomentsPlan:
        """Statistics and budget."""
        return self.requested.plan

    @cached_property
    def geography(self) -> bytes | None:
        groups = None if self.requested.grouping is None else self.requested.grouping.groups
        return geography_of(self.request, groups.zones.region if isinstance(groups, ZoneGroups) else None)

    def columns(self) -> ValueColumns:
        return self.requested.values.columns

    def plan_text(self) -> str:
        return self.plan.text(self.requested.grouping)

    def accuracy(self) -> str:
        return self.plan.accuracy()

    def cost(self) -> Cost:
        if isinstance(self.plan, CentralMomentsPlan):
            return Cost(self.plan.epsilon, trust=self.request.trust)
        if self.plan.epsilon is None:
            return Cost(math.inf, trust=self.request.trust, bits=self.plan.bits_per_client)
        # One bounds what the collector of the reports learns of a user, the other what readers of the release learn.
        epsilon = max(self.plan.epsilon, self.plan.released_epsilon or 0.0)
        return Cost(epsilon, trust=self.request.trust, bits=self.plan.bits_per_client)

    def stated(self) -> dict[str, Any]:
        plan, grouping = self.plan, self.requested.grouping
        shared = {
            **asdict(self.requested.values.columns),
            "statistics": [statistic.name for statistic in plan.statistics],
            "epsilon": plan.epsilon,
            "groups": None if grouping is None else grouping.stated(),
        }
        if isinstance(plan, CentralMomentsPlan):
            ranges = [None if span is None else [span.low, span.high] for span in (plan.span, plan.second_span)]
            return {**shared, "range": ranges[0], "second_range": ranges[1]}
        return {
            **shared,
            **asdict(plan.form),
            "second_form": None if plan.second is None else asdict(plan.second),
            "release_epsilon": plan.released_epsilon,
            **asdict(plan.tuning.resolved(plan.method)),
            "warm_start": None if self.requested.prior is None else self.requested.prior.metadata(),
        }

    def admission(self) -> AdmissionRule:
        return self.plan.admission(self.request.max_bad_fraction, self.request.min_users)

    def build(self, logs: beam.PCollection, inputs: Inputs, key: RunKey) -> ResultsAndFiles:
        values, columns, grouping = self.requested.values, self.requested.values.columns, self.requested.grouping
        plan, spill, admit = self.plan, inputs.spill, inputs.charge_and_admit

        def described(metadata: ReleaseMetadata) -> MomentsMetadata:
            bounded = columns.user_id is not None
            return MomentsMetadata(metadata, grouping, columns.column, bounded, columns.second)

        if isinstance(plan, CentralMomentsPlan):
            # PCollection[CentralSums]
            sums = logs | "Sums" >> SumMoments(values, plan, key, grouping, spill=spill, admit=admit)
            return sums, lambda state, metadata: central_files(state, described(metadata))
        # PCollection[MomentsState]
        tallies = logs | "Push" >> PushBits(values, plan, key, grouping, spill=spill, admit=admit)
        return tallies, lambda state, metadata: moments_files(state, described(metadata))
