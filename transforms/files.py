"""Files, local or in a bucket, whose every failure is an OSError that names the file.

Beam's file systems let through whatever a storage's client raises; Google's errors are no OSErrors.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import BinaryIO

from apache_beam.io.filesystem import CompressionTypes
from apache_beam.io.filesystems import FileSystems

_NOT_FOUND: tuple[type[Exception], ...]
_REFUSED: tuple[type[Exception], ...]
try:
    from google.api_core.exceptions import GoogleAPIError, NotFound
    from google.auth.exceptions import GoogleAuthError
except ImportError:  # the gcp extra is not installed, so nothing raises these
    _NOT_FOUND, _REFUSED = (), ()
else:
    _NOT_FOUND, _REFUSED = (NotFound,), (GoogleAPIError, GoogleAuthError)


def is_remote(path: str) -> bool:
    """Whether a path names something that only Beam's file systems reach."""
    return "://" in path


@contextmanager
def storage_errors(path: str) -> Iterator[None]:
    """Turns the errors of a storage's client into OSErrors."""
    try:
        yield
    except _NOT_FOUND as error:
        raise FileNotFoundError(f"{path}: there is no such file") from error
    except _REFUSED as error:
        raise OSError(f"{path}: {error}") from error


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
