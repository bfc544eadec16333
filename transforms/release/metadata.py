"""What a job's launcher knows of a release before any data is read, and the manifest's part that comes of it. Pure."""

from __future__ import annotations

import hashlib
import io
import json
import os
import platform
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from importlib.metadata import version
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from sfumato.schemas.release import MANIFEST_FORMAT

_SOURCES = ("schemas", "transforms", "pipelines")
# What draws noise, or decides what it is added to.
_DRAWING = ("apache-beam", "cryptography", "numpy", "pandas", "pyarrow", "scipy")
_PACKAGES = ("sfumato", "apache-beam", "numpy", "pyarrow", "scipy")
UNSAFE = "The key came from a seed that anybody can guess: this release protects nobody."


@dataclass(frozen=True)
class ReleaseMetadata:
    """Identity and origin of a release: nothing here depends on what the input files hold.

    job: the command that made it. created: ISO 8601 time. randomness: where the secret came from; safe: nobody can
    guess it. parameters: every option of the request. ledger: the entry that charged it, where there is a ledger.
    published: the SHA-256 of the manifest that was published under this id before, if one was. ledger_location: the
    ledger that a run charges, which knows both once it has.
    """

    job: str
    release_id: str
    created: str
    randomness: str
    safe: bool
    parameters: Mapping[str, Any]
    ledger: Mapping[str, Any] | None = None
    published: str | None = None
    ledger_location: str | None = None

    @property
    def source(self) -> dict[str, Any]:
        """The manifest's entry on where the randomness came from."""
        return {"source": self.randomness, "safe": self.safe}


def release_manifest(metadata: ReleaseMetadata, content: Mapping[str, Any], warnings: list[str]) -> dict[str, Any]:
    """A release's manifest: identity, then the job's own content, then parameters, versions and warnings."""
    return {
        "format": MANIFEST_FORMAT,
        "release_id": metadata.release_id,
        "job": metadata.job,
        "created": metadata.created,
        **content,
        **({} if metadata.ledger is None else {"ledger": dict(metadata.ledger)}),
        "parameters": dict(metadata.parameters),
        "versions": package_versions(),
        "warnings": warnings if metadata.safe else [UNSAFE, *warnings],
    }


def package_versions() -> dict[str, str]:
    """Versions of Python and of the packages on which results depend."""
    return {"python": platform.python_version(), **{name: version(name) for name in _PACKAGES}}


@cache
def code_digest() -> str:
    """The SHA-256 of the code that runs: sfumato's own sources, and the versions of what draws noise.

    A run's key is bound to it, since other code under the same key might add the same noise to other numbers.

    Returns:
        64 hexadecimal digits, the same on every machine and for every place of installation.
    """
    root = Path(__file__).resolve().parents[2]  # .../sfumato/transforms/release/metadata.py
    found = hashlib.sha256(f"python {sys.version_info[0]}.{sys.version_info[1]}".encode())
    for name in _DRAWING:
        found.update(f"\0{name} {version(name)}".encode())
    walks = [walk for folder in _SOURCES for walk in os.walk(root / folder)]
    paths = [os.path.join(folder, name) for folder, _, names in walks for name in names if name.endswith(".py")]
    for path in sorted(paths):
        with open(path, "rb") as file:
            content = hashlib.sha256(file.read()).hexdigest()
        found.update(f"\0{path[len(str(root)) + 1 :]} {content}".encode())
    return found.hexdigest()


def parquet_bytes(table: pa.Table) -> bytes:
    """A table as it is published."""
    file = io.BytesIO()
    pq.write_table(table, file, compression="zstd")
    return file.getvalue()


def manifest_bytes(manifest: Mapping[str, Any]) -> bytes:
    """The manifest as it is published."""
    return (json.dumps(manifest, indent=2, allow_nan=False) + "\n").encode()
