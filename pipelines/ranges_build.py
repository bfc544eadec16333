"""`sfumato ranges build`: a private model of Parquet location logs that answers how many users are in any square."""

from __future__ import annotations

import json
import logging
import sys
import uuid
from collections.abc import Mapping
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Any, ClassVar

import apache_beam as beam
import numpy as np
from apache_beam.io.filesystems import FileSystems

from sfumato.pipelines.frame.job import Inputs, geography_of
from sfumato.pipelines.frame.release_run import run_release
from sfumato.pipelines.frame.scratch import PLAIN_BYTES, RunBytes
from sfumato.pipelines.heatmap import CountingJob
from sfumato.pipelines.runners.runner_settings import RunnerSettings
from sfumato.schemas.errors import RequestError
from sfumato.schemas.known_digits import NOISE_Z
from sfumato.schemas.ranges import BASE_DEPTH, QUERY_COLUMNS, Boxes, Field, Sizes
from sfumato.schemas.region import Grid
from sfumato.schemas.release import CELLS_FILE, MANIFEST_FILE
from sfumato.schemas.requests.checks import owners_of
from sfumato.schemas.requests.log_columns import IN_COLUMNS
from sfumato.transforms.counting.parameters import HeatmapParameters
from sfumato.transforms.counting.plan import heatmap_plan_text
from sfumato.transforms.counting.state import Estimate
from sfumato.transforms.nights.warm_start import WarmStart
from sfumato.transforms.observability.logs import log_event
from sfumato.transforms.observability.text_tables import TYPICAL_USERS, significant
from sfumato.transforms.privacy.keys import RunKey
from sfumato.transforms.ranges.methods import METHODS
from sfumato.transforms.ranges.model import RangeModel, TreeModel
from sfumato.transforms.ranges.plan import ADAPTIVE, RangesPlan, method_texts
from sfumato.transforms.ranges.query_files import count_queries, read_queries
from sfumato.transforms.ranges.release import HeatmapRelease, files_of_release, ranges_files
from sfumato.transforms.ranges.request import SHARDS, RangesRequest
from sfumato.transforms.ranges.transform import BuildRanges
from sfumato.transforms.release.metadata import ReleaseMetadata
from sfumato.transforms.release.published_release import open_release
from sfumato.transforms.release.publishing import with_charge
from sfumato.transforms.release.release_folder import check_output, publish

MIN_SQUARES = 1_000  # with fewer, networks overfit a few places
MAX_SQUARES = 50_000  # of a workload: the job's graph carries them several times


@dataclass(frozen=True)
class RangesJob(CountingJob):
    """A requested model."""

    STATED_AS: ClassVar[Mapping[str, str]] = {
        **IN_COLUMNS,
        **dict.fromkeys(owners_of(METHODS), "options"),
        **dict.fromkeys((*SHARDS, "depth"), "heatmap"),
    }

    request: RangesRequest
    plan: RangesPlan

    @classmethod
    def of(cls, request: RangesRequest, *resolved: RangesPlan | None) -> RangesJob:
        """See ReleaseJob.of."""
        job = super().of(request, *resolved)
        options = job.plan.options
        if (path := options.get("workload")) is None:
            return job
        squares = read_workload(path, job.plan.field)
        return replace(job, plan=replace(job.plan, options={**options, "workload": squares}))

    @property
    def counting(self) -> HeatmapParameters:
        return self.plan.counting

    def plan_text(self) -> str:
        return ranges_plan_text(self.plan)

    def accuracy(self) -> str:
        counting = self.counting
        left = counting.budget.total - counting.admission().epsilon
        if counting.is_central:
            return f"noise of ±{significant(NOISE_Z * counting.count_noise.stddev(left))} users (95%) on a cell's count"
        users = counting.population or TYPICAL_USERS
        noise = self.plan.shards_stddev(users, left)
        return f"noise of ±{significant(NOISE_Z * noise)} users (95%) on a cell's count, if {users:,} take part"

    def resolved(self) -> dict[str, Any]:
        return {**self.plan.metadata(), "columns": self.columns().metadata()}

    def run_bytes(self, rows: int) -> RunBytes:
        size = super().run_bytes(rows)
        return replace(size, release=max(size.release, PLAIN_BYTES + self.plan.model_bytes(rows)))

    def build(self, logs: beam.PCollection, inputs: Inputs, key: RunKey, metadata: ReleaseMetadata) -> beam.PCollection:
        plan = self.plan
        return (
            logs
            | "Build" >> BuildRanges(plan, key, self.columns(), inputs.spill, inputs.admit)  # PCollection[Built]
            # PCollection[dict[file name, bytes]]
            | "Assemble" >> beam.Map(lambda built: ranges_files(built, plan, with_charge(metadata)))
        )


def run(request: RangesRequest, settings: RunnerSettings, plan: RangesPlan | None) -> None:
    """Runs the job to the end. Raises RequestError or DataError."""
    if plan is None:
        build_from_heatmap(request)
    else:
        run_release(RangesJob.of(request, plan), settings)


def read_workload(path: str, field: Field) -> Boxes:
    """The squares of a file, clipped to the field, without those outside it.

    Raises RequestError for too few or too many squares, or a row that is no square; DataError if the file cannot be
    read.
    """
    try:
        rows = count_queries(path)
        if rows > MAX_SQUARES:
            raise RequestError(
                f"{path} holds {rows:,} squares, and the limit is {MAX_SQUARES:,}; give a sample of them"
            )
        batches = [[batch.column(name).to_numpy() for name in QUERY_COLUMNS] for batch in read_queries(path)]
    except RequestError as error:
        raise RequestError(f"workload: {error}") from None
    squares = [field.squares(*batch).clipped(field.side) for batch in batches]
    edges = [np.concatenate([getattr(batch, name) for batch in squares] or [[]]) for name in ("x0", "y0", "x1", "y1")]
    boxes = Boxes(*edges)
    inside = boxes.areas > 0
    if 0 < inside.sum() < MIN_SQUARES:
        raise RequestError(
            f"workload: {inside.sum():,} squares of {path} lie in the region, too few to learn from; give "
            f"{MIN_SQUARES:,} or more, or leave it out"
        )
    if not inside.any():
        raise RequestError(f"workload: no square of {path} lies in the region {field.grid.region}")
    return Boxes(*(edge[inside] for edge in edges))


def ranges_plan_text(plan: RangesPlan) -> str:
    """The cost and the noise of a model of range queries, for a terminal. Raises RequestError."""
    if plan.uses_tree:
        head = "" if plan.method == ADAPTIVE else f"method {plan.method}: {method_texts()[ADAPTIVE]}\n\n"
        return head + heatmap_plan_text(plan.counting)
    counting, heatmap = plan.counting, plan.heatmap
    squares = f"squares of {plan.sizes.low:g} to {plan.sizes.high:g} m"
    lines = [f"method {plan.method}: {method_texts()[plan.method]}, for {squares}"]
    if heatmap is not None:
        width, height = (metres / (1 << heatmap.depth) for metres in plan.field.metres)
        lines.append(f"secure aggregation counts every cell of level {heatmap.depth}, {width:.3g} x {height:.3g} m:")
        return "\n".join([*lines, "", heatmap_plan_text(heatmap)])
    spent, kind = counting.admission().epsilon, counting.count_noise
    delta = f", delta {counting.delta:g}: rho {counting.rho:.4g}" if counting.rho is not None else ""
    lines.append(f"epsilon {counting.epsilon:g}{delta} in all, of which the count of users costs {spent:.3g}")
    chosen = plan.options.get("cell_width")
    if chosen is None:
        lines.append("a trusted curator adds the noise; the cells follow from the number of users and epsilon")
    else:
        noise = significant(NOISE_Z * kind.stddev(counting.budget.total - spent))
        lines.append(
            f"a trusted curator adds noise of ±{noise} (95%) to the users of every cell of about {chosen:g} x "
            f"{chosen:g} m"
        )
    return "\n".join(lines) + "\n"


# --- from a published heatmap ---


def build_from_heatmap(request: RangesRequest) -> None:
    """Makes a model from a published heatmap. Raises RequestError."""
    release = open_heatmap(str(request.release))
    sizes = Sizes(*request.sizes)
    sizes.check(release.field)
    geography = geography_of(request, release.field.grid.region)
    check_output(request.output, request.overwrite)
    if request.dry_run:
        sys.stdout.write(
            f"sfumato ranges build, a dry run: nothing was charged or written\n\nreads      {request.release}\n"
            f"charges    nothing: the model is post-processing of the release\npublishes  {request.output}\n"
        )
        return
    metadata = replace(_metadata(release, sizes, request.release_id), geography=geography)
    model = RangeModel(release.field, TreeModel(release.estimate), ADAPTIVE, release.manifest["privacy"]["epsilon"])
    files = files_of_release(release, model, sizes, metadata)
    publish(request.output, files, metadata.release_id, request.overwrite)
    for warning in json.loads(files[MANIFEST_FILE])["warnings"]:
        log_event("warning", warning, logging.WARNING)
    sys.stdout.write(f"{FileSystems.join(request.output, 'index.html')}\n")


def open_heatmap(path: str) -> HeatmapRelease:
    """Opens a published heatmap. Raises RequestError if there is none, or its map is damaged."""
    try:
        release = open_release(path)
        grid = release.grid
        if grid is None:
            raise RequestError(f"a release of `sfumato heatmap` is needed, got one of {release.manifest.get('job')!r}")
        start = WarmStart.from_release(release.manifest, release.arrow_table(CELLS_FILE), grid)
        estimate = _scaled_to_all_users(start.estimate, release.manifest)
    except RequestError as error:
        raise RequestError(f"release: {str(error).removeprefix('warm_start: ')}") from None
    return HeatmapRelease(Field(Grid(grid.region, BASE_DEPTH)), estimate, release.manifest, release.digest)


def _scaled_to_all_users(estimate: Estimate, manifest: Mapping[str, Any]) -> Estimate:
    """Scales the map of a random cohort to all users. Raises RequestError for a damaged manifest."""
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
