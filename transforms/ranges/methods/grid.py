"""Uniform grids: the plain grid of a given cell width (paper 003: IDENTITY), and UG (Qardaji, Yang, Li 2013)."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Annotated, ClassVar

from annotated_types import Interval

from sfumato.transforms.privacy.additive_noise import LAPLACE, AdditiveNoise
from sfumato.transforms.privacy.keys import RunKey
from sfumato.transforms.ranges.collection_spec import CollectionSpec
from sfumato.transforms.ranges.exact_counts import ExactCounts
from sfumato.transforms.ranges.methods.range_method import RangeMethod
from sfumato.transforms.ranges.noisy_counts import NoisyGrid, add_noise, strip_edges


def collect_grid(
    exact: ExactCounts,
    width: float,
    height: float,
    cost: float,
    key: RunKey,
    label: str,
    noise: AdditiveNoise = LAPLACE,
) -> NoisyGrid:
    """Noisy counts of cells of about width x height base cells, at a cost in the unit of the noise.

    label: names the noise (see `add_noise`).
    """
    x_edges, y_edges = strip_edges(exact.side, width), strip_edges(exact.side, height)
    counts = add_noise(exact.on_grid(x_edges, y_edges), cost, key, label, noise)
    return NoisyGrid(x_edges, y_edges, counts, noise.stddev(cost))


@dataclass(frozen=True)
class PlainGrid(RangeMethod):
    """A grid of square cells. cell_width: in metres. Networks learn from such a grid."""

    NAME: ClassVar[str] = "grid"
    TEXT: ClassVar[str] = "the noisy counts of a uniform grid"

    cell_width: float

    def collect(self, exact: ExactCounts, spec: CollectionSpec, key: RunKey) -> NoisyGrid:
        width, height = spec.field.cell_metres
        wide, high = self.cell_width / width, self.cell_width / height
        return collect_grid(exact, wide, high, spec.cost, key, self.NAME, spec.noise)


@dataclass(frozen=True)
class UniformGrid(RangeMethod):
    """m x m cells, also where the region is no square. Raises RequestError unless ug_constant is a number > 0."""

    NAME: ClassVar[str] = "ug"
    TEXT: ClassVar[str] = "a uniform grid of sqrt(n epsilon / 10) cells a side"

    ug_constant: Annotated[float, Interval(ge=0.001, le=1000000.0)] = 10.0

    def cells_per_side(self, users: float, epsilon: float) -> float:
        """m = sqrt(n epsilon / c), at least 1 (Guideline 1). users: public or noisy, so it can be below 0."""
        return max(1.0, math.sqrt(max(users, 0.0) * epsilon / self.ug_constant))

    def collect(self, exact: ExactCounts, spec: CollectionSpec, key: RunKey) -> NoisyGrid:
        width = exact.side / self.cells_per_side(spec.users, spec.epsilon)
        return collect_grid(exact, width, width, spec.cost, key, self.NAME, spec.noise)
