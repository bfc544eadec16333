"""A comparison as Beam stages: read the logs once, draw cohorts, evaluate every case on every cohort."""

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
from sfumato.transforms.evaluation.cases import Case
from sfumato.transforms.evaluation.evaluate_case import YARDSTICK_OPTIONS, Evaluation, evaluate_case, evaluate_yardstick
from sfumato.transforms.evaluation.in_memory import Rows
from sfumato.transforms.locations.group import BoundUsers
from sfumato.transforms.locations.read import ReadLocations, RowCounts, sum_row_counts
from sfumato.transforms.locations.spill import Spill
from sfumato.transforms.locations.users import Contribution
from sfumato.transforms.logs import COMPARED
from sfumato.transforms.privacy.admission import UserCounts, sum_user_counts
from sfumato.transforms.privacy.keys import RunKey

_Bound = tuple[Contribution, int]  # the contribution, and the total of a distribution, 0 without distributions
_BY_INFORMATION: tuple[Contribution, ...] = ("top", "one", "all")  # by information about the exact density


class CompareMethods(beam.PTransform):
    """Paths of Parquet location logs -> a pair: Outcomes, and the exact sums by code as a singleton float64[4^depth].

    Both outputs reveal exact data: this is an evaluation. All cases of one draw have the same users.

    Args:
        region: of the map. Its depth is the deepest of all cases.
        cases: to evaluate.
        keys: number of runs of each case, each with its own cohort and noise.
        evaluation: how densities are compared.
        key: of the comparison.
        columns: of the logs.
        spill: a folder for data between stages (see Spill).

    Raises:
        RequestError: the columns have auxiliary data.
        DataError: a case needs more users than there are.
    """

    def __init__(
        self,
        region: Region,
        cases: list[Case],
        keys: int,
        evaluation: Evaluation,
        key: RunKey,
        columns: LocationColumns | None = None,
        spill: Spill | str | None = None,
    ):
        super().__init__()
        if columns is not None and columns.auxiliary is not None:
            raise RequestError("auxiliary: a comparison has no rates; leave it out")
        self._grid = Grid(region, max(case.parameters.depth for case in cases))
        self._cases = cases
        self._keys = keys
        self._evaluation = evaluation
        self._key = key
        self._columns = columns or LocationColumns()
        self._spill = Spill.of(spill)

    def expand(self, paths: beam.PCollection) -> tuple[beam.PCollection, beam.PCollection]:
        grid, spill, key = self._grid, self._spill, self._key
        places = Places(grid.depth)
        chunks, rows = paths | "ReadLocations" >> ReadLocations(self._columns, grid, key, spill)
        bounds = sorted(
            {_bound_of(case) for case in self._cases}, key=lambda bound: (_BY_INFORMATION.index(bound[0]), bound[1])
        )
        bounded = {
            bound: chunks
            | f"BoundUsers{_label(bound)}"
            >> BoundUsers(places, spill, bound[0], bound[1] or None, self._columns.dwell_limit, last=False)
            for bound in bounds
        }
        # The truth comes from the bound with the most information: distributions, if any case has them.
        exact_rows, users = bounded[bounds[-1]]
        measured = next((bound for bound in bounds if bound[0] != "top"), bounds[0])  # the source of the yardstick
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
        truth = exact_rows | "Truth" >> beam.CombineGlobally(_SumCellsFn(places))
        outcomes = [
            bounded[bound][0]
            | f"Draw{_label(bound)}"
            >> beam.ParDo(
                _DrawFn(self._sizes(bound), self._keys, self._warm(bound), places, key, spill),
                beam.pvalue.AsSingleton(population),
            )
            | f"Cohorts{_label(bound)}" >> beam.GroupByKey()
            | f"FanOut{_label(bound)}" >> beam.FlatMap(_fan_out, self._cases_of(bound), bound == measured, self._keys)
            | f"Spread{_label(bound)}" >> beam.Reshuffle()
            | f"Evaluate{_label(bound)}"
            >> beam.ParDo(
                _EvaluateFn(self._evaluation, places, key),
                beam.pvalue.AsSingleton(population),
                beam.pvalue.AsSingleton(truth),
            )
            for bound in bounds
        ]
        return outcomes | "AllOutcomes" >> beam.Flatten(), truth

    def _cases_of(self, bound: _Bound) -> list[Case]:
        return [case for case in self._cases if _bound_of(case) == bound]

    def _warm(self, bound: _Bound) -> bool:
        """Whether any case starts from an earlier release."""
        return any(case.earlier for case in self._cases_of(bound))

    def _sizes(self, bound: _Bound) -> list[int]:
        """Sizes of the cohorts, 0 for all users."""
        return list(dict.fromkeys(case.parameters.users or 0 for case in self._cases_of(bound)))


def _bound_of(case: Case) -> _Bound:
    """The bound on a user's contribution in a case."""
    return case.parameters.contributes, case.parameters.distribution_total or 0


def _label(bound: _Bound) -> str:
    contribution, total = bound
    return f"{contribution.capitalize()}{total or ''}"


def _check(counts: UserCounts, rows: RowCounts, cases: list[Case]) -> int:
    users = counts.usable
    rows.check(max(case.parameters.max_bad_fraction for case in cases))
    if users == 0:
        raise DataError("too few users: no row has a usable user and location")
    needed = max(case.parameters.users or 0 for case in cases)
    if needed > users:
        raise DataError(f"users: {needed:,} are needed, and the logs have {users:,} with a usable location")
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
        for sums in accumulators:
            total += sums
        return total

    def extract_output(self, accumulator: NDArray[np.float64]) -> NDArray[np.float64]:
        return accumulator


@dataclass(frozen=True)
class _Run:
    """A case, or its yardstick, on one cohort.

    Attributes:
        case: the case.
        yardstick: whether to evaluate the yardstick instead of the method.
        number: of the cohort.
        cohort: its rows, as `_DrawFn` stored them.
        earlier: likewise, the cohort of the earlier release.
    """

    case: Case
    yardstick: bool
    number: int
    cohort: list[bytes]
    earlier: list[bytes]


@typehints.with_input_types(bytes, int)
@typehints.with_output_types(tuple[tuple[int, int], tuple[bool, bytes]])
class _DrawFn(beam.DoFn):
    """Elements of `BoundUsers` -> ((size of the cohort, number), (earlier, the stored rows)).

    (0, 0) is all users. With `earlier` there is an independent second cohort of each size and number.
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
            yield (0, 0), (False, element)  # not stored again
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
    """A cohort's parts -> a run of each case of that size, and of its yardstick."""
    (users, number), parts = element
    drawn: tuple[list[bytes], list[bytes]] = ([], [])  # references, on one machine
    for earlier, part in parts:
        drawn[earlier].append(part)
    cohort = drawn[False]
    measured = set()
    for case in cases:
        if (case.parameters.users or 0) != users:
            continue
        for key in [number] if users else range(keys):
            yield _Run(case, False, key, cohort, drawn[True] if case.earlier else [])
            shared = (key, *(pair for pair in case.setting.options if pair[0] in YARDSTICK_OPTIONS))
            if yardsticks and shared not in measured:
                measured.add(shared)
                yield _Run(case, True, key, cohort, [])


@typehints.with_input_types(_Run, int, NDArray[np.float64])
@typehints.with_output_types(Outcome)
class _EvaluateFn(beam.DoFn):
    def __init__(self, evaluation: Evaluation, places: Places, key: RunKey):
        self._evaluation = evaluation
        self._places = places
        self._key = key

    def process(self, run: _Run, population: int, truth: NDArray[np.float64]) -> Iterator[Outcome]:
        case, number = run.case, run.number
        rows = self._everybody(run) if case.parameters.users is None else Rows.concatenated(run.cohort, self._places)
        if run.yardstick:
            yield evaluate_yardstick(case, rows, number, self._evaluation, truth, self._key)
        else:
            earlier = Rows.concatenated(run.earlier, self._places) if case.earlier else None
            yield from evaluate_case(case, rows, population, number, self._evaluation, truth, self._key, earlier)
            COMPARED.emit(setting=case.setting.label, key=number)

    def _everybody(self, run: _Run) -> Rows:
        """All users, in shards that depend on the run's number."""
        subkey, spill = self._key.subkey("cohort", run.number), Spill()
        return Rows.concatenated(
            (Rows.bounded(part, self._places).rehashed(subkey).store(spill) for part in run.cohort), self._places
        )
