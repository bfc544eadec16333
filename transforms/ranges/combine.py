"""From location logs to a model of range queries, as pipeline stages: the counts once, then every training its own."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator
from dataclasses import asdict
from typing import Any

import apache_beam as beam
import numpy as np
from apache_beam import typehints

from sfumato.schemas.locations import LocationColumns
from sfumato.schemas.places import Places
from sfumato.transforms.heatmap.private_heatmap import PrivateHeatmap
from sfumato.transforms.locations.group import BoundUsers
from sfumato.transforms.locations.read import ReadLocations, RowCounts, sum_row_counts
from sfumato.transforms.locations.spill import Spill, load
from sfumato.transforms.logs import COUNTED_USERS, TRAINED
from sfumato.transforms.privacy.admission import Admit, UserCounts, sum_user_counts
from sfumato.transforms.privacy.keys import RunKey
from sfumato.transforms.ranges.collect import Built, Collected, build, collect, of_state
from sfumato.transforms.ranges.people import ExactCounts
from sfumato.transforms.ranges.plan import RangesPlan

_MOST_PARTS = 16  # of an accumulator: what is added up together is sorted together


@typehints.with_input_types(bytes)
@typehints.with_output_types(ExactCounts)
class CountPeople(beam.CombineFn):
    """Words of bounded users, as `BoundUsers` stores them -> the People of a grid. Both are raw."""

    def __init__(self, places: Places):
        super().__init__()
        self._places = places

    def create_accumulator(self) -> list[ExactCounts]:
        return []

    def add_input(self, accumulator: list[ExactCounts], element: bytes) -> list[ExactCounts]:
        codes = np.frombuffer(load(element)[0], np.uint64) & self._places.mask
        return self._kept([*accumulator, ExactCounts.of(self._places.depth, codes)])

    def merge_accumulators(self, accumulators: Iterable[list[ExactCounts]]) -> list[ExactCounts]:
        merged: list[ExactCounts] = []
        for one in accumulators:
            merged = self._kept([*merged, *one])
        return merged

    def compact(self, accumulator: list[ExactCounts]) -> list[ExactCounts]:
        return [ExactCounts.sum(accumulator)] if len(accumulator) > 1 else accumulator

    def extract_output(self, accumulator: list[ExactCounts]) -> ExactCounts:
        return ExactCounts.sum([ExactCounts.of(self._places.depth, np.empty(0, np.uint64)), *accumulator])

    def _kept(self, parts: list[ExactCounts]) -> list[ExactCounts]:
        return self.compact(parts) if len(parts) > _MOST_PARTS else parts


class CollectPeople(beam.PTransform):
    """Paths of Parquet location logs -> a singleton Collected, whose noise a trusted server has added.

    Raises DataError for damaged files, and NotAdmittedError (see Admit).
    """

    def __init__(self, plan: RangesPlan, key: RunKey, columns: LocationColumns, spill: str | None, admit: Admit):
        super().__init__()
        self._plan = plan
        self._admit = admit
        self._key = key.narrowed({**plan.metadata(), "columns": asdict(columns)})
        self._columns = columns
        self._spill = Spill(spill)

    def expand(self, paths: beam.PCollection) -> beam.PCollection:
        grid, spill = self._plan.field.grid, self._spill
        places = Places(grid.depth)
        bound = BoundUsers(places, spill, max_dwell=self._columns.dwell_limit)
        chunks, rows = paths | "ReadLocations" >> ReadLocations(self._columns, grid, self._key, spill)
        words, users = chunks | "BoundUsers" >> bound  # bytes
        counts = users | "SumUserCounts" >> beam.CombineGlobally(sum_user_counts)
        total = rows | "SumRowCounts" >> beam.CombineGlobally(sum_row_counts)  # RowCounts
        return (
            words
            | "CountPeople" >> beam.CombineGlobally(CountPeople(places))  # People, exact: they go no further
            | "Collect"
            >> beam.Map(
                _collect,
                beam.pvalue.AsSingleton(counts),
                beam.pvalue.AsSingleton(total),
                self._admit,
                self._plan,
                self._key,
            )  # Collected
        )


def _collect(
    people: ExactCounts, counts: UserCounts, rows: RowCounts, admit: Admit, plan: RangesPlan, key: RunKey
) -> Collected:
    rows.check_ids()
    rows.emit()
    admission = admit(counts + UserCounts(unusable=rows.without_id), key)
    COUNTED_USERS.emit(users=admission.users, epsilon=admission.epsilon, noise_stddev=admission.noise_stddev)
    return collect(people, admission, plan, key)


class CollectHeatmap(beam.PTransform):
    """Paths of Parquet location logs -> a singleton Collected, of a heatmap's answers.

    Raises as PrivateHeatmap does.
    """

    def __init__(self, plan: RangesPlan, key: RunKey, columns: LocationColumns, spill: str | None, admit: Admit):
        super().__init__()
        assert plan.heatmap is not None
        self._plan = plan
        self._heatmap = PrivateHeatmap(plan.region, plan.heatmap, key, columns, spill, admit=admit)

    def expand(self, paths: beam.PCollection) -> beam.PCollection:
        return paths | "Heatmap" >> self._heatmap | "Collect" >> beam.Map(of_state, self._plan)


class TrainModel(beam.PTransform):
    """A singleton Collected -> a singleton Built: every training is an element of its own, for any worker."""

    def __init__(self, plan: RangesPlan):
        super().__init__()
        self._plan = plan

    def expand(self, collected: beam.PCollection) -> beam.PCollection:
        # Settled before two stages use it, so that what is learned and what answers are of the same counts.
        settled = collected | "Settle" >> beam.Reshuffle()
        trained = (
            settled
            | "Trainings" >> beam.FlatMap(_trainings)  # (place, how many there are, method, training)
            | "SpreadTrainings" >> beam.Reshuffle()
            | "Train" >> beam.Map(_train)  # (place, trained)
        )
        return settled | "Build" >> beam.Map(_build, beam.pvalue.AsList(trained), self._plan)


def _trainings(collected: Collected) -> Iterator[tuple[int, int, Any, Any]]:
    trainings = collected.trainings()
    for place, training in enumerate(trainings):
        yield place, len(trainings), collected.method, training


def _train(element: tuple[int, int, Any, Any]) -> tuple[int, Any]:
    place, networks, method, training = element
    began = time.monotonic()
    trained = method.train(training)
    TRAINED.emit(number=place + 1, networks=networks, seconds=time.monotonic() - began)
    return place, trained


def _build(collected: Collected, trained: list[tuple[int, Any]], plan: RangesPlan) -> Built:
    return build(collected, plan, [one for _, one in sorted(trained, key=lambda each: each[0])])


class BuildRanges(beam.PTransform):
    """Paths of Parquet location logs -> a singleton Built, differentially private in whole.

    One key serves one input, once: it is narrowed to the plan and the columns where a trusted server counts, and as
    PrivateHeatmap has it where a heatmap does. spill: see there.
    """

    def __init__(
        self,
        plan: RangesPlan,
        key: RunKey,
        columns: LocationColumns | None = None,
        spill: str | None = None,
        admit: Admit | None = None,
    ):
        super().__init__()
        collecting = CollectPeople if plan.heatmap is None else CollectHeatmap
        admit = admit or Admit(plan.counting.admission())
        self._collect = collecting(plan, key, columns or LocationColumns(), spill, admit)
        self._train = TrainModel(plan)

    def expand(self, paths: beam.PCollection) -> beam.PCollection:
        return paths | "Collect" >> self._collect | "Train" >> self._train
