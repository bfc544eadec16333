"""The file of a released model: `model_bytes` writes it, `open_model` reads it. Pure for local files.

The file is a NumPy archive of plain arrays and one JSON text. Pickles are refused, so reading a file runs no code.
"""

from __future__ import annotations

import os
from dataclasses import asdict

import numpy as np

from sfumato.schemas.errors import FormatError, RequestError, check_format
from sfumato.schemas.ranges import Field
from sfumato.schemas.region import Grid, Region
from sfumato.schemas.release import MODEL_FILE
from sfumato.transforms.files import is_remote, join, read_file
from sfumato.transforms.privacy.budget import check_epsilon
from sfumato.transforms.ranges.archive import DAMAGED, archive_bytes, read_archive
from sfumato.transforms.ranges.counts_model import GridModel
from sfumato.transforms.ranges.model import Model, RangeModel
from sfumato.transforms.ranges.networks.local import LocalNetwork
from sfumato.transforms.ranges.networks.paper import PaperNetworks
from sfumato.transforms.ranges.tree_model import TreeModel

FORMAT = "sfumato-ranges/1"
MODEL_TYPES: dict[str, type[Model]] = {
    model_type.KIND: model_type for model_type in (GridModel, TreeModel, LocalNetwork, PaperNetworks)
}
"""The classes that a file can hold, by KIND."""
_FORMER_KINDS = ("partition",)  # of methods that only the benchmarks have


def open_model(path: str | os.PathLike[str]) -> RangeModel:
    """Opens a released model, without the data. A local file needs no Beam.

        open_model("release").answer(longitude, latitude, size)  # of squares: degrees, degrees, metres

    Args:
        path: a release folder of `sfumato ranges build`, or its model.npz; local or in a bucket.

    Raises:
        RequestError: there is no model, or it is damaged or has another format.
    """
    name = os.fspath(path)
    folder = not name.endswith(".npz") if is_remote(name) else os.path.isdir(name)
    file = join(name, MODEL_FILE) if folder else name
    try:
        content = read_file(file)
    except FileNotFoundError:
        raise RequestError(
            f"model: no file {file}; name a release of `sfumato ranges build`, or its model.npz"
        ) from None
    except OSError as error:
        raise RequestError(f"model: {file} cannot be read ({error.strerror or error})") from None
    return read_model(content, file)


def read_model(content: bytes, name: str) -> RangeModel:
    """Reads a model from a file's bytes.

    Args:
        content: the bytes.
        name: of the file, for messages.

    Raises:
        FormatError: another version of sfumato wrote the file.
        RequestError: the bytes are no model, or are damaged.
    """
    try:
        metadata, arrays = read_archive(content)
        check_format(f"model: {name}", metadata["format"], FORMAT)
        if metadata["kind"] in _FORMER_KINDS:
            raise FormatError(
                f"model: {name}: a model of method {metadata['method']}, which this version does not have; sfumato 0.1 "
                "of November 2026 or earlier reads it"
            )
        field = Field(Grid(Region(**metadata["region"]), metadata["depth"]))
        sides = {
            metadata["model"].get("side", field.side),
            *arrays.get("x_edges", np.array([field.side]))[-1:].tolist(),
        }
        if sides != {field.side}:
            raise ValueError("counts of another field")
        model = MODEL_TYPES[metadata["kind"]].load(arrays, metadata["model"])
        epsilon = check_epsilon("epsilon", float(metadata["epsilon"]))
        return RangeModel(field, model, str(metadata["method"]), epsilon, metadata["safe"] is True)
    except FormatError:
        raise
    except (*DAMAGED, RequestError) as error:
        raise RequestError(f"model: {name} is no model of range queries, or damaged ({type(error).__name__})") from None


def model_bytes(model: RangeModel) -> bytes:
    """The content of the published file. The same model gives the same bytes."""
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
