"""A released model: it answers squares of the region, without data and without Beam. Pure."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from sfumato.schemas.errors import RequestError
from sfumato.schemas.ranges import LARGEST, SMALLEST, Boxes, Field
from sfumato.transforms.ranges.summed_area_table import SummedAreaTable


@dataclass(frozen=True)
class Answers:
    """Answers to q queries.

    Attributes:
        users: float64[q], 0 or more.
        stddev: float64[q], the root mean square error of `users`, or a lower bound of it (see Model.ERROR).
    """

    users: NDArray[np.float64]
    stddev: NDArray[np.float64]


class Model(ABC):
    """Answers boxes of a field. `arrays` and `metadata` hold all of its state, and `load` restores it.

    Attributes:
        KIND: what a file calls this class.
        ERROR: what `stddev` of its answers is, one of `ERROR_KINDS`.
    """

    KIND: ClassVar[str]
    ERROR: ClassVar[str] = "estimate"

    @abstractmethod
    def answer(self, boxes: Boxes) -> Answers:
        """Answers boxes that lie in the field."""

    @property
    def additive_table(self) -> SummedAreaTable | None:
        """Sums over boxes of the model's map of users, of which no cell is below 0; None if it has no such map."""
        return None

    def answer_additive(self, boxes: Boxes) -> Answers:
        """As `answer`, but boxes that tile a larger box sum to its answer. Without a map it is `answer`.

        `stddev` is that of `answer`, for squares around users, and the difference of both answers.
        """
        answers, table = self.answer(boxes), self.additive_table
        if table is None:
            return answers
        users = np.maximum(table.sum(boxes), 0.0)  # less than 0 only by rounding
        return Answers(users, np.hypot(answers.stddev, answers.users - users))

    @abstractmethod
    def arrays(self) -> dict[str, NDArray[Any]]:
        """The arrays of its state, by name."""

    def metadata(self) -> dict[str, Any]:
        """The rest of its state, in JSON's types."""
        return {}

    @classmethod
    @abstractmethod
    def load(cls, arrays: Mapping[str, NDArray[Any]], metadata: Mapping[str, Any]) -> Model:
        """The inverse of `arrays` and `metadata`. Raises KeyError, ValueError or TypeError for invalid state."""


@dataclass(frozen=True)
class RangeModel:
    """A model and its field.

    Attributes:
        field: the region and its base cells.
        model: answers boxes.
        method: the name of the method that made the model.
        epsilon: of the whole release.
        safe: whether the noise came from a secret key.
    """

    field: Field
    model: Model
    method: str
    epsilon: float
    safe: bool = True

    def answer(
        self,
        longitude: NDArray[np.float64],
        latitude: NDArray[np.float64],
        size: NDArray[np.float64],
        *,
        additive: bool = False,
    ) -> tuple[Answers, NDArray[np.float64]]:
        """Answers squares.

        Args:
            longitude: of the centres, in degrees; a number or an array of q, like the other arguments.
            latitude: of the centres, in degrees.
            size: sides, in metres.
            additive: for squares anywhere, whose answers add up, such as tiles of a region; otherwise for squares
                around users.

        Returns:
            The answers, and the share of each square's area inside the region, float64[q]. An answer is for the part
            inside. A square outside the region has 0 users.

        Raises:
            RequestError: a centre or a size is out of range, or the model has no additive answers.
        """
        longitude, latitude, size = np.broadcast_arrays(
            *(np.atleast_1d(np.asarray(argument, dtype=np.float64)) for argument in (longitude, latitude, size))
        )
        if not (np.isfinite(longitude).all() and (np.abs(latitude) <= 90).all()):
            raise RequestError("squares: longitudes must be finite degrees, and latitudes in -90..90 degrees")
        if not ((size >= SMALLEST) & (size <= LARGEST)).all():
            raise RequestError(f"squares: sizes must be metres, from {SMALLEST:g} to the Earth's circumference")
        squares = self.field.squares(longitude, latitude, size)
        inside = squares.clipped(self.field.side)
        share = inside.areas / squares.areas
        share = np.where(share > 1 - 1e-9, 1.0, share)  # less than 1 only by rounding
        if additive:
            self.check_additive()
        answers = self.model.answer_additive(inside) if additive else self.model.answer(inside)
        return Answers(np.where(share > 0, answers.users, 0.0), np.where(share > 0, answers.stddev, 0.0)), share

    def check_additive(self) -> None:
        """Raises RequestError if the model has no additive answers."""
        if self.model.additive_table is None:
            raise RequestError("additive: the paper's networks have no answers that add up; ask for one large square")
