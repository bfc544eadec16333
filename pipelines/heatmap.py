"""`sfumato heatmap`: an adaptive, differentially private heatmap of Parquet location logs, as one Beam job."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass, fields
from typing import Any, ClassVar

import apache_beam as beam

from sfumato.pipelines.job import Inputs, ReleaseRequest, add_release_arguments, release_options, run_release
from sfumato.pipelines.options import JobParser, RunnerSettings
from sfumato.schemas.locations import LocationColumns
from sfumato.schemas.region import Grid, Region
from sfumato.transforms.heatmap.adaptive import AdaptiveHeatmap
from sfumato.transforms.heatmap.assemble import release_files
from sfumato.transforms.heatmap.parameters import HeatmapParameters
from sfumato.transforms.heatmap.schedule import check_modulus
from sfumato.transforms.privacy.keys import RunKey
from sfumato.transforms.release.facts import ReleaseFacts
from sfumato.transforms.release.write import WriteRelease

_HELP = {
    "depth": "levels of the quadtree: the finest grid has 2^depth x 2^depth cells",
    "epsilon": "privacy budget of the whole release",
    "shard_size": "expected users a secure-aggregation shard (S)",
    "dropout": "largest share of a shard's users that may fail to answer; below that the shard is lost",
    "users": "size of the cohort that takes part; everybody where it is not given",
    "population": "number of users in the logs, where that is known from elsewhere; else it is counted privately",
    "population_share": "share of epsilon that the private count of users costs",
    "calibration": "c: noise aimed at, as a share of the users an entry has on average",
    "expansion": "b: a sub-query leaves at least (b - 1) times its own epsilon, or takes all",
    "split_threshold": "k: a node is split above k standard deviations of the noise to come",
    "start_level": "level of the uniform tree that is asked first",
    "max_sub_queries": "at most so many sub-queries; the last spends what is left",
    "overflow_chance": "chance that any shard's sum wraps around the modulus, in the whole run",
    "modulus": "auto, or the modulus m of the secure sums",
    "allow_overflow": "run with a modulus that is too small",
    "noise": "shard: a shard's noise in closed form; client: every client's share (slow)",
    "simulated_dropout": "chance that a client vanishes once the noise is decided",
    "max_bad_fraction": "fail where a larger share of the rows has no usable user or place",
}


@dataclass(frozen=True, kw_only=True)
class HeatmapRequest(ReleaseRequest):
    """One run of the job, checked as far as it can be before any work."""

    JOB: ClassVar[str] = "heatmap"

    region: Region
    heatmap: HeatmapParameters
    columns: LocationColumns

    def source(self) -> LocationColumns:
        return self.columns

    def parameters(self) -> dict[str, Any]:
        return {"region": asdict(self.region), **asdict(self.heatmap), "columns": asdict(self.columns)}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the job's options, one for each field of HeatmapParameters among them."""
    add_release_arguments(parser)
    parser.add_argument("--region", required=True, metavar="W,S,E,N", help="the map's borders in degrees")
    for field in fields(HeatmapParameters):
        name, help_text = f"--{field.name}", _HELP[field.name]
        if field.name == "modulus":
            parser.add_argument(name, type=_modulus, default="auto", metavar="M", help=help_text)
        elif isinstance(field.default, bool):
            parser.add_argument(name, action="store_true", help=help_text)
        elif field.name == "noise":
            parser.add_argument(name, choices=("shard", "client"), default=field.default, help=help_text)
        else:
            kind = float if isinstance(field.default, float) else int
            parser.add_argument(name, type=kind, default=field.default, help=help_text)
    for field in fields(LocationColumns):
        parser.add_argument(f"--{field.name}_column", default=field.default, help=f"column of the {field.name}")


def _modulus(text: str) -> int | str:
    return text if text == "auto" else int(text)


def run(arguments: Sequence[str]) -> int:
    """Runs the job for a command line. Raises RequestError or DataError."""
    parser = JobParser("heatmap", __doc__)
    add_arguments(parser)
    options, settings = parser.parse_job(arguments)
    values = vars(options)
    parameters = {field.name: values[field.name] for field in fields(HeatmapParameters)}
    if parameters["modulus"] == "auto":
        parameters["modulus"] = None
    request = HeatmapRequest(
        **release_options(options),
        region=Region.parse(options.region),
        heatmap=HeatmapParameters(**parameters),
        columns=LocationColumns(**{f.name: values[f"{f.name}_column"] for f in fields(LocationColumns)}),
    )
    run_heatmap(request, settings, verbose=options.verbose)
    return 0


def run_heatmap(request: HeatmapRequest, settings: RunnerSettings, *, verbose: bool = False) -> None:
    """Checks the request, then runs the job to the end. Raises RequestError or DataError."""
    check_modulus(request.heatmap)
    grid = Grid(request.region, request.heatmap.depth)

    def build(root: beam.Pipeline, inputs: Inputs, key: RunKey, facts: ReleaseFacts) -> beam.PCollection:
        heatmap = AdaptiveHeatmap(request.region, request.heatmap, key, request.columns, inputs.spill)
        return (
            root
            | "Paths" >> beam.Create(inputs.paths)
            | "Heatmap" >> heatmap  # HeatmapState
            | "Assemble" >> beam.Map(release_files, facts, grid)  # {name: content}
            | "Write" >> WriteRelease(request.output, facts.release_id, request.overwrite)
        )

    run_release(request, settings, build, verbose=verbose)


if __name__ == "__main__":
    from sfumato.pipelines.cli import main

    sys.exit(main(["heatmap", *sys.argv[1:]]))
