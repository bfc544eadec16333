"""`sfumato heatmap`: a differentially private heatmap of Parquet location logs, as one Beam job."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any, ClassVar

import apache_beam as beam

from sfumato.pipelines.columns import add_auxiliary_arguments, add_column_arguments, location_columns
from sfumato.pipelines.heatmap_options import add_heatmap_arguments
from sfumato.pipelines.job import Inputs, ReleaseRequest, add_release_arguments, release_options, run_release
from sfumato.pipelines.options import JobParser, RunnerSettings
from sfumato.pipelines.scratch import BYTES_PER_ROW, DISTRIBUTION_BYTES_PER_ROW, VALUE_BYTES_PER_ROW
from sfumato.schemas.errors import RequestError
from sfumato.schemas.ledger import ADD_OR_REMOVE, CENTRAL, SECAGG, ZERO_OUT, Cost
from sfumato.schemas.locations import LocationColumns
from sfumato.schemas.region import Grid, Region
from sfumato.schemas.release import CELLS_FILE
from sfumato.transforms.heatmap.checks import check_within
from sfumato.transforms.heatmap.methods import METHODS, Adaptive
from sfumato.transforms.heatmap.options import heatmap_options, heatmap_parameters
from sfumato.transforms.heatmap.parameters import HeatmapParameters
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


@dataclass(frozen=True, kw_only=True)
class HeatmapRequest(ReleaseRequest):
    """One run of the job, checked as far as it can be before any work."""

    JOB: ClassVar[str] = "heatmap"

    region: Region
    heatmap: HeatmapParameters
    columns: LocationColumns
    blur: float = 0.0
    warm_start: WarmStart | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        check_within("blur", self.blur, 0, 1)
        check_prior(self.prior, self.heatmap)
        if self.warm_start is not None and not self.warm_start.safe and self.seed is None:
            raise RequestError(
                "warm_start: anybody can guess the key of that release and take its noise away, and this one would "
                "show some of what is under it; start from one that was made without --seed"
            )

    @property
    def prior(self) -> Estimate | None:
        """The map of the earlier release."""
        return None if self.warm_start is None else self.warm_start.estimate

    def plan_text(self) -> str:
        from sfumato.pipelines.dry_run import heatmap_plan_text

        return heatmap_plan_text(self.heatmap, self.prior)

    def cost(self) -> Cost:
        central = self.heatmap.noise == "central"
        protected = central or self.heatmap.participation == "planned"
        return Cost(
            self.heatmap.epsilon,
            adjacency=ADD_OR_REMOVE if protected else ZERO_OUT,
            trust=CENTRAL if central else SECAGG,
        )

    def source(self) -> LocationColumns:
        return self.columns

    def admission(self) -> AdmissionRule:
        return self.heatmap.admission(self.min_users)

    def parameters(self) -> dict[str, Any]:
        return {
            "region": asdict(self.region),
            **self.heatmap.metadata(),
            "blur": self.blur,
            "warm_start": None if self.warm_start is None else self.warm_start.metadata(),
            "columns": asdict(self.columns),
        }

    def stored_bytes(self, rows: int) -> int:
        size = DISTRIBUTION_BYTES_PER_ROW if self.heatmap.distribution_gamma else BYTES_PER_ROW
        return rows * (size + VALUE_BYTES_PER_ROW * self.columns.weighs)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the job's options: one for each field of HeatmapParameters, and one for each option of a method."""
    add_release_arguments(parser)
    parser.add_argument("--region", required=True, metavar="W,S,E,N", help="the map's borders in degrees")
    parser.add_argument("--method", default=Adaptive.NAME, help=f"how the map is made: {', '.join(METHODS)}")
    parser.add_argument(
        "--blur",
        type=float,
        default=0.0,
        metavar="X",
        help="Gaussian filter over the published density and picture: its standard deviation in sides of the region",
    )
    parser.add_argument(
        "--warm_start",
        metavar="RELEASE",
        help="folder of an earlier release of the same region and depth, whose map the tree starts from (adaptive)",
    )
    add_heatmap_arguments(parser, heatmap_options(), many=False)
    add_column_arguments(parser)
    add_auxiliary_arguments(parser)


def run(arguments: Sequence[str]) -> int:
    """Runs the job for a command line. Raises RequestError or DataError."""
    parser = JobParser("heatmap", __doc__)
    add_arguments(parser)
    options, settings = parser.parse_job(arguments)
    values, columns, region = vars(options), location_columns(options), Region.parse(options.region)
    given = {name: values[name] for name in heatmap_options()}
    heatmap = heatmap_parameters(options.method, given, columns.categories)
    request = HeatmapRequest(
        **release_options(options),
        region=region,
        heatmap=heatmap,
        columns=columns,
        blur=options.blur,
        warm_start=open_warm_start(options.warm_start, Grid(region, heatmap.depth)),
    )
    run_heatmap(request, settings)
    return 0


def open_warm_start(path: str | None, grid: Grid) -> WarmStart | None:
    """The earlier release at a path, None without one. Raises RequestError where there is none that fits the grid."""
    if path is None:
        return None
    try:
        release = open_release(path)
        return WarmStart.from_release(release.manifest, release.arrow_table(CELLS_FILE), grid)
    except RequestError as error:
        raise RequestError(str(error) if str(error).startswith("warm_start") else f"warm_start: {error}") from None


def run_heatmap(request: HeatmapRequest, settings: RunnerSettings) -> None:
    """Checks the request, then runs the job to the end. Raises RequestError or DataError."""
    check_plan(request.heatmap, request.prior)
    grid = Grid(request.region, request.heatmap.depth)

    def build(root: beam.Pipeline, inputs: Inputs, key: RunKey, metadata: ReleaseMetadata) -> beam.PCollection:
        heatmap = PrivateHeatmap(
            request.region, request.heatmap, key, request.columns, inputs.spill, request.prior, inputs.admit
        )

        def assemble(state: HeatmapState) -> dict[str, bytes]:
            return release_files(state, request.heatmap, with_charge(metadata), grid, request.blur)

        return (
            root
            | "Files" >> beam.Create(inputs.files)
            | "Heatmap" >> heatmap  # HeatmapState
            | "Assemble" >> beam.Map(assemble)  # {name: content}
            | "Write" >> WriteRelease(request.output, metadata, request.overwrite)
        )

    run_release(request, settings, build)


if __name__ == "__main__":
    from sfumato.pipelines.cli import command

    sys.exit(command(["heatmap", *sys.argv[1:]]))
