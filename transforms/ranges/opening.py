"""Released models, opened in one line, with neither data nor Beam where the file is a local one."""

from __future__ import annotations

import os
from pathlib import Path

from sfumato.schemas.errors import RequestError
from sfumato.schemas.release import MODEL_FILE
from sfumato.transforms.ranges.model import RangeModel, read_model


def open_model(path: str | os.PathLike[str]) -> RangeModel:
    """The model of a release folder of `sfumato ranges build`, or of its model.npz, local or in a bucket.

        open_model("release").answer(longitude, latitude, size)  # of squares: degrees, degrees, metres

    Nothing in the file is run. Raises RequestError where there is no model, or one that is damaged or of another
    format.
    """
    name = os.fspath(path)
    remote = "://" in name
    folder = not name.endswith(".npz") if remote else os.path.isdir(name)
    file = f"{name.rstrip('/')}/{MODEL_FILE}" if folder else name
    try:
        content = _read_remote(file) if remote else Path(file).read_bytes()
    except FileNotFoundError:
        raise RequestError(
            f"model: no file {file}; name a release of `sfumato ranges build`, or its model.npz"
        ) from None
    except OSError as error:
        raise RequestError(f"model: {file} cannot be read ({error.strerror or error})") from None
    return read_model(content, file)


def _read_remote(file: str) -> bytes:
    from sfumato.transforms.files import read_file  # by Beam's file systems

    return read_file(file)
