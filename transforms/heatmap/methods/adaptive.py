"""The adaptive hierarchical histogram: a quadtree refined where noise allows, by few sub-queries or by the paper's."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from sfumato.schemas.errors import RequestError
from sfumato.transforms.heatmap.checks import check_between, check_choice, check_whole, check_within, option
from sfumato.transforms.heatmap.methods import few_queries, paper_schedule
from sfumato.transforms.heatmap.methods.base import Method
from sfumato.transforms.heatmap.methods.combine import ESTIMATOR_HELP, ESTIMATORS, decode
from sfumato.transforms.heatmap.methods.paper_schedule import TARGETS
from sfumato.transforms.heatmap.state import Estimate, HeatmapState, Question

SCHEDULES = ("auto", "two_query", "lean", "paper")
_REFINES = ("count", "interval")
_OF_PAPER = {
    "calibration", "expansion", "split_threshold", "target", "split_count", "sub_query_share", "start_level",
    "max_sub_queries",
}  # fmt: skip
_NOT_OF_PAPER = {"max_entries", "split_price", "cohorts"}
_COHORTS = ("auto", "shared", "disjoint")
# What a split must pay for (see `growth.next_tree`), and how coarse the first grid is (see `few_queries.Plan`). The
# tolls and reaches were chosen on synthetic maps of seven kinds (docs/results/accuracy.md); an even price is derived.
_PRICE = 1.0
_TOLL, _REACH = 2.0, 2.0
_LEAN_TOLL, _LEAN_REACH = 20.0, 8.0


@dataclass(frozen=True)
class Adaptive(Method):
    """schedule, cohorts, max_entries and split_price: see `few_queries`; estimator: see `posterior`.

    Of the paper's schedule, calibration: c of Eq. 7; expansion: b of Eq. 9; split_threshold: k of Eq. 6; target says
    how Eq. 7 is read (see `target_epsilon`). split_count and sub_query_share take the place of Eq. 6's threshold and of
    Eqs. 7 to 9: the ablations of the paper's Table 3.
    """

    NAME: ClassVar[str] = "adaptive"
    TEXT: ClassVar[str] = "a quadtree refined sub-query by sub-query (Bagdasaryan et al.)"
    CATEGORIES: ClassVar[bool] = True
    WARM: ClassVar[bool] = True
    SEEN_BY_LAST: ClassVar[bool] = True

    schedule: str = option(
        "auto",
        "auto: two sub-queries, more on grids that are deep for so few users; two_query; lean: smaller trees; paper: "
        "Algorithm 2, many sub-queries",
    )
    estimator: str = option("bayes", ESTIMATOR_HELP)
    cohorts: str = option(
        "auto", "shared: every user answers every sub-query; disjoint: each answers one, with the whole epsilon"
    )
    max_entries: int = option(32_768, "at most so many vector entries a sub-query")
    split_price: float = option(_PRICE, "what blur costs against detail: more makes smaller trees; at 1 they are even")
    refine: str = option(
        "count", "with auxiliary data, what is split: count, as without; interval, where rates stay sharp"
    )
    interval_width: float = option(0.1, "widest 95% interval of a rate that a split may leave, with refine interval")
    calibration: float = option(0.1, "c: noise aimed at, as a share of the users an entry has on average")
    expansion: float = option(2.0, "b: a sub-query leaves at least (b - 1) times its own epsilon, or takes all")
    split_threshold: float = option(2.0, "k: a node is split above k standard deviations of the noise to come")
    target: str = option("corrected", f"how the paper's Eq. 7 is read: {', '.join(TARGETS)}")
    split_count: float | None = option(None, "split a node above so many users, whatever the noise; default: by k")
    sub_query_share: float | None = option(None, "spend this share of epsilon on every sub-query; default: by c and b")
    start_level: int = option(1, "level of the uniform tree that is asked first")
    max_sub_queries: int = option(10, "at most so many sub-queries; the last spends what is left")

    def __post_init__(self) -> None:
        check_choice("schedule", self.schedule, SCHEDULES)
        check_choice("estimator", self.estimator, ESTIMATORS)
        check_choice("cohorts", self.cohorts, _COHORTS)
        check_choice("refine", self.refine, _REFINES)
        check_choice("target", self.target, TARGETS)
        if self.schedule == "paper" and self.cohorts == "disjoint":
            raise RequestError("cohorts: the paper's schedule asks every user; use cohorts shared or another schedule")
        check_whole("max_entries", self.max_entries, few_queries.LEAST_ENTRIES, 1 << 24)
        check_between("split_price", self.split_price, 0, 1e6)
        check_between("interval_width", self.interval_width, 0, 1)
        check_between("calibration", self.calibration, 0, 100)
        check_within("expansion", self.expansion, 1, 1000)
        check_between("split_threshold", self.split_threshold, 0, 1000)
        check_whole("max_sub_queries", self.max_sub_queries, 1, 40)
        if self.split_count is not None:
            check_between("split_count", self.split_count, 0, 1e12)
        if self.sub_query_share is not None:
            check_within("sub_query_share", self.sub_query_share, 0.01, 1)

    def check(self, depth: int) -> None:
        """See Method.check."""
        check_whole("start_level", self.start_level, 0, min(depth, 8))

    @classmethod
    def check_given(cls, given: Mapping[str, Any]) -> None:
        """See Method.check_given."""
        paper = given.get("schedule") == "paper"
        for name in given:
            if name in _OF_PAPER and not paper:
                raise RequestError(f"{name}: is of the paper's schedule; give --schedule paper, or leave it out")
            if name in _NOT_OF_PAPER and paper:
                raise RequestError(f"{name}: is not of the paper's schedule; leave it out, or choose another schedule")
        if "interval_width" in given and given.get("refine") != "interval":
            raise RequestError("interval_width: is of refine interval; give --refine interval, or leave it out")

    def check_warm(self) -> None:
        """See Method.check_warm."""
        if self.cohorts == "disjoint":
            raise RequestError("cohorts: a warm start asks every user, once; use shared")
        if self.refine == "interval" and self.schedule != "paper":
            raise RequestError("refine: the first tree of a warm start is split by count; leave interval out")

    def check_use(self, categories: int, central: bool) -> None:
        """See Method.check_use."""
        super().check_use(categories, central)
        if self.cohorts == "disjoint" and central:
            raise RequestError("cohorts: disjoint ones are parts of the shards, and central noise has none; use shared")
        least = few_queries.LEAST_ENTRIES * categories
        if self.max_entries < least:
            raise RequestError(f"max_entries: {categories} categories need {least} at least, got {self.max_entries}")
        if self.refine == "interval" and categories == 1:
            raise RequestError("refine: interval is about rates; name the column they are of with auxiliary")

    def rounds(self, depth: int) -> int:
        """See Method.rounds."""
        return self.max_sub_queries if self.schedule == "paper" else few_queries.most_queries(self._plan, depth)

    def most_entries(self) -> int | None:
        """See Method.most_entries."""
        return None if self.schedule == "paper" else self.max_entries

    def encode(self, state: HeatmapState, depth: int) -> Question | None:
        """See Method.encode."""
        if self.schedule == "paper":
            return paper_schedule.ask(self, state, depth)
        return few_queries.ask(self._plan, state, depth)

    def decode(self, state: HeatmapState, depth: int) -> Estimate:
        """See Method.decode."""
        return decode(state, self.estimator)

    @property
    def _plan(self) -> few_queries.Plan:
        lean = self.schedule == "lean"
        return few_queries.Plan(
            price=self.split_price,
            toll=_LEAN_TOLL if lean else _TOLL,
            reach=_LEAN_REACH if lean else _REACH,
            max_entries=self.max_entries,
            queries=2 if self.schedule == "two_query" else None,
            cohorts=self.cohorts,
            interval_width=self.interval_width if self.refine == "interval" else None,
        )
