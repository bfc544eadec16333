"""What a method of answering range queries is: what it counts, once and with noise, and what it answers from.

    people -> collect -> NoisyGrid or Partition -> trainings -> train, each on its own -> model

Only `collect` sees people; all that follows is post-processing of what it returns.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from sfumato.schemas.ranges import PSI, Field, Sizes
from sfumato.transforms.privacy.keys import RunKey
from sfumato.transforms.ranges.counts import NoisyGrid, Partition
from sfumato.transforms.ranges.counts_model import GridModel, PartitionModel
from sfumato.transforms.ranges.model import Model
from sfumato.transforms.ranges.people import ExactCounts


@dataclass(frozen=True)
class CollectionSpec:
    """What a method is given besides the people: all of it public.

    field: the base cells. users: the number of users, public or already noisy. epsilon: the whole budget of the
    collection; adding or removing one user changes the count of one base cell by 1. sizes: of the queries to come.
    """

    field: Field
    users: float
    epsilon: float
    sizes: Sizes

    @property
    def smoothing(self) -> float:
        """psi, in users: of an answer to fewer, errors are taken as of so many (paper 003, Section 2.2); at least 1."""
        return max(PSI * self.users, 1.0)


@dataclass(frozen=True)
class RangeMethod(ABC):
    """A method is a frozen dataclass whose fields are its own options."""

    NAME: ClassVar[str]
    TEXT: ClassVar[str]  # a line for the help

    @abstractmethod
    def collect(self, people: ExactCounts, wanted: CollectionSpec, key: RunKey) -> NoisyGrid | Partition:
        """The only look at the people: epsilon-differentially private for adding or removing one of them.

        All noise is drawn from the key, so the same call gives the same counts.
        """

    def trainings(self, counts: NoisyGrid | Partition, wanted: CollectionSpec) -> Sequence[Any]:
        """What is to be learned from the counts, in parts that `train` takes one at a time, on any worker."""
        return ()

    def train(self, training: Any) -> Any:
        """What is learned of one of `trainings`; the same whenever and wherever it is done."""
        raise NotImplementedError(f"{self.NAME} learns nothing")

    def model(self, counts: NoisyGrid | Partition, wanted: CollectionSpec, trained: Sequence[Any]) -> Model:
        """What answers. trained: of every one of `trainings`, in their order."""
        return GridModel(counts) if isinstance(counts, NoisyGrid) else PartitionModel(counts)
