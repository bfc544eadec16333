"""A STAC item of a release: its place, period, files with checksums, and guarantee, for a catalogue of data."""

from __future__ import annotations

import os

from sfumato.transforms.export.export_format import ExportFormat
from sfumato.transforms.export.export_source import RELEASE, ExportSource
from sfumato.transforms.files import is_remote
from sfumato.transforms.release.stac_item import stac_bytes, stac_item


def write_stac(source: ExportSource) -> dict[str, bytes]:
    """The item's bytes. Its assets name the release's files by absolute paths, or by those of a bucket."""
    release = source.release
    folder = release.path if is_remote(release.path) else os.path.abspath(release.path)
    return {"": stac_bytes(stac_item(release, folder, source.licence))}


FORMAT = ExportFormat(
    "stac",
    "an item of a SpatioTemporal Asset Catalog, which names the release's files with their checksums",
    (".stac.json",),
    "application/geo+json",
    RELEASE,
    "pystac, STAC browsers, QGIS",
    "the item's properties `sfumato:...`",
    write_stac,
)
