"""New key files, and the folders that may hold them. Local files alone, so that no library of Beam's is needed."""

from __future__ import annotations

import os
import shlex
import stat

from sfumato.schemas.errors import RequestError, reason_of

SECRET_BYTES = 32  # of a new key


def check_folder(path: str) -> None:
    """Raises RequestError if everybody may replace this local file."""
    folder = os.path.dirname(os.path.realpath(path))
    try:
        mode = os.stat(folder).st_mode
    except OSError as error:
        raise RequestError(f"key_file: {folder} cannot be read ({reason_of(error)}); name another folder") from None
    if mode & stat.S_IWOTH and not mode & stat.S_ISVTX:
        raise RequestError(
            f"key_file: everybody may replace files in {folder}; run: chmod o-w {shlex.quote(folder)}, or keep the "
            "key elsewhere"
        )


def create_key_file(path: str) -> None:
    """Writes a new key to a new local file that only its owner may read.

    Args:
        path: of the file. An existing file is never overwritten.

    Raises:
        RequestError: the path is not local, exists or cannot be written, or everybody may replace files in its folder.
    """
    if "://" in path:
        raise RequestError(f"FILE: must be a local path, got {path!r}; copy the key there afterwards")
    check_folder(path)
    try:
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    except FileExistsError:
        raise RequestError(
            f"FILE: {path} exists, and a key that was used is never replaced; name another file"
        ) from None
    except OSError as error:
        raise RequestError(f"FILE: {path} cannot be written ({error.strerror})") from None
    with os.fdopen(descriptor, "wb") as file:
        os.fchmod(descriptor, 0o600)  # independent of the process's umask
        file.write(os.urandom(SECRET_BYTES))
        file.flush()
        os.fsync(descriptor)
