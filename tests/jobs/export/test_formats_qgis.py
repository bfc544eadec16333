"""Exported files in QGIS itself, without a screen, by its own Python bindings."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path

import numpy as np
import pytest

from sfumato.transforms.export.export_source import ExportSource
from sfumato.transforms.export.formats import export_release

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
