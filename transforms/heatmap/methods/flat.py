"""Flat one-hot encoding: one sub-query for every cell of one level (paper 000, Section 5.1).

With `keep_top` it is the thresholding baseline of paper 001, Section 4: only the cells of largest noisy count are kept.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from sfumato.schemas.errors import RequestError
from sfumato.schemas.tree import Tree
from sfumato.transforms.heatmap.checks import check_choice, check_whole, check_within, option
from sfumato.transforms.heatmap.methods.base import Method
from sfumato.transforms.heatmap.methods.combine import ESTIMATOR_HELP, ESTIMATORS, decode
from sfumato.transforms.heatmap.methods.trees import check_uniform, last_answer
from sfumato.transforms.heatmap.state import EVERYTHING, Estimate, HeatmapState, Question
from sfumato.transforms.secagg.encodings import TreeEncoding


@dataclass(frozen=True)
class Flat(Method):
    """level: of the cells that are asked for, None for the finest. keep_top: t, per cent of the cells that are kept."""

    NAME: ClassVar[str] = "flat"
    TEXT: ClassVar[str] = "every cell of one level, the whole budget at once"
    CATEGORIES: ClassVar[bool] = True
    SEEN_BY_LAST: ClassVar[bool] = True

    level: int | None = option(None, "level of the cells that are asked for; default: depth")
    estimator: str = option("last", ESTIMATOR_HELP)
    keep_top: float = option(100.0, "t: per cent of the cells that are kept, those of largest noisy count")

    def __post_init__(self) -> None:
        check_within("keep_top", self.keep_top, 1e-6, 100)
        check_choice("estimator", self.estimator, ESTIMATORS)
        if self.estimator == "bayes" and self.keep_top < 100:
            raise RequestError("keep_top: is of the answer as it came; leave it out with estimator bayes")

    def check(self, depth: int) -> None:
        """See Method.check."""
        if self.level is not None:
            check_whole("level", self.level, 0, depth)
        check_uniform(self.NAME, "depth" if self.level is None else "level", self._level(depth))

    def check_use(self, categories: int, central: bool) -> None:
        """See Method.check_use."""
        super().check_use(categories, central)
        if categories > 1 and self.keep_top < 100:
            raise RequestError("keep_top: cells that are left out have no rate; leave it out with auxiliary")

    def rounds(self, depth: int) -> int:
        """See Method.rounds."""
        return 1

    def encode(self, state: HeatmapState, depth: int) -> Question | None:
        """See Method.encode."""
        if state.answers:
            return None
        return Question(TreeEncoding(Tree.uniform(depth, self._level(depth)), state.categories), EVERYTHING)

    def decode(self, state: HeatmapState, depth: int) -> Estimate:
        """See Method.decode."""
        if self.estimator == "bayes":
            return decode(state, self.estimator)
        estimate = last_answer(state)
        kept = max(1, math.ceil(self.keep_top / 100 * len(estimate.counts)))
        if kept == len(estimate.counts):
            return estimate
        largest = np.argpartition(estimate.counts, -kept)[-kept:]
        counts = np.zeros_like(estimate.counts)
        counts[largest] = estimate.counts[largest]
        return Estimate(estimate.tree, counts, estimate.stddev)

    def _level(self, depth: int) -> int:
        return depth if self.level is None else self.level
