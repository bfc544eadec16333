"""Files of plain arrays: NumPy archives (.npz) with one JSON text. Reading one runs no code. Pure."""

from __future__ import annotations

import io
import json
import lzma
import tokenize
import zipfile
import zlib
from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

MAX_BYTES = 1 << 31
DAMAGED = (
    zipfile.BadZipFile,
    zlib.error,
    lzma.LZMAError,
    tokenize.TokenError,
    ArithmeticError,
    AttributeError,
    EOFError,
    IndexError,
    KeyError,
    MemoryError,
    OSError,
    RuntimeError,
    SyntaxError,
    TypeError,
    ValueError,
)
"""Errors that `read_archive` and the readers of its content raise for damaged bytes."""
_METADATA = "metadata"


def archive_bytes(metadata: Mapping[str, Any], arrays: Mapping[str, NDArray[Any]]) -> bytes:
    """The bytes of a file. The same content gives the same bytes.

    Args:
        metadata: describes the arrays, in JSON's types; finite numbers only.
        arrays: integers or floats, of any shapes, by name.

    Returns:
        What `np.savez_compressed` writes, without time stamps.
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
    """Reads the metadata and the arrays of a file. Pickles are refused, so no code in the file runs.

    Args:
        content: the file's bytes.
        max_bytes: the largest total size of the unpacked content.

    Returns:
        The metadata, and the arrays by name: integers or finite floats, at most 1e30.

    Raises:
        Exception: one of DAMAGED, if the content is no such file.
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
