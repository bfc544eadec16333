"""Noisy counts of locations as one transform: from paths of logs to the final state of a run."""

from __future__ import annotations

import apache_beam as beam

from sfumato.schemas.locations import LocationColumns
from sfumato.schemas.places import Places
from sfumato.schemas.region import Locator
from sfumato.transforms.counting.parameters import HeatmapParameters
from sfumato.transforms.counting.run_sub_queries import RunSubQueries, start_sub_queries
from sfumato.transforms.counting.state import Estimate, HeatmapState
from sfumato.transforms.locations.read import (
    BoundGroups,
    BuildShards,
    ChargeAndAdmitUsers,
    LocationBound,
    LocationEncoding,
    ReadLogs,
)
from sfumato.transforms.locations.shards import ShardPlan
from sfumato.transforms.locations.spill import Spill
from sfumato.transforms.privacy.admission import ChargeAndAdmit
from sfumato.transforms.privacy.keys import RunKey
from sfumato.transforms.privacy.user_hashes import ActiveCohort


class CountLocations(beam.PTransform):
    """Bundles of log files -> a singleton HeatmapState, differentially private as a whole.

    The state holds the noisy counts of every sub-query that the parameters' method chooses.

    Args:
        locator: gives each location its code, at the parameters' depth.
        key: of the run, bound to everything that the counts depend on but the input.
        spill: where bulky intermediate data are kept, see `Spill`. Only for workers that share a disk or a process;
            None leaves the data to the runner.
        prior: the map of an earlier release to start from.
        admit: charges the run and counts its users; None counts them by the parameters' rule, without a ledger.
        active_cohort: the rotating cohort whose rows are read; None reads all rows.
    """

    def __init__(
        self,
        locator: Locator,
        parameters: HeatmapParameters,
        key: RunKey,
        columns: LocationColumns,
        spill: Spill | str | None = None,
        prior: Estimate | None = None,
        admit: ChargeAndAdmit | None = None,
        active_cohort: ActiveCohort | None = None,
    ):
        super().__init__()
        self._locator = locator
        self._parameters = parameters
        self._key = key
        self._columns = columns
        self._spill = Spill.of(spill)
        self._prior = prior
        self._admit = admit or ChargeAndAdmit(parameters.admission())
        self._active_cohort = active_cohort

    def expand(self, paths: beam.PCollection) -> beam.PCollection:
        locator, parameters, key, spill = self._locator, self._parameters, self._key, self._spill
        columns, places = self._columns, Places(locator.depth, parameters.bins)
        bound = LocationBound(
            places,
            spill,
            parameters.contributes,
            parameters.distribution_total,
            columns.dwell_limit,
            parameters.records_per_user,
        )
        encoding = LocationEncoding(columns, locator, key, spill, self._active_cohort)
        # PCollection[tuple[UserGroup, Chunk]], PCollection[RowCounts]
        chunks, rows = paths | "ReadLocations" >> ReadLogs(encoding)
        bounded, users = chunks | "BoundUsers" >> BoundGroups(bound)  # PCollection[bytes], PCollection[UserCounts]
        # The ledger is charged here, once all input is read. All noise is drawn after it.
        charge = ChargeAndAdmitUsers(self._admit, key)
        admitted = (users, rows) | "ChargeAndAdmitUsers" >> charge  # PCollection[NoisyUserCounts]
        start = beam.Map(start_sub_queries, parameters, self._prior).with_output_types(HeatmapState)
        state = admitted | "Start" >> start  # PCollection[HeatmapState]
        # PCollection[ShardPlan]
        shard_plan = state | "ShardPlan" >> beam.Map(lambda state: state.shard_plan).with_output_types(ShardPlan)
        is_weighted = parameters.distribution_gamma is not None
        shards = bounded | "BuildShards" >> BuildShards(
            places, shard_plan, spill, is_weighted
        )  # PCollection[ShardGroup]
        return shards | "RunSubQueries" >> RunSubQueries(parameters, key, state)  # PCollection[HeatmapState]
