"""Files, local or in a bucket, whose every failure is an OSError that names the file, or a NotReadyError.

Beam's file systems let through whatever a storage's client raises; Google's errors are no OSErrors.
"""

from __future__ import annotations

import mimetypes
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO

from apache_beam.io.filesystem import CompressionTypes
from apache_beam.io.filesystems import FileSystems

from sfumato.schemas.errors import NotReadyError
from sfumato.transforms.google_errors import may_pass

_NOT_FOUND: tuple[type[Exception], ...]
_FAILED: tuple[type[Exception], ...]
try:
    from google.api_core.exceptions import GoogleAPIError, NotFound
    from google.auth.exceptions import GoogleAuthError
except ImportError:  # the gcp extra is not installed, so nothing raises these
    _NOT_FOUND, _FAILED = (), ()
else:
    _NOT_FOUND, _FAILED = (NotFound,), (GoogleAPIError, GoogleAuthError)


def is_remote(path: str) -> bool:
    """Whether a path names something that only Beam's file systems reach."""
    return "://" in path


@contextmanager
def storage_errors(path: str) -> Iterator[None]:
    """Turns the errors of a storage's client into OSErrors, or NotReadyError where it cannot be reached now."""
    try:
        yield
    except _NOT_FOUND as error:
        raise FileNotFoundError(f"{path}: there is no such file") from error
    except _FAILED as error:
        if may_pass(error):
            raise NotReadyError(f"{path} cannot be reached now ({error}); try again later") from error
        raise OSError(f"{path}: {error}") from error


def content_version(path: str) -> str:
    """What changes whenever a file in a storage does. Raises OSError.

    In Google's it is the generation, since checksums there have 32 bits; elsewhere the storage's own checksum.
    """
    with storage_errors(path):
        if not path.startswith("gs://"):
            return str(FileSystems.checksum(path))
        blob = _blob(path)
        blob.reload()
        return f"{blob.generation}-{blob.crc32c}"


def _blob(path: str) -> Any:
    """An object of Google's storage, with the credentials that Beam uses."""
    from apache_beam.io.gcp.gcsio import GcsIO, parse_gcs_path

    bucket, name = parse_gcs_path(path)
    return GcsIO().client.bucket(bucket).blob(name)


def content_type(path: str) -> str:
    """The media type of a file by its name."""
    return mimetypes.guess_type(path)[0] or "application/octet-stream"


@contextmanager
def open_file(path: str) -> Iterator[BinaryIO]:
    """Opens a file for reading, as it is (nothing is decompressed). Raises OSError."""
    with storage_errors(path):
        try:
            file = FileSystems.open(path, "application/octet-stream", CompressionTypes.UNCOMPRESSED)
        except ValueError as error:  # no file system for such a path
            raise OSError(f"{path}: {error}") from error
        with file:
            yield file


def read_file(path: str) -> bytes:
    """A file's bytes. Raises OSError."""
    with open_file(path) as file:
        return bytes(file.read())


def write_file(path: str, content: bytes) -> None:
    """Writes a file in one step: readers see the old content or the new, never a part. Raises OSError.

    In Google's storage with the type that browsers show, and so that they do not keep yesterday's.
    """
    if path.startswith("gs://"):
        with storage_errors(path):
            blob = _blob(path)
            blob.cache_control = "no-cache"
            blob.upload_from_string(content, content_type=content_type(path))
        return
    place = Path(path).absolute()
    place.parent.mkdir(parents=True, exist_ok=True)
    partial = place.with_name(f".{place.name}.{uuid.uuid4().hex}")
    try:
        partial.write_bytes(content)
        partial.replace(place)
    finally:
        partial.unlink(missing_ok=True)
