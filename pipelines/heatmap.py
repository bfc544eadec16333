"""`sfumato heatmap`: a private heatmap of location logs, as one Beam job."""

from __future__ import annotations

from dataclasses import asdict, dataclass, replace
from functools import cached_property
from typing import Any

import apache_beam as beam

from sfumato.pipelines.frame.counting_job import CountingJob
from sfumato.pipelines.frame.job import Inputs, ResultsAndFiles
from sfumato.schemas.guarantee import ADD_OR_REMOVE, ZERO_OUT
from sfumato.schemas.ledger import Cost
from sfumato.schemas.region import Grid
from sfumato.transforms.counting.parameters import CountParameters
from sfumato.transforms.counting.plan import accuracy
from sfumato.transforms.counting.state import CountState, Estimate
from sfumato.transforms.heatmap.plan import heatmap_plan_text
from sfumato.transforms.heatmap.release import release_files
from sfumato.transforms.heatmap.request import HeatmapRequest
from sfumato.transforms.heatmap.transform import CountHeatmap
from sfumato.transforms.nights.warm_start import WarmStart
from sfumato.transforms.privacy.keys import RunKey
from sfumato.transforms.privacy.user_hashes import ActiveCohort, rotation_key, with_partition
from sfumato.transforms.release.metadata import ReleaseMetadata


@dataclass(frozen=True)
class HeatmapJob(CountingJob):
    """A requested heatmap, and the earlier release from which it starts, if any."""

    request: HeatmapRequest
    warm_start: WarmStart | None = None

    @property
    def prior(self) -> Estimate | None:
        """The map of the earlier release."""
        return None if self.warm_start is None else self.warm_start.estimate

    @property
    def count_parameters(self) -> CountParameters:
        return self.request.parameters

    def plan_text(self) -> str:
        return heatmap_plan_text(self.count_parameters, self.prior)

    def accuracy(self) -> str:
        return accuracy(self.count_parameters, self.prior)

    @cached_property
    def active_cohort(self) -> ActiveCohort | None:
        """The rotating cohort whose users are counted; None counts all users. Raises RequestError for a bad key."""
        request = self.request
        if request.rotation is None:
            return None
        assert request.dataset is not None  # a rotation needs a ledger, which needs a dataset and a key
        assert self.kept_secret is not None
        cohorts, id_column = request.rotation.cohorts, request.user_id_column
        key = rotation_key(self.kept_secret, request.dataset, cohorts, id_column)
        return ActiveCohort(with_partition(request.rotation, key), key)

    @property
    def read_by_workers(self) -> tuple[str, ...]:
        return () if self.request.night is None else self.request.warm_start or ()

    def cost(self) -> Cost:
        return replace(
            super().cost(),
            adjacency=ADD_OR_REMOVE if self.count_parameters.protects_participation else ZERO_OUT,
            rotation=None if self.active_cohort is None else self.active_cohort.rotation,
        )

    def stated(self) -> dict[str, Any]:
        night, rotation = self.request.night, self.request.rotation
        return {
            "region": asdict(self.request.region),
            **self.count_parameters.metadata(),
            "warm_start": None if self.warm_start is None else self.warm_start.metadata(),
            "columns": self.columns().metadata(),
            **({} if night is None else {"night": str(night)}),
            **({} if rotation is None else {"rotation": str(rotation)}),
        }

    def build(self, logs: beam.PCollection, inputs: Inputs, key: RunKey) -> ResultsAndFiles:
        request, parameters = self.request, self.count_parameters
        grid = Grid(request.region, parameters.depth)
        heatmap = CountHeatmap(
            request.region,
            parameters,
            key,
            self.columns(),
            inputs.spill,
            self.prior,
            inputs.charge_and_admit,
            self.active_cohort,
        )
        night, folders = request.night, request.warm_start or ()

        def files_of(state: CountState, metadata: ReleaseMetadata) -> dict[str, bytes]:
            if night is None:
                return release_files(state, parameters, metadata, grid)
            # Imported here: only the map of a night needs the posterior over nights.
            from sfumato.transforms.nights.night import nights_before

            return release_files(state, parameters, metadata, grid, nights_before(folders, night))

        return logs | "Heatmap" >> heatmap, files_of  # PCollection[CountState]
