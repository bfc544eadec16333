"""`sfumato heatmap`: a differentially private heatmap of Parquet location logs, as one Beam job."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any, ClassVar

import apache_beam as beam

from sfumato.pipelines.job import Inputs, ReleaseJob, run_release
from sfumato.pipelines.runner_settings import RunnerSettings
from sfumato.pipelines.scratch import BYTES_PER_ROW, DISTRIBUTION_BYTES_PER_ROW, VALUE_BYTES_PER_ROW
from sfumato.schemas.errors import RequestError
from sfumato.schemas.ledger import ADD_OR_REMOVE, CENTRAL, SECAGG, ZERO_OUT, Cost
from sfumato.schemas.locations import LocationColumns
from sfumato.schemas.region import Grid
from sfumato.schemas.release import CELLS_FILE
from sfumato.schemas.requests.log_columns import IN_COLUMNS
from sfumato.transforms.heatmap.heatmap_request import HeatmapOptions
from sfumato.transforms.heatmap.plan import heatmap_plan_text
from sfumato.transforms.heatmap.private_heatmap import PrivateHeatmap, check_prior
from sfumato.transforms.heatmap.release_files import release_files
from sfumato.transforms.heatmap.schedule import check_plan
from sfumato.transforms.heatmap.state import Estimate, HeatmapState
from sfumato.transforms.heatmap.warm_start import WarmStart
from sfumato.transforms.privacy.admission import AdmissionRule
from sfumato.transforms.privacy.keys import RunKey
from sfumato.transforms.release.metadata import ReleaseMetadata
from sfumato.transforms.release.published_release import open_release
from sfumato.transforms.release.publishing import WriteRelease, with_charge


@dataclass(frozen=True)
class HeatmapJob(ReleaseJob):
    """A heatmap that was requested, and the earlier release from which it starts, if any. Raises RequestError."""

    STATED_AS: ClassVar[Mapping[str, str]] = IN_COLUMNS

    request: HeatmapOptions
    warm_start: WarmStart | None = None

    def __post_init__(self) -> None:
        check_prior(self.prior, self.request.parameters)
        if self.warm_start is not None and not self.warm_start.safe and self.request.seed is None:
            raise RequestError(
                "warm_start: anybody can guess the key of that release and take its noise away, and this one would "
                "show some of what is under it; start from one that was made without --seed"
            )

    @classmethod
    def of(cls, request: HeatmapOptions) -> HeatmapJob:
        """The job of a request. Raises RequestError."""
        grid = Grid(request.region, request.parameters.depth)
        return cls(request, open_warm_start(request.warm_start, grid))

    @property
    def prior(self) -> Estimate | None:
        """The map of the earlier release."""
        return None if self.warm_start is None else self.warm_start.estimate

    def plan_text(self) -> str:
        return heatmap_plan_text(self.request.parameters, self.prior)

    def cost(self) -> Cost:
        parameters = self.request.parameters
        central = parameters.noise == "central"
        protected = central or parameters.participation == "planned"
        return Cost(
            parameters.epsilon,
            adjacency=ADD_OR_REMOVE if protected else ZERO_OUT,
            trust=CENTRAL if central else SECAGG,
        )

    def columns(self) -> LocationColumns:
        return self.request.columns

    def admission(self) -> AdmissionRule:
        return self.request.parameters.admission(self.min_users)

    def resolved(self) -> dict[str, Any]:
        return {
            "region": asdict(self.request.region),
            **self.request.parameters.metadata(),
            "warm_start": None if self.warm_start is None else self.warm_start.metadata(),
            "columns": asdict(self.request.columns),
        }

    def stored_bytes(self, rows: int) -> int:
        size = DISTRIBUTION_BYTES_PER_ROW if self.request.parameters.distribution_gamma else BYTES_PER_ROW
        return rows * (size + VALUE_BYTES_PER_ROW * self.request.columns.weighs)

    def build(self, root: beam.Pipeline, inputs: Inputs, key: RunKey, metadata: ReleaseMetadata) -> beam.PCollection:
        request, parameters = self.request, self.request.parameters
        grid, blur = Grid(request.region, parameters.depth), request.blur
        heatmap = PrivateHeatmap(
            request.region, parameters, key, request.columns, inputs.spill, self.prior, inputs.admit
        )

        def assemble(state: HeatmapState) -> dict[str, bytes]:
            return release_files(state, parameters, with_charge(metadata), grid, blur)

        return (
            root
            | "Files" >> beam.Create(inputs.files)
            | "Heatmap" >> heatmap  # HeatmapState
            | "Assemble" >> beam.Map(assemble)  # {name: content}
            | "Write" >> WriteRelease(request.output, metadata, request.overwrite)
        )


def open_warm_start(path: str | None, grid: Grid) -> WarmStart | None:
    """The earlier release at a path, None without one. Raises RequestError where there is none that fits the grid."""
    if path is None:
        return None
    try:
        release = open_release(path)
        return WarmStart.from_release(release.manifest, release.arrow_table(CELLS_FILE), grid)
    except RequestError as error:
        raise RequestError(str(error) if str(error).startswith("warm_start") else f"warm_start: {error}") from None


def run(request: HeatmapOptions, settings: RunnerSettings) -> int:
    """Runs the job to the end. Raises RequestError or DataError."""
    job = HeatmapJob.of(request)
    check_plan(request.parameters, job.prior)
    run_release(job, settings)
    return 0
