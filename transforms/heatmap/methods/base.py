"""What a method of making heatmaps is: what it asks clients, and what it makes of the answers."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import ClassVar, Literal

from sfumato.transforms.heatmap.state import Estimate, HeatmapState, Question

Contribution = Literal["one", "all"]


@dataclass(frozen=True)
class Method(ABC):
    """A method is a frozen dataclass whose fields are its own options; metadata["help"] of each is its help text.

    `encode` and `decode` see released values alone: the state holds noisy sums and public figures.
    """

    NAME: ClassVar[str]
    TEXT: ClassVar[str]  # a line for the help
    # What a user adds: one of her locations, or one distribution over all of them.
    CONTRIBUTION: ClassVar[Contribution] = "one"

    def check(self, depth: int) -> None:  # noqa: B027  (most methods do at any depth)
        """Raises RequestError, naming it, for an option that does not suit a grid of this depth."""

    @abstractmethod
    def rounds(self, depth: int) -> int:
        """The most sub-queries that `encode` can ask."""

    @abstractmethod
    def encode(self, state: HeatmapState, depth: int) -> Question | None:
        """What clients are to send next; None when all is asked. state.answers holds what earlier sub-queries gave."""

    @abstractmethod
    def decode(self, state: HeatmapState, depth: int) -> Estimate:
        """The map that all answers give."""
