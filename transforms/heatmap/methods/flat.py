"""Flat one-hot encoding: one sub-query for all cells of one level (paper 000, Section 5.1).

With `keep_top` it is the thresholding baseline of paper 001, Section 4, which keeps the cells of largest noisy count.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Annotated, ClassVar

import numpy as np
from annotated_types import Interval

from sfumato.schemas.errors import RequestError
from sfumato.schemas.region import MAX_DEPTH
from sfumato.schemas.tree import Tree
from sfumato.transforms.checks import check_integer
from sfumato.transforms.heatmap.methods.base import Errors, Method, check_uniform
from sfumato.transforms.heatmap.posterior.estimator import Estimator, decode
from sfumato.transforms.heatmap.state import ALL_REMAINING, Estimate, HeatmapState, Query
from sfumato.transforms.secagg.encodings import TreeEncoding


@dataclass(frozen=True)
class Flat(Method):
    """Queries all cells at once.

    Attributes:
        level: of the cells; None for the finest.
        estimator: see `posterior.estimator.decode`.
        keep_top: t: per cent of the cells to keep, those of largest noisy count.
    """

    NAME: ClassVar[str] = "flat"
    SENTENCE: ClassVar[str] = "It has one sub-query, of one level of the grid."
    CATEGORIES: ClassVar[bool] = True
    LAST_QUERY_COVERS_MAP: ClassVar[bool] = True

    level: Annotated[int, Interval(ge=0, le=MAX_DEPTH)] | None = None
    estimator: Estimator = "last"
    keep_top: Annotated[float, Interval(ge=1e-6, le=100)] = 100.0

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.estimator == "bayes" and self.keep_top < 100:
            raise RequestError("keep_top: is for the estimator last; leave it out with estimator bayes")

    def check(self, depth: int) -> None:
        if self.level is not None:
            check_integer("level", self.level, 0, depth)
        check_uniform(self.NAME, "depth" if self.level is None else "level", self._level(depth))

    def check_use(self, categories: int, central: bool) -> None:
        super().check_use(categories, central)
        if categories > 1 and self.keep_top < 100:
            raise RequestError("keep_top: cells that are not kept have no rate; leave it out with auxiliary")

    @property
    def errors(self) -> Errors:
        return "posterior" if self.estimator == "bayes" else "independent"

    def max_rounds(self, depth: int) -> int:
        return 1

    def next_query(self, state: HeatmapState, depth: int) -> Query | None:
        if state.results:
            return None
        return Query(TreeEncoding(Tree.uniform(depth, self._level(depth)), state.categories), ALL_REMAINING)

    def decode(self, state: HeatmapState, depth: int) -> Estimate:
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
