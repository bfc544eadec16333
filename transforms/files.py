"""Files, local or in a bucket, read and written whole. Local ones need no Beam, which takes seconds to import."""

from __future__ import annotations

import hashlib
import mimetypes
import os
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO

from sfumato.schemas.errors import RequestError

if TYPE_CHECKING:
    from types import ModuleType


def is_remote(path: str) -> bool:
    """Whether a path names something that only Beam's file systems reach."""
    return "://" in path


def join(folder: str, *names: str) -> str:
    """A path below a folder, local or in a bucket."""
    if not is_remote(folder):
        return os.path.join(folder, *names)
    return "/".join([folder.rstrip("/"), *(name.strip("/") for name in names)])


def _storage() -> ModuleType:
    from sfumato.transforms import storage

    return storage


def content_digest(path: str) -> str:
    """A digest of a file's content, equal for all copies: SHA-256 of a local file, else `object_digest`.

    Raises OSError.
    """
    if is_remote(path):
        digest: str = _storage().object_digest(path)
        return digest
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def file_version(path: str) -> str:
    """What changes whenever somebody writes or replaces a file; cheap, so it can be asked often. Raises OSError."""
    if is_remote(path):
        version: str = _storage().content_version(path)
        return version
    found = os.stat(path)
    return f"{found.st_dev}-{found.st_ino}-{found.st_size}-{found.st_mtime_ns}-{found.st_ctime_ns}"


def content_type(path: str) -> str:
    """The media type of a file by its name."""
    return mimetypes.guess_type(path)[0] or "application/octet-stream"


@contextmanager
def open_file(path: str, version: str | None = None, size: int | None = None) -> Iterator[BinaryIO]:
    """Opens a file for reading, without decompression. Raises OSError.

    version, size: of a file in a storage, if they are known; see `open_object`.
    """
    if is_remote(path):
        with _storage().open_object(path, version, size) as file:
            yield file
        return
    try:
        local = open(path, "rb")  # noqa: SIM115  (closed below)
    except ValueError as error:  # a name that no file can have
        raise OSError(f"{path!r}: {error}") from error
    with local:
        yield local


def read_file(path: str) -> bytes:
    """A file's bytes. Raises OSError."""
    with open_file(path) as file:
        return bytes(file.read())


def read_lines(option: str, path: str) -> tuple[str, ...]:
    """The lines of a file that an option names, without spaces around them and without empty ones.

    Raises:
        RequestError: the file cannot be read; the message names the option.
    """
    try:
        text = read_file(path).decode()
    except (OSError, UnicodeDecodeError) as error:
        raise RequestError(f"{option}: {path} cannot be read ({type(error).__name__})") from None
    return tuple(line.strip() for line in text.splitlines() if line.strip())


def write_file(path: str, content: bytes) -> None:
    """Writes a file in one step: readers see the old content or the new, never a part. Raises OSError.

    In Google's storage with the type that browsers show, and so that they do not keep yesterday's.
    """
    if path.startswith("gs://"):
        _storage().write_object(path, content, content_type(path))
        return
    place = Path(path).absolute()
    place.parent.mkdir(parents=True, exist_ok=True)
    partial = place.with_name(f".{place.name}.{uuid.uuid4().hex}")
    try:
        partial.write_bytes(content)
        partial.replace(place)
    finally:
        partial.unlink(missing_ok=True)
