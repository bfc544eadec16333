"""`sfumato moments`: means, variances and moments of a number over users, each of whom sends one bit."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any, ClassVar

import apache_beam as beam
import numpy as np

from sfumato.pipelines.job import Inputs, ReleaseJob, run_release
from sfumato.pipelines.requested_moments import requested_moments
from sfumato.pipelines.runner_settings import RunnerSettings
from sfumato.schemas.ledger import Cost
from sfumato.schemas.moments import ValueColumns
from sfumato.schemas.requests.moments_request import MomentsRequest
from sfumato.transforms.moments.allocation import by_variance
from sfumato.transforms.moments.groups import Grouping
from sfumato.transforms.moments.moments_release import MomentsMetadata, moments_files
from sfumato.transforms.moments.prior import PriorRelease
from sfumato.transforms.moments.privacy_meter import PrivacyMeter
from sfumato.transforms.moments.protocol import MomentsPlan
from sfumato.transforms.moments.push_bits import PushBits
from sfumato.transforms.moments.quantities import Quantity
from sfumato.transforms.moments.value_encoding import Values
from sfumato.transforms.privacy.admission import AdmissionRule
from sfumato.transforms.privacy.keys import RunKey
from sfumato.transforms.release.metadata import ReleaseMetadata
from sfumato.transforms.release.publishing import WriteRelease, with_charge
from sfumato.transforms.text_tables import EXAMPLE_USERS, TYPICAL_USERS, markdown_table, significant


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
        "group_epsilon": "release_epsilon",
        **dict.fromkeys(("groups_file", "cells", "region", "min_group"), "groups"),
    }

    request: MomentsRequest
    values: Values
    plan: MomentsPlan
    meter: PrivacyMeter
    grouping: Grouping | None = None
    warm_start: PriorRelease | None = None

    @classmethod
    def of(cls, request: MomentsRequest) -> MomentsJob:
        """The job of a request. Raises RequestError."""
        return cls(request, *requested_moments(request))

    def columns(self) -> ValueColumns:
        return self.values.columns

    def plan_text(self) -> str:
        return moments_plan_text(self.plan, self.grouping)

    def accuracy(self) -> str:
        users, error = f"{TYPICAL_USERS:,}", dict(_mean_errors(self.plan))
        return f"the mean of values spread evenly errs by {error[users]} (95%), if {users} users take part"

    def cost(self) -> Cost:
        if self.plan.epsilon is None:
            return Cost(math.inf, trust=self.request.trust)
        # One bounds what the collector of the reports learns of a user, the other what readers of the release learn.
        return Cost(max(self.plan.epsilon, self.plan.released_epsilon or 0.0), trust=self.request.trust)

    def resolved(self) -> dict[str, Any]:
        plan, grouping = self.plan, self.grouping
        return {
            **asdict(self.values.columns),
            **asdict(plan.form),
            "statistics": [statistic.name for statistic in plan.statistics],
            "epsilon": plan.epsilon,
            "release_epsilon": plan.released_epsilon,
            **asdict(plan.resolved_tuning),
            "groups": None if grouping is None else asdict(grouping),
            "warm_start": None if self.warm_start is None else self.warm_start.metadata(),
        }

    def admission(self) -> AdmissionRule:
        return self.plan.admission(self.request.max_bad_fraction, self.min_users)

    def build(self, root: beam.Pipeline, inputs: Inputs, key: RunKey, metadata: ReleaseMetadata) -> beam.PCollection:
        bounded = self.values.columns.user_id is not None
        described = self.plan, self.grouping, self.meter, self.values.columns.column, bounded  # of MomentsMetadata
        push = PushBits(
            self.values,
            self.plan,
            key,
            self.grouping,
            cap=self.meter.cap,
            spill=inputs.spill,
            admit=inputs.admit,
        )
        return (
            root
            | "Files" >> beam.Create(inputs.files)
            | "Push" >> push  # MomentsState
            | "Assemble"
            >> beam.Map(lambda state: moments_files(state, MomentsMetadata(with_charge(metadata), *described)))
            | "Write" >> WriteRelease(self.request.output, metadata, self.request.overwrite)
        )


def run(request: MomentsRequest, settings: RunnerSettings) -> int:
    """Runs the job to the end. Raises RequestError or DataError."""
    run_release(MomentsJob.of(request), settings)
    return 0


def moments_plan_text(plan: MomentsPlan, grouping: Grouping | None) -> str:
    """The reports of a client, and the noise and error of the release, as text for a terminal."""
    response, form = plan.response, plan.form
    quantities, bits = plan.quantities, f"{response.reports} bit{'s'[: response.reports != 1]}"
    lines = [
        f"bit pushing, {plan.method}: a client sends {bits} of one of {len(quantities)}: {', '.join(quantities)}",
        f"values lie in {form.low:.10g} to {form.high:.10g}, in steps of {form.step:.6g}; others count as an end",
    ]
    if response.epsilon is None:
        lines.append("each bit is sent as it is: no differential privacy")
    else:
        lines.append(
            f"local epsilon {response.epsilon:g}: a bit is sent as it is with probability "
            f"{response.truth_probability:.4f}, else flipped"
        )
    if plan.released_epsilon is not None:
        lines.append(
            f"epsilon {plan.released_epsilon:g} for adding or removing one user: "
            f"noise ±{significant(plan.noise_stddev)} on every count of reports"
        )
    if grouping is not None:
        lines.append(
            f"{len(grouping.groups):,} groups, and `other`; a group is shown if it has {grouping.min_group:,} users by "
            "noisy counts, and clearly more than none"
        )
    each = [("users", "error of the mean, 95%"), *_mean_errors(plan)]
    table = markdown_table([list(row) for row in each], left=())
    return "\n".join([*lines, "", "Error of the mean, for values spread evenly over the range:", "", table])


def _mean_errors(plan: MomentsPlan) -> list[tuple[str, str]]:
    """The error of the mean for some numbers of users, if all bits are set for half of them (Lemma 3.3)."""
    slots = Quantity(plan.form, "value").slots
    half = np.full(len(slots), 0.5)
    probabilities = by_variance(slots, half, np.ones(len(slots)), plan.response, 0.5, plan.bits_per_client)
    each = float((slots.weight**2 * plan.response.variance(half) / probabilities).sum())
    reports = plan.bits_per_client / len(plan.quantities)
    return [(f"{users:,}", f"±{significant(1.96 * math.sqrt(each / (users * reports)))}") for users in EXAMPLE_USERS]
