"""Secrets from the operating system, a key file, Secret Manager, or (unsafe) a seed."""

from __future__ import annotations

import os
import re
import shlex
import stat
from dataclasses import dataclass
from typing import Any

from sfumato.schemas.errors import NotReadyError, RequestError, reason_of
from sfumato.transforms.files import is_remote, read_file
from sfumato.transforms.google_errors import MAX_WAIT_S, google_retry, may_pass
from sfumato.transforms.privacy.key_files import SECRET_BYTES, check_folder
from sfumato.transforms.privacy.key_strength import key_weakness
from sfumato.transforms.privacy.keys import FixedSecret

_SECRET_NAME = re.compile(r"projects/[^/\s]+/secrets/[A-Za-z0-9_-]{1,255}/versions/(?P<version>[^/\s]+)")


def entropy_secret() -> FixedSecret:
    """Returns 32 bytes of the operating system's entropy."""
    return FixedSecret(os.urandom(SECRET_BYTES))


def seed_secret(seed: int) -> FixedSecret:
    """Returns a secret that anybody can guess, for tests and demonstrations only."""
    return FixedSecret(f"unsafe seed {seed}".encode())


@dataclass(frozen=True)
class FileSecret:
    """A secret that each worker reads from a file, local or gs://. The job's graph holds the path only."""

    path: str

    def read(self) -> bytes:
        """Returns the file's bytes. Raises RequestError if it cannot be read or holds a weak key (see key_weakness)."""
        try:
            secret = read_file(self.path)
        except OSError as error:
            remedy = "name the key's file, and run as the user who owns it"
            if isinstance(error, FileNotFoundError):
                remedy = "name the key's file, or restore it from its copy (before the first run: sfumato key new FILE)"
            raise RequestError(f"key_file: {self.path} cannot be read ({reason_of(error)}); {remedy}") from None
        if weakness := key_weakness(secret):
            raise RequestError(f"key_file: {self.path} {weakness}; make a key with: sfumato key new FILE")
        return secret

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
                f"key_file: others than the owner may use {self.path} (mode {mode:04o}), and with it remove the noise; "
                f"run: chmod 600 {shlex.quote(self.path)} (or, if somebody may have read it, make another one: "
                "sfumato key new FILE)"
            )
        check_folder(self.path)


@dataclass(frozen=True)
class SecretManagerSecret:
    """A secret that each worker reads from Google's Secret Manager. The job's graph holds the name only.

    Attributes:
        name: `projects/P/secrets/S/versions/N` with a number N. The version `latest` is refused, because its secret may
            change between two retries or two workers.
    """

    name: str

    def __post_init__(self) -> None:
        found = _SECRET_NAME.fullmatch(self.name)
        if not found:
            raise RequestError(f"key_secret: must be projects/P/secrets/S/versions/N, got {self.name!r}")
        if not re.fullmatch(r"[1-9][0-9]*", found["version"]):
            raise RequestError(
                f"key_secret: the version must be a number, got {found['version']!r}, which may stand for another key "
                "when a job is tried again, or for its other workers"
            )

    def read(self) -> bytes:
        """Returns the secret's bytes.

        Raises:
            RequestError: the secret does not exist, may not be read, or is a weak key (see key_weakness).
            NotReadyError: Secret Manager cannot be reached now.
        """
        try:
            from google.api_core.exceptions import Forbidden, GoogleAPIError, NotFound
            from google.auth.exceptions import GoogleAuthError
            from google.cloud.secretmanager import SecretManagerServiceClient
        except ImportError:
            raise RequestError(
                "key_secret: Secret Manager needs Google's client; install it with: pip install 'sfumato[gcp]'"
            ) from None
        try:
            client = _connect(SecretManagerServiceClient)
            answer = client.access_secret_version(name=self.name, timeout=MAX_WAIT_S, retry=google_retry())
        except NotFound:
            raise RequestError(f"key_secret: there is no {self.name}") from None
        except Forbidden:
            raise RequestError(
                f"key_secret: {self.name} may not be read; give the account that runs the job, and its workers', the "
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
            raise RequestError(f"key_secret: {self.name} cannot be read ({kind}); is it enabled?") from None
        secret = bytes(answer.payload.data)
        if weakness := key_weakness(secret):
            raise RequestError(
                f"key_secret: {self.name} {weakness}; make a key with: sfumato key new FILE, and add it as a version: "
                "gcloud secrets versions add NAME --data-file=FILE"
            )
        return secret


def _connect(client: Any) -> Any:
    return client(transport="rest")  # gRPC's threads do not survive a fork of the process
