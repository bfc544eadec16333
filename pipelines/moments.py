"""`sfumato moments`: means, variances and moments of a number over users, from one bit of each or from their sums."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from functools import cached_property
from typing import Any, ClassVar

import apache_beam as beam
import numpy as np

from sfumato.pipelines.frame.job import Inputs, ReleaseJob, geography_of
from sfumato.schemas.known_digits import NOISE_Z, laplace_z
from sfumato.schemas.ledger import Cost
from sfumato.schemas.moments import ValueColumns
from sfumato.transforms.moments.central.bernstein_sums import coefficients
from sfumato.transforms.moments.central.central_moments import CentralMomentsPlan
from sfumato.transforms.moments.groups import Grouping, ZoneGroups
from sfumato.transforms.moments.local.allocation import by_variance, min_threshold_users
from sfumato.transforms.moments.local.protocol import MomentsPlan
from sfumato.transforms.moments.local.quantities import Quantity
from sfumato.transforms.moments.release import MomentsMetadata, central_files, moments_files
from sfumato.transforms.moments.request import MomentsRequest, RequestedMoments
from sfumato.transforms.moments.transform import PushBits, SumMoments
from sfumato.transforms.observability.text_tables import EXAMPLE_USERS, TYPICAL_USERS, markdown_table, significant
from sfumato.transforms.privacy.admission import AdmissionRule
from sfumato.transforms.privacy.keys import RunKey
from sfumato.transforms.release.metadata import ReleaseMetadata
from sfumato.transforms.release.publishing import with_charge


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
        if isinstance(self.plan, CentralMomentsPlan):
            return central_plan_text(self.plan, self.requested.grouping)
        return moments_plan_text(self.plan, self.requested.grouping)

    def accuracy(self) -> str:
        if isinstance(self.plan, CentralMomentsPlan) and self.plan.span is None:
            return f"noise of ±{significant(laplace_z(0.95) * self.plan.count_stddev)} users (95%) on a number of users"
        error = significant(_mean_error(self.plan, TYPICAL_USERS))
        return f"the mean of values spread evenly errs by ±{error} (95%), if {TYPICAL_USERS:,} users take part"

    def cost(self) -> Cost:
        if isinstance(self.plan, CentralMomentsPlan):
            return Cost(self.plan.epsilon, trust=self.request.trust)
        if self.plan.epsilon is None:
            return Cost(math.inf, trust=self.request.trust, bits=self.plan.bits_per_client)
        # One bounds what the collector of the reports learns of a user, the other what readers of the release learn.
        epsilon = max(self.plan.epsilon, self.plan.released_epsilon or 0.0)
        return Cost(epsilon, trust=self.request.trust, bits=self.plan.bits_per_client)

    def resolved(self) -> dict[str, Any]:
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

    def build(self, logs: beam.PCollection, inputs: Inputs, key: RunKey, metadata: ReleaseMetadata) -> beam.PCollection:
        values, columns = self.requested.values, self.requested.values.columns
        column, second, bounded = columns.column, columns.second, columns.user_id is not None
        plan, grouping = self.plan, self.requested.grouping
        spill, admit = inputs.spill, inputs.admit
        if isinstance(plan, CentralMomentsPlan):
            # PCollection[CentralSums]
            measured = logs | "Sums" >> SumMoments(values, plan, key, grouping, spill=spill, admit=admit)
        else:
            # PCollection[MomentsState]
            measured = logs | "Push" >> PushBits(values, plan, key, grouping, spill=spill, admit=admit)

        def files_of(state: Any) -> dict[str, bytes]:
            details = MomentsMetadata(with_charge(metadata), grouping, column, bounded, second)
            if isinstance(plan, CentralMomentsPlan):
                return central_files(state, details)
            return moments_files(state, details)

        return measured | "Assemble" >> beam.Map(files_of)  # PCollection[dict[file name, bytes]]


def moments_plan_text(plan: MomentsPlan, grouping: Grouping | None) -> str:
    """The reports of a client, and the noise and error of the release, as text for a terminal."""
    response, form = plan.response, plan.form
    quantities, bits = plan.quantities, f"{response.reports} bit{'s'[: response.reports != 1]}"
    lines = [
        f"method {plan.method}: a client sends {bits} about one of {len(quantities)}: {', '.join(quantities)}",
        *(
            f"{name} lie in {one.low:.10g} to {one.high:.10g}, in steps of {one.step:.6g}; others count as an end"
            for name, one in zip(("values", "those of the second column"), plan.forms, strict=False)
        ),
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
            f"noise ±{significant(NOISE_Z * plan.noise_stddev)} (95%) on every count of reports"
        )
    if plan.method == "auto":
        users = min_threshold_users(plan.epsilon, form.bits)
        below = f", or weighted for fewer than {users:,.0f} users by a noisy count" if users > 0 else ""
        lines.append(f"auto takes: threshold{below}")
    return "\n".join([*lines, *_group_lines(grouping), *_error_lines(plan)])


def central_plan_text(plan: CentralMomentsPlan, grouping: Grouping | None) -> str:
    """The noise and the error of a release by a trusted curator, as text for a terminal."""
    shares = ", ".join(f"{name} {epsilon:.3g}" for name, epsilon in plan.shares.items())
    lines = [
        f"the operator adds up the value of one record a user, and adds noise once; parts of epsilon: {shares}",
        f"noise ±{significant(laplace_z(0.95) * plan.count_stddev)} (95%) on every number of users",
    ]
    spans = (("values", plan.span), *([("those of the second column", plan.second_span)] if plan.has_second else []))
    for name, span in spans:
        if span is not None:
            lines.append(f"{name} lie in {span.low:.10g} to {span.high:.10g}; others count as an end")
        elif plan.degree:
            lines.append(f"the range of {name} follows from noisy counts of users by powers of two")
    lines += _group_lines(grouping)
    return "\n".join([*lines, *(_error_lines(plan) if plan.span is not None else [""])])


def _group_lines(grouping: Grouping | None) -> list[str]:
    if grouping is None:
        return []
    return [
        f"{len(grouping.groups):,} groups, and `other`; a group is shown if it has {grouping.min_group:,} users by "
        "noisy counts, and clearly more than none"
    ]


def _error_lines(plan: MomentsPlan | CentralMomentsPlan) -> list[str]:
    rows = [[f"{users:,}", f"±{significant(_mean_error(plan, users))}"] for users in EXAMPLE_USERS]
    table = markdown_table([["users", "error of the mean, 95%"], *rows], left=())
    return ["", "Error of the mean, for values spread evenly over the range:", "", table]


def _mean_error(plan: MomentsPlan | CentralMomentsPlan, users: int) -> float:
    """The error of the mean at 95%: with bits, if all are set for half of the users (Lemma 3.3)."""
    if isinstance(plan, CentralMomentsPlan):
        assert plan.span is not None
        middle = (plan.span.high - plan.span.low) / 2
        mean = coefficients(1, plan.degree, -middle, middle)
        noise = plan.noise_stddev * float(np.linalg.norm(mean)) * math.sqrt(plan.slots / len(mean))
        return 1.96 * noise / users
    slots = Quantity(plan.form, "value").slots
    half = np.full(len(slots), 0.5)
    probabilities = by_variance(slots, half, np.ones(len(slots)), plan.response, 0.5, plan.bits_per_client)
    each = float((slots.weight**2 * plan.response.variance(half) / probabilities).sum())
    first, last = plan.part(plan.quantities[0])
    reports = plan.bits_per_client * (last - first)
    return 1.96 * math.sqrt(each / (users * reports))
