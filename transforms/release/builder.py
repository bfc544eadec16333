"""The files of a release, made of its tables and its manifest: one function for the releases of all jobs. Pure."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import pyarrow as pa

from sfumato.schemas.release import MANIFEST_FILE
from sfumato.schemas.views import PageView
from sfumato.transforms.release.metadata import manifest_bytes, parquet_bytes
from sfumato.transforms.report.pages import page_files


def build_release(
    parts: Mapping[str, pa.Table | bytes],
    manifest: Mapping[str, Any],
    view: Callable[[Mapping[str, bytes]], PageView],
) -> dict[str, bytes]:
    """Returns a release's files by name, with the page and pictures that follow from the others; the manifest is last.

    Args:
        parts: the published tables and other files by name, the geography among them.
        manifest: of the release.
        view: makes the page of the other files.
    """
    files = {name: parquet_bytes(part) if isinstance(part, pa.Table) else part for name, part in parts.items()}
    files[MANIFEST_FILE] = manifest_bytes(manifest)
    return {**page_files(view(files)), **files}
