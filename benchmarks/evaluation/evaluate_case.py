"""Evaluates a case on a cohort: outcomes of the method, of its best level by truth, and of the yardstick. Pure."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from benchmarks.evaluation.cases import Case
from benchmarks.evaluation.comparison_table import Row, summarise
from benchmarks.evaluation.density_metrics import coarsen, evaluate
from benchmarks.evaluation.gaussian_blur import gaussian_heatmap
from benchmarks.evaluation.in_memory import Rows, run_in_memory
from benchmarks.evaluation.outcomes import BY_TRUTH, YARDSTICK, Outcome, Setting
from benchmarks.evaluation.uniform_levels import uniform_densities
from sfumato.schemas.errors import DataError
from sfumato.schemas.region import by_row
from sfumato.transforms.counting.estimator import estimate_density
from sfumato.transforms.counting.methods import Adaptive, Method
from sfumato.transforms.counting.state import CountState, Estimate
from sfumato.transforms.privacy.keys import RunKey

YARDSTICK_OPTIONS = ("depth", "users", "dropout")  # the options that decide a cohort's exact cells
_PICTURE_SIDE = 256


@dataclass(frozen=True)
class Evaluation:
    """How densities are compared with the truth.

    Attributes:
        metrics: names.
        blur: standard deviation of a Gaussian filter of both densities, in sides of the region.
        of_cohort: whether the truth is the cohort's exact density, and not that of all users.
    """

    metrics: tuple[str, ...]
    blur: float = 0.0
    of_cohort: bool = False

    def blurred(self, density: NDArray[np.float64]) -> NDArray[np.float64]:
        """A density as it is compared and shown."""
        return gaussian_heatmap(density, self.blur)


def compare_cases(
    cases: Sequence[Case],
    metrics: Sequence[str],
    keys: int,
    truth: NDArray[np.float64],
    population: int,
    cohort: Callable[[Case, int], Rows],
    key: RunKey,
) -> list[Row]:
    """Runs every case on the same cohorts, and the yardstick with them; returns a row of the table for each.

    Args:
        cases: the methods and their options.
        metrics: names.
        keys: number of runs of each case.
        truth: sums of all users by code, see `evaluate_case`.
        population: see `evaluate_case`.
        cohort: (case, number) -> the users of a run. Numbers from `keys` on are of earlier releases.
        key: of the comparison.
    """
    evaluation, outcomes = Evaluation(tuple(metrics)), []
    for number in range(keys):
        measured = set()
        for case in cases:
            rows, earlier = cohort(case, number), cohort(case, keys + number) if case.earlier else None
            shared = tuple(pair for pair in case.setting.options if pair[0] in YARDSTICK_OPTIONS)
            if shared not in measured:
                measured.add(shared)
                outcomes.append(evaluate_yardstick(case, rows, number, evaluation, truth, key))
            outcomes += evaluate_case(case, rows, population, number, evaluation, truth, key, earlier)
    return summarise(outcomes, metrics)


def truth_of(sums: NDArray[np.float64]) -> NDArray[np.float64]:
    """Converts exact sums by code, float64[4^d], to a density float64[2^d, 2^d], row 0 in the north."""
    return np.asarray(by_row(sums) / sums.sum())


def evaluate_case(
    case: Case,
    rows: Rows,
    population: int,
    number: int,
    evaluation: Evaluation,
    truth: NDArray[np.float64],
    key: RunKey,
    earlier: Rows | None = None,
) -> Iterator[Outcome]:
    """Yields the outcome of the case's method and, if it has maps of single levels, of the best of them by the truth.

    Args:
        case: the method and its options.
        rows: the cohort.
        population: public number of users that the cohort was drawn from.
        number: of the run. Cohort and noise depend on it.
        evaluation: how densities are compared.
        truth: sums of all users by code, float64[4^d], at the rows' depth or a finer one.
        key: of the comparison.
        earlier: the cohort of the release that this one starts from.
    """
    depth = case.parameters.depth
    rows = rows.coarser(depth)
    exact = evaluation.blurred(truth_of(rows.histogram() if evaluation.of_cohort else coarser_sums(truth, depth)))
    method, metadata = case.parameters.method, _metadata(case, number)
    try:
        prior = None
        if earlier is not None:
            before = key.narrowed({**metadata, "earlier": 1})
            prior = method.decode(run_in_memory(earlier.coarser(depth), population, case.parameters, before), depth)
        state = run_in_memory(rows, population, case.parameters, key.narrowed(metadata), prior)
    except DataError:  # every shard was lost, so nothing was published
        yield Outcome(case.setting, number, dict.fromkeys(evaluation.metrics, math.nan), 0, 0, 1.0)
        return
    yield _outcome(case.setting, state, [method.decode(state, depth)], number, evaluation, exact)
    if levels := candidates_of(method, state, depth):
        by_truth = replace(case.setting, method=case.setting.method + BY_TRUTH)
        yield _outcome(by_truth, state, levels, number, evaluation, exact)


@runtime_checkable
class HasCandidates(Protocol):
    """A method that measures several levels, of which its map shows one."""

    def candidates(self, state: CountState, depth: int) -> list[Estimate]:
        """The map of each level."""


def candidates_of(method: Method, state: CountState, depth: int) -> list[Estimate]:
    """The maps of single levels, of which a paper publishes the one of least error by the exact data.

    Only an evaluation can do that. With equal shares of epsilon the adaptive method has each sub-query's own map (paper
    000, Table 3). There are none for a method whose map does not depend on such a choice.
    """
    if isinstance(method, Adaptive):
        chooses = method.sub_query_share is not None and method.estimator == "last"
        return [result.to_estimate() for result in state.results] if chooses else []
    return method.candidates(state, depth) if isinstance(method, HasCandidates) else []


def evaluate_yardstick(
    case: Case, rows: Rows, number: int, evaluation: Evaluation, truth: NDArray[np.float64], key: RunKey
) -> Outcome:
    """The outcome of the non-private yardstick (paper 000, Section 6.2).

    It is the uniform level of least squared error, from the exact cells of the clients that do not vanish. case: any
    case with the same cohort, depth and dropout.
    """
    depth = case.parameters.depth
    rows = rows.coarser(depth)
    exact = evaluation.blurred(truth_of(rows.histogram() if evaluation.of_cohort else coarser_sums(truth, depth)))
    vanished = rows.rehashed(key.subkey("vanished", number)).below(case.parameters.simulated_dropout)
    answering = rows.only(~vanished)
    levels = [evaluation.blurred(level) for level in uniform_densities(by_row(answering.histogram()))]
    best = min(levels, key=lambda level: float(np.mean((level - exact) ** 2)))
    shared = tuple((name, value) for name, value in case.setting.options if name in YARDSTICK_OPTIONS)
    return Outcome(
        Setting(YARDSTICK, shared),
        number,
        evaluate(best, exact, evaluation.metrics),
        2,
        2 * depth,
        0.0,
        _picture(best, number),
    )


def coarser_sums(sums: NDArray[np.float64], depth: int) -> NDArray[np.float64]:
    """Sums by code on a coarser grid: float64[4^depth]."""
    return np.asarray(sums.reshape(4**depth, -1).sum(axis=1))


def _metadata(case: Case, number: int) -> dict[str, object]:
    return {**case.parameters.metadata(), "number": number}


def _outcome(
    setting: Setting,
    state: CountState,
    estimates: list[Estimate],
    number: int,
    evaluation: Evaluation,
    exact: NDArray[np.float64],
) -> Outcome:
    """The outcome of the estimate with the least squared error."""
    depth = len(exact).bit_length() - 1
    densities = [evaluation.blurred(estimate_density(estimate, depth)) for estimate in estimates]
    best = min(densities, key=lambda density: float(np.mean((density - exact) ** 2)))
    answers = state.results
    return Outcome(
        setting,
        number,
        evaluate(best, exact, evaluation.metrics),
        state.entries_per_client,
        state.bits_per_client,
        sum(answer.shards_lost for answer in answers) / sum(answer.shards for answer in answers),
        _picture(best, number),
    )


def _picture(shown: NDArray[np.float64], number: int) -> NDArray[np.float32] | None:
    if number:
        return None
    return coarsen(shown, min(_PICTURE_SIDE, len(shown))).astype(np.float32)
