"""`sfumato moments`: means, variances and moments of a number over users, each of whom sends one bit."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any, ClassVar

import apache_beam as beam
import numpy as np

from sfumato.pipelines.job import Inputs, ReleaseJob, run_release
from sfumato.pipelines.runner_settings import RunnerSettings
from sfumato.schemas.errors import RequestError
from sfumato.schemas.ledger import LOCAL, Cost
from sfumato.schemas.moments import FixedPoint, Signed, Statistic, ValueColumns
from sfumato.schemas.region import Grid
from sfumato.schemas.release import BITS_FILE
from sfumato.schemas.requests.moments_request import DEFAULT_MIN_GROUP, MomentsRequest
from sfumato.transforms.files import read_file
from sfumato.transforms.moments.allocation import Tuning, by_variance
from sfumato.transforms.moments.groups import CellGroups, ColumnGroups, Grouping
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
from sfumato.transforms.release.published_release import open_release
from sfumato.transforms.release.publishing import WriteRelease, with_charge
from sfumato.transforms.text_tables import EXAMPLE_USERS, markdown_table, significant


@dataclass(frozen=True)
class MomentsJob(ReleaseJob):
    """Moments that were requested. Raises RequestError."""

    STATED_AS: ClassVar[Mapping[str, str]] = {
        "user_id_column": "user_id",
        "rows_are_users": "user_id",
        "latitude_column": "latitude",
        "longitude_column": "longitude",
        "group_by": "group",
        "no_ldp": "epsilon",
        "group_epsilon": "release_epsilon",
        **dict.fromkeys(("groups_file", "cells", "region", "min_group"), "groups"),
    }

    request: MomentsRequest
    values: Values
    plan: MomentsPlan
    meter: PrivacyMeter
    grouping: Grouping | None = None
    warm_start: PriorRelease | None = None

    def __post_init__(self) -> None:
        prior = self.warm_start
        if prior is None:
            return
        if not set(self.plan.kinds) & set(prior.bits):
            raise RequestError(
                f"warm_start: the release has bits of {', '.join(prior.bits)}; this request needs "
                f"{', '.join(self.plan.kinds)}"
            )
        if not prior.safe and self.request.seed is None:
            raise RequestError(
                "warm_start: anybody can guess the key of that release and undo its coins, and this one would show "
                "some of what is under them; start from one that was made without --seed"
            )
        if not prior.local and self.plan.epsilon is not None:
            raise RequestError(
                "warm_start: that release has no differential privacy (--no_ldp), and this one would show some of its "
                "bits; start from one that was made with --epsilon"
            )

    @classmethod
    def of(cls, request: MomentsRequest) -> MomentsJob:
        """The job of a request. Raises RequestError."""
        form, grouping = form_of(request), grouping_of(request)
        values = Values(_columns(request), form, None if grouping is None else grouping.groups)
        prior = open_prior(request.warm_start, request.column, form)
        release_epsilon = request.group_epsilon
        plan = MomentsPlan(
            form=form,
            statistics=tuple(map(Statistic, request.statistics)),
            method=request.method,
            epsilon=request.epsilon,
            release_epsilon=1.0 if release_epsilon is None and request.no_ldp and grouping else release_epsilon,
            bits_per_client=request.bits_per_client,
            variance=request.variance,
            tuning=Tuning(),
            prior={} if prior is None else prior.bits,
        )
        meter = PrivacyMeter(plan.response, request.max_bits_per_client)
        return cls(request, values, plan, meter, grouping, prior)

    def columns(self) -> ValueColumns:
        return self.values.columns

    def plan_text(self) -> str:
        return moments_plan_text(self.plan, self.grouping)

    def cost(self) -> Cost:
        if self.plan.epsilon is None:
            return Cost(math.inf, trust=LOCAL)
        # Whoever reads the release learns no more than the one; whoever collects the reports, no more than the other.
        return Cost(max(self.plan.epsilon, self.plan.released_epsilon or 0.0), trust=LOCAL)

    def resolved(self) -> dict[str, Any]:
        plan, grouping = self.plan, self.grouping
        return {
            **asdict(self.values.columns),
            **asdict(plan.form),
            "statistics": [one.name for one in plan.statistics],
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
        described = self.plan, self.grouping, self.meter, self.values.columns.column, bounded
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
            | "Push" >> push  # Progress
            | "Assemble"
            >> beam.Map(lambda progress: moments_files(progress, MomentsMetadata(with_charge(metadata), *described)))
            | "Write" >> WriteRelease(self.request.output, metadata, self.request.overwrite)
        )


def run(request: MomentsRequest, settings: RunnerSettings) -> int:
    """Runs the job to the end. Raises RequestError or DataError."""
    run_release(MomentsJob.of(request), settings)
    return 0


def form_of(request: MomentsRequest) -> FixedPoint:
    """The form of a request's values. Raises RequestError."""
    kind, shift = request.sign
    signed: Signed = kind  # type: ignore[assignment]
    form = FixedPoint(request.bits, request.fraction_bits, signed, shift)
    if abs(shift) > 2**53 * form.step:
        raise RequestError(
            f"signed: shift:{shift:g} is so large that values of its size have no steps of {form.step:g}"
        )
    return form


def grouping_of(request: MomentsRequest) -> Grouping | None:
    """The groups of a request. Raises RequestError."""
    least = DEFAULT_MIN_GROUP if request.min_group is None else request.min_group
    if request.cells is not None:
        assert request.region is not None
        grid = Grid(request.region, request.cells)
        return Grouping(CellGroups(grid, request.latitude_column, request.longitude_column), least)
    if request.group_by is None:
        return None
    return Grouping(ColumnGroups(request.group_by, _listed(request)), least)


def _listed(request: MomentsRequest) -> tuple[str, ...]:
    if request.groups is not None:
        return request.groups
    try:
        text = read_file(str(request.groups_file)).decode()
    except (OSError, UnicodeDecodeError) as error:
        raise RequestError(f"groups_file: {request.groups_file} cannot be read ({type(error).__name__})") from None
    return tuple(line.strip() for line in text.splitlines() if line.strip())


def _columns(request: MomentsRequest) -> ValueColumns:
    on_map = request.cells is not None
    return ValueColumns(
        request.column,
        None if request.rows_are_users else request.user_id_column,
        request.group_by,
        request.latitude_column if on_map else None,
        request.longitude_column if on_map else None,
    )


def open_prior(path: str | None, column: str, form: FixedPoint) -> PriorRelease | None:
    """The earlier release at a path, None without one. Raises RequestError where there is none that fits."""
    if path is None:
        return None
    try:
        release = open_release(path)
        return PriorRelease.from_release(release.manifest, release.arrow_table(BITS_FILE), column, form)
    except RequestError as error:
        raise RequestError(str(error) if str(error).startswith("warm_start") else f"warm_start: {error}") from None


def moments_plan_text(plan: MomentsPlan, grouping: Grouping | None) -> str:
    """What a client of bit pushing sends, and what the release shows."""
    response, form = plan.response, plan.form
    bits = f"{response.reports} bit{'s'[: response.reports != 1]}"
    lines = [
        f"bit pushing, {plan.method}: a client sends {bits} of one of {len(plan.kinds)}: {', '.join(plan.kinds)}",
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
    return "\n".join(
        [*lines, "", "What the mean's error would be, with values spread evenly over the range:", "", table]
    )


def _mean_errors(plan: MomentsPlan) -> list[tuple[str, str]]:
    """The error of the mean for some numbers of users, if all bits are set for half of them (Lemma 3.3)."""
    slots = Quantity(plan.form, "value").slots
    half = np.full(len(slots), 0.5)
    probabilities = by_variance(slots, half, np.ones(len(slots)), plan.response, 0.5, plan.bits_per_client)
    each = float((slots.weight**2 * plan.response.variance(half) / probabilities).sum())
    reports = plan.bits_per_client / len(plan.kinds)
    return [(f"{users:,}", f"±{significant(1.96 * math.sqrt(each / (users * reports)))}") for users in EXAMPLE_USERS]
