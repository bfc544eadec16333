"""Releases on disk whose manifests list digests: changed as if they had been published so, and compared."""

from __future__ import annotations

import json
from pathlib import Path

from sfumato.transforms.release.release_folder import with_digests

_DATED = ("manifest.json", "index.html")


def seal_again(release: Path) -> None:
    """Lists the files of a release as they are now, as if they had been published so."""
    files = {path.name: path.read_bytes() for path in release.iterdir()}
    (release / "manifest.json").write_bytes(with_digests(files)["manifest.json"])


def undated(release: Path) -> dict[str, bytes]:
    """A release's files without the time at which it was made, and without the digest of its page, which states it."""
    found = {path.name: path.read_bytes() for path in release.iterdir()}
    manifest = json.loads(found["manifest.json"])
    del manifest["files"]["index.html"]
    found["manifest.json"] = json.dumps(manifest, indent=2).encode()
    created = manifest["created"].encode()
    return {name: data.replace(created, b"") if name in _DATED else data for name, data in found.items()}
