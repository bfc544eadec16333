"""The build of a model of range queries as Beam stages: collect the counts once, train each network as an element."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator
from typing import Any

import apache_beam as beam
import numpy as np
from apache_beam import typehints

from sfumato.schemas.locations import LocationColumns
from sfumato.schemas.region import Places
from sfumato.transforms.heatmap.transform import CountHeatmap
from sfumato.transforms.locations.read import (
    BoundGroups,
    ChargeAndAdmitUsers,
    LocationBound,
    LocationEncoding,
    ReadLogs,
)
from sfumato.transforms.locations.spill import Spill, take
from sfumato.transforms.observability.logs import TRAINED, TRAINING
from sfumato.transforms.privacy.admission import ChargeAndAdmit
from sfumato.transforms.privacy.keys import RunKey
from sfumato.transforms.ranges.field_counts import CellTally, ExactCounts
from sfumato.transforms.ranges.plan import Built, Collected, RangesPlan, build, collect, collected_from_heatmap


class BuildRanges(beam.PTransform):
    """Paths of Parquet location logs -> a singleton Built, epsilon-differentially private.

    Use a key for one input, once. Raises as CollectCounts or CountHeatmap does.

    Args:
        plan: of the build. Its trust decides who counts: a trusted curator, or a heatmap's shards.
        key: of the run. It is narrowed to the plan and the columns, or as CountHeatmap narrows it.
        columns: of the logs.
        spill: folder for temporary files; see `Spill`.
        admit: charges the ledger and counts the users; None counts them without a ledger.
    """

    def __init__(
        self,
        plan: RangesPlan,
        key: RunKey,
        columns: LocationColumns | None = None,
        spill: Spill | str | None = None,
        admit: ChargeAndAdmit | None = None,
    ):
        super().__init__()
        columns, admit = columns or LocationColumns(), admit or ChargeAndAdmit(plan.count_parameters.admission())
        self._plan = plan
        self._collect: beam.PTransform
        if plan.heatmap is None:
            self._collect = CollectCounts(plan, key, columns, spill, admit)
        else:
            self._collect = CountHeatmap(plan.region, plan.heatmap, key, columns, spill, admit=admit)

    def expand(self, paths: beam.PCollection) -> beam.PCollection:
        collected = paths | "Collect" >> self._collect  # PCollection[Collected], or CountState of a heatmap
        if self._plan.heatmap is not None:
            collected = collected | "FromHeatmap" >> beam.Map(collected_from_heatmap, self._plan)
        # PCollection[Collected]
        if not self._plan.trains:  # then one step uses the counts, and nothing copies them
            return collected | "Build" >> beam.Map(_build, [], self._plan)  # PCollection[Built]
        # The reshuffle fixes the counts before two stages use them, so that training and model have the same ones.
        fixed = collected | "Settle" >> beam.Reshuffle()  # PCollection[Collected]
        trained = (
            fixed
            | "Trainings" >> beam.FlatMap(_trainings)  # PCollection[tuple[number, trainings, method, training]]
            | "SpreadTrainings" >> beam.Reshuffle()  # each training is an element for any worker
            | "Train" >> beam.Map(_train)  # PCollection[tuple[number, trained networks]]
        )
        return fixed | "Build" >> beam.Map(_build, beam.pvalue.AsList(trained), self._plan)  # PCollection[Built]


class CollectCounts(beam.PTransform):
    """Paths of Parquet location logs -> a singleton Collected, with noise added by a trusted curator.

    Raises DataError for damaged files, and NotAdmittedError (see ChargeAndAdmit).
    """

    def __init__(
        self, plan: RangesPlan, key: RunKey, columns: LocationColumns, spill: Spill | str | None, admit: ChargeAndAdmit
    ):
        super().__init__()
        self._plan = plan
        self._admit = admit
        self._key = key.narrowed({**plan.metadata(), "columns": columns.metadata()})
        self._columns = columns
        self._spill = Spill.of(spill)

    def expand(self, paths: beam.PCollection) -> beam.PCollection:
        grid, spill = self._plan.field.grid, self._spill
        places = Places(grid.depth)
        bound = BoundGroups(LocationBound(places, spill, max_dwell=self._columns.dwell_limit))
        encoding = LocationEncoding(self._columns, grid, self._key, spill)
        # PCollection[tuple[UserGroup, Chunk]], PCollection[RowCounts]
        chunks, rows = paths | "ReadLocations" >> ReadLogs(encoding)
        locations, users = chunks | "BoundUsers" >> bound  # PCollection[bytes], PCollection[UserCounts]
        # The ledger is charged here, once all input is read. All noise is drawn after it.
        charge = ChargeAndAdmitUsers(self._admit, self._key)
        admitted = (users, rows) | "ChargeAndAdmitUsers" >> charge  # PCollection[NoisyUserCounts]
        return (
            locations
            | "CountByCell" >> beam.CombineGlobally(SumExactCounts(places))  # PCollection[ExactCounts], used once
            | "Collect" >> beam.Map(collect, beam.pvalue.AsSingleton(admitted), self._plan, self._key)
        )  # PCollection[Collected]


@typehints.with_input_types(bytes)
@typehints.with_output_types(ExactCounts)
class SumExactCounts(beam.CombineFn):
    """Stored locations of bounded users (see `LocationBound`) -> ExactCounts of a grid. Both are unprotected.

    No other transform may read the locations: the memory that holds them is released.
    """

    def __init__(self, places: Places):
        super().__init__()
        self._places = places

    def create_accumulator(self) -> CellTally:
        return CellTally(self._places.depth)

    def add_input(self, accumulator: CellTally, element: bytes) -> CellTally:
        accumulator.add((np.frombuffer(take(element)[0], np.uint64) & self._places.mask).view(np.int64))
        return accumulator

    def merge_accumulators(self, accumulators: Iterable[CellTally]) -> CellTally:
        merged = self.create_accumulator()
        for accumulator in accumulators:
            for part in accumulator.parts():
                merged.add(part)
        return merged.compact()  # the runner pickles it to learn its size

    def compact(self, accumulator: CellTally) -> CellTally:
        return accumulator.compact()

    def extract_output(self, accumulator: CellTally) -> ExactCounts:
        return accumulator.total()


def _trainings(collected: Collected) -> Iterator[tuple[int, int, Any, Any]]:
    trainings = collected.trainings()
    for number, training in enumerate(trainings):
        yield number, len(trainings), collected.method, training


def _train(element: tuple[int, int, Any, Any]) -> tuple[int, Any]:
    number, networks, method, training = element
    TRAINING.emit(number=number + 1, networks=networks, duration=method.training_time)
    began = time.monotonic()
    trained = method.train(training)
    TRAINED.emit(number=number + 1, networks=networks, seconds=time.monotonic() - began)
    return number, trained


def _build(collected: Collected, trained: list[tuple[int, Any]], plan: RangesPlan) -> Built:
    return build(collected, plan, [result for _, result in sorted(trained, key=lambda each: each[0])])
