"""Every format of every release is opened by a library that people use, and its statement is read back."""

from __future__ import annotations

import json
import math
import os
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import geopandas
import numpy as np
import openpyxl
import pyarrow.parquet as pq
import pyogrio
import pytest
import rasterio
from pmtiles.reader import MemorySource, Reader

from sfumato.schemas.errors import RequestError
from sfumato.transforms.export.export_source import ExportSource, release_statement
from sfumato.transforms.export.formats import FORMATS, export_release, exported_files, find_format
from sfumato.transforms.release.published_release import Release
from tests.jobs.export.conftest import LICENCE, MAPS
from tests.once import made_once
from tests.rejections import rejects

# --- every format of every release is opened by a library that people use, and its statement is read back ---


def tags_of(path: Path) -> dict[str, Any]:
    with rasterio.open(path) as dataset:
        return dataset.tags()


def pmtiles_metadata(path: Path) -> dict[str, Any]:
    return json.loads(Reader(MemorySource(path.read_bytes())).metadata()["description"])


def geopackage_metadata(path: Path) -> dict[str, Any]:
    return pyogrio.read_info(path)["dataset_metadata"]


def guarantee_sheet(path: Path) -> dict[str, Any]:
    return dict(openpyxl.load_workbook(path)["Guarantee"].iter_rows(min_row=2, values_only=True))


STATEMENTS: dict[str, Callable[[Path], dict[str, Any]]] = {
    "geotiff": tags_of,
    "geojson": lambda path: json.loads(path.read_text())["sfumato"],
    "csv": lambda path: json.loads(Path(f"{path}.statement.json").read_text()),
    "xlsx": guarantee_sheet,
    "geoparquet": lambda path: json.loads(pq.read_schema(path).metadata[b"sfumato"]),
    "gpkg": geopackage_metadata,
    "pmtiles": pmtiles_metadata,
}


# A kind for each form of a release: cells with totals, squares of a model, moments, differences, polygons, lines,
# a table without shapes, no rows.
FORMS = ["heatmap", "ranges", "moments", "changes", "zones", "trips", "words", "empty"]
VECTORS = set(STATEMENTS) - {"geotiff"}
HAS = {
    "zones": VECTORS,
    "trips": VECTORS,
    "words": {"csv", "xlsx"},
    "empty": set(STATEMENTS) - {"pmtiles"},
}


@pytest.fixture(scope="session")
def exported(sources: dict[str, ExportSource], tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """The folder of each release's files, one a format that fits it."""

    def export_all(folder: Path) -> None:
        for kind in FORMS:
            source = sources[kind]
            (folder / kind).mkdir()
            for name, one in FORMATS.items():
                if one.needs in source.parts and (kind, name) != ("empty", "pmtiles"):
                    export_release(source.release, str(folder / kind / f"map{one.suffixes[0]}"), name, licence=LICENCE)

    folder = made_once(tmp_path_factory, "formats", export_all)
    return {kind: folder / kind for kind in FORMS}


@pytest.mark.parametrize("kind", FORMS)
@pytest.mark.parametrize("name", STATEMENTS)
def test_a_file_that_travels_alone_states_its_guarantee(
    name: str, kind: str, exported: dict[str, Path], sources: dict[str, ExportSource]
) -> None:
    path = exported[kind] / f"map{FORMATS[name].suffixes[0]}"
    has = HAS.get(kind, set(STATEMENTS))
    if name not in has:
        assert not path.exists()
        return
    stated = STATEMENTS[name](path)
    expected = sources[kind].statement
    assert {key: stated[key] for key in expected} == expected
    manifest = sources[kind].release.manifest
    assert stated["release_id"] == manifest["release_id"]
    assert stated["licence"] == LICENCE
    assert stated["privacy_unit"] == "user"
    sides = [manifest["before"], manifest["after"]] if kind == "changes" else [manifest["privacy"]]
    assert float(stated["epsilon"]) == pytest.approx(math.fsum(side["epsilon"] for side in sides))
    assert "No differential privacy" not in stated["guarantee"]


@pytest.mark.parametrize("kind", [kind for kind in FORMS if kind in MAPS])
def test_vectors_have_all_rows_in_other_libraries(
    kind: str, exported: dict[str, Path], sources: dict[str, ExportSource]
) -> None:
    layer = sources[kind].layer
    column = next(name for name in ("count", "users", "difference", "mean_value", "trips") if name in layer.columns)
    expected = sum(value for value in layer.table[column].to_pylist() if value is not None)
    for name, read in (
        ("map.geojson", geopandas.read_file), ("map.gpkg", geopandas.read_file), ("map.parquet", geopandas.read_parquet)
    ):  # fmt: skip
        frame = read(exported[kind] / name)
        assert len(frame) == layer.table.num_rows
        assert frame[column].sum() == pytest.approx(expected)
        assert frame.geometry.is_valid.all()
        assert frame.total_bounds == pytest.approx(layer.bounds)
        assert frame.crs.to_string() in ("EPSG:4326", "OGC:CRS84")
    assert queried(f"SELECT count(*), sum({column}) FROM '{exported[kind] / 'map.csv'}'") == [
        layer.table.num_rows, pytest.approx(expected)
    ]  # fmt: skip


@pytest.mark.parametrize("kind", ["heatmap", "trips", "empty"])
def test_geoparquet_has_shapes_of_parquets_own_type(kind: str, exported: dict[str, Path]) -> None:
    path = exported[kind] / "map.parquet"
    schema, geo = pq.read_schema(path), json.loads(pq.read_schema(path).metadata[b"geo"])
    column = pq.ParquetFile(path).schema.column(len(schema.names) - 1)
    assert json.loads(column.logical_type.to_json()) == {"Type": "Geometry"}  # without a system: OGC:CRS84
    assert (column.path, geo["version"], geo["primary_column"]) == ("geometry", "2.0.0", "geometry")
    assert queried(f"SELECT typeof(geometry) FROM (SELECT geometry FROM '{path}' UNION ALL SELECT NULL)") == [
        "GEOMETRY"
    ]
    if kind != "empty":
        frame, stated = geopandas.read_parquet(path), pq.read_metadata(path).row_group(0).column(len(schema.names) - 1)
        assert stated.geo_statistics.xmin == frame.total_bounds[0]
        assert set(frame.geometry.geom_type) == set(geo["columns"]["geometry"]["geometry_types"])


def queried(sql: str) -> list[Any]:
    """The first row of DuckDB's answer, by a process of its own: at its end DuckDB complains of objects."""
    code = f"import duckdb, json; print(json.dumps(duckdb.sql({sql!r}).fetchall()[0]))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, check=True, text=True)
    return list(json.loads(done.stdout))


def test_a_map_without_rows_has_files_without_rows_and_no_tiles(
    exported: dict[str, Path], sources: dict[str, ExportSource]
) -> None:
    assert sources["empty"].layer.table.num_rows == 0
    assert len(geopandas.read_file(exported["empty"] / "map.gpkg")) == 0
    assert json.loads((exported["empty"] / "map.geojson").read_text())["features"] == []
    with rasterio.open(exported["empty"] / "map.tif") as dataset:
        assert math.isnan(dataset.read(1).max())
    with rejects("format"):
        exported_files(sources["empty"], FORMATS["pmtiles"])


def test_a_format_is_found_by_its_name_or_the_suffix() -> None:
    assert find_format(None, "Map.TIF").name == "geotiff"
    assert find_format(None, "night.json").name == "geojson"
    assert find_format(None, "at_eight.xlsx").name == "xlsx"
    assert find_format(None, "map.parquet").name == "geoparquet"
    assert find_format("csv", "map.tif").name == "csv"
    with rejects("format"):
        find_format("geotif", "map")
    advice = {"map": ".tif, .tiff, .geojson", "map.GeoTIFF": ".tif?", "map.gpk": ".gpkg?"}
    advice |= {"map.xls": "use .xlsx", "map.shp": ".gpkg", "map.KML": ".geojson"}
    for output, suffix in advice.items():
        with pytest.raises(RequestError, match=f"^format: .*{re.escape(suffix)}"):
            find_format(None, output)


# --- what every file states, for releases of any guarantee ---


def stated(**manifest: Any) -> dict[str, str]:
    return release_statement(Release("folder", {"job": "heatmap", "release_id": "monday", **manifest}, "digest"))


def test_no_privacy_and_unsafe_keys_are_said() -> None:
    without = stated(privacy={"epsilon": None})
    assert without["epsilon"] == "none"
    assert "no differential privacy" in without["title"]
    assert without["guarantee"].startswith("No differential privacy")
    unsafe = stated(privacy={"epsilon": 1.0, "randomness": {"safe": False}}, warnings=["a seed", "and more"])
    assert unsafe["guarantee"].startswith("Protects nobody")
    assert unsafe["warnings"] == "a seed and more"


def test_a_statement_has_title_days_and_hours() -> None:
    """Of the days that were charged or read: else nobody could distinguish two files of a job."""
    ledger = {"first_day": "2026-11-20", "last_day": "2026-11-21"}
    assert stated(ledger=ledger)["period"] == "2026-11-20/2026-11-21"
    read = stated(title="Stops at eight", parameters={"days_read": "2026-11-20", "hours": "8-9"})
    assert [read[name] for name in ("title", "period", "hours")] == ["Stops at eight", "2026-11-20/2026-11-20", "8-9"]
    assert [stated()[name] for name in ("period", "hours")] == ["not stated", "not stated"]


def test_changes_cost_what_both_releases_cost() -> None:
    sides = {"before": {"release_id": "a", "epsilon": 1.0, "delta": 0.0}, "after": {"release_id": "b", "epsilon": 2.0}}
    found = stated(job="changes", privacy={"note": "Both."}, **sides)
    assert found["epsilon"] == "3"
    assert found["delta"] == "none"  # one side does not state it
    assert "a (ε = 1)" in found["guarantee"]
    assert "b (ε = 2)" in found["guarantee"]
    unknown = stated(job="changes", before={"epsilon": None}, after={"epsilon": 1.0})
    assert unknown["epsilon"] == "none"


# --- exported files in QGIS itself, without a screen, by its own Python bindings ---

PYTHON = "/usr/bin/python3"  # of the system: Debian's python3-qgis is for it
ENVIRONMENT = {**os.environ, "QT_QPA_PLATFORM": "offscreen", "PYTHONPATH": "", "XDG_RUNTIME_DIR": "/tmp"}
OPENED = """
import json, os, sys
from qgis.core import QgsApplication, QgsPointXY, QgsRasterLayer, QgsVectorLayer
QgsApplication.setPrefixPath("/usr", True)
application = QgsApplication([], False)
application.initQgis()
folder, x, y = sys.argv[1], float(sys.argv[2]), float(sys.argv[3])
found = {}
raster = QgsRasterLayer(f"{folder}/map.tif", "map")
box = raster.extent()
found["raster"] = {
    "valid": raster.isValid(), "crs": raster.crs().authid(), "bands": raster.bandCount(),
    "box": [box.xMinimum(), box.yMinimum(), box.xMaximum(), box.yMaximum()],
    "value": raster.dataProvider().sample(QgsPointXY(x, y), 2)[0], "metadata": raster.htmlMetadata(),
}
for name in ("map.geojson", "map.gpkg"):
    layer = QgsVectorLayer(f"{folder}/{name}", "map", "ogr")
    counts = [feature["count"] for feature in layer.getFeatures()]
    found[name] = {
        "valid": layer.isValid(), "crs": layer.crs().authid(), "features": layer.featureCount(), "sum": sum(counts),
        "invalid": sum(not feature.geometry().isGeosValid() for feature in layer.getFeatures()),
    }
uri = f"file://{folder}/map.csv?delimiter=,&crs=EPSG:4326&wktField=geometry"
layer = QgsVectorLayer(uri, "map", "delimitedtext")
found["map.csv"] = {"valid": layer.isValid(), "features": layer.featureCount()}
print(json.dumps(found), flush=True)
os._exit(0)  # QGIS 3.22 crashes while Python ends
"""


@pytest.mark.slow
@pytest.mark.qgis
def test_qgis_opens_a_heatmaps_files(sources: dict[str, ExportSource], tmp_path: Path) -> None:
    known = subprocess.run([PYTHON, "-c", "import qgis.core"], capture_output=True, check=False, env=ENVIRONMENT)
    if known.returncode != 0:
        pytest.skip("QGIS's Python bindings are not installed: apt-get install python3-qgis")
    release = sources["heatmap"].release
    for name in ("map.tif", "map.geojson", "map.gpkg", "map.csv"):
        export_release(release, str(tmp_path / name))
    cell = release.cells.loc[release.cells["density"].idxmax()]
    middle = str((cell["west"] + cell["east"]) / 2), str((cell["south"] + cell["north"]) / 2)
    done = subprocess.run(
        [PYTHON, "-c", OPENED, str(tmp_path), *middle], capture_output=True, check=True, text=True, env=ENVIRONMENT
    )
    found = json.loads(done.stdout.splitlines()[-1])
    raster = found["raster"]
    assert raster["valid"]
    assert raster["crs"] == "EPSG:4326"
    assert raster["box"] == pytest.approx([-74.04, 40.68, -73.88, 40.80])
    assert raster["value"] == pytest.approx(np.float32(cell["density"]))
    assert release.manifest["release_id"] in raster["metadata"]
    for name in ("map.geojson", "map.gpkg"):
        assert found[name]["valid"]
        assert found[name]["crs"] in ("EPSG:4326", "OGC:CRS84")
        assert found[name]["features"] == len(release.cells)
        assert found[name]["sum"] == pytest.approx(release.cells["count"].sum())
        assert found[name]["invalid"] == 0
    assert found["map.csv"] == {"valid": True, "features": len(release.cells)}
