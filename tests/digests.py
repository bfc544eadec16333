"""Releases on disk: changed as if they had been published so, compared, and the numbers in their documents."""

from __future__ import annotations

import base64
import gzip
import json
import re
from datetime import datetime
from pathlib import Path

from sfumato.transforms.release.release_folder import with_digests

_DATED = ("manifest.json", "index.html")


def seal_again(release: Path) -> None:
    """Lists the files of a release as they are now, as if they had been published so."""
    files = {path.name: path.read_bytes() for path in release.iterdir()}
    (release / "manifest.json").write_bytes(with_digests(files)["manifest.json"])


def page_text(page: str) -> str:
    """What a page says: the view that it carries, unpacked, and all else but the script and the style of every page."""
    packed = re.search(r'<script type="text/plain" id="view">(.*?)</script>', page, flags=re.S)
    view = "" if packed is None else gzip.decompress(base64.b64decode(packed[1])).decode()
    return re.sub(r"<(script|style)>.*?</\1>", "", page.replace(packed[1] if packed else "", view), flags=re.S)


def undated(release: Path) -> dict[str, bytes]:
    """A release's files without the time at which it was made, and without the digest of its page, which states it."""
    found = {path.name: path.read_bytes() for path in release.iterdir()}
    manifest = json.loads(found["manifest.json"])
    del manifest["files"]["index.html"]
    found["manifest.json"] = json.dumps(manifest, indent=2).encode()
    created = manifest["created"].encode()
    made = datetime.fromisoformat(manifest["created"])
    text = page_text(found["index.html"].decode()).replace(f"{made.day} {made:%b %Y}", "")
    found["index.html"] = re.sub(r"sha256-[^']*", "", text).encode()
    return {name: data.replace(created, b"") if name in _DATED else data for name, data in found.items()}


def numbers_in(value: object) -> list[float]:
    """Lists all numbers in a JSON document."""
    if isinstance(value, dict):
        value = list(value.values())
    if isinstance(value, list):
        return [number for one in value for number in numbers_in(one)]
    return [value] if isinstance(value, int | float) else []
