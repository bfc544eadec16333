"""The adaptive hierarchical histogram: a quadtree refined where noise allows.

Two algorithms choose the trees: `few_queries.FewQueries`, the default, and `PaperSchedule`: Algorithm 2 of the paper
below as published, a tree one level finer in each sub-query, its noise by Eqs. 5 to 9.

Source: Bagdasaryan et al. (2022), Towards sparse federated analytics: location heatmaps under distributed differential
privacy with secure aggregation. Its symbols: U users who take part, S clients of a shard, T entries of the tree; for k,
c and b of Eqs. 6, 7 and 9 see `Adaptive`.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar, Literal

import numpy as np
from annotated_types import Interval
from numpy.typing import NDArray

from sfumato.schemas.errors import RequestError
from sfumato.schemas.requests.checks import check_integer
from sfumato.schemas.tree import Tree
from sfumato.transforms.counting.estimator import Estimator, decode
from sfumato.transforms.counting.methods.base import Errors, Method
from sfumato.transforms.counting.methods.few_queries import MIN_ENTRIES, FewQueries
from sfumato.transforms.counting.rates import split_by_interval
from sfumato.transforms.counting.state import ALL_REMAINING, CountState, Estimate, Query
from sfumato.transforms.secagg.encodings import TreeEncoding

Schedule = Literal["auto", "two_query", "lean", "paper"]
Refine = Literal["count", "interval"]
_PAPER_OPTIONS = {
    "calibration", "expansion", "split_threshold", "target", "split_count", "sub_query_share", "start_level",
    "max_sub_queries",
}  # fmt: skip
_FEW_QUERIES_OPTIONS = {"max_entries", "blur_weight", "shards"}
_COLLAPSE_SHARE = 0.25  # a node at a quarter of the splitting threshold is collapsed (Algorithm 2, line 24)
Target = Literal["corrected", "literal_factor", "printed"]
# The readings of Eq. 7, whose target is c U / T: how many standard deviations of the aggregated noise that is, and
# whether the variance is divided among the sums that carry noise.
_TARGETS: dict[Target, tuple[float, bool]] = {
    "corrected": (2.0, True),
    "literal_factor": (2.0, False),
    "printed": (1.0, False),
}


@dataclass(frozen=True)
class Adaptive(Method):
    """The parameters of both algorithms."""

    NAME: ClassVar[str] = "adaptive"
    SENTENCE: ClassVar[str] = "Each sub-query uses only the noisy sums before it to choose where to look more closely."
    CATEGORIES: ClassVar[bool] = True
    STARTS_WARM: ClassVar[bool] = True
    LAST_QUERY_COVERS_MAP: ClassVar[bool] = True

    # The algorithm: auto takes two sub-queries, or more on grids that are deep for so few users; two_query takes two;
    # lean makes smaller trees; paper is Algorithm 2 of paper 000.
    schedule: Schedule = "auto"
    # bayes takes all results, with a prior learned from them; last takes the last result only.
    estimator: Estimator = "bayes"
    # shared: every shard answers all sub-queries; disjoint: one of them. See `FewQueries.uses_disjoint_shards`.
    shards: Literal["auto", "shared", "disjoint"] = "auto"
    # The most entries of a vector: at least MIN_ENTRIES for each category.
    max_entries: Annotated[int, Interval(ge=MIN_ENTRIES, le=1 << 24)] = 32_768
    blur_weight: Annotated[float, Interval(gt=0, lt=1e6)] = 1.0  # cost of blur against detail, see `next_tree`
    # With auxiliary data, splits nodes by their count, or while the intervals of their rates stay sharp.
    refine: Refine = "count"
    # Widest 95% interval (high - low) of a rate that a split may leave.
    interval_width: Annotated[float, Interval(gt=0, lt=1)] = 0.1
    # This option and all below apply to the paper's schedule. c of Eq. 7: the target of the noise, as a share of the
    # average users of an entry.
    calibration: Annotated[float, Interval(gt=0, lt=100)] = 0.1
    # b of Eq. 9: a sub-query leaves at least (b - 1) times its own cost, or spends all.
    expansion: Annotated[float, Interval(ge=1, le=1000)] = 2.0
    # k of Eq. 6: a node is split above k standard deviations of the noise to come.
    split_threshold: Annotated[float, Interval(gt=0, lt=1000)] = 2.0
    target: Target = "corrected"  # how Eq. 7 is read, see `target_cost`.
    # Splits a node above this number of users; None follows Eq. 6.
    split_count: Annotated[float, Interval(gt=0, lt=1e12)] | None = None
    # The share of the budget for every sub-query; None follows Eqs. 7 to 9.
    sub_query_share: Annotated[float, Interval(ge=0.01, le=1)] | None = None
    start_level: Annotated[int, Interval(ge=0, le=8)] = 1  # the level of the first tree, which is uniform
    max_sub_queries: Annotated[int, Interval(ge=1, le=40)] = 10  # the last one spends the rest of the budget

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.schedule == "paper" and self.shards == "disjoint":
            raise RequestError("shards: the paper's schedule queries every user; use shared, or another schedule")

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
        if self.shards == "disjoint":
            raise RequestError("shards: a warm start queries every user, once; use shared")
        if self.refine == "interval" and self.schedule != "paper":
            raise RequestError("refine: the first tree of a warm start is split by count; leave interval out")

    def check_use(self, categories: int, is_one_batch: bool) -> None:
        super().check_use(categories, is_one_batch)
        if self.shards == "disjoint" and is_one_batch:
            raise RequestError("shards: central noise has no shards, so none can be disjoint; use shared")
        needed = MIN_ENTRIES * categories
        if self.max_entries < needed:
            raise RequestError(f"max_entries: {categories} categories need at least {needed}, got {self.max_entries}")
        if self.refine == "interval" and categories == 1:
            raise RequestError("refine: interval requires auxiliary, the column of the rates")

    def check_slots(self, slots: int) -> None:
        for name, value, needed in (
            ("schedule", self.schedule, ("auto", "two_query", "lean")),
            ("shards", self.shards, ("auto", "shared")),
            ("estimator", self.estimator, ("bayes",)),
        ):
            if value not in needed:
                raise RequestError(f"{name}: {value} makes no maps of slots; use {' or '.join(needed)}")
        if self.max_entries < MIN_ENTRIES * slots:
            raise RequestError(
                f"max_entries: {slots} slots need at least {MIN_ENTRIES * slots}, got {self.max_entries}"
            )

    def most_sub_queries(self, depth: int) -> int:
        return self._algorithm.most_sub_queries(depth)

    @property
    def errors(self) -> Errors:
        return "posterior" if self.estimator == "bayes" else "independent"

    def max_query_entries(self, depth: int, categories: int) -> int | None:
        # The paper's schedule has no bound but the finest tree.
        return categories * 4**depth if self.schedule == "paper" else self.max_entries

    def next_query(self, state: CountState, depth: int) -> Query | None:
        return self._algorithm.next_query(state, depth)

    def decode(self, state: CountState, depth: int) -> Estimate:
        return decode(state, self.estimator)

    @property
    def rate_width(self) -> float | None:
        """The widest interval of a rate that a split may leave; None splits nodes by their counts."""
        return self.interval_width if self.refine == "interval" else None

    @property
    def _algorithm(self) -> FewQueries | PaperSchedule:
        return PaperSchedule(self) if self.schedule == "paper" else FewQueries(self)


@dataclass(frozen=True)
class PaperSchedule:
    """The paper's sub-queries, and the ablations of its Table 3, by the options of the method adaptive."""

    options: Adaptive

    def most_sub_queries(self, depth: int) -> int:
        """Returns the largest number of sub-queries."""
        return self.options.max_sub_queries

    def next_query(self, state: CountState, depth: int) -> Query | None:
        """Returns the next sub-query; None when the run is complete."""
        if not state.results:
            first = state.prior.tree if state.prior is not None else Tree.uniform(depth, self.options.start_level)
            return self._query(state, first, is_last=False)
        if state.budget.remaining <= 0:
            return None
        stddev, last = state.noise_stddev(state.budget.remaining), state.results[-1].to_estimate()
        # Eq. 6 by the least noise that the next sub-query can have. Its own cost follows from its tree, and so is
        # not known yet. Algorithm 2, line 17, passes the last sub-query's target instead, which contradicts Eq. 6.
        by_noise = self.options.split_threshold * math.sqrt(state.categories) * stddev
        threshold = by_noise if self.options.split_count is None else self.options.split_count
        if (width := self.options.rate_width) is not None:
            tree = last.tree.refine(*split_by_interval(last, stddev, width, state.tail_sums, threshold))
        else:
            tree = update_tree(last.tree, last.counts, threshold)
        # A tree that was queried before does not get finer. The rest of the budget improves its counts.
        return self._query(state, tree, is_last=tree in [result.tree for result in state.results])

    def _query(self, state: CountState, tree: Tree, *, is_last: bool) -> Query:
        encoding, budget = TreeEncoding(tree, state.categories), state.budget
        if self.options.sub_query_share is None:
            cost = target_cost(state, encoding.length, self.options.calibration, self.options.target)
            leaves_enough = self.options.expansion * cost <= budget.remaining  # Eq. 9
        else:
            cost = self.options.sub_query_share * budget.total
            leaves_enough = cost < budget.remaining  # the planner adds a residual budget to the last sub-query
        is_last = is_last or not leaves_enough or len(state.results) + 1 == self.options.max_sub_queries
        return Query(encoding, ALL_REMAINING if is_last else cost)


def target_cost(state: CountState, length: int, calibration: float, target: Target = "corrected") -> float:
    """Returns the cost at which the aggregated noise of T = `length` entries is c U / T (Eqs. 7 and 8).

    Errata: c U / T is two standard deviations, and instead of the printed factor sqrt(ceil(S / U)), which is 1
    from U = S on, the target should be divided by sqrt(ceil(U / S)). The authors' code has both: it calls
    `get_eps_from_two_std(c * sqrt(S / U) * U / T)` (google-research/federated, analytics/location_heatmaps).
    `corrected` does both. `literal_factor` takes the printed factor, so that every shard has the noise that the sum
    should have. `printed` also takes c U / T for one standard deviation.
    """
    deviations, divides = _TARGETS[target]
    stddev = calibration * state.shard_plan.users / length / deviations
    # A user's weights sum to gamma, so the noise of a shard is drawn in units of 1 / gamma users.
    sums = state.noisy_sums if divides else 1
    shard_stddev = stddev * state.gamma / math.sqrt(sums * state.noise.shape)
    return state.noise.kind.cost(shard_stddev, state.sensitivity(length))


def update_tree(tree: Tree, counts: NDArray[np.float64], threshold: float) -> Tree:
    """Splits nodes above the threshold, in users, and collapses those at or below a quarter of it (Eq. 6)."""
    split = tree.entries[counts > threshold]
    collapse = tree.entries[counts <= _COLLAPSE_SHARE * threshold]
    return tree.refine(split, collapse)
