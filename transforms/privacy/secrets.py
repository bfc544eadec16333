"""Secrets from the operating system, a key file, Secret Manager, or (unsafe) a seed; and tests that refuse weak keys.

Each test refuses random bytes with a known, small probability. For 32 random bytes, raw, in hexadecimal or in base64,
all tests together refuse with a probability below 1e-9 (see tests/attacks/test_weak_keys.py). The tests find keys that
were not drawn at random: zeros, repeated or counted bytes, words. No test can show that a key was random.
"""

from __future__ import annotations

import base64
import binascii
import itertools
import math
import os
import re
import shlex
import stat
import string
from dataclasses import dataclass
from typing import Any

from sfumato.schemas.errors import NotReadyError, RequestError, reason_of
from sfumato.transforms.io.files import is_remote, read_file
from sfumato.transforms.io.google_errors import MAX_WAIT_S, google_retry, may_pass
from sfumato.transforms.privacy.keys import FixedSecret

_SECRET_NAME = re.compile(r"projects/[^/\s]+/secrets/[A-Za-z0-9_-]{1,255}/versions/(?P<version>[^/\s]+)")
SECRET_BYTES = 32  # of a new key
MIN_SECRET_BYTES = 16
_LEVEL = 1e-10  # probability of refusing random symbols, of each of the two tests that count symbols
_PRINTABLE = frozenset(string.printable.encode())
_BASE64 = len(string.ascii_letters) + 12  # 10 digits, two signs


def entropy_secret() -> FixedSecret:
    """Returns 32 bytes of the operating system's entropy."""
    return FixedSecret(os.urandom(SECRET_BYTES), "operating system")


def seed_secret(seed: int) -> FixedSecret:
    """Returns a secret that anyone can guess, for tests and demonstrations only."""
    return FixedSecret(f"unsafe seed {seed}".encode(), "seed")


@dataclass(frozen=True)
class FileSecret:
    """A secret that each worker reads from a file, local or gs://. The job's graph holds the path only."""

    path: str
    source = "key file"

    def read(self) -> bytes:
        """Returns the file's bytes. Raises RequestError if it cannot be read or holds a weak key (see key_weakness)."""
        try:
            secret = read_file(self.path)
        except OSError as error:
            remedy = "name the key file, and run as its owner"
            if isinstance(error, FileNotFoundError):
                remedy = "name the key file, or restore it from its copy (before the first run: sfumato key new FILE)"
            raise RequestError(f"key_file: cannot read {self.path} ({reason_of(error)}); {remedy}") from None
        if weakness := key_weakness(secret):
            raise RequestError(f"key_file: {self.path} {weakness}; create a key with: sfumato key new FILE")
        return secret

    def check(self) -> None:
        """Raises RequestError if it cannot be used: see `check_private` and `read`."""
        self.check_private()
        self.read()

    def check_private(self) -> None:
        """Raises RequestError if others than the owner may read or replace a local file."""
        if is_remote(self.path):
            return
        try:
            mode = stat.S_IMODE(os.stat(self.path).st_mode)
        except OSError:
            return  # `read` raises the error
        if mode & (stat.S_IRWXG | stat.S_IRWXO):
            raise RequestError(
                f"key_file: other users can read {self.path} (mode {mode:04o}) and remove the noise; run: chmod 600 "
                f"{shlex.quote(self.path)} (if it may have been read, create a new key: sfumato key new FILE)"
            )
        check_folder(self.path)


@dataclass(frozen=True)
class SecretManagerSecret:
    """A secret that each worker reads from Google's Secret Manager. The job's graph holds the name only.

    name: `projects/P/secrets/S/versions/N` with a number N. The version `latest` is refused, because its secret may
    change between two retries or two workers.
    """

    name: str
    source = "Secret Manager"

    def __post_init__(self) -> None:
        found = _SECRET_NAME.fullmatch(self.name)
        if not found:
            raise RequestError(f"key_secret: must be projects/P/secrets/S/versions/N, got {self.name!r}")
        if not re.fullmatch(r"[1-9][0-9]*", found["version"]):
            raise RequestError(
                f"key_secret: the version must be a number, got {found['version']!r}, which may resolve to another key "
                "on a retry or on another worker"
            )

    def read(self) -> bytes:
        """Returns the secret's bytes.

        Raises RequestError if it does not exist, may not be read, or is a weak key; NotReadyError if Secret Manager
        cannot be reached now.
        """
        try:
            from google.api_core.exceptions import Forbidden, GoogleAPIError, NotFound
            from google.auth.exceptions import GoogleAuthError
            from google.cloud.secretmanager import SecretManagerServiceClient
        except ImportError:
            raise RequestError("key_secret: Secret Manager requires the extra gcp; run: pip install '.[gcp]'") from None
        try:
            client = _connect(SecretManagerServiceClient)
            answer = client.access_secret_version(name=self.name, timeout=MAX_WAIT_S, retry=google_retry())
        except NotFound:
            raise RequestError(f"key_secret: not found: {self.name}") from None
        except Forbidden:
            raise RequestError(
                f"key_secret: no permission to read {self.name}; grant the accounts of the job and its workers the "
                "role Secret Manager Secret Accessor"
            ) from None
        except (GoogleAPIError, GoogleAuthError, OSError) as error:
            kind = type(error).__name__
            if may_pass(error):
                raise NotReadyError(
                    f"key_secret: Secret Manager cannot be reached now ({kind}); try again later"
                ) from None
            if isinstance(error, GoogleAuthError):
                raise RequestError(f"key_secret: no credentials for Google Cloud ({kind})") from None
            raise RequestError(
                f"key_secret: cannot read {self.name} ({kind}); check that the version is enabled"
            ) from None
        secret = bytes(answer.payload.data)
        if weakness := key_weakness(secret):
            raise RequestError(
                f"key_secret: {self.name} {weakness}; create a key with: sfumato key new FILE, and add it as a "
                "version: gcloud secrets versions add NAME --data-file=FILE"
            )
        return secret


def _connect(client: Any) -> Any:
    return client(transport="rest")  # gRPC's threads do not survive a fork of the process


def check_folder(path: str) -> None:
    """Raises RequestError if every account of the system may replace this local file."""
    folder = os.path.dirname(os.path.realpath(path))
    try:
        mode = os.stat(folder).st_mode
    except OSError as error:
        raise RequestError(f"key_file: cannot read {folder} ({reason_of(error)}); name another folder") from None
    if mode & stat.S_IWOTH and not mode & stat.S_ISVTX:
        raise RequestError(
            f"key_file: all users can replace files in {folder}; run: chmod o-w {shlex.quote(folder)}, or keep the "
            "key elsewhere"
        )


def create_key_file(path: str) -> None:
    """Writes a new key to a new local file that only its owner may read.

    Raises RequestError if the path is not local, exists or cannot be written, or every account may replace files there.
    """
    if "://" in path:
        raise RequestError(f"FILE: must be a local path, got {path!r}; copy the key there afterwards")
    check_folder(path)
    try:
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    except FileExistsError:
        raise RequestError(f"FILE: {path} exists, and keys are never replaced; name another file") from None
    except OSError as error:
        raise RequestError(f"FILE: cannot write {path} ({error.strerror})") from None
    with os.fdopen(descriptor, "wb") as file:
        os.fchmod(descriptor, 0o600)  # independent of the process's umask
        file.write(os.urandom(SECRET_BYTES))
        file.flush()
        os.fsync(descriptor)


def key_weakness(secret: bytes) -> str | None:
    """Returns the weakness of a key file's content, ignoring white space around text; None for a good key.

    It is a phrase for an error message, which reveals the key's length at most.
    """
    if len(secret) < MIN_SECRET_BYTES:
        return f"contains {len(secret)} bytes; a secret needs at least {MIN_SECRET_BYTES}"
    symbols, alphabet, random_bytes = _symbols(secret)
    if alphabet == 0:
        return "contains text that is neither hexadecimal nor base64 of random bytes"
    if random_bytes < MIN_SECRET_BYTES:
        return f"contains text that encodes {random_bytes} bytes; a secret needs at least {MIN_SECRET_BYTES}"
    steps = bytes((after - before) % 256 for before, after in itertools.pairwise(symbols))
    for found in (symbols, steps) if alphabet == 256 else (symbols,):
        if few_distinct_probability(len(found), len(set(found)), alphabet) <= _LEVEL:
            return "is not random: it repeats a few bytes, or steps between bytes"
    return None


def few_distinct_probability(length: int, distinct: int, alphabet: int) -> float:
    """Bounds the probability that `length` random symbols have at most `distinct` different values.

    A union bound over all sets of `distinct` symbols: C(alphabet, distinct) (distinct / alphabet)^length.
    """
    if distinct >= alphabet:
        return 1.0
    return min(1.0, math.exp(math.log(math.comb(alphabet, distinct)) + length * math.log(distinct / alphabet)))


def _symbols(secret: bytes) -> tuple[bytes, int, int]:
    """Returns the symbols to test, the size of their alphabet (0 for other text), and the number of bytes encoded."""
    if not _PRINTABLE.issuperset(secret):
        return secret, 256, len(secret)
    text = secret.strip()
    try:
        decoded = bytes.fromhex(text.decode())
        return decoded, 256, len(decoded)
    except ValueError:
        pass
    body = text.rstrip(b"=")
    signs = b"-_" if set(body) & set(b"-_") else b"+/"  # of the URL-safe alphabet, or of the standard one
    try:
        decoded = base64.b64decode(body + b"=" * (-len(body) % 4), altchars=signs, validate=True)
    except binascii.Error:
        return b"", 0, 0
    if body.islower() or body.isupper():  # ordinary text; base64 of random bytes has both cases
        return b"", 0, 0
    return body[: len(decoded) * 4 // 3], _BASE64, len(decoded)
