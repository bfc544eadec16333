"""A published release as an item of a SpatioTemporal Asset Catalog, and the catalog of several (STAC 1.1). Pure.

Source: the STAC specification 1.1.0 (item, catalog, common metadata) and its file extension 2.1.0.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from sfumato.schemas.guarantee import PRIVACY_UNIT
from sfumato.schemas.region import Grid, Plane
from sfumato.schemas.release import MANIFEST_FILE
from sfumato.transforms.files import content_type
from sfumato.transforms.release.published_release import Release

VERSION = "1.1.0"
FILE_EXTENSION = "https://stac-extensions.github.io/file/v2.1.0/schema.json"
MEDIA_TYPES = {
    ".parquet": "application/vnd.apache.parquet",
    ".npy": "application/octet-stream",
    ".npz": "application/octet-stream",
    ".html": "text/html",
    ".json": "application/json",
    ".png": "image/png",
}
_SHA256 = "1220"  # multihash: SHA-256, of 32 bytes
_ROLES = {".png": ["overview"], ".html": ["overview"], ".parquet": ["data"], ".npy": ["data"], ".npz": ["data"]}
_PRIVATE = ("epsilon", "delta", "trust", "contribution_bound", "adjacency")


def stac_item(
    release: Release, folder: str, licence: str | None = None, links: Sequence[Mapping[str, str]] = ()
) -> dict[str, Any]:
    """An item in JSON's types.

    Args:
        release: whose files are the item's assets.
        folder: of the release, relative to the item's file or absolute.
        licence: under which it is published; None states none.
        links: to the catalog.

    Returns:
        The item. Its time is the period of the logs, of a release that a ledger charged; otherwise the time of the run.
        The privacy guarantee is in the properties `sfumato:...`. A release without a region has no geometry.
    """
    manifest = release.manifest
    ledger, privacy = _entry(manifest, "ledger"), _entry(manifest, "privacy")
    created = str(manifest.get("created")).replace("+00:00", "Z")
    properties: dict[str, Any] = {"datetime": created}
    if "first_day" in ledger and "last_day" in ledger:
        start, end = f"{ledger['first_day']}T00:00:00Z", f"{ledger['last_day']}T23:59:59Z"
        properties = {"datetime": None, "start_datetime": start, "end_datetime": end}
    properties |= {
        "created": created,
        "title": f"sfumato {manifest.get('job')} {manifest.get('release_id')}",
        "description": release.guarantee,
        **({} if licence is None else {"license": licence}),
        "sfumato:job": manifest.get("job"),
        "sfumato:release_id": manifest.get("release_id"),
        "sfumato:privacy_unit": privacy.get("unit", PRIVACY_UNIT),
        **{f"sfumato:{name}": privacy[name] for name in _PRIVATE if privacy.get(name) is not None},
        "sfumato:licence": "not stated" if licence is None else licence,
        "sfumato:warnings": list(manifest.get("warnings") or ()),
    }
    sizes = {name: one.get("bytes") for name, one in _entry(manifest, "files").items()}
    digests = {**(release.listed or {}), MANIFEST_FILE: release.digest}
    return {
        "type": "Feature",
        "stac_version": VERSION,
        "stac_extensions": [FILE_EXTENSION],
        "id": str(manifest.get("release_id")),
        **_place(release.grid),
        "properties": properties,
        "links": [dict(link) for link in links],
        "assets": {
            name: _asset(f"{folder.rstrip('/')}/{name}", name, digests[name], sizes.get(name))
            for name in sorted(digests)
        },
    }


def stac_catalog(name: str, items: Mapping[str, str]) -> dict[str, Any]:
    """A catalog of items: titles by the path of the item's file, relative to the catalog's."""
    return {
        "type": "Catalog",
        "stac_version": VERSION,
        "id": name or "sfumato",
        "title": f"Differentially private releases of {name}" if name else "Differentially private releases",
        "description": "Location statistics with a privacy guarantee, stated by each item.",
        "links": [
            {"rel": "root", "href": "./catalog.json", "type": "application/json"},
            *(
                {"rel": "item", "href": path, "type": "application/geo+json", "title": title}
                for path, title in items.items()
            ),
        ],
    }


def stac_bytes(content: Mapping[str, Any]) -> bytes:
    """An item or a catalog as a JSON file."""
    return (json.dumps(content, indent=2, ensure_ascii=False, allow_nan=False) + "\n").encode()


def _place(grid: Grid | None) -> dict[str, Any]:
    if grid is None or isinstance(grid.region, Plane):
        return {"geometry": None}
    west, south, east, north = (getattr(grid.region, side) for side in ("west", "south", "east", "north"))
    ring = [[west, south], [east, south], [east, north], [west, north], [west, south]]
    return {"bbox": [west, south, east, north], "geometry": {"type": "Polygon", "coordinates": [ring]}}


def _asset(href: str, name: str, sha256: str, size: Any) -> dict[str, Any]:
    suffix = name[name.rfind(".") :]
    return {
        "href": href,
        "type": MEDIA_TYPES.get(suffix, content_type(name)),
        "title": name,
        "roles": _ROLES.get(suffix, ["metadata"]),
        "file:checksum": _SHA256 + sha256,
        **({"file:size": size} if isinstance(size, int) else {}),
    }


def _entry(entries: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    """The entry of a manifest that is a mapping; empty where it is missing."""
    found = entries.get(name)
    return found if isinstance(found, Mapping) else {}
