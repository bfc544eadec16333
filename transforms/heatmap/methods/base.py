"""What a method of making heatmaps is: what it asks clients, and what it makes of the answers."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from sfumato.schemas.errors import RequestError
from sfumato.transforms.heatmap.state import Estimate, HeatmapState, Question
from sfumato.transforms.locations.users import Contribution as Contribution


@dataclass(frozen=True)
class Method(ABC):
    """A method is a frozen dataclass whose fields are its own options; metadata["help"] of each is its help text.

    `encode` and `decode` see released values alone: the state holds noisy sums and public figures.
    """

    NAME: ClassVar[str]
    TEXT: ClassVar[str]  # a line for the help
    # What a user adds: one of her locations, or one distribution over all of them.
    CONTRIBUTION: ClassVar[Contribution] = "one"
    # Whether it can count by category (auxiliary data): its encodings are of trees and know of categories.
    CATEGORIES: ClassVar[bool] = False
    # Whether the last answer has an entry for every finest cell of the map.
    SEEN_BY_LAST: ClassVar[bool] = False
    # Whether it can start from the map of an earlier release (state.prior).
    WARM: ClassVar[bool] = False

    def check(self, depth: int) -> None:  # noqa: B027  (most methods do at any depth)
        """Raises RequestError, naming it, for an option that does not suit a grid of this depth."""

    @classmethod  # noqa: B027
    def check_given(cls, given: Mapping[str, Any]) -> None:
        """Raises RequestError for options, by name, that have no effect beside the others that were given."""

    def check_warm(self) -> None:
        """Raises RequestError where the method does not start from an earlier release."""
        if not self.WARM:
            raise RequestError(f"warm_start: method {self.NAME} starts from nothing; use adaptive")

    def check_use(self, categories: int, central: bool) -> None:
        """Raises RequestError where the method cannot count by so many categories, or not with central noise.

        categories: 1 where there is no auxiliary data.
        """
        if categories > 1 and not self.CATEGORIES:
            raise RequestError(f"auxiliary: method {self.NAME} makes no rates; use adaptive or flat")

    @abstractmethod
    def rounds(self, depth: int) -> int:
        """The most sub-queries that `encode` can ask."""

    def most_entries(self) -> int | None:
        """The most vector entries of a sub-query where they depend on where users are; None where they do not."""
        return None

    @abstractmethod
    def encode(self, state: HeatmapState, depth: int) -> Question | None:
        """What clients are to send next; None when all is asked. state.answers holds what earlier sub-queries gave."""

    @abstractmethod
    def decode(self, state: HeatmapState, depth: int) -> Estimate:
        """The map that all answers give."""
