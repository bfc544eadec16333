"""The default method: networks, the plain grid or a heatmap's tree, by the expected error of each."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from sfumato.schemas.ranges import Boxes
from sfumato.transforms.privacy.keys import RunKey
from sfumato.transforms.ranges.collection_spec import CollectionSpec
from sfumato.transforms.ranges.exact_counts import ExactCounts
from sfumato.transforms.ranges.methods.grid import PlainGrid
from sfumato.transforms.ranges.methods.neural import Models, SpatialNeural
from sfumato.transforms.ranges.methods.range_method import RangeMethod
from sfumato.transforms.ranges.model import Model
from sfumato.transforms.ranges.noisy_counts import NoisyGrid
from sfumato.transforms.ranges.tuner import Tuner

GRID_FROM_USERS_EPSILON = 700_000.0
"""Without a tuner, the plain grid answers where users times epsilon is this or more (docs/results/cell_widths.md)."""
TREE_FROM_CELLS, TREE_FROM_SHARE = 4.5, 0.01
"""Below that, a heatmap's tree answers if a typical square is so many of the grid's cells wide, or more, and as wide as
this share of the region or more (docs/explanation/ranges.md)."""


@dataclass(frozen=True)
class Automatic(RangeMethod):
    """Chooses a method by public facts alone: the number of users, epsilon, the sizes of queries, the region.

    Attributes:
        cell_width: in metres; None for the tuner's, or without a tuner the default rule
            (`CollectionSpec.default_width`).
        tuner: chooses the width of cells and the method, if given.
        models, workload, checkpoints: see `SpatialNeural`.
    """

    NAME: ClassVar[str] = "auto"
    TEXT: ClassVar[str] = (
        "local networks (snh) or grid, whichever should have less error for so many users and so much noise; with "
        "--population, and for large squares, also adaptive"
    )

    cell_width: float | None = None
    tuner: Tuner | None = None
    models: Models | None = None
    workload: Boxes | None = None
    checkpoints: str | None = None

    def chosen(self, spec: CollectionSpec) -> SpatialNeural | PlainGrid:
        """The chosen method, with its cell width."""
        if self.tuner is not None:
            name = self.tuner.choose(spec)
            width = self.cell_width or self.tuner.width(spec, method=name)
        else:
            few = spec.users * spec.epsilon < GRID_FROM_USERS_EPSILON
            name = SpatialNeural.NAME if few else PlainGrid.NAME
            width = self.cell_width or spec.default_width
        return self._networks(width) if name == SpatialNeural.NAME else PlainGrid(width)

    @staticmethod
    def prefers_tree(spec: CollectionSpec) -> bool:
        """Whether a heatmap's adaptive tree should have less error than networks and the grid."""
        few = spec.users * spec.epsilon < GRID_FROM_USERS_EPSILON
        typical, length = math.sqrt(spec.sizes.low * spec.sizes.high), math.sqrt(math.prod(spec.field.metres))
        return few and typical >= max(TREE_FROM_CELLS * spec.default_width, TREE_FROM_SHARE * length)

    def collect(self, exact: ExactCounts, spec: CollectionSpec, key: RunKey) -> NoisyGrid:
        return self.chosen(spec).collect(exact, spec, key)

    def trainings(self, counts: NoisyGrid, spec: CollectionSpec) -> Sequence[Any]:
        return self.chosen(spec).trainings(counts, spec)

    def train(self, training: Any) -> Any:
        """See RangeMethod.train. Only networks have trainings; their width does not matter here."""
        return self._networks(1.0).train(training)

    def model(self, counts: NoisyGrid, spec: CollectionSpec, trained: Sequence[Any]) -> Model:
        return self.chosen(spec).model(counts, spec, trained)

    def _networks(self, width: float) -> SpatialNeural:
        return SpatialNeural(width, "local", self.models, self.workload, self.checkpoints)
