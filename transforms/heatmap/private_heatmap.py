"""The whole heatmap as one transform: paths of Parquet files in, the final state out."""

from __future__ import annotations

from dataclasses import asdict

import apache_beam as beam

from sfumato.schemas.errors import RequestError
from sfumato.schemas.locations import LocationColumns
from sfumato.schemas.places import Places
from sfumato.schemas.region import Grid, Region
from sfumato.transforms.heatmap.parameters import HeatmapParameters
from sfumato.transforms.heatmap.refine import PlanCohort, RunSubQueries, StartSubQueries
from sfumato.transforms.heatmap.state import Estimate
from sfumato.transforms.heatmap.warm_start import check_prior, digest
from sfumato.transforms.locations.group import BoundUsers, BuildShards
from sfumato.transforms.locations.read import ReadLocations
from sfumato.transforms.locations.spill import Spill
from sfumato.transforms.privacy.admission import Admit
from sfumato.transforms.privacy.keys import RunKey


class PrivateHeatmap(beam.PTransform):
    """Paths of Parquet location logs -> a singleton HeatmapState, differentially private in whole.

    The state's answers hold each sub-query's encoding and noisy counts; the method's `decode`, `raster.density` and
    `assemble.release_files` make maps and releases of them. spill: a place for bulky intermediate data (see Spill)
    where all workers share a disk or are one process; None keeps these data in the runner's hands.

    One key serves one input, once: it is narrowed to the region, the parameters and the columns here, but two inputs
    under one key and the same parameters would get the same noise, and their difference would have none.

    prior: the map of an earlier release, of the same region and depth, to start from. Raises RequestError where the
    method does not. admit: what decides whether the run goes on, by default the parameters' own rule without a ledger.
    """

    def __init__(
        self,
        region: Region,
        parameters: HeatmapParameters,
        key: RunKey,
        columns: LocationColumns | None = None,
        spill: str | None = None,
        prior: Estimate | None = None,
        admit: Admit | None = None,
    ):
        super().__init__()
        columns = columns or LocationColumns()
        if columns.categories != parameters.categories:
            raise RequestError(
                f"categories: the columns have {columns.categories}, the heatmap's parameters {parameters.categories}"
            )
        check_prior(prior, parameters)
        self._grid = Grid(region, parameters.depth)
        self._parameters = parameters
        self._key = bind_key(key, region, parameters, columns, prior)
        self._prior = prior
        self._columns = columns
        self._spill = Spill(spill)
        self._admit = admit or Admit(parameters.admission())

    def expand(self, paths: beam.PCollection) -> beam.PCollection:
        grid, parameters, key, spill = self._grid, self._parameters, self._key, self._spill
        columns, places = self._columns, Places(grid.depth, parameters.categories)
        bound = BoundUsers(places, spill, parameters.contributes, parameters.distribution_total, columns.dwell_limit)
        chunks, rows = paths | "ReadLocations" >> ReadLocations(columns, grid, key, spill)  # (user group, chunk)
        words, users = chunks | "BoundUsers" >> bound  # bytes
        state = users | "Start" >> StartSubQueries(parameters, key, rows, self._admit, self._prior)  # HeatmapState
        weighted = parameters.distribution_gamma is not None
        build = BuildShards(places, state | PlanCohort(), spill, weighted)
        shards = words | "BuildShards" >> build  # ShardGroup
        return shards | "Ask" >> RunSubQueries(parameters, key, state)  # HeatmapState


def bind_key(
    key: RunKey,
    region: Region,
    parameters: HeatmapParameters,
    columns: LocationColumns,
    prior: Estimate | None = None,
) -> RunKey:
    """The key for one heatmap's region, parameters, columns and earlier map."""
    metadata = {"region": asdict(region), **parameters.metadata(), "columns": asdict(columns)}
    return key.narrowed(metadata if prior is None else {**metadata, "prior": digest(prior)})
