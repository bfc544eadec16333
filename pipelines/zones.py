"""`sfumato zones`: how many users are in each public zone, as one Beam job."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from functools import cached_property
from typing import Any, ClassVar

import apache_beam as beam

from sfumato.pipelines.frame.counting_job import CountingJob
from sfumato.pipelines.frame.job import Inputs, ResultsAndFiles
from sfumato.schemas.guarantee import Trust
from sfumato.schemas.requests.log_columns import IN_COLUMNS
from sfumato.transforms.counting.parameters import CountParameters
from sfumato.transforms.counting.plan import accuracy, count_plan_text
from sfumato.transforms.counting.state import CountState
from sfumato.transforms.counting.sub_queries import check_first_query
from sfumato.transforms.geo.zone_file import Zones
from sfumato.transforms.geo.zone_raster import ZoneLocator
from sfumato.transforms.privacy.admission import ZONES_SHARE
from sfumato.transforms.privacy.keys import RunKey
from sfumato.transforms.release.metadata import ReleaseMetadata
from sfumato.transforms.zones.plan import ZoneLevels, zones_parameters
from sfumato.transforms.zones.release import zones_files
from sfumato.transforms.zones.request import ZonesRequest
from sfumato.transforms.zones.transform import CountZones

# Of a trusted curator's sums, to which noise is added once: fewer and larger parts are added up faster.
_CENTRAL_SHARD_SIZE = 1 << 20


@dataclass(frozen=True)
class ZonesJob(CountingJob):
    """A request and its zones. Raises RequestError if they cannot be counted with these options."""

    STATED_AS: ClassVar[Mapping[str, str]] = {
        **IN_COLUMNS,
        **dict.fromkeys(("id_column", "levels", "region", "radius"), "zones"),
    }

    request: ZonesRequest
    zones: Zones

    def __post_init__(self) -> None:
        check_first_query(self.count_parameters)

    @cached_property
    def count_parameters(self) -> CountParameters:
        """Those of a heatmap with zones as its cells."""
        request = self.request
        options = request.parameter_values()
        if request.trust != Trust.SECAGG:
            options["shard_size"] = _CENTRAL_SHARD_SIZE
        given = CountParameters(
            **options,
            population_share=ZONES_SHARE,
            contribution=request.contribution,
            depth=ZoneLocator(self.zones).depth,
            categories=self.columns().categories,
        )
        return zones_parameters(given, self.zones)

    @property
    def method(self) -> ZoneLevels:
        """The levels to query, with their shares of the budget."""
        method = self.count_parameters.method
        assert isinstance(method, ZoneLevels)
        return method

    @property
    def zones_counted(self) -> Zones:
        return self.zones

    def plan_text(self) -> str:
        return count_plan_text(self.count_parameters, places=len(self.zones))

    def accuracy(self) -> str:
        return accuracy(self.count_parameters, place="a zone's count")

    def stated(self) -> dict[str, Any]:
        zones, parameters = self.zones, self.count_parameters
        levels = [
            {"column": name, "zones": len(ids), "share": share}
            for name, ids, share in zip(zones.level_names, zones.ids_of_levels, self.method.shares, strict=True)
        ]
        shard_size = None if parameters.is_one_batch else parameters.shard_size
        return {
            "zones": {"sha256": zones.digest, "levels": levels, **self.request.given(("radius",))},
            "columns": asdict(self.columns()),
            "gamma": parameters.distribution_gamma,
            "shard_size": shard_size,
            "dropout": None if shard_size is None else parameters.dropout,
        }

    def build(self, logs: beam.PCollection, inputs: Inputs, key: RunKey) -> ResultsAndFiles:
        parameters, method = self.count_parameters, self.method
        counts = CountZones(parameters, key, self.columns(), inputs.spill, inputs.charge_and_admit)

        def files_of(state: CountState, metadata: ReleaseMetadata) -> dict[str, bytes]:
            return zones_files(state, parameters, method, metadata)

        return logs | "Zones" >> counts, files_of  # PCollection[CountState]
