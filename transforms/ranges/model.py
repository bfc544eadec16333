"""A released model: answers to any square from a file that needs no data, no Beam and, to be read, no trust.

The file is NumPy's archive of plain arrays (pickles are refused, so that nothing in it is run), with one JSON text
among them that says what they are.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from sfumato.schemas.errors import RequestError
from sfumato.schemas.ranges import LARGEST, SMALLEST, Boxes, Field
from sfumato.schemas.region import Grid, Region
from sfumato.transforms.privacy.budget import check_epsilon
from sfumato.transforms.ranges.archive import DAMAGED, archive_bytes, read_archive

FORMAT = "sfumato-ranges/1"


@dataclass(frozen=True)
class Answers:
    """users: float64[q], 0 or more. stddev: float64[q], the root mean square error of `users` (see Model.ERROR)."""

    users: NDArray[np.float64]
    stddev: NDArray[np.float64]


class Model(ABC):
    """What answers boxes. KIND names it in a file; `arrays` and `metadata` are all of it, and `load` makes it anew.

    ERROR: what its answers' `stddev` is, one of `ERROR_KINDS`.
    """

    KIND: ClassVar[str]
    ERROR: ClassVar[str] = "estimate"

    @abstractmethod
    def answer(self, boxes: Boxes) -> Answers:
        """Answers to boxes that lie in the field."""

    @abstractmethod
    def arrays(self) -> dict[str, NDArray[Any]]:
        """Its arrays by name."""

    def metadata(self) -> dict[str, Any]:
        """What else it is made of, in JSON's types."""
        return {}

    @classmethod
    @abstractmethod
    def load(cls, arrays: Mapping[str, NDArray[Any]], metadata: Mapping[str, Any]) -> Model:
        """The inverse of `arrays` and `metadata`. Raises KeyError, ValueError or TypeError where they are not such."""


@dataclass(frozen=True)
class RangeModel:
    """A model and the field that it is of. method: that it was made by. epsilon: of the whole release.

    safe: whether nobody can guess the key that its noise came from.
    """

    field: Field
    model: Model
    method: str
    epsilon: float
    safe: bool = True

    def answer(
        self, longitude: NDArray[np.float64], latitude: NDArray[np.float64], size: NDArray[np.float64]
    ) -> tuple[Answers, NDArray[np.float64]]:
        """Answers to squares with centres in degrees and sides in metres, and the share of each inside the region.

        Numbers, or arrays of q numbers; what is returned is float64[q]. The answer is of the part inside; a square
        wholly outside has 0 users. Raises RequestError for what is no place or no size.
        """
        longitude, latitude, size = np.broadcast_arrays(
            *(np.atleast_1d(np.asarray(one, dtype=np.float64)) for one in (longitude, latitude, size))
        )
        if not (np.isfinite(longitude).all() and (np.abs(latitude) <= 90).all()):
            raise RequestError("squares: longitudes and latitudes must be finite numbers of degrees, latitudes to 90")
        if not ((size >= SMALLEST) & (size <= LARGEST)).all():
            raise RequestError(f"squares: sizes must be metres, from {SMALLEST:g} to the Earth's girth")
        squares = self.field.squares(longitude, latitude, size)
        inside = squares.clipped(self.field.side)
        share = inside.areas / squares.areas
        share = np.where(share > 1 - 1e-9, 1.0, share)  # what reaches beyond by rounding alone
        found = self.model.answer(inside)
        return Answers(np.where(share > 0, found.users, 0.0), np.where(share > 0, found.stddev, 0.0)), share


def model_bytes(model: RangeModel) -> bytes:
    """The model as it is published; the same model gives the same bytes."""
    metadata = {
        "format": FORMAT,
        "kind": model.model.KIND,
        "method": model.method,
        "epsilon": model.epsilon,
        "safe": model.safe,
        "region": asdict(model.field.grid.region),
        "depth": model.field.grid.depth,
        "model": model.model.metadata(),
    }
    return archive_bytes(metadata, model.model.arrays())


def read_model(content: bytes, name: str) -> RangeModel:
    """The model in a file's bytes. name: of the file, for errors. Raises RequestError where it holds none."""
    from sfumato.transforms.ranges.kinds import KINDS  # which import this module

    try:
        metadata, arrays = read_archive(content)
        stated = metadata["format"]
        if stated == FORMAT:
            field = Field(Grid(Region(**metadata["region"]), metadata["depth"]))
            sides = {
                metadata["model"].get("side", field.side),
                *arrays.get("x_edges", np.array([field.side]))[-1:].tolist(),
            }
            if sides != {field.side}:
                raise ValueError("counts of another field")
            model = KINDS[metadata["kind"]].load(arrays, metadata["model"])
            epsilon = check_epsilon("epsilon", float(metadata["epsilon"]))
            return RangeModel(field, model, str(metadata["method"]), epsilon, metadata["safe"] is True)
    except (*DAMAGED, RequestError) as error:
        raise RequestError(f"model: {name} is no model of range queries, or damaged ({type(error).__name__})") from None
    raise RequestError(f"model: {name} has format {stated!r}; this version of sfumato reads {FORMAT!r}")
