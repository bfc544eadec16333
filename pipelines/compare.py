"""`sfumato compare`: heatmap methods side by side on data that you may look at. An evaluation, never a release."""

from __future__ import annotations

import contextlib
import importlib.util
import math
import sys
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any, ClassVar

import apache_beam as beam
import numpy as np
from apache_beam.io.filesystems import FileSystems
from numpy.typing import NDArray

from sfumato.pipelines.job import Inputs, ReleaseJob, run_release
from sfumato.pipelines.runner_settings import RunnerSettings
from sfumato.pipelines.scratch import BYTES_PER_ROW, DISTRIBUTION_BYTES_PER_ROW, MAP_BYTES, VALUE_BYTES_PER_ROW
from sfumato.schemas.comparison import BY_TRUTH, EVALUATION, YARDSTICK, Outcome
from sfumato.schemas.errors import RequestError
from sfumato.schemas.ledger import Cost
from sfumato.schemas.locations import LocationColumns
from sfumato.schemas.release import EVALUATION_FORMAT, TABLE_TEXT_FILE
from sfumato.schemas.requests.log_columns import IN_COLUMNS
from sfumato.transforms.evaluation.cases import Case, make_cases
from sfumato.transforms.evaluation.compare_methods import CompareMethods
from sfumato.transforms.evaluation.compare_request import SWEPT, CompareOptions
from sfumato.transforms.evaluation.comparison_files import comparison_files
from sfumato.transforms.evaluation.density_metrics import parse_metrics
from sfumato.transforms.evaluation.earth_mover import MAX_SIDE
from sfumato.transforms.evaluation.evaluate_case import Evaluation, truth_of
from sfumato.transforms.files import read_file
from sfumato.transforms.heatmap.heatmap_request import lists_of, location_columns
from sfumato.transforms.heatmap.raster import MAX_RASTER_DEPTH
from sfumato.transforms.heatmap.schedule import check_plan
from sfumato.transforms.logs import log_event
from sfumato.transforms.privacy.admission import AdmissionRule
from sfumato.transforms.privacy.keys import RunKey
from sfumato.transforms.release.metadata import ReleaseMetadata
from sfumato.transforms.release.publishing import WriteRelease


@dataclass(frozen=True)
class CompareJob(ReleaseJob):
    """A requested comparison. Raises RequestError."""

    FORMAT: ClassVar[str] = EVALUATION_FORMAT
    STATED_AS: ClassVar[Mapping[str, str]] = {**IN_COLUMNS, "truth": "cohort"}
    RELEASE_MEMORY: ClassVar[int] = MAP_BYTES

    request: CompareOptions
    cases: list[Case]
    evaluation: Evaluation

    def __post_init__(self) -> None:
        for case in self.cases:
            check_plan(case.parameters)
        depth = max(case.parameters.depth for case in self.cases)
        if depth > MAX_RASTER_DEPTH:
            raise RequestError(f"depth: a comparison looks at every cell, so at most {MAX_RASTER_DEPTH}, got {depth}")
        if "emd" in self.evaluation.metrics and 1 << depth > MAX_SIDE:
            raise RequestError(
                f"metrics: the exact earth mover's distance is for grids up to {MAX_SIDE} x {MAX_SIDE}; give --depth "
                f"{MAX_SIDE.bit_length() - 1} or less instead of {depth}, or leave emd out"
            )
        if "emd" in self.evaluation.metrics and importlib.util.find_spec("ortools") is None:
            raise RequestError("metrics: emd needs OR-tools: pip install ortools, or leave emd out")

    @classmethod
    def of(cls, request: CompareOptions) -> CompareJob:
        """The job of a request. Raises RequestError."""
        evaluation = Evaluation(parse_metrics(",".join(request.metrics)), request.blur, request.truth == "cohort")
        return cls(request, make_cases(request.methods, lists_of(request, SWEPT)), evaluation)

    def cost(self) -> Cost:
        return Cost(math.inf, 1.0)  # the tables follow from exact data

    def admission(self) -> AdmissionRule:
        return AdmissionRule(1.0)  # not used: an evaluation decides on exact numbers

    def columns(self) -> LocationColumns:
        return location_columns(self.request)

    def resolved(self) -> dict[str, Any]:
        return {
            "region": asdict(self.request.region),
            "methods": list(self.request.methods),
            **lists_of(self.request, SWEPT),
            **asdict(self.evaluation),
            "columns": self.columns().metadata(),
        }

    def stored_bytes(self, rows: int) -> int:
        sizes = {case.parameters.users or 0 for case in self.cases}
        draws = (
            24
            * (2 if any(case.earlier for case in self.cases) else 1)
            * self.request.keys
            * sum(min(users, rows) for users in sizes)
        )
        values = VALUE_BYTES_PER_ROW * self.columns().has_weights
        return rows * (BYTES_PER_ROW + DISTRIBUTION_BYTES_PER_ROW + values) + draws

    def build(self, root: beam.Pipeline, inputs: Inputs, key: RunKey, metadata: ReleaseMetadata) -> beam.PCollection:
        request, cases, evaluation = self.request, self.cases, self.evaluation
        compare = CompareMethods(request.region, cases, request.keys, evaluation, key, self.columns(), inputs.spill)
        outcomes, truth = root | "Files" >> beam.Create(inputs.files) | "Compare" >> compare
        methods = list(dict.fromkeys(case.setting.method for case in cases))
        described = {
            "release_id": metadata.release_id,
            "created": metadata.created,
            "region": asdict(request.region),
            "parameters": metadata.parameters,
        }
        return (
            truth
            | "Assemble" >> beam.Map(_files, beam.pvalue.AsList(outcomes), methods, evaluation, described)
            | "Write" >> WriteRelease(request.output, metadata, request.overwrite)
        )


def run(request: CompareOptions, settings: RunnerSettings) -> int:
    """Runs the comparison to the end and prints its table. Raises RequestError or DataError."""
    job = CompareJob.of(request)
    log_event("evaluation", EVALUATION)
    if not settings.local and any(case.parameters.users is None for case in job.cases):
        raise RequestError(
            "users: on a cluster every cohort travels complete to one worker; give sizes, as --users 100000"
        )
    run_release(job, settings)
    with contextlib.suppress(FileNotFoundError):  # Beam's own dry run writes nothing
        sys.stdout.write(read_file(FileSystems.join(request.output, TABLE_TEXT_FILE)).decode())
    return 0


def _files(
    truth: NDArray[np.float64],
    outcomes: list[Outcome],
    methods: list[str],
    evaluation: Evaluation,
    described: dict[str, Any],
) -> dict[str, bytes]:
    """The evaluation's files. The runner delivers outcomes in any order, so they are sorted by method and key."""
    order = {YARDSTICK: -1.0, **{name: i for i, name in enumerate(methods)}}
    order |= {name + BY_TRUTH: i + 0.5 for i, name in enumerate(methods)}
    ordered = sorted(outcomes, key=lambda outcome: (order[outcome.setting.method], outcome.key))
    return comparison_files(ordered, evaluation.blurred(truth_of(truth)), evaluation.metrics, described)
