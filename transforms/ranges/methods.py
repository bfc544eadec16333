"""The methods for range queries: uniform grids, networks that learn from one, and the choice between them.

    ExactCounts -> collect -> NoisyGrid -> trainings -> train, one at a time -> model

Only `collect` sees exact counts. Everything after it is post-processing.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar, Literal

from annotated_types import Interval

from sfumato.schemas.ranges import Boxes, Field
from sfumato.schemas.requests.checks import check_declared
from sfumato.transforms.privacy.additive_noise import LAPLACE, AdditiveNoise
from sfumato.transforms.privacy.keys import RunKey
from sfumato.transforms.ranges.field_counts import CollectionSpec, ExactCounts, NoisyGrid, add_noise, strip_edges
from sfumato.transforms.ranges.model import GridModel, Model
from sfumato.transforms.ranges.networks.examples import QueryDistribution
from sfumato.transforms.ranges.networks.local import LocalNetwork, LocalTraining, train_local
from sfumato.transforms.ranges.networks.paper import PaperNetworks, PaperTraining, paper_training, train_paper
from sfumato.transforms.ranges.networks.training import DivergedError
from sfumato.transforms.ranges.tuner import Tuner

Network = Literal["local", "paper"]
Models = Annotated[int, Interval(ge=1, le=64)]
MAX_SEED = 2**22 - 1  # times 1000 it is a seed of 32 bits
MAX_SIDE = 1024  # cells along a side; a simulated world of this size takes about 500 MB
_DEFAULT_MODELS = {"local": 1, "paper": 8}
_TRAINING_TIME = {"local": "about 20 s of processor time", "paper": "about an hour of processor time"}
GRID_FROM_USERS_EPSILON = 700_000.0
"""The plain grid answers where users times epsilon is this or more (docs/results/cell_widths.md)."""
TREE_FROM_CELLS, TREE_FROM_SHARE = 4.5, 0.01
"""Below that, a heatmap's tree answers if a typical square is this number of the grid's cells wide, or more, and as
wide as this share of the region or more (docs/explanation/ranges.md)."""


@dataclass(frozen=True)
class RangeMethod(ABC):
    """A method. Its fields are its own options.

    Attributes:
        NAME: what the command line calls it.
        TEXT: one line of help.
        TRAINS: whether it may have `trainings`.
    """

    NAME: ClassVar[str]
    TEXT: ClassVar[str]
    TRAINS: ClassVar[bool] = False

    def __post_init__(self) -> None:
        check_declared(self)

    def chosen(self, spec: CollectionSpec) -> RangeMethod:
        """Returns the method that a choice between methods comes to; any other is itself."""
        return self

    @staticmethod
    def prefers_tree(spec: CollectionSpec) -> bool:
        """Returns whether a heatmap's adaptive tree should answer instead, by public facts only."""
        return False

    @staticmethod
    def min_width(field: Field) -> float:
        """Returns the smallest width of cells in metres that the method can work with; 0 for any."""
        return 0.0

    def cells_per_side(self, spec: CollectionSpec) -> float:
        """Returns the cells along a side of the grid that `collect` counts, before rounding.

        Shards count such a grid.
        """
        raise NotImplementedError(f"{self.NAME} counts no uniform grid")

    @abstractmethod
    def collect(self, exact: ExactCounts, spec: CollectionSpec, key: RunKey) -> NoisyGrid:
        """Adds noise to counts: the only access to exact counts.

        The result is epsilon-differentially private for adding or removing one user. All noise comes from the key, so
        the same call gives the same counts.
        """

    def trainings(self, counts: NoisyGrid, spec: CollectionSpec) -> Sequence[Any]:
        """Returns the independent pieces of training; each is an argument of `train`, on any worker."""
        return ()

    @property
    def training_time(self) -> str:
        """Returns how long one of `trainings` takes, in words."""
        return "for a while"

    def train(self, training: Any) -> Any:
        """Trains one of `trainings`. The result does not depend on when or where it runs."""
        raise NotImplementedError(f"{self.NAME} has no training")

    def model(self, counts: NoisyGrid, spec: CollectionSpec, trained: Sequence[Any]) -> Model:
        """Returns the model that answers queries. trained: the results of all `trainings`, in their order."""
        return GridModel(counts, spec.users)


def collect_grid(
    exact: ExactCounts,
    width: float,
    height: float,
    cost: float,
    key: RunKey,
    label: str,
    noise: AdditiveNoise = LAPLACE,
) -> NoisyGrid:
    """Returns noisy counts of cells of about width x height base cells, at a cost in the unit of the noise.

    label: names the noise (see `add_noise`).
    """
    x_edges, y_edges = strip_edges(exact.side, width), strip_edges(exact.side, height)
    counts = add_noise(exact.on_grid(x_edges, y_edges), cost, key, label, noise)
    return NoisyGrid(x_edges, y_edges, counts, noise.stddev(cost))


@dataclass(frozen=True)
class PlainGrid(RangeMethod):
    """A grid of square cells (paper 003: IDENTITY). cell_width: in metres. Networks learn from such a grid."""

    NAME: ClassVar[str] = "grid"
    TEXT: ClassVar[str] = "the noisy counts of a uniform grid"

    cell_width: float

    def cells_per_side(self, spec: CollectionSpec) -> float:
        return math.sqrt(math.prod(spec.field.metres)) / self.cell_width

    def collect(self, exact: ExactCounts, spec: CollectionSpec, key: RunKey) -> NoisyGrid:
        width, height = spec.field.cell_metres
        wide, high = self.cell_width / width, self.cell_width / height
        return collect_grid(exact, wide, high, spec.cost, key, self.NAME, spec.noise_kind)


@dataclass(frozen=True)
class SpatialNeural(RangeMethod):
    """Local networks, or those of the paper. Raises RequestError for a parameter out of its range.

    Attributes:
        cell_width: of the grid, in metres.
        network: local: one network for all sizes, from the counts around a square to an answer; paper: spatial neural
            histograms as published, a network of 20 x 80 for each of several sizes, from a place to a count.
        models: number of networks: local ones are averaged, the paper's have one size each; None for the default.
        workload: squares like those to be queried.
        training_seed: the same seed gives the same networks.
    """

    NAME: ClassVar[str] = "snh"
    TEXT: ClassVar[str] = "networks trained on a noisy grid"
    TRAINS: ClassVar[bool] = True

    cell_width: float
    network: Network = "local"
    models: Models | None = None
    workload: Boxes | None = None
    training_seed: Annotated[int, Interval(ge=0, le=MAX_SEED)] = 0

    @staticmethod
    def min_width(field: Field) -> float:
        """Returns the width that makes MAX_SIDE cells a side."""
        return math.sqrt(math.prod(field.metres)) / MAX_SIDE

    def cells_per_side(self, spec: CollectionSpec) -> float:
        return self._grid(spec).cells_per_side(spec)

    def collect(self, exact: ExactCounts, spec: CollectionSpec, key: RunKey) -> NoisyGrid:
        """Returns the counts are those of the plain grid."""
        return self._grid(spec).collect(exact, spec, key)

    def _grid(self, spec: CollectionSpec) -> PlainGrid:
        return PlainGrid(max(self.cell_width, self.min_width(spec.field)))

    def trainings(self, counts: NoisyGrid, spec: CollectionSpec) -> Sequence[LocalTraining | PaperTraining]:
        models = self.models or _DEFAULT_MODELS[self.network]
        if self.network == "paper":
            return paper_training(counts, spec, models, self.workload)
        first = self.training_seed * 1000
        return [
            LocalTraining(counts, spec.users, spec.smoothing, self._queries(spec), first + number)
            for number in range(models)
        ]

    @property
    def training_time(self) -> str:
        return _TRAINING_TIME[self.network]

    def train(self, training: Any) -> Any:
        """Returns None if the network diverged. Raises RequestError without JAX and optax."""
        try:
            if isinstance(training, LocalTraining):
                return train_local(training)
            return train_paper(training, seed=self.training_seed)
        except DivergedError:  # go on with the other networks, or with the counts only
            return None

    def model(self, counts: NoisyGrid, spec: CollectionSpec, trained: Sequence[Any]) -> Model:
        """Trains the model: with the networks that did not diverge; if all did, the counts answer."""
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


@dataclass(frozen=True)
class Automatic(RangeMethod):
    """Chooses a method by public facts only: the number of users, epsilon, the sizes of queries, the region.

    Attributes:
        cell_width: in metres; None for the tuner's, or without a tuner the default rule
            (`CollectionSpec.default_width`).
        tuner: chooses the width of cells, if given.
        models, workload: see `SpatialNeural`.
    """

    NAME: ClassVar[str] = "auto"
    TEXT: ClassVar[str] = (
        "local networks (snh) or grid, whichever should have less error for this number of users and this noise; with "
        "--population, and for large squares, also adaptive"
    )
    TRAINS: ClassVar[bool] = True

    cell_width: float | None = None
    tuner: Tuner | None = None
    models: Models | None = None
    workload: Boxes | None = None

    def chosen(self, spec: CollectionSpec) -> SpatialNeural | PlainGrid:
        width = self.cell_width or (spec.default_width if self.tuner is None else self.tuner.width(spec))
        if spec.users * spec.epsilon >= GRID_FROM_USERS_EPSILON:
            return PlainGrid(width)
        return SpatialNeural(width, "local", self.models, self.workload)

    @staticmethod
    def prefers_tree(spec: CollectionSpec) -> bool:
        """Returns whether a heatmap's adaptive tree should have less error than networks and the grid."""
        few = spec.users * spec.epsilon < GRID_FROM_USERS_EPSILON
        typical, length = math.sqrt(spec.sizes.low * spec.sizes.high), math.sqrt(math.prod(spec.field.metres))
        return few and typical >= max(TREE_FROM_CELLS * spec.default_width, TREE_FROM_SHARE * length)

    def collect(self, exact: ExactCounts, spec: CollectionSpec, key: RunKey) -> NoisyGrid:
        return self.chosen(spec).collect(exact, spec, key)

    def trainings(self, counts: NoisyGrid, spec: CollectionSpec) -> Sequence[Any]:
        raise NotImplementedError("a choice has no trainings of its own; use those of `chosen(spec)`")

    def model(self, counts: NoisyGrid, spec: CollectionSpec, trained: Sequence[Any]) -> Model:
        raise NotImplementedError("a choice has no model of its own; use that of `chosen(spec)`")


METHODS: dict[str, type[RangeMethod]] = {method.NAME: method for method in (Automatic, SpatialNeural, PlainGrid)}
"""The methods by name. A new method is a class, and an entry here."""
