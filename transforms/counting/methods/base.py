"""The base class of methods: a method chooses sub-queries and makes a map of their results. Flat is the simplest."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar, Literal

import numpy as np
from annotated_types import Interval

from sfumato.schemas.errors import RequestError
from sfumato.schemas.region import MAX_DEPTH
from sfumato.schemas.requests.checks import check_declared, check_integer
from sfumato.schemas.tree import Tree
from sfumato.transforms.counting.estimator import Estimator, decode
from sfumato.transforms.counting.state import ALL_REMAINING, CountState, Estimate, Query
from sfumato.transforms.locations.users import Contribution
from sfumato.transforms.secagg.encodings import TreeEncoding

MAX_UNIFORM_LEVEL = 12  # 4096 x 4096 entries: every shard pays for every entry of a complete level
MIN_LEVEL_SHARE = 1e-4  # of the budget, for a level: well above the minimum of `sub_queries`, 1e-5
Errors = Literal["independent", "posterior", "lower bound"]


@dataclass(frozen=True)
class Method(ABC):
    """A method is a frozen dataclass. Its fields are its own parameters, whose annotations declare their ranges.

    `next_query` and `decode` see released values only: the state holds noisy sums and public figures.
    """

    NAME: ClassVar[str]  # of the command line
    # For the page of a release, of how the sub-queries and the map are made; empty for none.
    SENTENCE: ClassVar[str] = ""
    # What a user adds by default: one of their locations, or a distribution over all of them.
    CONTRIBUTION: ClassVar[Contribution] = "one"
    # Whether it can count by category (auxiliary data). All its encodings are then of trees.
    CATEGORIES: ClassVar[bool] = False
    # Whether the last result has an entry for every finest cell of the map.
    LAST_QUERY_COVERS_MAP: ClassVar[bool] = False
    STARTS_WARM: ClassVar[bool] = False  # whether it can start from the map of an earlier release (state.prior)

    def __post_init__(self) -> None:
        check_declared(self)

    def check(self, depth: int) -> None:  # noqa: B027  (most methods work at any depth)
        """Raises RequestError for an option that does not suit a grid of this depth."""

    @classmethod  # noqa: B027
    def check_given(cls, given: Mapping[str, Any]) -> None:
        """Raises RequestError for given options, by name, that have no effect together with the others."""

    def check_warm_start(self) -> None:
        """Raises RequestError if the method cannot start from an earlier release."""
        if not self.STARTS_WARM:
            raise RequestError(f"warm_start: method {self.NAME} has no warm start; use adaptive")

    def check_use(self, categories: int, is_one_batch: bool) -> None:
        """Raises RequestError if the method does not support this many categories (1 without any), or no shards."""
        if categories > 1 and not self.CATEGORIES:
            raise RequestError(f"auxiliary: method {self.NAME} makes no rates; use adaptive or flat")

    def check_slots(self, slots: int) -> None:
        """Raises RequestError if the method cannot count by this many slots of time."""
        raise RequestError(f"slots: method {self.NAME} makes no maps of slots; use adaptive")

    @property
    def errors(self) -> Errors:
        """What a cell's standard deviation is, and so whether a release states errors of sums of cells.

        independent: of noise that adds up by variances. posterior: of a posterior, whose release has a table for sums.
        lower bound: of the noise only, where the map has other errors. Such a release makes no zones and no changes.
        """
        return "lower bound"

    @abstractmethod
    def most_sub_queries(self, depth: int) -> int:
        """Returns the largest number of sub-queries in one run, without the one by slots."""

    def max_query_entries(self, depth: int, categories: int) -> int | None:
        """Returns the largest number of entries of a sub-query; None if the plan for evenly spread users is exact."""
        return None

    @abstractmethod
    def next_query(self, state: CountState, depth: int) -> Query | None:
        """Returns the next sub-query, chosen by the earlier results (state.results); None when the run is complete."""

    @abstractmethod
    def decode(self, state: CountState, depth: int) -> Estimate:
        """Makes the map of all results."""


def check_uniform(method: str, name: str, level: int) -> None:
    """Raises RequestError for the option `name` if a method queries every cell of a level that is too fine."""
    if level > MAX_UNIFORM_LEVEL:
        raise RequestError(
            f"{name}: {method} queries every cell of a level, at most of level {MAX_UNIFORM_LEVEL}, got {level}"
        )


@dataclass(frozen=True)
class Flat(Method):
    """Queries all cells at once."""

    NAME: ClassVar[str] = "flat"
    SENTENCE: ClassVar[str] = "It has one sub-query, of one level of the grid."
    CATEGORIES: ClassVar[bool] = True
    LAST_QUERY_COVERS_MAP: ClassVar[bool] = True

    level: Annotated[int, Interval(ge=0, le=MAX_DEPTH)] | None = None  # of the cells; None for the finest
    estimator: Estimator = "last"  # see `counting.estimator.decode`
    # t: per cent of the cells to keep, those of largest noisy count.
    keep_top: Annotated[float, Interval(ge=1e-6, le=100)] = 100.0

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.estimator == "bayes" and self.keep_top < 100:
            raise RequestError("keep_top: is for the estimator last; leave it out with estimator bayes")

    def check(self, depth: int) -> None:
        if self.level is not None:
            check_integer("level", self.level, 0, depth)
        check_uniform(self.NAME, "depth" if self.level is None else "level", self._level(depth))

    def check_use(self, categories: int, is_one_batch: bool) -> None:
        super().check_use(categories, is_one_batch)
        if categories > 1 and self.keep_top < 100:
            raise RequestError("keep_top: cells that are not kept have no rate; leave it out with auxiliary")

    @property
    def errors(self) -> Errors:
        return "posterior" if self.estimator == "bayes" else "independent"

    def most_sub_queries(self, depth: int) -> int:
        return 1

    def next_query(self, state: CountState, depth: int) -> Query | None:
        if state.results:
            return None
        return Query(TreeEncoding(Tree.uniform(depth, self._level(depth)), state.categories), ALL_REMAINING)

    def decode(self, state: CountState, depth: int) -> Estimate:
        if self.estimator == "bayes":
            return decode(state, self.estimator)
        estimate = state.results[-1].to_estimate()
        kept = max(1, math.ceil(self.keep_top / 100 * len(estimate.counts)))
        if kept == len(estimate.counts):
            return estimate
        largest = np.argpartition(estimate.counts, -kept)[-kept:]
        counts = np.zeros_like(estimate.counts)
        counts[largest] = estimate.counts[largest]
        return Estimate(estimate.tree, counts, estimate.stddev)

    def _level(self, depth: int) -> int:
        return depth if self.level is None else self.level
