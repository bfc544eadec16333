"""What the jobs of sample and threshold share: their options, their request, their graph."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from dataclasses import asdict, dataclass, fields, replace
from typing import Any

import apache_beam as beam

from sfumato.pipelines.job import Inputs, ReleaseRequest, run_release
from sfumato.pipelines.options import RunnerSettings
from sfumato.schemas.errors import RequestError
from sfumato.schemas.items import ItemColumns
from sfumato.schemas.ledger import Cost
from sfumato.schemas.locations import Columns, LocationColumns
from sfumato.schemas.region import Grid, Region
from sfumato.transforms.histogram.item_encoding import CellItems, Items
from sfumato.transforms.histogram.sample_and_threshold import Limits
from sfumato.transforms.histogram.sampled_release import SampleMetadata
from sfumato.transforms.histogram.sampling_plan import CONTACTS, SamplePlan
from sfumato.transforms.privacy.admission import AdmissionRule
from sfumato.transforms.privacy.keys import RunKey
from sfumato.transforms.release.metadata import ReleaseMetadata
from sfumato.transforms.release.publishing import WriteRelease, with_charge

_HELP = {
    "epsilon": "privacy budget of the whole release",
    "delta": "chance that epsilon may fail to cover; keep it far below 1 / users",
    "population": "number of users in the logs, where that is known from elsewhere; steers the sampling rate, and the "
    "run is refused where the logs hold others",
    "items": "about how many different items there are, where that is known; steers the sampling rate",
    "contact": "everybody: each user draws on their own; limited: each user is asked with a probability, of which "
    "m + 10 sqrt(m) of --population users are asked on average, where m are expected to take part; "
    "fixed, a known number, is refused",
    "max_bad_fraction": "refuse where, by noisy counts, a larger share of the users has no usable record",
}


@dataclass(frozen=True, kw_only=True)
class SampledRequest(ReleaseRequest):
    """One run of such a job. counted: the items. Jobs add their own fields."""

    plan: SamplePlan
    counted: Items

    def cost(self) -> Cost:
        return Cost(self.plan.epsilon, self.plan.delta)

    def plan_text(self) -> str:
        from sfumato.pipelines.dry_run import sample_plan_text  # which brings the plans of all jobs

        return sample_plan_text(self.plan, self.counted)

    def source(self) -> Columns:
        return self.counted.columns

    def admission(self) -> AdmissionRule:
        return replace(self.plan.admission_rule, min_users=self.min_users)

    def parameters(self) -> dict[str, Any]:
        settled = {field.name for field in fields(ReleaseRequest)}
        options = {name: value for name, value in asdict(self).items() if name not in settled}
        columns = self.counted.columns
        column = {"column": columns.column} if isinstance(columns, ItemColumns) else {}
        return {**options.pop("plan"), **column, **options}


def add_plan_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds an option for each field of SamplePlan but the number of rounds, and the column of user ids."""
    for field in fields(SamplePlan):
        if field.name == "rounds":
            continue
        name, help_text = f"--{field.name}", _HELP[field.name]
        if field.name == "contact":
            parser.add_argument(name, choices=CONTACTS, default=field.default, help=help_text)
        else:
            kind = float if isinstance(field.default, float) else int
            parser.add_argument(name, type=kind, default=field.default, help=help_text)
    parser.add_argument("--user_id_column", default="user_id", help="column of the user_id")


def plan_of(options: argparse.Namespace, rounds: int, items: int | None = None) -> SamplePlan:
    """The command line's plan. items: how many there are, unless --items says it. Raises RequestError."""
    given = {field.name: getattr(options, field.name) for field in fields(SamplePlan) if field.name != "rounds"}
    if given["items"] is None:
        given["items"] = items
    return SamplePlan(**given, rounds=rounds)


def add_item_arguments(parser: argparse.ArgumentParser, column_help: str) -> None:
    """Adds what says where items come from: a column, or the cells of a region."""
    parser.add_argument("--column", metavar="NAME", help=column_help)
    parser.add_argument("--region", metavar="W,S,E,N", help="count map cells of this region; borders in degrees")
    parser.add_argument("--latitude_column", default="latitude", help="column of the latitude")
    parser.add_argument("--longitude_column", default="longitude", help="column of the longitude")


def cell_items(options: argparse.Namespace, depth: int) -> CellItems:
    """The cells of the command line's region. Raises RequestError."""
    columns = LocationColumns(options.user_id_column, options.latitude_column, options.longitude_column)
    return CellItems(columns, Grid(Region.parse(options.region), depth))


def column_or_cells(options: argparse.Namespace, cells: str) -> bool:
    """Whether items are map cells. Raises RequestError unless it is either a column or a region. cells: its options."""
    if (options.column is None) == (options.region is None):
        raise RequestError(f"column, region: give --column NAME or {cells}, one of them")
    return options.region is not None


def columns(options: argparse.Namespace, kinds: tuple[str, ...]) -> ItemColumns:
    """The columns of the command line's items."""
    return ItemColumns(options.column, options.user_id_column, kinds)


def limits(inputs: Inputs) -> Limits:
    """How counts run on these inputs."""
    return {"admit": inputs.admit, "spill": inputs.spill}


# (inputs, key) -> what makes the published result of paths; (published result, facts) -> {file name: content}
Publish = Callable[[Inputs, RunKey], beam.PTransform]
Assemble = Callable[..., dict[str, bytes]]


def run_sampled(
    request: SampledRequest,
    settings: RunnerSettings,
    publish: Publish,
    assemble: Assemble,
    title: str,
    *more: Any,
) -> None:
    """Runs a job to the end. more: further arguments of `assemble`. Raises RequestError or DataError."""
    _ = request.plan.sampling  # a plan that cannot be kept is a bad request

    def build(root: beam.Pipeline, inputs: Inputs, key: RunKey, metadata: ReleaseMetadata) -> beam.PCollection:
        told = request.plan, request.counted, title
        return (
            root
            | "Files" >> beam.Create(inputs.files)
            | "Publish" >> publish(inputs, key)  # what is public from here on
            | "Assemble"
            >> beam.Map(lambda result: assemble(result, SampleMetadata(with_charge(metadata), *told), *more))
            | "Write" >> WriteRelease(request.output, metadata, request.overwrite)
        )

    run_release(request, settings, build)
