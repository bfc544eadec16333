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
from apache_beam.io.filesystems import FileSystems

from sfumato.pipelines.frame.counting_job import CountingJob
from sfumato.pipelines.frame.job import PLAIN_BYTES, Inputs, ResultsAndFiles, RunBytes, geography_of
from sfumato.pipelines.frame.release_run import run_release
from sfumato.pipelines.runners.runner_settings import RunnerSettings
from sfumato.schemas.ranges import Sizes
from sfumato.schemas.release import MANIFEST_FILE
from sfumato.schemas.requests.checks import owners_of
from sfumato.schemas.requests.log_columns import IN_COLUMNS
from sfumato.transforms.counting.parameters import CountParameters
from sfumato.transforms.observability.logs import log_event
from sfumato.transforms.privacy.keys import RunKey
from sfumato.transforms.ranges.methods import METHODS
from sfumato.transforms.ranges.model import RangeModel, TreeModel
from sfumato.transforms.ranges.plan import ADAPTIVE, Built, RangesPlan
from sfumato.transforms.ranges.query_files import read_workload
from sfumato.transforms.ranges.release import HeatmapRelease, files_of_release, open_heatmap, ranges_files
from sfumato.transforms.ranges.request import SHARDS, RangesRequest
from sfumato.transforms.ranges.transform import BuildRanges
from sfumato.transforms.release.metadata import ReleaseMetadata
from sfumato.transforms.release.release_folder import check_output, publish


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
    def count_parameters(self) -> CountParameters:
        return self.plan.count_parameters

    def plan_text(self) -> str:
        return self.plan.text()

    def accuracy(self) -> str:
        return self.plan.accuracy()

    def stated(self) -> dict[str, Any]:
        return {**self.plan.metadata(), "columns": self.columns().metadata()}

    def run_bytes(self, rows: int) -> RunBytes:
        size = super().run_bytes(rows)
        return replace(size, release=max(size.release, PLAIN_BYTES + self.plan.model_bytes(rows)))

    def build(self, logs: beam.PCollection, inputs: Inputs, key: RunKey) -> ResultsAndFiles:
        plan = self.plan
        build = BuildRanges(plan, key, self.columns(), inputs.spill, inputs.charge_and_admit)

        def files_of(built: Built, metadata: ReleaseMetadata) -> dict[str, bytes]:
            return ranges_files(built, plan, metadata)

        return logs | "Build" >> build, files_of  # PCollection[Built]


def run(request: RangesRequest, settings: RunnerSettings, plan: RangesPlan | None) -> None:
    """Runs the job to the end. Raises RequestError or DataError."""
    if plan is None:
        build_from_heatmap(request)
    else:
        run_release(RangesJob.of(request, plan), settings)


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
    metadata = replace(_metadata(release, sizes, request.release_id), geography=geography, title=request.title)
    model = RangeModel(release.field, TreeModel(release.estimate), ADAPTIVE, release.manifest["privacy"]["epsilon"])
    files = files_of_release(release, model, sizes, metadata)
    publish(request.output, files, metadata.release_id, request.overwrite)
    for warning in json.loads(files[MANIFEST_FILE])["warnings"]:
        log_event("warning", warning, logging.WARNING)
    sys.stdout.write(f"{FileSystems.join(request.output, 'index.html')}\n")


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
