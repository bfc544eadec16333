"""A comparison as pipeline stages: the logs are read once, cohorts are drawn, and every case meets every cohort."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import apache_beam as beam
import numpy as np
from apache_beam import typehints
from numpy.typing import NDArray

from sfumato.schemas.comparison import Outcome
from sfumato.schemas.errors import DataError, RequestError
from sfumato.schemas.locations import LocationColumns
from sfumato.schemas.places import Places
from sfumato.schemas.region import Grid, Region
from sfumato.transforms.evaluation.memory import Rows
from sfumato.transforms.evaluation.outcomes import YARDSTICK_OPTIONS, Judge, judge_case, judge_yardstick
from sfumato.transforms.evaluation.settings import Case
from sfumato.transforms.locations.group import BoundUsers
from sfumato.transforms.locations.read import ReadLocations, RowCounts, sum_row_counts
from sfumato.transforms.locations.spill import Spill
from sfumato.transforms.locations.users import Contribution
from sfumato.transforms.logs import COMPARED
from sfumato.transforms.privacy.admission import UserCounts, sum_user_counts
from sfumato.transforms.privacy.keys import RunKey

_Kind = tuple[Contribution, int]
_BY_TRUTH: tuple[Contribution, ...] = ("top", "one", "all")  # contributions, by how much they tell of the truth


class CompareMethods(beam.PTransform):
    """Paths of Parquet location logs -> a pair: Outcomes, and the exact sums by code as a singleton float64[4^depth].

    An evaluation: both tell of the exact data. All cases of one draw meet the same users. depth is the deepest of all
    cases. Raises DataError where a case asks for more users than there are, RequestError for auxiliary data.
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
        if columns is not None and columns.auxiliary is not None:
            raise RequestError("auxiliary: a comparison is of densities, not of rates; leave it out")
        self._grid = Grid(region, max(case.parameters.depth for case in cases))
        self._cases = cases
        self._keys = keys
        self._judge = judge
        self._key = key
        self._columns = columns or LocationColumns()
        self._spill = Spill(spill)

    def expand(self, paths: beam.PCollection) -> tuple[beam.PCollection, beam.PCollection]:
        grid, spill, key = self._grid, self._spill, self._key
        places = Places(grid.depth)
        chunks, rows = paths | "ReadLocations" >> ReadLocations(self._columns, grid, key, spill)
        kinds = sorted({_kind(case) for case in self._cases}, key=lambda kind: (_BY_TRUTH.index(kind[0]), kind[1]))
        bounded = {
            kind: chunks
            | f"BoundUsers{_label(kind)}"
            >> BoundUsers(places, spill, kind[0], kind[1] or None, self._columns.dwell_limit)
            for kind in kinds
        }
        # Everybody's distributions tell the truth better than one location of each, where they are at hand.
        words, users = bounded[kinds[-1]]
        measured = next((kind for kind in kinds if kind[0] != "top"), kinds[0])  # what the yardstick is made of
        population = (
            users
            | "CountUsers" >> beam.CombineGlobally(sum_user_counts)
            | "CheckUsers"
            >> beam.Map(
                _check,
                beam.pvalue.AsSingleton(rows | "SumRowCounts" >> beam.CombineGlobally(sum_row_counts)),
                self._cases,
            )
        )
        truth = words | "Truth" >> beam.CombineGlobally(_SumCellsFn(places))
        outcomes = [
            bounded[kind][0]
            | f"Draw{_label(kind)}"
            >> beam.ParDo(
                _DrawFn(self._sizes(kind), self._keys, self._warm(kind), places, key, spill),
                beam.pvalue.AsSingleton(population),
            )
            | f"Cohorts{_label(kind)}" >> beam.GroupByKey()
            | f"FanOut{_label(kind)}" >> beam.FlatMap(_fan_out, self._cases_of(kind), kind == measured, self._keys)
            | f"Spread{_label(kind)}" >> beam.Reshuffle()
            | f"Judge{_label(kind)}"
            >> beam.ParDo(
                _JudgeFn(self._judge, places, key),
                beam.pvalue.AsSingleton(population),
                beam.pvalue.AsSingleton(truth),
            )
            for kind in kinds
        ]
        return outcomes | "AllOutcomes" >> beam.Flatten(), truth

    def _cases_of(self, kind: _Kind) -> list[Case]:
        return [case for case in self._cases if _kind(case) == kind]

    def _warm(self, kind: _Kind) -> bool:
        """Whether any case starts from an earlier release."""
        return any(case.earlier for case in self._cases_of(kind))

    def _sizes(self, kind: _Kind) -> list[int]:
        """Sizes of the cohorts that are asked for, 0 for everybody."""
        return list(dict.fromkeys(case.parameters.users or 0 for case in self._cases_of(kind)))


def _kind(case: Case) -> _Kind:
    """What a user adds in a case: the contribution, and what distributions add up to, 0 where there are none."""
    return case.parameters.contributes, case.parameters.distribution_total or 0


def _label(kind: _Kind) -> str:
    contribution, total = kind
    return f"{contribution.capitalize()}{total or ''}"


def _check(counts: UserCounts, rows: RowCounts, cases: list[Case]) -> int:
    users = counts.usable
    rows.check(max(case.parameters.max_bad_fraction for case in cases))
    if users == 0:
        raise DataError("too few users: no row has a usable user and place")
    asked = max(case.parameters.users or 0 for case in cases)
    if asked > users:
        raise DataError(f"users: {asked:,} are asked for, and the logs have {users:,} with a usable place")
    return users


class _SumCellsFn(beam.CombineFn):
    """Stored rows -> the exact sums of their weights by code."""

    def __init__(self, places: Places):
        self._places = places

    def create_accumulator(self) -> NDArray[np.float64]:
        return np.zeros(4**self._places.depth)

    def add_input(self, accumulator: NDArray[np.float64], element: bytes) -> NDArray[np.float64]:
        accumulator += Rows.bounded(element, self._places).histogram()
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
    """A case, or its yardstick, that meets a cohort: number says which; what `_DrawFn` stored of it.

    earlier: likewise of another cohort, whom an earlier release is of.
    """

    case: Case
    yardstick: bool
    number: int
    cohort: list[bytes]
    earlier: list[bytes]


@typehints.with_input_types(bytes, int)
@typehints.with_output_types(tuple[tuple[int, int], tuple[bool, bytes]])
class _DrawFn(beam.DoFn):
    """Elements of `BoundUsers` -> ((users asked for, number), (earlier, the drawn rows, stored)).

    (0, 0) stands for everybody. With `earlier` there is a second cohort of each size and number, drawn by itself.
    """

    def __init__(self, sizes: list[int], keys: int, earlier: bool, places: Places, key: RunKey, spill: Spill):
        self._draws = {False: "cohort", **({True: "earlier cohort"} if earlier else {})}
        self._everybody = 0 in sizes
        self._sizes = [users for users in sizes if users]
        self._keys = keys
        self._places = places
        self._key = key
        self._spill = spill

    def process(self, element: bytes, population: int) -> Iterator[tuple[tuple[int, int], tuple[bool, bytes]]]:
        if self._everybody:
            yield (0, 0), (False, element)  # as it is: nothing is stored once more
        if not self._sizes:
            return
        rows = Rows.bounded(element, self._places)
        for number, (earlier, draw) in itertools.product(range(self._keys), self._draws.items()):
            drawn = rows.rehashed(self._key.subkey(draw, number))  # another key draws others
            for users in self._sizes:
                part = drawn.only(drawn.below(users / population)).store(self._spill)
                yield (users, number), (earlier, part)


def _fan_out(
    element: tuple[tuple[int, int], Iterable[tuple[bool, bytes]]], cases: list[Case], yardsticks: bool, keys: int
) -> Iterator[_Run]:
    """A cohort's parts -> a run of every case that asks so many users, and of the yardstick that it has."""
    (users, number), parts = element
    drawn: tuple[list[bytes], list[bytes]] = ([], [])  # references, on one machine
    for earlier, part in parts:
        drawn[earlier].append(part)
    cohort = drawn[False]
    measured = set()
    for case in (one for one in cases if (one.parameters.users or 0) == users):
        for key in [number] if users else range(keys):
            yield _Run(case, False, key, cohort, drawn[True] if case.earlier else [])
            shared = (key, *(pair for pair in case.setting.options if pair[0] in YARDSTICK_OPTIONS))
            if yardsticks and shared not in measured:
                measured.add(shared)
                yield _Run(case, True, key, cohort, [])


@typehints.with_input_types(_Run, int, NDArray[np.float64])
@typehints.with_output_types(Outcome)
class _JudgeFn(beam.DoFn):
    def __init__(self, judge: Judge, places: Places, key: RunKey):
        self._judge = judge
        self._places = places
        self._key = key

    def process(self, run: _Run, population: int, truth: NDArray[np.float64]) -> Iterator[Outcome]:
        case, number = run.case, run.number
        rows = self._everybody(run) if case.parameters.users is None else Rows.together(run.cohort, self._places)
        if run.yardstick:
            yield judge_yardstick(case, rows, number, self._judge, truth, self._key)
        else:
            earlier = Rows.together(run.earlier, self._places) if case.earlier else None
            yield from judge_case(case, rows, population, number, self._judge, truth, self._key, earlier)
            COMPARED.emit(setting=case.setting.label, key=number)

    def _everybody(self, run: _Run) -> Rows:
        """All users, in the shards that the run's number gives them."""
        subkey, spill = self._key.subkey("cohort", run.number), Spill()
        return Rows.together(
            (Rows.bounded(part, self._places).rehashed(subkey).store(spill) for part in run.cohort), self._places
        )
