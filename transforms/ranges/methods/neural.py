"""Spatial neural histograms (paper 003): networks that learn to read a noisy grid."""

from __future__ import annotations

import math
import os
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from sfumato.schemas.errors import RequestError
from sfumato.schemas.ranges import Boxes, Field
from sfumato.transforms.heatmap.checks import check_choice, check_whole, option
from sfumato.transforms.privacy.keys import RunKey
from sfumato.transforms.ranges.counts import NoisyGrid, Partition
from sfumato.transforms.ranges.counts_model import GridModel
from sfumato.transforms.ranges.methods.base import CollectionSpec, RangeMethod
from sfumato.transforms.ranges.methods.grid import PlainGrid
from sfumato.transforms.ranges.model import Model
from sfumato.transforms.ranges.networks.local import LocalNetwork, LocalTraining, train_local
from sfumato.transforms.ranges.networks.paper import PaperNetworks, PaperTraining, paper_training, train_paper
from sfumato.transforms.ranges.networks.training import DivergedError
from sfumato.transforms.ranges.networks.worlds import Squares
from sfumato.transforms.ranges.people import ExactCounts

NETWORKS = ("local", "paper")
MOST_SIDE = 1024  # cells along a side: a world of so many takes some 500 MB
_MODELS = {"local": 3, "paper": 8}


@dataclass(frozen=True)
class SpatialNeural(RangeMethod):
    """cell_width: of the grid, in metres. Raises RequestError for options out of range."""

    NAME: ClassVar[str] = "snh"
    TEXT: ClassVar[str] = "networks that learn to read a noisy grid"

    cell_width: float
    network: str = option(
        "local",
        "local: one form for all sizes, which sees the counts around a square; paper: 20 x 80 from a place to a "
        "count, one for each of several sizes (hours without a GPU)",
    )
    models: int | None = option(
        None, "networks: local ones are averaged (default 3), the paper's are for so many sizes (default 8)"
    )
    workload: Boxes | None = option(None, "squares as they will be asked for")
    checkpoints: str | None = option(
        None,
        "local folder where training is saved now and then, and from which the same command, with the same key file "
        "and release id, goes on",
    )
    training_seed: int = option(0, "seed of what networks learn from; the same gives the same networks")

    def __post_init__(self) -> None:
        check_choice("network", self.network, NETWORKS)
        if self.models is not None:
            check_whole("models", self.models, 1, 64)
        check_whole("training_seed", self.training_seed, 0, 2**22 - 1)  # times 1000 it is a seed of 32 bits

    def collect(self, people: ExactCounts, wanted: CollectionSpec, key: RunKey) -> NoisyGrid:
        """See RangeMethod.collect: the plain grid's."""
        return PlainGrid(self.width(wanted.field)).collect(people, wanted, key)

    def width(self, field: Field) -> float:
        """Of the grid's cells in metres: what was asked for, or what a worker can learn from where that is finer."""
        return max(self.cell_width, math.sqrt(math.prod(field.metres)) / MOST_SIDE)

    def trainings(
        self, counts: NoisyGrid | Partition, wanted: CollectionSpec
    ) -> Sequence[LocalTraining | PaperTraining]:
        """See RangeMethod.trainings: one an element for each network."""
        grid = _grid(counts)
        models = self.models or _MODELS[self.network]
        if self.network == "paper":
            return paper_training(grid, wanted, models, self.workload)
        first = self.training_seed * 1000
        return [
            LocalTraining(grid, wanted.users, wanted.smoothing, self._squares(wanted), first + number)
            for number in range(models)
        ]

    def train(self, training: Any) -> Any:
        """See RangeMethod.train. None for a network that diverged. Raises RequestError without JAX and optax."""
        try:
            if isinstance(training, LocalTraining):
                return train_local(training, self._checkpoint(f"local-{training.seed}"))
            place = self._checkpoint(f"paper-{training.size:g}")
            return train_paper([training], seed=self.training_seed, checkpoint=place)[0]
        except DivergedError:  # the counts are paid for: without this network there are others, or the counts
            return None

    def _checkpoint(self, name: str) -> str | None:
        if self.checkpoints is None:
            return None
        os.makedirs(self.checkpoints, exist_ok=True)
        return os.path.join(self.checkpoints, f"{name}.npz")

    def model(self, counts: NoisyGrid | Partition, wanted: CollectionSpec, trained: Sequence[Any]) -> Model:
        """See RangeMethod.model: of the networks that did not diverge; where all did, the counts answer as they are."""
        grid, found = _grid(counts), [one for one in trained if one is not None]
        if not found:
            return GridModel(grid)
        if self.network == "paper":
            return PaperNetworks.of(grid, wanted, found)
        return LocalNetwork(grid, wanted.smoothing, self._squares(wanted), found)

    def _squares(self, wanted: CollectionSpec) -> Squares:
        (width, height), sizes = wanted.field.cell_metres, wanted.sizes
        low, high = ((size / width, size / height) for size in (sizes.low, sizes.high))
        return Squares(low, high, self.workload)


def _grid(counts: NoisyGrid | Partition) -> NoisyGrid:
    if not isinstance(counts, NoisyGrid):
        raise RequestError("method: networks learn from a grid of counts")
    return counts
