"""Networks where they have less error than the plain grid, the plain grid where they have not."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import Any, ClassVar

from sfumato.schemas.ranges import Boxes
from sfumato.transforms.heatmap.checks import option
from sfumato.transforms.privacy.keys import RunKey
from sfumato.transforms.ranges.counts import NoisyGrid, Partition
from sfumato.transforms.ranges.methods.base import CollectionSpec, RangeMethod
from sfumato.transforms.ranges.methods.grid import PlainGrid
from sfumato.transforms.ranges.methods.neural import SpatialNeural
from sfumato.transforms.ranges.model import Model
from sfumato.transforms.ranges.people import ExactCounts
from sfumato.transforms.ranges.tune import Tuner
from sfumato.transforms.ranges.widths import default_width

BORDER = 700_000.0
"""Users times epsilon from which on, without a tuner, the plain grid answers (docs/results/cell_widths.md)."""
_TEXTS: dict[str, str] = {one.name: one.metadata.get("help", "") for one in fields(SpatialNeural)}


@dataclass(frozen=True)
class Automatic(RangeMethod):
    """The choice is by public facts alone: the number of users, epsilon, the sizes asked for and the region.

    cell_width: in metres; None for the tuner's, or without one the rule's (`widths.py`). Others are the networks'.
    Raises RequestError for options out of range.
    """

    NAME: ClassVar[str] = "auto"
    TEXT: ClassVar[str] = "snh or grid, whichever should have less error for so many users and so much noise"

    cell_width: float | None = None
    tuner: Tuner | None = option(
        None,
        "file of `sfumato ranges tune`, by which the width of cells and the method are chosen",
    )
    models: int | None = option(None, _TEXTS["models"])
    workload: Boxes | None = option(None, _TEXTS["workload"])
    checkpoints: str | None = option(None, _TEXTS["checkpoints"])
    training_seed: int = option(0, _TEXTS["training_seed"])

    def __post_init__(self) -> None:
        self._networks(1.0)  # which check their options

    def chosen(self, wanted: CollectionSpec) -> SpatialNeural | PlainGrid:
        """The method that is used, and its width of cells."""
        if self.tuner is not None:
            name = self.tuner.choose(wanted)
            width = self.cell_width or self.tuner.width(wanted, method=name)
        else:
            name = SpatialNeural.NAME if wanted.users * wanted.epsilon < BORDER else PlainGrid.NAME
            width = self.cell_width or default_width(wanted)
        return self._networks(width) if name == SpatialNeural.NAME else PlainGrid(width)

    def collect(self, people: ExactCounts, wanted: CollectionSpec, key: RunKey) -> NoisyGrid:
        """See RangeMethod.collect."""
        return self.chosen(wanted).collect(people, wanted, key)

    def trainings(self, counts: NoisyGrid | Partition, wanted: CollectionSpec) -> Sequence[Any]:
        """See RangeMethod.trainings."""
        return self.chosen(wanted).trainings(counts, wanted)

    def train(self, training: Any) -> Any:
        """See RangeMethod.train: only networks are trained."""
        return self._networks(1.0).train(training)

    def model(self, counts: NoisyGrid | Partition, wanted: CollectionSpec, trained: Sequence[Any]) -> Model:
        """See RangeMethod.model."""
        return self.chosen(wanted).model(counts, wanted, trained)

    def _networks(self, width: float) -> SpatialNeural:
        return SpatialNeural(width, "local", self.models, self.workload, self.checkpoints, self.training_seed)
