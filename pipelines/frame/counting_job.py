"""The base of jobs that count users at places: `sfumato heatmap`, `zones`, and `ranges build` with sub-queries."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from sfumato.pipelines.frame.job import (
    BYTES_PER_ROW,
    DISTRIBUTION_BYTES_PER_ROW,
    MAP_BYTES,
    VALUE_BYTES_PER_ROW,
    ReleaseJob,
    RunBytes,
)
from sfumato.schemas.ledger import Cost
from sfumato.schemas.locations import LocationColumns
from sfumato.schemas.requests.log_columns import IN_COLUMNS
from sfumato.transforms.counting.parameters import CountParameters
from sfumato.transforms.privacy.admission import AdmissionRule


@dataclass(frozen=True)
class CountingJob(ReleaseJob):
    """A job that counts users at places by the sub-queries of a heatmap. Jobs add their own fields."""

    STATED_AS: ClassVar[Mapping[str, str]] = IN_COLUMNS

    request: Any

    @property
    @abstractmethod
    def count_parameters(self) -> CountParameters:
        """The parameters of the sub-queries."""

    def columns(self) -> LocationColumns:
        columns: LocationColumns = self.request.columns
        return columns

    def cost(self) -> Cost:
        parameters = self.count_parameters
        return Cost(parameters.epsilon, parameters.stated_delta, trust=parameters.trust, rho=parameters.rho)

    def admission(self) -> AdmissionRule:
        return self.count_parameters.admission(self.request.min_users)

    def run_bytes(self, rows: int) -> RunBytes:
        size = DISTRIBUTION_BYTES_PER_ROW if self.count_parameters.distribution_gamma else BYTES_PER_ROW
        stored = rows * (size + VALUE_BYTES_PER_ROW * self.columns().has_weights)
        return RunBytes(stored, stored // 2, MAP_BYTES)
