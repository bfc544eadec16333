"""Files, local or in a bucket. Every failure is an OSError that names the file, or a NotReadyError.

Beam's file systems pass on the errors of the storage's client; Google's are no OSErrors.
"""

from __future__ import annotations

import hashlib
import mimetypes
import os
import threading
import uuid
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import cache
from pathlib import Path
from typing import Any, BinaryIO

from apache_beam.io.filesystem import BeamIOError, CompressionTypes, FileMetadata
from apache_beam.io.filesystems import FileSystems
from apache_beam.options.pipeline_options import PipelineOptions

from sfumato.schemas.errors import NotReadyError, RequestError
from sfumato.transforms.google_errors import may_pass

CREDENTIALS_S = 6  # seconds to find credentials; Google's client also tries the network, repeatedly
# Without options Beam's file systems would parse the command line themselves, and could end the process because of an
# option that is not Beam's. Pipelines and workers set their own options.
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


def is_remote(path: str) -> bool:
    """Whether a path is in a bucket or another storage of Beam's file systems."""
    return "://" in path


@contextmanager
def storage_errors(path: str) -> Iterator[None]:
    """Converts the errors of a storage's client into OSErrors, or NotReadyError if it cannot be reached now.

    Raises RequestError at once for a bucket of Google's without credentials.
    """
    if path.startswith("gs://"):
        _check_credentials()
    try:
        yield
    except (BeamIOError, *_FAILED) as error:
        cause = _cause(error)
        if isinstance(cause, _NOT_FOUND):
            raise FileNotFoundError(f"{path}: there is no such file or bucket") from error
        if _FAILED and is_remote(path) and may_pass(cause):
            raise NotReadyError(f"{path} cannot be reached now ({cause}); try again later") from error
        raise OSError(f"{path}: {cause}") from error


@cache
def _check_credentials() -> None:
    """Raises RequestError if no credentials for Google Cloud are found in CREDENTIALS_S seconds.

    Beam would search for one minute, and then Google's client would retry without credentials for two.
    """
    try:
        import google.auth
        from apache_beam.internal.gcp import auth
    except ImportError:
        return
    if os.environ.get("STORAGE_EMULATOR_HOST") or auth.is_running_in_gce or auth._Credentials._credentials_init:
        return
    credentials: list[Any] = []

    def find() -> None:
        with suppress(GoogleAuthError):
            credentials.append(google.auth.default())

    thread = threading.Thread(target=find, daemon=True)
    thread.start()
    thread.join(CREDENTIALS_S)
    if not credentials:
        raise RequestError(
            "no credentials for Google Cloud; log in with 'gcloud auth application-default login' or set "
            "GOOGLE_APPLICATION_CREDENTIALS"
        )


def _cause(error: Exception) -> Exception:
    """The error of a storage's client. Beam's file systems wrap it, some of them twice."""
    while isinstance(error, BeamIOError) and error.exception_details:
        error = next(iter(error.exception_details.values()))
    return error


def matching(pattern: str, limit: int | None = None) -> list[FileMetadata]:
    """The files that match a pattern; none if the folder does not exist. limit: the largest number of files.

    Raises NotReadyError if the storage cannot be listed now, and RequestError if it cannot be listed at all. So a
    storage that cannot be listed never looks empty.
    """
    if not is_remote(pattern) and "/" not in pattern:
        pattern = f"./{pattern}"  # a pattern without a folder matches nothing in Beam
    try:
        with storage_errors(pattern):
            (match,) = FileSystems.match([pattern], [limit])
    except (OSError, ValueError) as error:  # ValueError: no file system for such a path
        raise RequestError(f"{pattern} cannot be listed ({error})") from None
    return list(match.metadata_list)


def content_version(path: str) -> str:
    """A text that changes with every change of a file in a storage. Raises OSError.

    In Google's storage it has the generation, because checksums have 32 bits only. Elsewhere it is the checksum.
    """
    with storage_errors(path):
        if not path.startswith("gs://"):
            return str(FileSystems.checksum(path))
        blob = _blob(path)
        blob.reload()
        return f"{blob.generation}-{blob.crc32c}"


def content_digest(path: str) -> str:
    """A digest of a file's content, equal for all copies. Raises OSError.

    It is the SHA-256 of a local file, and size and MD5 in Google's storage. An object that was composed of others has
    no MD5. Then the digest is its version, which a copy does not share.
    """
    if not is_remote(path):
        with open(path, "rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest()
    if not path.startswith("gs://"):
        return content_version(path)
    with storage_errors(path):
        blob = _blob(path)
        blob.reload()
        return f"{blob.size}-{blob.md5_hash}" if blob.md5_hash else f"{blob.generation}-{blob.crc32c}"


def file_version(path: str) -> str:
    """A text that changes whenever a file is written or replaced. It is cheap. Raises OSError."""
    if is_remote(path):
        return content_version(path)
    status = os.stat(path)
    return f"{status.st_dev}-{status.st_ino}-{status.st_size}-{status.st_mtime_ns}-{status.st_ctime_ns}"


def _blob(path: str) -> Any:
    """An object of Google's storage, with the credentials that Beam uses."""
    from apache_beam.io.gcp.gcsio import GcsIO, parse_gcs_path

    bucket, name = parse_gcs_path(path)
    return GcsIO(pipeline_options=FileSystems._pipeline_options).client.bucket(bucket).blob(name)


def content_type(path: str) -> str:
    """The media type of a file by its name."""
    return mimetypes.guess_type(path)[0] or "application/octet-stream"


@contextmanager
def open_file(path: str) -> Iterator[BinaryIO]:
    """Opens a file for reading, without decompression. Raises OSError."""
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
    """Writes a file in one step: readers see the old or the new content, never a part. Raises OSError.

    In Google's storage it sets the media type, and tells browsers not to cache the file.
    """
    if path.startswith("gs://"):
        with storage_errors(path):
            blob = _blob(path)
            blob.cache_control = "no-cache"
            blob.upload_from_string(content, content_type=content_type(path))
        return
    target = Path(path).absolute()
    target.parent.mkdir(parents=True, exist_ok=True)
    partial = target.with_name(f".{target.name}.{uuid.uuid4().hex}")
    try:
        partial.write_bytes(content)
        partial.replace(target)
    finally:
        partial.unlink(missing_ok=True)
