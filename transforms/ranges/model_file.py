"""The file of a released model: `model_bytes` writes it, `open_model` reads it. Pure for local files.

It is a NumPy archive (.npz) of plain arrays and one JSON text. Pickles are refused, so reading a file runs no code.
"""

from __future__ import annotations

import io
import json
import lzma
import os
import tokenize
import zipfile
import zlib
from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sfumato.schemas.errors import FormatError, RequestError, check_format
from sfumato.schemas.ranges import Field
from sfumato.schemas.region import Grid, Region
from sfumato.schemas.release import MODEL_FILE
from sfumato.transforms.io.files import is_remote, join, read_file
from sfumato.transforms.privacy.budget import check_epsilon
from sfumato.transforms.ranges.model import GridModel, Model, RangeModel, TreeModel
from sfumato.transforms.ranges.networks.local import LocalNetwork
from sfumato.transforms.ranges.networks.paper import PaperNetworks

MAX_BYTES = 1 << 31
DAMAGED = (
    zipfile.BadZipFile, zlib.error, lzma.LZMAError, tokenize.TokenError, ArithmeticError, AttributeError, EOFError,
    LookupError, MemoryError, OSError, RuntimeError, SyntaxError, TypeError, ValueError,
)  # fmt: skip
"""Errors that `read_archive` and the readers of its content raise for damaged bytes."""
_METADATA = "metadata"
FORMAT = "sfumato-ranges/1"
MODEL_TYPES: dict[str, type[Model]] = {
    model_type.KIND: model_type for model_type in (GridModel, TreeModel, LocalNetwork, PaperNetworks)
}
"""The classes that a file can hold, by KIND."""


def archive_bytes(metadata: Mapping[str, Any], arrays: Mapping[str, NDArray[Any]]) -> bytes:
    """Returns what `np.savez_compressed` writes, without time stamps: the same content gives the same bytes.

    metadata: describes the arrays, in JSON's types; finite numbers only. arrays: integers or floats, of any shapes.
    """
    text = np.frombuffer(json.dumps(metadata, sort_keys=True, allow_nan=False).encode(), np.uint8)
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w") as archive:
        for name, values in {_METADATA: text, **arrays}.items():
            array_file = io.BytesIO()
            np.lib.format.write_array(array_file, np.ascontiguousarray(values), allow_pickle=False)
            archive.writestr(zipfile.ZipInfo(f"{name}.npy"), array_file.getvalue(), zipfile.ZIP_DEFLATED, 6)
    return file.getvalue()


def read_archive(content: bytes, max_bytes: int = MAX_BYTES) -> tuple[dict[str, Any], dict[str, NDArray[Any]]]:
    """Reads the metadata and the arrays of a file: integers or finite floats, at most 1e30.

    Pickles are refused, so no code in the file runs. max_bytes: the largest total size of the unpacked content.
    Raises one of DAMAGED if the content is no such file.
    """
    with zipfile.ZipFile(io.BytesIO(content)) as archive:
        if sum(entry.file_size for entry in archive.infolist()) > max_bytes:
            raise ValueError(f"more than {max_bytes} bytes unpacked")
    with np.load(io.BytesIO(content), allow_pickle=False) as archive:
        metadata = json.loads(archive[_METADATA].tobytes())
        if not isinstance(metadata, dict):
            raise TypeError("the metadata is no mapping")
        return metadata, {name: _numbers(archive[name]) for name in archive.files if name != _METADATA}


def _numbers(values: NDArray[Any]) -> NDArray[Any]:
    if values.dtype.kind not in "iuf" or not np.isfinite(values).all() or (np.abs(values.astype(float)) > 1e30).any():
        raise ValueError("an array is not of finite numbers")
    return values


def open_model(path: str | os.PathLike[str]) -> RangeModel:
    """Opens a released model, without the data. A local file needs no Beam.

        open_model("release").answer(longitude, latitude, size)  # of squares: degrees, degrees, metres

    path: a release folder of `sfumato ranges build`, or its model.npz; local or in a bucket. Raises RequestError if
    there is no model, or it is damaged or has another format.
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
    """Reads a model from a file's bytes. name: of the file, for messages.

    Raises FormatError if another version of sfumato wrote the file, RequestError if the bytes are no model, or damaged.
    """
    try:
        metadata, arrays = read_archive(content)
        check_format(f"model: {name}", metadata["format"], FORMAT)
        field = Field(Grid(Region(**metadata["region"]), metadata["depth"]))
        sides = {
            metadata["model"].get("side", field.side),
            *arrays.get("x_edges", np.array([field.side]))[-1:].tolist(),
        }
        if sides != {field.side}:
            raise ValueError("counts of another field")
        model = MODEL_TYPES[metadata["kind"]].load(arrays, metadata["model"])
        epsilon = check_epsilon(float(metadata["epsilon"]))
        return RangeModel(field, model, str(metadata["method"]), epsilon, metadata["safe"] is True)
    except FormatError:
        raise
    except (*DAMAGED, RequestError) as error:
        raise RequestError(
            f"model: {name} is not a model of range queries, or is damaged ({type(error).__name__})"
        ) from None


def model_bytes(model: RangeModel) -> bytes:
    """Returns the content of the published file. The same model gives the same bytes."""
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
