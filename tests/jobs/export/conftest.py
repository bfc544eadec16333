"""Small releases of every job that has a map, and one of words, as folders."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import shapely
from matplotlib.backends.backend_agg import FigureCanvasAgg

from sfumato.pipelines.cli import main
from sfumato.transforms.export.export_source import ExportSource
from sfumato.transforms.release.metadata import parquet_bytes
from sfumato.transforms.release.published_release import Release, open_release
from sfumato.transforms.release.release_folder import publish
from tests.attacks.city import make_city
from tests.once import made_once
from tests.unit.release.city import city_release

CITY_REGION = ["--region", "-122.51,37.70,-122.35,37.82"]
KINDS = ["heatmap", "flat", "rates", "hotspots", "histogram", "central", "words", "moments", "ranges", "changes",
         "zones", "flows", "empty"]  # fmt: skip
MAPS = [kind for kind in KINDS if kind not in ("words", "empty")]
RASTERS = [kind for kind in MAPS if kind not in ("zones", "flows")]
LICENCE = "CC-BY-4.0"


@pytest.fixture(scope="session")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Releases by kind: a posterior heatmap with totals, one without, and one of each other job."""
    folder = made_once(tmp_path_factory, "exported", publish_all)
    return {kind: folder / kind for kind in KINDS}


def publish_all(folder: Path) -> None:
    """Makes these releases."""
    publish(str(folder / "heatmap"), city_release("adaptive", depth=7, users=20_000).files, "made-up", False)
    publish(str(folder / "flat"), city_release("flat", depth=4).files, "made-up", False)
    make_city(folder, 1500)
    (folder / "zones.geojson").write_text(json.dumps(tracts()))
    logs = ["--input", str(folder / "logs" / "*.parquet"), "--key_file", str(folder / "key")]
    small = ["--depth", "5", "--epsilon", "4", "--shard_size", "300"]
    runs = {
        "rates": ["heatmap", *logs, *CITY_REGION, *small, "--auxiliary", "kind", "--categories", "k0,k1,k2,k3,k4"],
        "monday": ["heatmap", *logs, *CITY_REGION, *small],
        "tuesday": ["heatmap", *logs, *CITY_REGION, *small],
        "hotspots": ["hotspots", *logs, *CITY_REGION, "--depth", "6", "--levels", "3", "--epsilon", "4", "--delta",
                     "1e-3"],
        "histogram": ["histogram", *logs, *CITY_REGION, "--cells", "4", "--epsilon", "4", "--delta", "1e-3"],
        "empty": ["histogram", *logs, *CITY_REGION, "--cells", "4", "--epsilon", "0.5"],
        "central": ["histogram", *logs, *CITY_REGION, "--cells", "4", "--trust", "central"],
        "words": ["histogram", *logs, "--column", "kind"],
        "moments": ["moments", *logs, *CITY_REGION, "--column", "latitude", "--bits", "8", "--epsilon", "4", "--cells",
                    "2"],
        "zones": ["zones", *logs, "--zones", str(folder / "zones.geojson"), "--id_column", "tract"],
        "ranges": ["ranges", "build", *logs, *CITY_REGION, "--method", "grid", "--epsilon", "8", "--sizes", "500,2000"],
    }  # fmt: skip
    for name, arguments in runs.items():
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(FigureCanvasAgg, "draw", FigureCanvasAgg.get_renderer)  # nobody looks at the pictures
            assert main([*arguments, "--release_id", name, "--output", str(folder / name)]) == 0, name
    assert main(["changes", str(folder / "monday"), str(folder / "tuesday"), "--output", str(folder / "changes")]) == 0
    publish(str(folder / "flows"), flow_files(folder / "words"), "flows", False)
    for kind in MAPS:
        table = next(
            name for name in ("cells", "zones", "flows", "changes", "model") if list((folder / kind).glob(f"{name}.*"))
        )
        assert table == "model" or pq.read_metadata(folder / kind / f"{table}.parquet").num_rows > 1, kind


@pytest.fixture(scope="session")
def sources(folders: dict[str, Path]) -> dict[str, ExportSource]:
    """What to export, by kind."""
    return {kind: ExportSource(open_release(path, changes=True), LICENCE) for kind, path in folders.items()}


@pytest.fixture(scope="session")
def heatmap(sources: dict[str, ExportSource]) -> Release:
    """A posterior heatmap of 7 levels with totals."""
    return sources["heatmap"].release


def tracts() -> dict[str, Any]:
    """Sixteen zones over the city, one of them with a hole."""
    features = []
    for number in range(16):
        west, south = -122.51 + 0.04 * (number % 4), 37.70 + 0.03 * (number // 4)
        shape = shapely.box(west, south, west + 0.04, south + 0.03)
        shape = shape - shapely.box(west + 0.01, south + 0.01, west + 0.02, south + 0.02) if number == 5 else shape
        geometry = shapely.geometry.mapping(shape)
        features.append({"type": "Feature", "properties": {"tract": f"t{number}"}, "geometry": geometry})
    return {"type": "FeatureCollection", "features": features}


def flow_files(other: Path) -> dict[str, bytes]:
    """A release of trips: lines from place to place, and points where both are the same."""
    lines = shapely.linestrings([[[-122.5, 37.71], [-122.4, 37.8]], [[-122.4, 37.8], [-122.5, 37.71]]])
    shapes = [*lines, shapely.Point(-122.4, 37.8)]
    table = {"origin_cell": ["r0", "r3", "r3"], "trips": [50.5, 20.25, -1.0], "low": [40.0, 15.0, 0.0]}
    flows = pa.table({**table, "is_rest": [False, False, True], "geometry": shapely.to_wkb(shapes)})
    manifest = {**json.loads((other / "manifest.json").read_text()), "job": "flows", "release_id": "flows"}
    return {"flows.parquet": parquet_bytes(flows), "manifest.json": json.dumps(manifest).encode()}
