"""The adaptive hierarchical histogram: a quadtree refined where noise allows.

Two algorithms choose the trees: `few_queries.FewQueries`, the default, and `paper_schedule.PaperSchedule`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from sfumato.schemas.errors import RequestError
from sfumato.transforms.checks import check_integer, option
from sfumato.transforms.heatmap.methods.base import Errors, Method
from sfumato.transforms.heatmap.methods.few_queries import MIN_ENTRIES, FewQueries
from sfumato.transforms.heatmap.methods.paper_schedule import TARGETS, PaperSchedule
from sfumato.transforms.heatmap.posterior.estimator import ESTIMATOR_HELP, ESTIMATORS, decode
from sfumato.transforms.heatmap.state import Estimate, HeatmapState, Query

SCHEDULES = ("auto", "two_query", "lean", "paper")
_REFINES = ("count", "interval")
_PAPER_OPTIONS = {
    "calibration", "expansion", "split_threshold", "target", "split_count", "sub_query_share", "start_level",
    "max_sub_queries",
}  # fmt: skip
_FEW_QUERIES_OPTIONS = {"max_entries", "blur_weight", "cohorts"}
_COHORTS = ("auto", "shared", "disjoint")
# See `FewQueries`. A blur weight of 1 is derived. The others were chosen on synthetic maps of seven kinds
# (docs/results/accuracy.md).
_BLUR_WEIGHT = 1.0
_SPLIT_PENALTY, _MIN_CELL_SNR = 2.0, 2.0
_ERROR_GROWTH, _LEAN_ERROR_GROWTH = 0.005, 0.1


@dataclass(frozen=True)
class Adaptive(Method):
    """The options of both algorithms. `schedule` chooses one.

    schedule, cohorts, max_entries and blur_weight: see `FewQueries`; estimator: see `posterior`; refine and
    interval_width: of both; the others: see `PaperSchedule`.
    """

    NAME: ClassVar[str] = "adaptive"
    SENTENCE: ClassVar[str] = "Each sub-query uses only the noisy sums before it to choose where to look more closely."
    CATEGORIES: ClassVar[bool] = True
    STARTS_WARM: ClassVar[bool] = True
    LAST_QUERY_COVERS_MAP: ClassVar[bool] = True

    schedule: str = option(
        "auto",
        "auto: two sub-queries, more on grids that are deep for so few users; two_query; lean: smaller trees; paper: "
        "Algorithm 2, many sub-queries",
        among=SCHEDULES,
    )
    estimator: str = option("bayes", ESTIMATOR_HELP, among=ESTIMATORS)
    cohorts: str = option(
        "auto",
        "shared: every user takes part in every sub-query; disjoint: each in one, with the whole epsilon",
        among=_COHORTS,
    )
    max_entries: int = option(32_768, "largest number of vector entries in a sub-query", ge=MIN_ENTRIES, le=1 << 24)
    blur_weight: float = option(
        _BLUR_WEIGHT, "cost of blur against detail: a larger one makes smaller trees; 1 is even", gt=0, lt=1e6
    )
    refine: str = option(
        "count",
        "with auxiliary data, which nodes are split: count, as without it; interval, while rates stay sharp",
        among=_REFINES,
    )
    interval_width: float = option(
        0.1, "widest 95% interval of a rate that a split may leave, with refine interval", gt=0, lt=1
    )
    calibration: float = option(
        0.1, "c: the target of the noise, as a share of the average users of an entry", gt=0, lt=100
    )
    expansion: float = option(
        2.0, "b: a sub-query leaves at least (b - 1) times its own epsilon, or spends all", ge=1, le=1000
    )
    split_threshold: float = option(
        2.0, "k: a node is split above k standard deviations of the noise to come", gt=0, lt=1000
    )
    target: str = option("corrected", f"how the paper's Eq. 7 is read: {', '.join(TARGETS)}", among=TARGETS)
    split_count: float | None = option(
        None, "split a node above so many users, whatever the noise; default: by k", gt=0, lt=1e12
    )
    sub_query_share: float | None = option(
        None, "spend this share of epsilon on every sub-query; default: by c and b", ge=0.01, le=1
    )
    start_level: int = option(1, "level of the uniform tree of the first sub-query", ge=0, le=8)
    max_sub_queries: int = option(
        10, "largest number of sub-queries; the last spends the rest of the budget", ge=1, le=40
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.schedule == "paper" and self.cohorts == "disjoint":
            raise RequestError(
                "cohorts: the paper's schedule queries every user; use cohorts shared or another schedule"
            )

    def check(self, depth: int) -> None:
        check_integer("start_level", self.start_level, 0, depth)

    @classmethod
    def check_given(cls, given: Mapping[str, Any]) -> None:
        paper = given.get("schedule") == "paper"
        for name in given:
            if name in _PAPER_OPTIONS and not paper:
                raise RequestError(
                    f"{name}: is an option of the paper's schedule; give --schedule paper, or leave it out"
                )
            if name in _FEW_QUERIES_OPTIONS and paper:
                raise RequestError(
                    f"{name}: is no option of the paper's schedule; leave it out, or choose another schedule"
                )
        if "interval_width" in given and given.get("refine") != "interval":
            raise RequestError(
                "interval_width: is an option of refine interval; give --refine interval, or leave it out"
            )

    def check_warm_start(self) -> None:
        if self.cohorts == "disjoint":
            raise RequestError("cohorts: a warm start queries every user, once; use shared")
        if self.refine == "interval" and self.schedule != "paper":
            raise RequestError("refine: the first tree of a warm start is split by count; leave interval out")

    def check_use(self, categories: int, central: bool) -> None:
        super().check_use(categories, central)
        if self.cohorts == "disjoint" and central:
            raise RequestError(
                "cohorts: disjoint cohorts are parts of the shards, and central noise has no shards; use shared"
            )
        needed = MIN_ENTRIES * categories
        if self.max_entries < needed:
            raise RequestError(f"max_entries: {categories} categories need at least {needed}, got {self.max_entries}")
        if self.refine == "interval" and categories == 1:
            raise RequestError("refine: interval is about rates; name their column with auxiliary")

    def check_slots(self, slots: int) -> None:
        for name, value, needed in (
            ("schedule", self.schedule, ("auto", "two_query", "lean")),
            ("cohorts", self.cohorts, ("auto", "shared")),
            ("estimator", self.estimator, ("bayes",)),
        ):
            if value not in needed:
                raise RequestError(f"{name}: {value} makes no maps of slots; use {' or '.join(needed)}")
        if self.max_entries < MIN_ENTRIES * slots:
            raise RequestError(
                f"max_entries: {slots} slots need at least {MIN_ENTRIES * slots}, got {self.max_entries}"
            )

    def max_rounds(self, depth: int) -> int:
        return self._algorithm.max_rounds(depth)

    @property
    def errors(self) -> Errors:
        return "posterior" if self.estimator == "bayes" else "independent"

    def max_query_entries(self, depth: int, categories: int) -> int | None:
        """See Method.max_query_entries. The paper's schedule has no bound but the finest tree."""
        return categories * 4**depth if self.schedule == "paper" else self.max_entries

    def next_query(self, state: HeatmapState, depth: int) -> Query | None:
        return self._algorithm.next_query(state, depth)

    def decode(self, state: HeatmapState, depth: int) -> Estimate:
        return decode(state, self.estimator)

    def candidates(self, state: HeatmapState, depth: int) -> list[Estimate]:
        """See Method.candidates: with equal shares of epsilon, each sub-query's own map (paper 000, Table 3)."""
        chooses = self.sub_query_share is not None and self.estimator == "last"
        return [result.to_estimate() for result in state.results] if chooses else []

    @property
    def _algorithm(self) -> FewQueries | PaperSchedule:
        interval_width = self.interval_width if self.refine == "interval" else None
        if self.schedule == "paper":
            return PaperSchedule(
                self.calibration,
                self.expansion,
                self.split_threshold,
                self.target,
                self.split_count,
                self.sub_query_share,
                self.start_level,
                self.max_sub_queries,
                interval_width,
            )
        growth, central_growth = (_LEAN_ERROR_GROWTH,) * 2 if self.schedule == "lean" else (_ERROR_GROWTH, 0.0)
        return FewQueries(
            self.blur_weight,
            _SPLIT_PENALTY,
            _MIN_CELL_SNR,
            self.max_entries,
            2 if self.schedule == "two_query" else None,
            self.cohorts,
            interval_width,
            growth,
            central_growth,
        )
