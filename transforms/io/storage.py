"""Storages that Beam's file systems reach. Every failure is an OSError that names the file, or a NotReadyError.

Beam's file systems pass on the errors of the storage's client; Google's are no OSErrors. `files` has what
reads and writes a file wherever it is.
"""

from __future__ import annotations

import logging
import os
import re
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import cache
from itertools import islice
from typing import Any, BinaryIO

from apache_beam.io.filesystem import BeamIOError, CompressionTypes, FileMetadata, FileSystem
from apache_beam.io.filesystems import FileSystems
from apache_beam.options.pipeline_options import PipelineOptions

from sfumato.schemas.errors import NotReadyError, RequestError
from sfumato.transforms.io.google_errors import google_retry, may_pass

CREDENTIALS_S = 6  # seconds to find credentials; Google's client also tries the network, repeatedly
CONNECTIONS = 64  # requests at once to a storage: each waits tens of milliseconds, and needs little of the processor
_READ_BYTES = 16 << 20  # the smallest range that is requested of an object
# Without options Beam's file systems would parse the command line themselves, and could end the process because of an
# option that is not Beam's. Pipelines and workers set their own options.
if FileSystems._pipeline_options is None:
    _handlers = list(logging.root.handlers)
    FileSystems.set_options(PipelineOptions([]))
    logging.root.handlers[:] = _handlers  # Beam's options set up logging, and the caller could no longer do so

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
            raise FileNotFoundError(f"{path}: no such file or bucket") from error
        if _FAILED and "://" in path and may_pass(cause):
            raise NotReadyError(f"{path}: cannot be reached now ({cause}); try again later") from error
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
            "no credentials for Google Cloud; run: gcloud auth application-default login, or set "
            "GOOGLE_APPLICATION_CREDENTIALS"
        )


def _cause(error: Exception) -> Exception:
    """Returns the error of a storage's client. Beam's file systems wrap it, some of them twice."""
    while isinstance(error, BeamIOError) and error.exception_details:
        error = next(iter(error.exception_details.values()))
    return error


def matching(pattern: str, limit: int | None = None) -> list[FileMetadata]:
    """Returns the files that match a pattern; none if the folder does not exist. limit: the largest number of files.

    On a disk, links to folders are followed as well, unless they lead to a place below the pattern's own folder.

    Raises NotReadyError if the storage cannot be listed now, and RequestError if it cannot be listed at all. So a
    storage that cannot be listed never looks empty.
    """
    if "://" not in pattern and "/" not in pattern:
        pattern = f"./{pattern}"  # a pattern without a folder matches nothing in Beam
    if "://" not in pattern and _folder_of(pattern) != pattern:
        return list(islice(_matching_on_disk(pattern), limit))
    try:
        with storage_errors(pattern):
            (match,) = FileSystems.match([pattern], [limit])
    except (OSError, ValueError) as error:  # ValueError: no file system for such a path
        raise RequestError(f"{pattern}: cannot be listed ({error})") from None
    return list(match.metadata_list)


def _folder_of(pattern: str) -> str:
    """Returns the part of a pattern before its first wildcard."""
    return re.sub(r"[*?[].*", "", pattern, flags=re.DOTALL)


def _matching_on_disk(pattern: str) -> Iterator[FileMetadata]:
    is_match = re.compile(FileSystem.translate_pattern(pattern)).match
    for folder, _, files in walk(os.path.dirname(_folder_of(pattern))):
        for path in filter(is_match, (os.path.join(folder, name) for name in files)):
            with suppress(OSError):  # it is gone
                found = os.stat(path)
                yield FileMetadata(path, found.st_size, found.st_mtime)


def walk(top: str) -> Iterator[tuple[str, list[str], list[str]]]:
    """Yields each folder with the names of its folders and files, see `os.walk`, in the order of their names.

    Links to folders are followed, so that no file is left out, unless they lead below `top`, where they are found
    anyway. No folder is visited twice.
    """
    root, seen = os.path.realpath(top), set[str]()
    for folder, folders, files in os.walk(top, followlinks=True):
        real = os.path.realpath(folder)
        if real in seen or (folder != top and os.path.islink(folder) and f"{real}/".startswith(f"{root}/")):
            folders.clear()
            continue
        seen.add(real)
        folders.sort()
        yield folder, folders, sorted(files)


@dataclass(frozen=True)
class StoredFile:
    """A file as a listing shows it, local or in a storage."""

    path: str
    size: int  # in bytes
    changed: float  # time of the last change, in seconds since 1970; 0 if unknown
    version: str | None = None  # see `content_version`; None where a listing does not show it
    digest: str | None = None  # see `object_digest`; None where a listing does not show it


def listed(pattern: str) -> list[StoredFile]:
    """Returns the files that match a pattern, see `matching`.

    A listing of Google's storage shows versions and digests too. So 10,000 objects need ten requests, not 20,000.
    """
    prefix = _folder_of(pattern)
    if not pattern.startswith("gs://") or prefix == pattern:
        return [
            StoredFile(one.path, one.size_in_bytes, one.last_updated_in_seconds or 0.0) for one in matching(pattern)
        ]
    from apache_beam.io.gcp.gcsio import parse_gcs_path

    is_match, found = re.compile(FileSystem.translate_pattern(pattern)).match, []
    bucket, begin = parse_gcs_path(prefix, object_optional=True)
    try:
        with storage_errors(pattern):
            fields = "items(name,size,updated,generation,crc32c,md5Hash),nextPageToken"
            for blob in _client().list_blobs(bucket, prefix=begin, fields=fields, retry=google_retry()):
                if is_match(path := f"gs://{bucket}/{blob.name}"):
                    version, digest = _version_of(blob), _digest_of(blob)
                    found.append(StoredFile(path, blob.size, blob.updated.timestamp(), version, digest))
    except (OSError, ValueError) as error:  # ValueError: no bucket has such a name
        raise RequestError(f"{pattern}: cannot be listed ({error})") from None
    return found


def content_version(path: str) -> str:
    """Returns a text that changes with every change of a file in a storage. Raises OSError.

    In Google's storage it has the generation, because checksums have 32 bits only. Elsewhere it is the checksum.
    """
    with storage_errors(path):
        return _version_of(_blob(path, described=True)) if path.startswith("gs://") else str(FileSystems.checksum(path))


def _version_of(blob: Any) -> str:
    return f"{blob.generation}-{blob.crc32c}"


def _digest_of(blob: Any) -> str:
    return f"{blob.size}-{blob.md5_hash}" if blob.md5_hash else _version_of(blob)


def _blob(path: str, generation: str | None = None, described: bool = False) -> Any:
    """Returns an object of Google's storage; described as it is now, without its content, or by its name only."""
    from apache_beam.io.gcp.gcsio import parse_gcs_path

    bucket, name = parse_gcs_path(path)
    blob = _client().bucket(bucket).blob(name, generation=generation)
    if described:
        blob.reload(retry=google_retry())
    return blob


def _client() -> Any:
    """Returns a client with the credentials that Beam uses, and with connections that threads of this process share."""
    return _shared_client(os.getpid(), os.environ.get("STORAGE_EMULATOR_HOST"), FileSystems._pipeline_options)


@cache
def _shared_client(_process: int, _emulator: str | None, options: PipelineOptions) -> Any:
    # Clients do not survive a fork, so the process is a part of the cache's key.
    from apache_beam.io.gcp.gcsio import create_storage_client
    from requests.adapters import HTTPAdapter

    client = create_storage_client(options)
    for scheme in ("https://", "http://"):
        client._http.mount(scheme, HTTPAdapter(pool_connections=4, pool_maxsize=CONNECTIONS))
    return client


def object_digest(path: str) -> str:
    """Returns a digest of a stored file's content, equal for all copies. Raises OSError.

    In Google's storage it is size and MD5. An object that was composed of others has no MD5. Then the digest is its
    version, which a copy does not share.
    """
    if not path.startswith("gs://"):
        return content_version(path)
    with storage_errors(path):
        return _digest_of(_blob(path, described=True))


@contextmanager
def open_object(path: str, version: str | None, size: int | None) -> Iterator[BinaryIO]:
    """Opens a stored file for reading, without decompression. Raises OSError.

    version: of `content_version`; Google's storage reads exactly this version. size: in bytes, if it is
    known; Google's storage is then not queried.
    """
    with storage_errors(path):
        if path.startswith("gs://"):
            from google.cloud.storage.fileio import BlobReader

            blob = _blob(path, version and version.partition("-")[0])
            if size is not None:
                blob._properties["size"] = size
            with BlobReader(blob, chunk_size=_READ_BYTES, retry=google_retry(), raw_download=True) as reader:
                yield reader
            return
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
        blob.upload_from_string(content, content_type=media_type, retry=google_retry())
