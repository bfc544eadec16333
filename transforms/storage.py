"""Storages that Beam's file systems reach. Every failure is an OSError that names the file, or a NotReadyError.

Beam's file systems let through whatever a storage's client raises; Google's errors are no OSErrors. `files` has what
reads and writes a file wherever it is.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import cache
from typing import Any, BinaryIO

from apache_beam.io.filesystem import BeamIOError, CompressionTypes, FileMetadata
from apache_beam.io.filesystems import FileSystems
from apache_beam.options.pipeline_options import PipelineOptions

from sfumato.schemas.errors import NotReadyError, RequestError
from sfumato.transforms.google_errors import may_pass

CREDENTIALS_S = 6  # to find credentials; Google's client looks on the network as well, again and again
# Without options Beam's file systems would parse this process's command line once more, and end it for an option of
# ours that looks wrong to them. Pipelines and workers set their own.
if FileSystems._pipeline_options is None:
    FileSystems.set_options(PipelineOptions([]))

_NOT_FOUND: tuple[type[Exception], ...]
_FAILED: tuple[type[Exception], ...]
try:
    from google.api_core.exceptions import GoogleAPIError, NotFound
    from google.auth.exceptions import GoogleAuthError
except ImportError:  # the gcp extra is not installed, so nothing raises these
    _NOT_FOUND, _FAILED = (), ()
else:
    _NOT_FOUND, _FAILED = (NotFound,), (GoogleAPIError, GoogleAuthError)


@contextmanager
def storage_errors(path: str) -> Iterator[None]:
    """Turns the errors of a storage's client into OSErrors, or NotReadyError where it cannot be reached now.

    Raises RequestError at once for a bucket of Google's where there are no credentials.
    """
    if path.startswith("gs://"):
        _check_credentials()
    try:
        yield
    except (BeamIOError, *_FAILED) as error:
        cause = _cause(error)
        if isinstance(cause, _NOT_FOUND):
            raise FileNotFoundError(f"{path}: there is no such file or bucket") from error
        if _FAILED and "://" in path and may_pass(cause):
            raise NotReadyError(f"{path} cannot be reached now ({cause}); try again later") from error
        raise OSError(f"{path}: {cause}") from error


@cache
def _check_credentials() -> None:
    """Raises RequestError where no credentials for Google Cloud are found in CREDENTIALS_S seconds.

    Beam would look for a minute, then ask without any, and Google's client would repeat that for two.
    """
    try:
        import google.auth
        from apache_beam.internal.gcp import auth
    except ImportError:
        return
    if os.environ.get("STORAGE_EMULATOR_HOST") or auth.is_running_in_gce or auth._Credentials._credentials_init:
        return
    found: list[Any] = []

    def look() -> None:
        with suppress(GoogleAuthError):
            found.append(google.auth.default())

    thread = threading.Thread(target=look, daemon=True)
    thread.start()
    thread.join(CREDENTIALS_S)
    if not found:
        raise RequestError(
            "no credentials for Google Cloud; log in with 'gcloud auth application-default login' or set "
            "GOOGLE_APPLICATION_CREDENTIALS"
        )


def _cause(error: Exception) -> Exception:
    """What a storage's client raised, which Beam's file systems wrap, some of them twice."""
    while isinstance(error, BeamIOError) and error.exception_details:
        error = next(iter(error.exception_details.values()))
    return error


def matching(pattern: str, limit: int | None = None) -> list[FileMetadata]:
    """The files that match a pattern, at most so many; none where there is no such folder.

    Raises NotReadyError where a storage cannot be listed now, RequestError where it cannot be listed: neither is taken
    for one that holds nothing.
    """
    if "://" not in pattern and "/" not in pattern:
        pattern = f"./{pattern}"  # a pattern without a folder matches nothing in Beam
    try:
        with storage_errors(pattern):
            (match,) = FileSystems.match([pattern], [limit])
    except (OSError, ValueError) as error:  # ValueError: no file system for such a path
        raise RequestError(f"{pattern} cannot be listed ({error})") from None
    return list(match.metadata_list)


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
    return GcsIO(pipeline_options=FileSystems._pipeline_options).client.bucket(bucket).blob(name)


def object_digest(path: str) -> str:
    """What tells a stored file's content wherever it lies: in Google's storage size and MD5. Raises OSError.

    An object that was composed of others has no MD5; its version stands for it, which a copy does not share.
    """
    if not path.startswith("gs://"):
        return content_version(path)
    with storage_errors(path):
        blob = _blob(path)
        blob.reload()
        return f"{blob.size}-{blob.md5_hash}" if blob.md5_hash else f"{blob.generation}-{blob.crc32c}"


@contextmanager
def open_object(path: str) -> Iterator[BinaryIO]:
    """Opens a stored file for reading, as it is (nothing is decompressed). Raises OSError."""
    with storage_errors(path):
        try:
            file = FileSystems.open(path, "application/octet-stream", CompressionTypes.UNCOMPRESSED)
        except ValueError as error:  # no file system for such a path
            raise OSError(f"{path}: {error}") from error
        with file:
            yield file


def write_object(path: str, content: bytes, media_type: str) -> None:
    """Writes an object of Google's storage, so that browsers show it and do not keep yesterday's. Raises OSError."""
    with storage_errors(path):
        blob = _blob(path)
        blob.cache_control = "no-cache"
        blob.upload_from_string(content, content_type=media_type)
