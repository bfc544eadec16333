"""`sfumato zones`: how many users are in each public zone, as one Beam job."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from functools import cached_property
from typing import Any, ClassVar

import apache_beam as beam

from sfumato.pipelines.frame.job import Inputs, geography_of
from sfumato.pipelines.heatmap import CountingJob
from sfumato.schemas.known_digits import NOISE_Z
from sfumato.schemas.requests.log_columns import IN_COLUMNS
from sfumato.schemas.trust import Trust
from sfumato.transforms.counting.parameters import HeatmapParameters
from sfumato.transforms.counting.plan import heatmap_plan_text, make_plan
from sfumato.transforms.counting.schedule import check_plan
from sfumato.transforms.counting.state import HeatmapState
from sfumato.transforms.counting.transform import CountLocations
from sfumato.transforms.observability.text_tables import TYPICAL_USERS, significant
from sfumato.transforms.privacy.keys import RunKey
from sfumato.transforms.release.metadata import ReleaseMetadata
from sfumato.transforms.release.publishing import with_charge
from sfumato.transforms.zones.release import zones_files
from sfumato.transforms.zones.request import ZonesRequest
from sfumato.transforms.zones.zone_file import Zones
from sfumato.transforms.zones.zone_levels import ZoneLevels, level_shares
from sfumato.transforms.zones.zone_raster import ZoneLocator

# Of a trusted curator's sums, to which noise is added once: fewer and larger parts are added up faster.
_CENTRAL_SHARD_SIZE = 1 << 20
_POPULATION_SHARE = 0.002  # of epsilon; a larger one refuses bad logs of fewer users, and leaves less for the zones


@dataclass(frozen=True)
class ZonesJob(CountingJob):
    """A request and its zones. Raises RequestError if they cannot be counted with these options."""

    STATED_AS: ClassVar[Mapping[str, str]] = {**IN_COLUMNS, **dict.fromkeys(("id_column", "levels", "region"), "zones")}

    request: ZonesRequest
    zones: Zones

    def __post_init__(self) -> None:
        check_plan(self.counting)

    @cached_property
    def method(self) -> ZoneLevels:
        """The levels to ask, with their shares of the budget."""
        sizes, given = [len(ids) for ids in self.zones.ids_of_levels], self._given
        budget = given.budget.total - given.admission().epsilon
        gamma = given.distribution_gamma or 1
        return ZoneLevels(self.zones, level_shares(sizes, given.count_noise, budget, gamma))

    @cached_property
    def counting(self) -> HeatmapParameters:
        """Those of a heatmap with zones as its cells."""
        return replace(self._given, method=self.method)

    @property
    def _given(self) -> HeatmapParameters:
        request = self.request
        options = request.counting()
        if request.trust == Trust.CENTRAL:
            options["shard_size"] = _CENTRAL_SHARD_SIZE
        return HeatmapParameters(
            **options,
            population_share=_POPULATION_SHARE,
            contribution=request.contribution,
            depth=ZoneLocator(self.zones).depth,
            categories=self.columns().categories,
        )

    @cached_property
    def geography(self) -> bytes | None:
        return geography_of(self.request, self.zones.region)

    def plan_text(self) -> str:
        return heatmap_plan_text(self.counting, None)

    def accuracy(self) -> str:
        users = self.request.population or TYPICAL_USERS
        noise = make_plan(replace(self.counting, users=users)).noise_stddev
        return f"noise of ±{significant(NOISE_Z * noise)} users (95%) on a zone's count, if {users:,} take part"

    def resolved(self) -> dict[str, Any]:
        zones, parameters = self.zones, self.counting
        levels = [
            {"column": name, "zones": len(ids), "share": share}
            for name, ids, share in zip(zones.level_names, zones.ids_of_levels, self.method.shares, strict=True)
        ]
        stated = parameters.shard_size if not parameters.is_central else None
        return {
            "zones": {"sha256": zones.digest, "levels": levels},
            "columns": asdict(self.columns()),
            "gamma": parameters.distribution_gamma,
            "shard_size": stated,
            "dropout": None if stated is None else parameters.dropout,
        }

    def build(self, logs: beam.PCollection, inputs: Inputs, key: RunKey, metadata: ReleaseMetadata) -> beam.PCollection:
        parameters, method = self.counting, self.method
        counts = CountLocations(
            ZoneLocator(self.zones), parameters, key, self.columns(), inputs.spill, admit=inputs.admit
        )

        def assemble(state: HeatmapState) -> dict[str, bytes]:
            return zones_files(state, parameters, method, with_charge(metadata))

        return (
            logs
            | "Zones" >> counts  # PCollection[HeatmapState]
            | "Assemble" >> beam.Map(assemble)  # PCollection[dict[file name, bytes]]
        )
