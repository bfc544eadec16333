"""Where secrets come from: the operating system, a key file, or (unsafe) a seed."""

from __future__ import annotations

import os
from dataclasses import dataclass

from sfumato.schemas.errors import RequestError
from sfumato.transforms.files import read_file
from sfumato.transforms.privacy.keys import FixedSecret

MIN_SECRET_BYTES = 16


def entropy_secret() -> FixedSecret:
    """32 bytes of the operating system's entropy."""
    return FixedSecret(os.urandom(32))


def seed_secret(seed: int) -> FixedSecret:
    """A secret that anybody can guess: for tests and demonstrations only."""
    return FixedSecret(f"unsafe seed {seed}".encode())


@dataclass(frozen=True)
class FileSecret:
    """A secret that each worker reads from a file, local or gs://; the job's graph carries the path alone."""

    path: str

    def read(self) -> bytes:
        """The file's bytes. Raises RequestError where it cannot be read or holds fewer than 16 bytes."""
        try:
            secret = read_file(self.path)
        except OSError as error:
            raise RequestError(f"key_file: {self.path} cannot be read ({type(error).__name__})") from None
        if len(secret) < MIN_SECRET_BYTES:
            raise RequestError(
                f"key_file: {self.path} holds {len(secret)} bytes; a secret needs {MIN_SECRET_BYTES} or more "
                "(make one with: head -c 32 /dev/urandom > FILE)"
            )
        return secret
