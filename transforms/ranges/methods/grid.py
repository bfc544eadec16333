"""The plain noisy grid of a given cell width (paper 003, Section 6.3.1: IDENTITY); networks learn from it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from sfumato.transforms.privacy.keys import RunKey
from sfumato.transforms.privacy.mechanism import discrete_laplace_stddev
from sfumato.transforms.ranges.counts import NoisyGrid, edges
from sfumato.transforms.ranges.methods.base import CollectionSpec, RangeMethod
from sfumato.transforms.ranges.noise import noisy
from sfumato.transforms.ranges.people import ExactCounts


def collect_grid(
    people: ExactCounts, columns: float, rows: float, epsilon: float, key: RunKey, label: str
) -> NoisyGrid:
    """Noisy counts of cells of about columns x rows base cells, by the whole of epsilon."""
    x_edges, y_edges = edges(people.side, columns), edges(people.side, rows)
    counts = noisy(people.on_grid(x_edges, y_edges), epsilon, key, label)
    return NoisyGrid(x_edges, y_edges, counts, discrete_laplace_stddev(epsilon))


@dataclass(frozen=True)
class PlainGrid(RangeMethod):
    """cell_width: in metres."""

    NAME: ClassVar[str] = "grid"
    TEXT: ClassVar[str] = "the noisy counts of a uniform grid"

    cell_width: float

    def collect(self, people: ExactCounts, wanted: CollectionSpec, key: RunKey) -> NoisyGrid:
        """See RangeMethod.collect."""
        width, height = wanted.field.cell_metres
        return collect_grid(people, self.cell_width / width, self.cell_width / height, wanted.epsilon, key, self.NAME)
