"""The interface of a method for range queries.

    ExactCounts -> collect -> NoisyGrid -> trainings -> train, one at a time -> model

Only `collect` sees exact counts. Everything after it is post-processing.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from sfumato.transforms.checks import check_declared
from sfumato.transforms.privacy.keys import RunKey
from sfumato.transforms.ranges.collection_spec import CollectionSpec
from sfumato.transforms.ranges.counts_model import GridModel
from sfumato.transforms.ranges.exact_counts import ExactCounts
from sfumato.transforms.ranges.model import Model
from sfumato.transforms.ranges.noisy_counts import NoisyGrid


@dataclass(frozen=True)
class RangeMethod(ABC):
    """A method. Its fields are its own options.

    Attributes:
        NAME: what the command line calls it.
        TEXT: one line of help.
    """

    NAME: ClassVar[str]
    TEXT: ClassVar[str]

    def __post_init__(self) -> None:
        check_declared(self)

    @abstractmethod
    def collect(self, exact: ExactCounts, spec: CollectionSpec, key: RunKey) -> NoisyGrid:
        """Counts with noise: the only access to exact counts.

        The result is epsilon-differentially private for adding or removing one user. All noise comes from the key, so
        the same call gives the same counts.
        """

    def trainings(self, counts: NoisyGrid, spec: CollectionSpec) -> Sequence[Any]:
        """The independent pieces of training; each is an argument of `train`, on any worker."""
        return ()

    def train(self, training: Any) -> Any:
        """Trains one of `trainings`. The result does not depend on when or where it runs."""
        raise NotImplementedError(f"{self.NAME} has no training")

    def model(self, counts: NoisyGrid, spec: CollectionSpec, trained: Sequence[Any]) -> Model:
        """The model that answers queries. trained: the results of all `trainings`, in their order."""
        return GridModel(counts, spec.users)
