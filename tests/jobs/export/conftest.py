"""Small releases of every job that has a map, and one of words, as folders."""

from __future__ import annotations

import json
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from sfumato.transforms.export.export_source import ExportSource
from sfumato.transforms.release.published_release import Release, open_release
from tests.releases import Releases

KINDS = ["heatmap", "flat", "rates", "hotspots", "histogram", "central", "words", "moments", "ranges", "changes",
         "zones", "trips", "empty"]  # fmt: skip
MAPS = [kind for kind in KINDS if kind not in ("words", "empty")]
RASTERS = [kind for kind in MAPS if kind not in ("zones", "trips")]
LICENCE = "CC-BY-4.0"


@pytest.fixture(scope="session")
def folders(published: Releases) -> dict[str, Path]:
    """Releases by kind: a posterior heatmap with totals, one without, and one of each other job."""
    found = {kind: published[kind] for kind in KINDS}
    for kind in MAPS:
        listed = json.loads((found[kind] / "manifest.json").read_text())["files"]
        (table,) = [name for name in listed if name in ("cells.parquet", "zones.parquet", "flows.parquet",
                                                        "changes.parquet", "model.npz")]  # fmt: skip
        assert table == "model.npz" or pq.read_metadata(found[kind] / table).num_rows > 1, kind
    return found


@pytest.fixture(scope="session")
def sources(folders: dict[str, Path]) -> dict[str, ExportSource]:
    """What to export, by kind."""
    return {kind: ExportSource(open_release(path, changes=True), LICENCE) for kind, path in folders.items()}


@pytest.fixture(scope="session")
def heatmap(sources: dict[str, ExportSource]) -> Release:
    """A posterior heatmap of 7 levels with totals."""
    return sources["heatmap"].release
