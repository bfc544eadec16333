"""A comparison as pipeline stages: the logs are read once, cohorts are drawn, and every case meets every cohort."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import apache_beam as beam
import numpy as np
from apache_beam import typehints
from numpy.typing import NDArray

from sfumato.schemas.comparison import Outcome
from sfumato.schemas.errors import DataError
from sfumato.schemas.locations import LocationColumns
from sfumato.schemas.region import Grid, Region
from sfumato.transforms.evaluation.memory import Rows
from sfumato.transforms.evaluation.outcomes import YARDSTICK_OPTIONS, Judge, judge_case, judge_yardstick
from sfumato.transforms.evaluation.settings import Case
from sfumato.transforms.locations.group import BoundUsers
from sfumato.transforms.locations.read import ReadLocations, RowCounts, sum_row_counts
from sfumato.transforms.locations.spill import Spill
from sfumato.transforms.logs import PROGRESS
from sfumato.transforms.privacy.keys import RunKey


class CompareMethods(beam.PTransform):
    """Paths of Parquet location logs -> a pair: Outcomes, and the exact sums by code as a singleton float64[4^depth].

    An evaluation: both tell of the exact data. All cases of one draw meet the same users. depth is the deepest of all
    cases. Raises DataError where a case asks for more users than there are.
    """

    def __init__(
        self,
        region: Region,
        cases: list[Case],
        keys: int,
        judge: Judge,
        key: RunKey,
        columns: LocationColumns | None = None,
        spill: str | None = None,
    ):
        super().__init__()
        self._grid = Grid(region, max(case.parameters.depth for case in cases))
        self._cases = cases
        self._keys = keys
        self._judge = judge
        self._key = key
        self._columns = columns or LocationColumns()
        self._spill = Spill(spill)

    def expand(self, paths: beam.PCollection) -> tuple[beam.PCollection, beam.PCollection]:
        grid, spill, key = self._grid, self._spill, self._key
        chunks, rows = paths | "ReadLocations" >> ReadLocations(self._columns, grid, key, spill)
        gammas = sorted({case.parameters.distribution_gamma or 0 for case in self._cases})
        bounded = {
            gamma: chunks | f"BoundUsers{gamma}" >> BoundUsers(grid.depth, spill, gamma or None) for gamma in gammas
        }
        # Everybody's distributions tell the truth better than one location of each, where they are at hand.
        words, users = bounded[gammas[-1]]
        population = (
            users
            | "CountUsers" >> beam.CombineGlobally(sum)
            | "CheckUsers"
            >> beam.Map(
                _check,
                beam.pvalue.AsSingleton(rows | "SumRowCounts" >> beam.CombineGlobally(sum_row_counts)),
                self._cases,
            )
        )
        truth = words | "Truth" >> beam.CombineGlobally(_SumCellsFn(grid.depth))
        outcomes = [
            bounded[gamma][0]
            | f"Draw{gamma}"
            >> beam.ParDo(
                _DrawFn(self._sizes(gamma), self._keys, grid.depth, key, spill), beam.pvalue.AsSingleton(population)
            )
            | f"Cohorts{gamma}" >> beam.GroupByKey()
            | f"FanOut{gamma}" >> beam.FlatMap(_fan_out, self._cases_of(gamma), gamma == gammas[0], self._keys)
            | f"Spread{gamma}" >> beam.Reshuffle()
            | f"Judge{gamma}"
            >> beam.ParDo(
                _JudgeFn(self._judge, grid.depth, key),
                beam.pvalue.AsSingleton(population),
                beam.pvalue.AsSingleton(truth),
            )
            for gamma in gammas
        ]
        return outcomes | "AllOutcomes" >> beam.Flatten(), truth

    def _cases_of(self, gamma: int) -> list[Case]:
        return [case for case in self._cases if (case.parameters.distribution_gamma or 0) == gamma]

    def _sizes(self, gamma: int) -> list[int]:
        """Sizes of the cohorts that are asked for, 0 for everybody."""
        return list(dict.fromkeys(case.parameters.users or 0 for case in self._cases_of(gamma)))


def _check(users: int, rows: RowCounts, cases: list[Case]) -> int:
    rows.check(max(case.parameters.max_bad_fraction for case in cases))
    if users == 0:
        raise DataError("too few users: no row has a usable user and place")
    asked = max(case.parameters.users or 0 for case in cases)
    if asked > users:
        raise DataError(f"users: {asked:,} are asked for, and the logs have {users:,} with a usable place")
    return users


class _SumCellsFn(beam.CombineFn):
    """Stored rows -> the exact sums of their weights by code."""

    def __init__(self, depth: int):
        self._depth = depth

    def create_accumulator(self) -> NDArray[np.float64]:
        return np.zeros(4**self._depth)

    def add_input(self, accumulator: NDArray[np.float64], element: bytes) -> NDArray[np.float64]:
        accumulator += Rows.bounded(element, self._depth).histogram()
        return accumulator

    def merge_accumulators(self, accumulators: Iterable[NDArray[np.float64]]) -> NDArray[np.float64]:
        total = self.create_accumulator()
        for one in accumulators:
            total += one
        return total

    def extract_output(self, accumulator: NDArray[np.float64]) -> NDArray[np.float64]:
        return accumulator


@dataclass(frozen=True)
class _Run:
    """A case, or its yardstick, that meets a cohort: number says which, parts are what `_DrawFn` stored of it."""

    case: Case
    yardstick: bool
    number: int
    cohort: list[bytes]


@typehints.with_input_types(bytes, int)
@typehints.with_output_types(tuple[tuple[int, int], bytes])
class _DrawFn(beam.DoFn):
    """Elements of `BoundUsers` -> ((users asked for, number), the drawn rows, stored); (0, 0) stands for everybody."""

    def __init__(self, sizes: list[int], keys: int, depth: int, key: RunKey, spill: Spill):
        self._everybody = 0 in sizes
        self._sizes = [users for users in sizes if users]
        self._keys = keys
        self._depth = depth
        self._key = key
        self._spill = spill

    def process(self, element: bytes, population: int) -> Iterator[tuple[tuple[int, int], bytes]]:
        if self._everybody:
            yield (0, 0), element  # as it is: nothing is stored once more
        if not self._sizes:
            return
        rows = Rows.bounded(element, self._depth)
        for number in range(self._keys):
            drawn = rows.rehashed(self._key.subkey("cohort", number))  # another key draws others
            for users in self._sizes:
                yield (users, number), drawn.only(drawn.below(users / population)).store(self._spill)


def _fan_out(
    element: tuple[tuple[int, int], Iterable[bytes]], cases: list[Case], yardsticks: bool, keys: int
) -> Iterator[_Run]:
    """A cohort's parts -> a run of every case that asks so many users, and of the yardstick that it has."""
    (users, number), parts = element
    cohort = list(parts)  # references, on one machine
    measured = set()
    for case in (one for one in cases if (one.parameters.users or 0) == users):
        for key in [number] if users else range(keys):
            yield _Run(case, False, key, cohort)
            shared = (key, *(pair for pair in case.setting.options if pair[0] in YARDSTICK_OPTIONS))
            if yardsticks and shared not in measured:
                measured.add(shared)
                yield _Run(case, True, key, cohort)


@typehints.with_input_types(_Run, int, NDArray[np.float64])
@typehints.with_output_types(Outcome)
class _JudgeFn(beam.DoFn):
    def __init__(self, judge: Judge, depth: int, key: RunKey):
        self._judge = judge
        self._depth = depth
        self._key = key

    def process(self, run: _Run, population: int, truth: NDArray[np.float64]) -> Iterator[Outcome]:
        case, number = run.case, run.number
        rows = self._everybody(run) if case.parameters.users is None else Rows.together(run.cohort, self._depth)
        if run.yardstick:
            yield judge_yardstick(case, rows, number, self._judge, truth, self._key)
        else:
            yield from judge_case(case, rows, population, number, self._judge, truth, self._key)
            PROGRESS.info("compared %s, key %d", case.setting.label, number)

    def _everybody(self, run: _Run) -> Rows:
        """All users, in the shards that the run's number gives them."""
        subkey, spill = self._key.subkey("cohort", run.number), Spill()
        return Rows.together(
            (Rows.bounded(part, self._depth).rehashed(subkey).store(spill) for part in run.cohort), self._depth
        )
