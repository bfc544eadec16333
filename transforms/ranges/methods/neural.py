"""Networks trained on a noisy grid: local networks, or spatial neural histograms in the form of paper 003."""

from __future__ import annotations

import math
import os
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar, Literal

from annotated_types import Interval

from sfumato.schemas.errors import RequestError
from sfumato.schemas.ranges import Boxes, Field
from sfumato.transforms.logs import NO_CHECKPOINT
from sfumato.transforms.privacy.keys import RunKey
from sfumato.transforms.ranges.collection_spec import CollectionSpec
from sfumato.transforms.ranges.counts_model import GridModel
from sfumato.transforms.ranges.exact_counts import ExactCounts
from sfumato.transforms.ranges.methods.grid import PlainGrid
from sfumato.transforms.ranges.methods.range_method import RangeMethod
from sfumato.transforms.ranges.model import Model
from sfumato.transforms.ranges.networks.examples import QueryDistribution
from sfumato.transforms.ranges.networks.local import LocalNetwork, LocalTraining, train_local
from sfumato.transforms.ranges.networks.paper import PaperNetworks, PaperTraining, paper_training, train_paper
from sfumato.transforms.ranges.networks.training import DivergedError
from sfumato.transforms.ranges.noisy_counts import NoisyGrid

Network = Literal["local", "paper"]
Models = Annotated[int, Interval(ge=1, le=64)]
MAX_SEED = 2**22 - 1  # times 1000 it is a seed of 32 bits
MAX_SIDE = 1024  # cells along a side; a simulated world of this size takes about 500 MB
_DEFAULT_MODELS = {"local": 3, "paper": 8}


@dataclass(frozen=True)
class SpatialNeural(RangeMethod):
    """Local networks, or those of the paper.

    Attributes:
        cell_width: of the grid, in metres.
        network: local: one network for all sizes, from the counts around a square to an answer; paper: spatial neural
            histograms as published, a network of 20 x 80 for each of several sizes, from a place to a count.
        models: number of networks: local ones are averaged, the paper's have one size each; None for the default.
        workload: squares like those to be queried.
        checkpoints: local folder for checkpoints of the training.
        training_seed: the same seed gives the same networks.

    Raises:
        RequestError: a parameter is out of its range.
    """

    NAME: ClassVar[str] = "snh"
    TEXT: ClassVar[str] = "networks trained on a noisy grid"

    cell_width: float
    network: Network = "local"
    models: Models | None = None
    workload: Boxes | None = None
    checkpoints: str | None = None
    training_seed: Annotated[int, Interval(ge=0, le=MAX_SEED)] = 0

    def collect(self, exact: ExactCounts, spec: CollectionSpec, key: RunKey) -> NoisyGrid:
        """See RangeMethod.collect. The counts are those of the plain grid."""
        return PlainGrid(self.width(spec.field)).collect(exact, spec, key)

    def width(self, field: Field) -> float:
        """Width of the grid's cells in metres: `cell_width`, but at most MAX_SIDE cells a side."""
        return max(self.cell_width, math.sqrt(math.prod(field.metres)) / MAX_SIDE)

    def trainings(self, counts: NoisyGrid, spec: CollectionSpec) -> Sequence[LocalTraining | PaperTraining]:
        """See RangeMethod.trainings. Each trains one network."""
        models = self.models or _DEFAULT_MODELS[self.network]
        if self.network == "paper":
            return paper_training(counts, spec, models, self.workload)
        first = self.training_seed * 1000
        return [
            LocalTraining(counts, spec.users, spec.smoothing, self._queries(spec), first + number)
            for number in range(models)
        ]

    def train(self, training: Any) -> Any:
        """See RangeMethod.train. Returns None if the network diverged. Raises RequestError without JAX and optax.

        The budget is spent. So a checkpoint that cannot be used, such as that of another release, is no failure.
        """
        if self.checkpoints is not None:
            try:
                return self._trained(training, self.checkpoints)
            except (OSError, RequestError) as error:
                NO_CHECKPOINT.emit(error=error)
        return self._trained(training, None)

    def _trained(self, training: Any, folder: str | None) -> Any:
        """The trained network; None if it diverged. folder: of checkpoints; None for none."""
        is_local = isinstance(training, LocalTraining)
        checkpoint = None
        if folder is not None:
            os.makedirs(folder, exist_ok=True)
            name = f"local-{training.seed}" if is_local else f"paper-{training.size:g}"
            checkpoint = os.path.join(folder, f"{name}.npz")
        try:
            if is_local:
                return train_local(training, checkpoint)
            return train_paper(training, seed=self.training_seed, checkpoint=checkpoint)
        except DivergedError:  # go on with the other networks, or with the counts alone
            return None

    def model(self, counts: NoisyGrid, spec: CollectionSpec, trained: Sequence[Any]) -> Model:
        """See RangeMethod.model. It has the networks that did not diverge; if all did, the counts answer."""
        networks = [network for network in trained if network is not None]
        if not networks:
            return GridModel(counts, spec.users)
        if self.network == "paper":
            return PaperNetworks.from_grid(counts, spec, networks)
        return LocalNetwork(counts, spec.smoothing, self._queries(spec), networks)

    def _queries(self, spec: CollectionSpec) -> QueryDistribution:
        (width, height), sizes = spec.field.cell_metres, spec.sizes
        low, high = ((size / width, size / height) for size in (sizes.low, sizes.high))
        return QueryDistribution(low, high, self.workload)
