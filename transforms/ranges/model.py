"""A released model: answers to any square from a file that needs no data, no Beam and, to be read, no trust.

The file is NumPy's archive of plain arrays (pickles are refused, so that nothing in it is run), with one JSON text
among them that says what they are.
"""

from __future__ import annotations

import io
import json
import zipfile
import zlib
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from sfumato.schemas.errors import RequestError
from sfumato.schemas.ranges import Boxes, Field
from sfumato.schemas.region import Grid, Region

FORMAT = "sfumato-ranges/1"
_FACTS = "facts"
_BROKEN = (
    zipfile.BadZipFile,
    zlib.error,
    AttributeError,
    EOFError,
    IndexError,
    KeyError,
    MemoryError,
    OSError,
    RuntimeError,
    TypeError,
    ValueError,
)
"""What NumPy's reader and a model's `load` raise for damaged bytes."""


@dataclass(frozen=True)
class Answers:
    """users: float64[q], 0 or more. stddev: float64[q], the estimated root mean square error of `users`."""

    users: NDArray[np.float64]
    stddev: NDArray[np.float64]


class Model(ABC):
    """What answers boxes. KIND names it in a file; `arrays` and `facts` are all of it, and `load` makes it anew."""

    KIND: ClassVar[str]

    @abstractmethod
    def answer(self, boxes: Boxes) -> Answers:
        """Answers to boxes that lie in the field."""

    @abstractmethod
    def arrays(self) -> dict[str, NDArray[Any]]:
        """Its arrays by name."""

    def facts(self) -> dict[str, Any]:
        """What else it is made of, in JSON's types."""
        return {}

    @classmethod
    @abstractmethod
    def load(cls, arrays: Mapping[str, NDArray[Any]], facts: Mapping[str, Any]) -> Model:
        """The inverse of `arrays` and `facts`. Raises KeyError, ValueError or TypeError where they are not such."""


@dataclass(frozen=True)
class RangeModel:
    """A model and the field that it is of. method: that it was made by. epsilon: of the whole release."""

    field: Field
    model: Model
    method: str
    epsilon: float

    def answer(
        self, longitude: NDArray[np.float64], latitude: NDArray[np.float64], size: NDArray[np.float64]
    ) -> tuple[Answers, NDArray[np.float64]]:
        """Answers to squares with centres in degrees and sides in metres, and the share of each inside the region.

        All float64[q]. The answer is of the part inside; a square wholly outside has 0 users.
        """
        squares = self.field.squares(longitude, latitude, size)
        inside = squares.clipped(self.field.side)
        share = inside.areas / squares.areas
        share = np.where(share > 1 - 1e-9, 1.0, share)  # what reaches beyond by rounding alone
        found = self.model.answer(inside)
        return Answers(np.where(share > 0, found.users, 0.0), np.where(share > 0, found.stddev, 0.0)), share


def model_bytes(model: RangeModel) -> bytes:
    """The model as it is published; the same model gives the same bytes."""
    facts = {
        "format": FORMAT,
        "kind": model.model.KIND,
        "method": model.method,
        "epsilon": model.epsilon,
        "region": asdict(model.field.grid.region),
        "depth": model.field.grid.depth,
        "model": model.model.facts(),
    }
    text = np.frombuffer(json.dumps(facts, sort_keys=True, allow_nan=False).encode(), np.uint8)
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w") as archive:  # what np.savez_compressed writes, without the time of day
        for name, values in {_FACTS: text, **model.model.arrays()}.items():
            one = io.BytesIO()
            np.lib.format.write_array(one, np.ascontiguousarray(values), allow_pickle=False)
            archive.writestr(zipfile.ZipInfo(f"{name}.npy"), one.getvalue(), zipfile.ZIP_DEFLATED, 6)
    return file.getvalue()


def read_model(content: bytes, name: str) -> RangeModel:
    """The model in a file's bytes. name: of the file, for errors. Raises RequestError where it holds none."""
    from sfumato.transforms.ranges.kinds import KINDS  # which import this module

    try:
        with np.load(io.BytesIO(content), allow_pickle=False) as archive:
            facts = json.loads(archive[_FACTS].tobytes())
            stated = facts["format"]
            if stated == FORMAT:
                arrays = {one: archive[one] for one in archive.files if one != _FACTS}
                field = Field(Grid(Region(**facts["region"]), facts["depth"]))
                model = KINDS[facts["kind"]].load(arrays, facts["model"])
                return RangeModel(field, model, facts["method"], facts["epsilon"])
    except (*_BROKEN, RequestError) as error:
        raise RequestError(f"model: {name} is no model of range queries, or damaged ({type(error).__name__})") from None
    raise RequestError(f"model: {name} has format {stated!r}; this version of sfumato reads {FORMAT!r}")
