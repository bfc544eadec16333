"""`sfumato compare`: heatmap methods side by side on data that you may look at. An evaluation, never a release.

Each method meets the same cohorts, once for every combination of the values given; every option of `sfumato heatmap`
takes several, separated by commas. The table shows means over keys and their standard errors.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib.util
import math
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any, ClassVar

import apache_beam as beam
import numpy as np
from apache_beam.io.filesystems import FileSystems
from numpy.typing import NDArray

from sfumato.pipelines.columns import add_column_arguments, location_columns
from sfumato.pipelines.heatmap_options import add_heatmap_arguments, lists_of, names_of
from sfumato.pipelines.job import Inputs, ReleaseRequest, add_release_arguments, release_options, run_release
from sfumato.pipelines.options import JobParser, RunnerSettings
from sfumato.pipelines.scratch import BYTES_PER_ROW, DISTRIBUTION_BYTES_PER_ROW, VALUE_BYTES_PER_ROW
from sfumato.schemas.comparison import BY_TRUTH, EVALUATION, YARDSTICK, Outcome
from sfumato.schemas.errors import RequestError
from sfumato.schemas.ledger import Cost
from sfumato.schemas.locations import LocationColumns
from sfumato.schemas.region import Region
from sfumato.schemas.release import EVALUATION_FORMAT, TABLE_TEXT_FILE
from sfumato.transforms.evaluation.assemble import comparison_files
from sfumato.transforms.evaluation.compare import CompareMethods
from sfumato.transforms.evaluation.earth_mover import MAX_SIDE
from sfumato.transforms.evaluation.metrics import METRICS, parse_metrics
from sfumato.transforms.evaluation.outcomes import Judge, truth_of
from sfumato.transforms.evaluation.settings import EARLIER, MARGIN, Case, make_cases
from sfumato.transforms.files import read_file
from sfumato.transforms.heatmap.checks import check_whole, check_within
from sfumato.transforms.heatmap.methods import METHODS
from sfumato.transforms.heatmap.options import Option, heatmap_options
from sfumato.transforms.heatmap.raster import MAX_RASTER_DEPTH
from sfumato.transforms.heatmap.schedule import check_plan
from sfumato.transforms.logs import log_event
from sfumato.transforms.privacy.admission import AdmissionRule
from sfumato.transforms.privacy.keys import RunKey
from sfumato.transforms.release.metadata import ReleaseMetadata
from sfumato.transforms.release.publishing import WriteRelease

# An evaluation knows how many users there are, and lets the clients vanish that `dropout` says.
_NOT_OFFERED = ("population", "population_share", "simulated_dropout")
_OWN = {
    one.name: one
    for one in (
        Option("dropout", float, 0.0, "share of the clients that vanish; shards tolerate it"),
        Option(EARLIER, int, 0, "1: start from a release of another cohort of the same size; or 0"),
        Option(MARGIN, float, None, "what a shard may lack beside the dropout; default: five deviations of its size"),
    )
}
_METRICS = "mse,l1,mape,smape,maape"
_METHODS = "adaptive,flat,hierarchical,count_min,adaptive_grid,spatial_decomposition"


@dataclass(frozen=True, kw_only=True)
class CompareRequest(ReleaseRequest):
    """One comparison, checked as far as it can be before any work."""

    JOB: ClassVar[str] = "compare"
    FORMAT: ClassVar[str] = EVALUATION_FORMAT

    region: Region
    cases: list[Case]
    keys: int
    judge: Judge
    options: dict[str, Any]
    columns: LocationColumns

    def __post_init__(self) -> None:
        super().__post_init__()
        check_whole("keys", self.keys, 1, 10_000)
        check_within("blur", self.judge.blur, 0, 1)
        for case in self.cases:
            check_plan(case.parameters)
        depth = max(case.parameters.depth for case in self.cases)
        if depth > MAX_RASTER_DEPTH:
            raise RequestError(f"depth: a comparison looks at every cell, so at most {MAX_RASTER_DEPTH}, got {depth}")
        if "emd" in self.judge.metrics and 1 << depth > MAX_SIDE:
            raise RequestError(
                f"metrics: the exact earth mover's distance is for grids up to {MAX_SIDE} x {MAX_SIDE}; give --depth "
                f"{MAX_SIDE.bit_length() - 1} or less instead of {depth}, or leave emd out"
            )
        if "emd" in self.judge.metrics and importlib.util.find_spec("ortools") is None:
            raise RequestError("metrics: emd needs OR-tools: pip install ortools, or leave emd out")

    def cost(self) -> Cost:
        return Cost(math.inf, 1.0)  # it shows the exact data

    def admission(self) -> AdmissionRule:
        return AdmissionRule(1.0)  # not asked: an evaluation decides on exact numbers

    def source(self) -> LocationColumns:
        return self.columns

    def parameters(self) -> dict[str, Any]:
        return {
            "region": asdict(self.region),
            **self.options,
            "keys": self.keys,
            **asdict(self.judge),
            "columns": asdict(self.columns),
        }

    def stored_bytes(self, rows: int) -> int:
        sizes = {case.parameters.users or 0 for case in self.cases}
        draws = (
            24
            * (2 if any(case.earlier for case in self.cases) else 1)
            * self.keys
            * sum(min(users, rows) for users in sizes)
        )
        values = VALUE_BYTES_PER_ROW * self.columns.weighs
        return rows * (BYTES_PER_ROW + DISTRIBUTION_BYTES_PER_ROW + values) + draws


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the job's options: those of the heatmap, each of which takes several values."""
    add_release_arguments(parser, "evaluation")
    parser.add_argument("--region", required=True, metavar="W,S,E,N", help="the maps' borders in degrees")
    parser.add_argument("--methods", "--method", default=_METHODS, metavar="NAMES", help=f"of {', '.join(METHODS)}")
    parser.add_argument("--metrics", default=_METRICS, metavar="NAMES", help=f"of {', '.join(METRICS)}")
    parser.add_argument("--keys", type=int, default=10, metavar="N", help="runs of each setting: cohorts and noise")
    parser.add_argument(
        "--blur", type=float, default=0.0, metavar="X", help="deviation of a Gaussian filter, in sides of the region"
    )
    parser.add_argument(
        "--truth",
        choices=("everybody", "cohort"),
        default="everybody",
        help="what maps are compared with: the density of everybody, or of the users who were asked",
    )
    add_heatmap_arguments(parser, _swept(), many=True)
    add_column_arguments(parser)


def _swept() -> dict[str, Option]:
    return {**{name: one for name, one in heatmap_options().items() if name not in _NOT_OFFERED}, **_OWN}


def run(arguments: Sequence[str]) -> int:
    """Runs the job for a command line. Raises RequestError or DataError."""
    parser = JobParser("compare", __doc__)
    add_arguments(parser)
    options, settings = parser.parse_job(arguments)
    values = vars(options)
    lists, methods = lists_of(values, _swept()), names_of(options.methods)
    request = CompareRequest(
        **release_options(options),
        region=Region.parse(options.region),
        cases=make_cases(methods, lists),
        keys=options.keys,
        judge=Judge(parse_metrics(options.metrics), options.blur, options.truth == "cohort"),
        options={"methods": methods, **lists},
        columns=location_columns(options),
    )
    run_compare(request, settings)
    return 0


def run_compare(request: CompareRequest, settings: RunnerSettings) -> None:
    """Runs the comparison to the end and prints its table. Raises RequestError or DataError."""
    log_event("evaluation", EVALUATION)
    if not settings.local and any(case.parameters.users is None for case in request.cases):
        raise RequestError(
            "users: on a cluster every cohort travels whole to one worker; give sizes, as --users 100000"
        )

    def build(root: beam.Pipeline, inputs: Inputs, key: RunKey, metadata: ReleaseMetadata) -> beam.PCollection:
        compare = CompareMethods(
            request.region, request.cases, request.keys, request.judge, key, request.columns, inputs.spill
        )
        outcomes, truth = root | "Files" >> beam.Create(inputs.files) | "Compare" >> compare
        return (
            truth
            | "Assemble" >> beam.Map(_files, beam.pvalue.AsList(outcomes), request, metadata)  # {name: content}
            | "Write" >> WriteRelease(request.output, metadata, request.overwrite)
        )

    run_release(request, settings, build)
    with contextlib.suppress(FileNotFoundError):  # a dry run writes nothing
        sys.stdout.write(read_file(FileSystems.join(request.output, TABLE_TEXT_FILE)).decode())


def _files(
    truth: NDArray[np.float64], outcomes: list[Outcome], request: CompareRequest, metadata: ReleaseMetadata
) -> dict[str, bytes]:
    """The evaluation's files. The runner delivers outcomes in any order; the cases have one."""
    methods = list(dict.fromkeys(case.setting.method for case in request.cases))
    order = {YARDSTICK: -1.0, **{name: i for i, name in enumerate(methods)}}
    order |= {name + BY_TRUTH: i + 0.5 for i, name in enumerate(methods)}
    told = {
        "release_id": metadata.release_id,
        "created": metadata.created,
        "region": asdict(request.region),
        "parameters": metadata.parameters,
    }
    judge = request.judge
    ordered = sorted(outcomes, key=lambda one: (order[one.setting.method], one.key))
    return comparison_files(ordered, judge.show(truth_of(truth)), judge.metrics, told)


if __name__ == "__main__":
    from sfumato.pipelines.cli import command

    sys.exit(command(["compare", *sys.argv[1:]]))
