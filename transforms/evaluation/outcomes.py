"""From one case and one cohort to outcomes: the method's, its best level's by the truth, and the yardstick's. Pure."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from sfumato.schemas.comparison import BY_TRUTH, YARDSTICK, Outcome, Setting
from sfumato.schemas.errors import DataError
from sfumato.transforms.evaluation.memory import Rows, run_in_memory
from sfumato.transforms.evaluation.metrics import coarsen, evaluate
from sfumato.transforms.evaluation.settings import Case
from sfumato.transforms.evaluation.yardstick import uniform_densities
from sfumato.transforms.heatmap.methods.pyramid import Pyramid
from sfumato.transforms.heatmap.raster import by_row, estimate_density, gaussian_heatmap
from sfumato.transforms.heatmap.state import Estimate, HeatmapState
from sfumato.transforms.privacy.keys import RunKey

YARDSTICK_OPTIONS = ("depth", "users", "dropout")  # all that the exact cells of a cohort depend on
_PICTURE_SIDE = 256


@dataclass(frozen=True)
class Judge:
    """How densities are judged: against which truth, after which blur.

    metrics: names. blur: standard deviation of the Gaussian filter, in sides of the region. of_cohort: the truth is
    the cohort's exact density, not everybody's.
    """

    metrics: tuple[str, ...]
    blur: float = 0.0
    of_cohort: bool = False

    def show(self, exact: NDArray[np.float64]) -> NDArray[np.float64]:
        """A density as it is judged and pictured."""
        return gaussian_heatmap(exact, self.blur)


def truth_of(sums: NDArray[np.float64]) -> NDArray[np.float64]:
    """The exact density float64[2^d, 2^d], row 0 in the north, of sums by code float64[4^d]."""
    return np.asarray(by_row(sums) / sums.sum())


def judge_case(
    case: Case,
    rows: Rows,
    population: int,
    number: int,
    judge: Judge,
    truth: NDArray[np.float64],
    key: RunKey,
    earlier: Rows | None = None,
) -> Iterator[Outcome]:
    """The outcome of the case's method, and of its best level by the truth where it has levels to choose among.

    rows: the cohort. truth: everybody's sums float64[4^d] by code, at the rows' depth or a finer one. number: of the
    run; cohort and noise depend on it. earlier: the cohort of the release from which this one starts.
    """
    depth = case.parameters.depth
    rows = rows.coarser(depth)
    exact = judge.show(truth_of(rows.histogram() if judge.of_cohort else coarser_sums(truth, depth)))
    method, metadata = case.parameters.method, _metadata(case, number)
    try:
        prior = None
        if earlier is not None:
            before = key.narrowed({**metadata, "earlier": 1})
            prior = method.decode(run_in_memory(earlier.coarser(depth), population, case.parameters, before), depth)
        state = run_in_memory(rows, population, case.parameters, key.narrowed(metadata), prior)
    except DataError:  # every shard was lost: nothing was published
        yield Outcome(case.setting, number, dict.fromkeys(judge.metrics, math.nan), 0, 0, 1.0)
        return
    if not isinstance(method, Pyramid):
        yield _outcome(case.setting, state, [method.decode(state, depth)], number, judge, exact)
        return
    levels = method.candidates(state, depth)
    yield _outcome(case.setting, state, [levels[method.choose(state, levels)]], number, judge, exact)
    by_truth = replace(case.setting, method=case.setting.method + BY_TRUTH)
    yield _outcome(by_truth, state, levels, number, judge, exact)


def judge_yardstick(
    case: Case, rows: Rows, number: int, judge: Judge, truth: NDArray[np.float64], key: RunKey
) -> Outcome:
    """The non-private yardstick: the uniform level of least squared error, from the survivors' exact cells.

    Paper 000, Section 6.2. case: any with the cohort, depth and dropout that are meant.
    """
    depth = case.parameters.depth
    rows = rows.coarser(depth)
    exact = judge.show(truth_of(rows.histogram() if judge.of_cohort else coarser_sums(truth, depth)))
    vanished = rows.rehashed(key.subkey("vanished", number)).below(case.parameters.simulated_dropout)
    answering = rows.only(~vanished)
    levels = [judge.show(level) for level in uniform_densities(by_row(answering.histogram()))]
    best = min(levels, key=lambda level: float(np.mean((level - exact) ** 2)))
    shared = tuple((name, value) for name, value in case.setting.options if name in YARDSTICK_OPTIONS)
    return Outcome(
        Setting(YARDSTICK, shared),
        number,
        evaluate(best, exact, judge.metrics),
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
    state: HeatmapState,
    estimates: list[Estimate],
    number: int,
    judge: Judge,
    exact: NDArray[np.float64],
) -> Outcome:
    """The outcome of the estimate of least squared error."""
    depth = len(exact).bit_length() - 1
    shown = [judge.show(estimate_density(one, depth)) for one in estimates]
    best = min(shown, key=lambda one: float(np.mean((one - exact) ** 2)))
    spent = [answer.spent for answer in state.results]
    return Outcome(
        setting,
        number,
        evaluate(best, exact, judge.metrics),
        state.per_user_total([one.vector_length for one in spent]),
        state.per_user_total([one.bits_per_client for one in spent]),
        sum(one.shards_lost for one in spent) / sum(one.shards for one in spent),
        _picture(best, number),
    )


def _picture(shown: NDArray[np.float64], number: int) -> NDArray[np.float32] | None:
    if number:
        return None
    return coarsen(shown, min(_PICTURE_SIDE, len(shown))).astype(np.float32)
