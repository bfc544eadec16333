"""A release's identity and origin, known before any data is read, and the manifest made from it. Pure."""

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
import pyarrow.csv
import pyarrow.parquet as pq

from sfumato.schemas.release import BASEMAP_FILE, INDEX_FIELDS, MANIFEST_FORMAT

_SOURCES = ("schemas", "transforms", "pipelines")
# Packages that draw noise, or decide what it is added to.
_DRAWING = ("apache-beam", "cryptography", "numpy", "pandas", "pyarrow", "scipy")
_CELL_IDS = frozenset({"cell_id", *(field.name for field in INDEX_FIELDS)})
_PACKAGES = ("sfumato", "apache-beam", "numpy", "pyarrow", "scipy")
LATE_FILES = "Files that arrive after the charge are not part of this release."
UNSAFE = "The key came from a seed that anyone can guess: this release protects nobody."


@dataclass(frozen=True)
class ReleaseMetadata:
    """Identity and origin of a release. Nothing here depends on the content of the input files.

    Attributes:
        job: the command that made it.
        release_id: its name.
        created: ISO 8601 time.
        randomness: source of the secret.
        safe: whether nobody can guess the secret.
        parameters: every option of the request.
        ledger: the ledger's entry that charged the release; None without a ledger or before the charge.
        published_manifest_digest: SHA-256 of the manifest that was published under this id before, if any.
        ledger_location: the ledger that the run charges; None without one.
        timeline: relative address of the page of all releases; None where the release is on none.
        geography: the content of `basemap.json`; None without geography. No key is bound to it.
        corrects: id of the release that this one replaces, because logs arrived after it was charged.
        title: of the page, as the operator wrote it.
        times: how times without a zone were read; None if there can be none, or no option selects records by time.
        code: SHA-256 of the code that the run was started with, see `code_digest`; None if it is not stated.
    """

    job: str
    release_id: str
    created: str
    randomness: str
    safe: bool
    parameters: Mapping[str, Any]
    ledger: Mapping[str, Any] | None = None
    published_manifest_digest: str | None = None
    ledger_location: str | None = None
    timeline: str | None = None
    geography: bytes | None = None
    corrects: str | None = None
    title: str | None = None
    times: str | None = None
    code: str | None = None

    @property
    def geography_files(self) -> dict[str, bytes]:
        """Returns the release's file of geography by name; none without geography."""
        return {} if self.geography is None else {BASEMAP_FILE: self.geography}

    @property
    def provenance(self) -> dict[str, Any]:
        """Returns the manifest's entries about the code: versions of packages, and its digest if it is known."""
        return {"versions": package_versions(), **({} if self.code is None else {"code": self.code})}

    @property
    def source(self) -> dict[str, Any]:
        """Returns the manifest's entry `randomness`."""
        return {"source": self.randomness, "safe": self.safe}


def release_manifest(metadata: ReleaseMetadata, content: Mapping[str, Any], warnings: list[str]) -> dict[str, Any]:
    """Returns a release's manifest: identity, the job's own content, parameters, versions and warnings."""
    return {
        "format": MANIFEST_FORMAT,
        "release_id": metadata.release_id,
        "job": metadata.job,
        "created": metadata.created,
        **({} if metadata.title is None else {"title": metadata.title}),
        **({} if metadata.times is None else {"times": metadata.times}),
        **content,
        **({} if metadata.timeline is None else {"timeline": metadata.timeline}),
        **({} if metadata.ledger is None else {"ledger": dict(metadata.ledger), "late_files": LATE_FILES}),
        **({} if metadata.corrects is None else {"corrects": metadata.corrects}),
        "parameters": dict(metadata.parameters),
        **metadata.provenance,
        "warnings": warnings if metadata.safe else [UNSAFE, *warnings],
    }


_version = cache(version)


def package_versions() -> dict[str, str]:
    """Returns the versions of Python and of the packages that results depend on."""
    return {"python": platform.python_version(), **{name: _version(name) for name in _PACKAGES}}


@cache
def code_digest() -> str:
    """Returns the SHA-256 of the running code, in hexadecimal: sfumato's sources and the versions of packages that draw
    noise.

    A run's key is bound to it (`key_binding` in `pipelines/frame/run_key.py`). It does not depend on the machine or on
    where sfumato is installed.
    """
    root = Path(__file__).resolve().parents[2]  # .../sfumato/transforms/release/metadata.py
    found = hashlib.sha256(f"python {sys.version_info[0]}.{sys.version_info[1]}".encode())
    for name in _DRAWING:
        found.update(f"\0{name} {_version(name)}".encode())
    walks = [walk for folder in _SOURCES for walk in os.walk(root / folder)]
    paths = [os.path.join(folder, name) for folder, _, names in walks for name in names if name.endswith(".py")]
    for path in sorted(paths):
        with open(path, "rb") as file:
            content = hashlib.sha256(file.read()).hexdigest()
        found.update(f"\0{path[len(str(root)) + 1 :]} {content}".encode())
    return found.hexdigest()


def parquet_bytes(table: pa.Table) -> bytes:
    """Returns a table as a Parquet file."""
    file = io.BytesIO()
    ids = [name for name in table.column_names if name in _CELL_IDS]
    # Neighbouring rows' ids begin alike, and no id comes twice: shared prefixes take half the bytes of a dictionary.
    others = [name for name in table.column_names if name not in ids]
    encoding = dict.fromkeys(ids, "DELTA_BYTE_ARRAY")
    pq.write_table(table, file, compression="zstd", use_dictionary=others, column_encoding=encoding or None)
    return file.getvalue()


def csv_bytes(table: pa.Table) -> bytes:
    """Returns a table as CSV with a line of names."""
    file = io.BytesIO()
    pyarrow.csv.write_csv(table, file)
    return file.getvalue()


def manifest_bytes(manifest: Mapping[str, Any]) -> bytes:
    """Returns the manifest as a JSON file."""
    return (json.dumps(manifest, indent=2, allow_nan=False) + "\n").encode()
