"""The whole heatmap as one transform: paths of Parquet files in, the final state out."""

from __future__ import annotations

from dataclasses import asdict

import apache_beam as beam

from sfumato.schemas.locations import LocationColumns
from sfumato.schemas.region import Grid, Region
from sfumato.transforms.heatmap.parameters import HeatmapParameters
from sfumato.transforms.heatmap.refine import AskShards, PlanCohort, StartRefinement
from sfumato.transforms.locations.group import BoundUsers, BuildShards
from sfumato.transforms.locations.read import ReadLocations
from sfumato.transforms.locations.spill import Spill
from sfumato.transforms.privacy.keys import RunKey


class PrivateHeatmap(beam.PTransform):
    """Paths of Parquet location logs -> a singleton HeatmapState, differentially private in whole.

    The state's answers hold each sub-query's encoding and noisy counts; the method's `decode`, `raster.density` and
    `assemble.release_files` make maps and releases of them. spill: a place for bulky intermediate data (see Spill)
    where all workers share a disk or are one process; None keeps these data in the runner's hands.

    One key serves one input, once: it is narrowed to the region, the parameters and the columns here, but two inputs
    under one key and the same parameters would get the same noise, and their difference would have none.
    """

    def __init__(
        self,
        region: Region,
        parameters: HeatmapParameters,
        key: RunKey,
        columns: LocationColumns | None = None,
        spill: str | None = None,
    ):
        super().__init__()
        columns = columns or LocationColumns()
        self._grid = Grid(region, parameters.depth)
        self._parameters = parameters
        self._key = bind_key(key, region, parameters, columns)
        self._columns = columns
        self._spill = Spill(spill)

    def expand(self, paths: beam.PCollection) -> beam.PCollection:
        grid, parameters, key, spill = self._grid, self._parameters, self._key, self._spill
        chunks, rows = paths | "ReadLocations" >> ReadLocations(self._columns, grid, key, spill)  # (user group, chunk)
        words, users = chunks | "BoundUsers" >> BoundUsers(grid.depth, spill, parameters.distribution_gamma)  # bytes
        state = users | "Start" >> StartRefinement(parameters, key, rows)  # HeatmapState
        shards = words | "BuildShards" >> BuildShards(grid.depth, state | PlanCohort(), spill)  # ShardGroup
        return shards | "Ask" >> AskShards(parameters, key, state)  # HeatmapState


def bind_key(key: RunKey, region: Region, parameters: HeatmapParameters, columns: LocationColumns) -> RunKey:
    """The key for one heatmap's region, parameters and columns."""
    return key.narrowed({"region": asdict(region), **parameters.facts(), "columns": asdict(columns)})
