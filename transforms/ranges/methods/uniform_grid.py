"""The uniform grid, as fine as a rule of thumb has it (Qardaji, Yang, Li 2013: UG)."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

from sfumato.transforms.heatmap.checks import check_within, option
from sfumato.transforms.privacy.keys import RunKey
from sfumato.transforms.ranges.counts import NoisyGrid
from sfumato.transforms.ranges.methods.base import CollectionSpec, RangeMethod
from sfumato.transforms.ranges.methods.grid import collect_grid
from sfumato.transforms.ranges.people import ExactCounts


def cells_a_side(users: float, epsilon: float, constant: float) -> float:
    """m = sqrt(n epsilon / c), at least 1 (Guideline 1). users: public or noisy, so perhaps below 0."""
    return max(1.0, math.sqrt(max(users, 0.0) * epsilon / constant))


@dataclass(frozen=True)
class UniformGrid(RangeMethod):
    """m x m cells, whatever the shape of the region. Raises RequestError unless ug_constant is a number > 0."""

    NAME: ClassVar[str] = "ug"
    TEXT: ClassVar[str] = "a uniform grid of sqrt(n epsilon / 10) cells a side"

    ug_constant: float = option(10.0, "c of the rule m = sqrt(n epsilon / c)")

    def __post_init__(self) -> None:
        check_within("ug_constant", self.ug_constant, 1e-3, 1e6)

    def collect(self, people: ExactCounts, wanted: CollectionSpec, key: RunKey) -> NoisyGrid:
        """See RangeMethod.collect."""
        width = people.side / cells_a_side(wanted.users, wanted.epsilon, self.ug_constant)
        return collect_grid(people, width, width, wanted.epsilon, key, self.NAME)
