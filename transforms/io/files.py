"""Files, local or in a bucket, read and written whole. Local ones need no Beam, which takes seconds to import."""

from __future__ import annotations

import fcntl
import hashlib
import mimetypes
import os
import tempfile
import uuid
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO

from sfumato.schemas.errors import RequestError, did_you_mean, reason_of

if TYPE_CHECKING:
    from types import ModuleType

_PARTIAL = "sfumato-partial-"  # part of the name of a file that is being written


def is_remote(path: str) -> bool:
    """Returns whether a path names something that only Beam's file systems reach."""
    return "://" in path


def join(folder: str, *names: str) -> str:
    """Returns a path below a folder, local or in a bucket."""
    if not is_remote(folder):
        return os.path.join(folder, *names)
    return "/".join([folder.rstrip("/"), *(name.strip("/") for name in names)])


def _storage() -> ModuleType:
    from sfumato.transforms.io import storage

    return storage


def content_digest(path: str) -> str:
    """Returns a digest of a file's content, equal for all copies: SHA-256 of a local file, else `object_digest`.

    Raises OSError.
    """
    if is_remote(path):
        digest: str = _storage().object_digest(path)
        return digest
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def file_version(path: str) -> str:
    """Returns a cheap change token of a file: it differs after every write or replacement. Raises OSError."""
    if is_remote(path):
        version: str = _storage().content_version(path)
        return version
    found = os.stat(path)
    return f"{found.st_dev}-{found.st_ino}-{found.st_size}-{found.st_mtime_ns}-{found.st_ctime_ns}"


def content_type(path: str) -> str:
    """Returns the media type of a file by its name."""
    return mimetypes.guess_type(path)[0] or "application/octet-stream"


@contextmanager
def open_file(path: str, version: str | None = None, size: int | None = None) -> Iterator[BinaryIO]:
    """Opens a file for reading, without decompression. Raises OSError.

    version, size: those of a file in a bucket, if they are known; see `open_object`.
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
    """Returns a file's bytes. Raises OSError."""
    with open_file(path) as file:
        return bytes(file.read())


def read_lines(option: str, path: str) -> tuple[str, ...]:
    """Returns the lines of a file that an option names, without spaces around them and without empty ones.

    Raises RequestError, which names the option, if the file cannot be read.
    """
    try:
        text = read_option(option, path).decode()
    except UnicodeDecodeError as error:
        raise RequestError(f"{option}: {path} cannot be read ({reason_of(error)})") from None
    return tuple(line.strip() for line in text.splitlines() if line.strip())


def near_file(path: str) -> str:
    """Returns `; did you mean NAME?` with the name in a missing local file's folder that is nearest to its name.

    Empty if no name is near, the file exists, or it is in a bucket.
    """
    folder, name = os.path.split(path)
    folder = folder or "."
    if is_remote(path) or os.path.exists(path) or not os.path.isdir(folder):
        return ""
    parts = (".shx", ".dbf", ".prj", ".cpg")  # of a shapefile, whose .shp is named
    return did_you_mean(name, [other for other in os.listdir(folder) if not other.lower().endswith(parts)])


def check_creatable(output: str) -> None:
    """Raises RequestError if `output`, a local path, lies in a folder that cannot be made or written to."""
    if is_remote(output):
        return
    place = Path(output).absolute()
    nearest = next(parent for parent in place.parents if parent.exists())
    try:
        if not (nearest.is_dir() and os.access(nearest, os.W_OK | os.X_OK)):
            raise PermissionError
        if not os.statvfs(nearest).f_blocks:  # such as /proc, which says that it can be written to
            os.rmdir(tempfile.mkdtemp(prefix=".sfumato-", dir=nearest))
    except OSError:
        raise RequestError(f"output: cannot create {place}: {nearest} is not a writable folder") from None


def check_new_file(output: str, overwrite: bool) -> None:
    """Raises RequestError if the option `output` names no file, or one that must not be replaced."""
    if not os.path.basename(output) or (not is_remote(output) and Path(output).is_dir()):
        raise RequestError(f"output: must name a file, got {output!r}")
    check_creatable(output)
    if overwrite:
        return
    try:
        file_version(output)
    except OSError:
        return
    raise RequestError(f"output: {output} already exists; name another, or add --overwrite")


def read_option(option: str, path: str) -> bytes:
    """Returns the bytes of the file that an option names. Raises RequestError if it cannot be read."""
    try:
        return read_file(path)
    except OSError as error:
        raise RequestError(f"{option}: {path} cannot be read ({error.strerror or error})") from None


def write_output(output: str, content: bytes) -> None:
    """Writes the file that the option `output` names, in one step. Raises RequestError if it cannot be written."""
    try:
        write_file(output, content)
    except OSError as error:
        raise RequestError(f"output: cannot write {output} ({error.strerror or error})") from None


def write_file(path: str, content: bytes) -> None:
    """Writes a file in one step: readers see the old content or the new, never a part, even if the machine loses power.

    What a killed process left of such a file in the same folder is removed. In Google's storage the file gets a content
    type that browsers show, and a header that stops them from caching an old version. Raises OSError.
    """
    if path.startswith("gs://"):
        _storage().write_object(path, content, content_type(path))
        return
    place = Path(path).absolute()
    with naming_file(path):
        place.parent.mkdir(parents=True, exist_ok=True)
        remove_partial_files(str(place.parent))
        while not _replace(place, content):
            pass


@contextmanager
def naming_file(path: str) -> Iterator[None]:
    """Names a file in the OSErrors of a block that writes it.

    The error of a full disk names no file, and others name a temporary one.
    """
    try:
        yield
    except OSError as error:
        if error.errno is None:  # a library's
            raise
        raise OSError(error.errno, error.strerror, path) from error


def sync_folder(folder: Path) -> None:
    """Returns once the disk holds the names of a folder's files. Raises OSError."""
    try:
        opened = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    except PermissionError:  # a folder that this user may not read is not one that they made
        return
    try:
        os.fsync(opened)
    finally:
        os.close(opened)


def _replace(place: Path, content: bytes) -> bool:
    """Writes a file under a temporary name and renames it; False if another process took it for a leftover."""
    partial = place.with_name(f".{place.name}.{_PARTIAL}{uuid.uuid4().hex}")
    try:
        with partial.open("xb") as file:
            with suppress(OSError):  # some network storages have no locks
                fcntl.flock(file, fcntl.LOCK_EX)  # it ends with the process, however that ends
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
            try:
                partial.replace(place)
            except FileNotFoundError:  # removed before it was locked
                return False
    finally:
        partial.unlink(missing_ok=True)
    return True


def remove_partial_files(folder: str) -> None:
    """Removes what killed processes left of `write_file` in a folder: the temporary files that no process locks.

    A bucket has none.
    """
    if is_remote(folder):
        return
    for path in Path(folder).glob(f".*.{_PARTIAL}*"):
        with suppress(OSError), path.open("rb") as file:  # it is gone, or its process is alive
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            path.unlink()
