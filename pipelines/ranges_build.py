"""`sfumato ranges build`: a private model of Parquet location logs that answers how many people are in any square."""

from __future__ import annotations

import argparse
import importlib.util
import json
import logging
import sys
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime
from typing import Any, ClassVar

import apache_beam as beam
import numpy as np
from apache_beam.io.filesystems import FileSystems

from sfumato.pipelines.columns import add_column_arguments, location_columns
from sfumato.pipelines.heatmap_options import add_heatmap_arguments
from sfumato.pipelines.job import Inputs, ReleaseRequest, add_release_arguments, release_options, run_release
from sfumato.pipelines.options import JobParser, RunnerSettings
from sfumato.pipelines.scratch import BYTES_PER_ROW, VALUE_BYTES_PER_ROW
from sfumato.schemas.errors import RequestError
from sfumato.schemas.ledger import Cost
from sfumato.schemas.locations import LocationColumns
from sfumato.schemas.ranges import BASE_DEPTH, QUERY_COLUMNS, Boxes, Field, Sizes
from sfumato.schemas.region import Grid, Region
from sfumato.schemas.release import CELLS_FILE, MANIFEST_FILE
from sfumato.transforms.heatmap.options import heatmap_options
from sfumato.transforms.heatmap.parameters import HeatmapParameters
from sfumato.transforms.heatmap.state import Estimate
from sfumato.transforms.heatmap.warm_start import WarmStart
from sfumato.transforms.logs import log_event
from sfumato.transforms.privacy.admission import AdmissionRule
from sfumato.transforms.privacy.keys import RunKey
from sfumato.transforms.ranges.assemble import HeatmapRelease, files_of_release, ranges_files
from sfumato.transforms.ranges.combine import BuildRanges
from sfumato.transforms.ranges.model import RangeModel
from sfumato.transforms.ranges.plan import ADAPTIVE, TRUSTS, RangesPlan, method_options, method_texts
from sfumato.transforms.ranges.queries import count_queries, read_queries
from sfumato.transforms.ranges.tree_model import TreeModel
from sfumato.transforms.ranges.tune import open_tuner
from sfumato.transforms.release.metadata import ReleaseMetadata
from sfumato.transforms.release.published_release import open_release
from sfumato.transforms.release.publishing import WriteRelease, with_charge
from sfumato.transforms.release.release_folder import check_output, publish
from sfumato.transforms.secagg.shard_sums import NoiseMode

SIZES = "25,100"
_LEARNING = ("auto", "snh")
LEAST_SQUARES = 1_000  # of fewer, networks learn a few places by heart
MOST_SQUARES = 50_000  # of a workload: the job's graph carries them several times
_COUNTING = ("epsilon", "population", "population_share", "max_bad_fraction")
_SHARDS = ("shard_size", "dropout")


@dataclass(frozen=True, kw_only=True)
class RangesRequest(ReleaseRequest):
    """One run of the job, checked as far as it can be before any work."""

    JOB: ClassVar[str] = "ranges"

    plan: RangesPlan
    columns: LocationColumns

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.timeline is not None:
            raise RequestError("timeline: the page of all releases shows no models; leave it out")
        if self.plan.method in _LEARNING and not all(map(importlib.util.find_spec, ("jax", "optax", "tqdm"))):
            raise RequestError(
                f"method: {self.plan.method} trains networks, which need JAX and optax: "
                "pip install 'sfumato[neural]', or use --method grid"
            )

    def plan_text(self) -> str:
        from sfumato.pipelines.dry_run import ranges_plan_text

        return ranges_plan_text(self.plan)

    def cost(self) -> Cost:
        return Cost(self.plan.counting.epsilon, trust=self.plan.trust)

    def source(self) -> LocationColumns:
        return self.columns

    def admission(self) -> AdmissionRule:
        return self.plan.counting.admission(self.min_users)

    def parameters(self) -> dict[str, Any]:
        return {**self.plan.metadata(), "columns": asdict(self.columns)}

    def stored_bytes(self, rows: int) -> int:
        return rows * (BYTES_PER_ROW + VALUE_BYTES_PER_ROW * self.columns.weighs)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the job's options: its own, those of the methods, and of the heatmap's those that say how people count."""
    add_release_arguments(parser)
    counting = heatmap_options()
    texts = "; ".join(f"{name}, {text}" for name, text in method_texts().items())
    parser.add_argument("--region", required=True, metavar="W,S,E,N", help="the borders in degrees")
    parser.add_argument("--method", default="auto", help=f"how ranges are answered: {texts}")
    parser.add_argument("--sizes", default=SIZES, metavar="LOW,HIGH", help="sides of the squares to come, in metres")
    parser.add_argument(
        "--trust",
        choices=TRUSTS,
        default="central",
        help="central: whoever runs the job adds the noise; secagg: shares of it are added in shards of secure sums",
    )
    add_heatmap_arguments(parser, {name: replace(counting[name], methods=()) for name in _COUNTING}, many=False)
    group = parser.add_argument_group("options of trust secagg")
    add_heatmap_arguments(group, {name: counting[name] for name in _SHARDS}, many=False)  # type: ignore[arg-type]
    adaptive = replace(counting["depth"], methods=(ADAPTIVE,))
    add_heatmap_arguments(parser, {**method_options(), "depth": adaptive}, many=False)
    parser.add_argument(
        "--release",
        metavar="FOLDER",
        help="in place of --input, --region and --epsilon: a heatmap that is published already, from which method "
        "adaptive makes a model without any logs, and at no cost",
    )
    add_column_arguments(parser)


def run(arguments: Sequence[str]) -> int:
    """Runs the job for a command line. Raises RequestError or DataError."""
    parser = JobParser("ranges build", __doc__)
    first = JobParser("ranges build", None)
    first.add_argument("--release")
    if not {"-h", "--help"} & {*arguments} and (path := first.parse_known_args(arguments)[0].release) is not None:
        return _of_release(path, arguments)
    add_arguments(parser)
    options, settings = parser.parse_job(arguments)
    request = RangesRequest(**release_options(options), plan=plan_of(options), columns=location_columns(options))
    run_build(request, settings)
    return 0


def plan_of(options: argparse.Namespace) -> RangesPlan:
    """What a command line asks for. Raises RequestError."""
    values = vars(options)
    region, sizes = Region.parse(options.region), Sizes.parse(options.sizes)
    given = {name: values[name] for name in method_options() if values[name] is not None and values[name] is not False}
    if "workload" in given:
        given["workload"] = read_workload(given["workload"], Field(Grid(region, BASE_DEPTH)))
    if "tuner" in given:
        given["tuner"] = open_tuner(given["tuner"])
    shards = {name: values[name] for name in _SHARDS if values[name] is not None}
    if shards and options.trust != "secagg":
        raise RequestError(f"{next(iter(shards))}: is of shards, which need --trust secagg")
    if options.depth is not None and options.method != ADAPTIVE:
        raise RequestError(f"depth: is of the heatmap's tree; use it with --method {ADAPTIVE}")
    counting = {name: values[name] for name in (*_COUNTING, "depth") if values[name] is not None}
    noise: NoiseMode = "shard" if options.trust == "secagg" else "central"
    return RangesPlan(
        region,
        sizes,
        options.method,
        given,
        HeatmapParameters(**counting, **shards, noise=noise),
        options.trust,
    )


def read_workload(path: str, field: Field) -> Boxes:
    """The squares of a file that lie in the field, or what of them does.

    Raises RequestError where none does, where there are too many, and for what is no square; DataError where the file
    cannot be read.
    """
    try:
        rows = count_queries(path)
        if rows > MOST_SQUARES:
            raise RequestError(
                f"{path} holds {rows:,} squares, and {MOST_SQUARES:,} are the most; give a sample of them"
            )
        batches = [[batch.column(name).to_numpy() for name in QUERY_COLUMNS] for batch in read_queries(path)]
    except RequestError as error:
        raise RequestError(f"workload: {error}") from None
    squares = [field.squares(*batch).clipped(field.side) for batch in batches]
    edges = [np.concatenate([getattr(one, name) for one in squares] or [[]]) for name in ("x0", "y0", "x1", "y1")]
    boxes = Boxes(*edges)
    inside = boxes.areas > 0
    if 0 < inside.sum() < LEAST_SQUARES:
        raise RequestError(
            f"workload: {inside.sum():,} squares of {path} lie in the region, too few to learn from; give "
            f"{LEAST_SQUARES:,} or more, or leave it out"
        )
    if not inside.any():
        raise RequestError(f"workload: no square of {path} lies in the region {field.grid.region}")
    return Boxes(*(edge[inside] for edge in edges))


def run_build(request: RangesRequest, settings: RunnerSettings) -> None:
    """Runs the job to the end. Raises RequestError or DataError."""
    plan = request.plan

    def build(root: beam.Pipeline, inputs: Inputs, key: RunKey, metadata: ReleaseMetadata) -> beam.PCollection:
        return (
            root
            | "Files" >> beam.Create(inputs.files)
            | "Build" >> BuildRanges(plan, key, request.columns, inputs.spill, inputs.admit)  # Built
            | "Assemble" >> beam.Map(lambda built: ranges_files(built, plan, with_charge(metadata)))  # {name: content}
            | "Write" >> WriteRelease(request.output, metadata, request.overwrite)
        )

    run_release(request, settings, build)


# --- from a published heatmap ---


def _of_release(path: str, arguments: Sequence[str]) -> int:
    """Makes a model of a published heatmap. Raises RequestError, also for options that have no effect here."""
    parser = JobParser("ranges build", __doc__)
    parser.add_argument("--release", required=True)
    parser.add_argument("--output", required=True)
    parser.add_argument("--method", choices=(ADAPTIVE,), default=ADAPTIVE)
    parser.add_argument("--sizes", default=SIZES)
    parser.add_argument("--release_id")
    parser.add_argument("--overwrite", action="store_true")
    parser.add_argument("--log_format")
    parser.add_argument("--verbose", action="store_true")
    parser.add_argument("--dry_run", action="store_true")
    options, others = parser.parse_known_args(arguments)
    if others:
        name = others[0].removeprefix("--").split("=")[0]
        raise RequestError(f"{name}: has no effect with --release: a published heatmap says all but --sizes")
    if options.release_id is not None and not options.release_id.replace("-", "").replace("_", "").isalnum():
        raise RequestError(f"release_id: letters, digits, - and _ only, got {options.release_id!r}")
    release = open_heatmap(path)
    sizes = Sizes.parse(options.sizes)
    sizes.check(release.field)
    check_output(options.output, options.overwrite)
    if options.dry_run:
        sys.stdout.write(
            f"sfumato ranges build, a dry run: nothing was charged or written\n\nreads      {path}\n"
            f"charges    nothing: what is published may be used in any way\npublishes  {options.output}\n"
        )
        return 0
    metadata = _metadata(release, sizes, options.release_id)
    model = RangeModel(release.field, TreeModel(release.estimate), ADAPTIVE, release.manifest["privacy"]["epsilon"])
    files = files_of_release(release, model, sizes, metadata)
    publish(options.output, files, metadata.release_id, options.overwrite)
    for warning in json.loads(files[MANIFEST_FILE])["warnings"]:
        log_event("warning", warning, logging.WARNING)
    sys.stdout.write(f"{FileSystems.join(options.output, 'index.html')}\n")
    return 0


def open_heatmap(path: str) -> HeatmapRelease:
    """A published heatmap. Raises RequestError where there is none, or its map is damaged."""
    try:
        release = open_release(path)
        grid = release.grid
        if grid is None:
            raise RequestError(f"a heatmap's release is needed, this one is of {release.manifest.get('job')!r}")
        start = WarmStart.from_release(release.manifest, release.arrow_table(CELLS_FILE), grid)
        estimate = _of_everybody(start.estimate, release.manifest)
    except RequestError as error:
        raise RequestError(f"release: {str(error).removeprefix('warm_start: ')}") from None
    return HeatmapRelease(Field(Grid(grid.region, BASE_DEPTH)), estimate, release.manifest, release.digest)


def _of_everybody(estimate: Estimate, manifest: Mapping[str, Any]) -> Estimate:
    """The map of a cohort, drawn at random, for all users. Raises RequestError for a damaged manifest."""
    try:
        privacy = manifest["privacy"]
        rate = float(privacy["cohort"]["sampling_rate"])
        complete = isinstance(privacy["assumptions"], list) and isinstance(privacy["randomness"]["source"], str)
    except (KeyError, TypeError, ValueError) as error:
        raise RequestError(f"the release's manifest lacks a part of its guarantee ({error!r})") from None
    if not (complete and 0 < rate <= 1):
        raise RequestError("the release's manifest is damaged")
    return replace(estimate, counts=estimate.counts / rate, stddev=estimate.stddev / rate)


def _metadata(release: HeatmapRelease, sizes: Sizes, release_id: str | None) -> ReleaseMetadata:
    randomness = release.manifest["privacy"]["randomness"]
    source = {"release_id": release.manifest["release_id"], "digest": release.digest}
    return ReleaseMetadata(
        job=RangesRequest.JOB,
        release_id=release_id or uuid.uuid4().hex,
        created=datetime.now(UTC).isoformat(timespec="seconds"),
        randomness=randomness["source"],
        safe=randomness["safe"] is True,
        parameters={"release": source, "method": ADAPTIVE, "sizes": [sizes.low, sizes.high]},
    )


if __name__ == "__main__":
    from sfumato.pipelines.cli import command

    sys.exit(command(["ranges", "build", *sys.argv[1:]]))
