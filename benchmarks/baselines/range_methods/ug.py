"""The uniform grid: sqrt(n epsilon / 10) cells a side (Qardaji, Yang, Li 2013: UG)."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Annotated, ClassVar

from annotated_types import Interval

from sfumato.transforms.privacy.keys import RunKey
from sfumato.transforms.ranges.field_counts import CollectionSpec, ExactCounts, NoisyGrid
from sfumato.transforms.ranges.methods import RangeMethod, collect_grid


@dataclass(frozen=True)
class UniformGrid(RangeMethod):
    """UG: m x m cells, also where the region is no square."""

    NAME: ClassVar[str] = "ug"
    TEXT: ClassVar[str] = "a uniform grid of sqrt(n epsilon / 10) cells a side"

    ug_constant: Annotated[float, Interval(ge=0.001, le=1000000.0)] = 10.0

    def cells_per_side(self, spec: CollectionSpec) -> float:
        """m = sqrt(n epsilon / c), at least 1 (Guideline 1). n is public or noisy, so it can be below 0."""
        return max(1.0, math.sqrt(max(spec.users, 0.0) * spec.epsilon / self.ug_constant))

    def collect(self, exact: ExactCounts, spec: CollectionSpec, key: RunKey) -> NoisyGrid:
        width = exact.side / self.cells_per_side(spec)
        return collect_grid(exact, width, width, spec.cost, key, self.NAME, spec.noise_kind)
