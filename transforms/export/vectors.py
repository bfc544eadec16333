"""The rows of a map with their shapes, and the release's statement, as GeoJSON, GeoParquet or GeoPackage."""

from __future__ import annotations

import io
import json
import math
from collections.abc import Mapping
from typing import Any

import numpy as np
import pyarrow as pa
import shapely
from numpy.typing import NDArray

from sfumato.transforms.export.export_source import MAP, ExportFormat, ExportSource, needs_extra
from sfumato.transforms.export.map_raster import GEOMETRY
from sfumato.transforms.geo.geoparquet import WellKnownBinary
from sfumato.transforms.release.metadata import csv_bytes, parquet_bytes

ZONES_SUFFIXES = (".parquet", ".geojson", ".csv")
_TIME = "OGR_CURRENT_DATE"


def write_geojson(source: ExportSource) -> dict[str, bytes]:
    """Returns a file as RFC 7946 has it. Non-finite numbers are null."""
    layer = source.layer
    head: dict[str, Any] = {
        "name": layer.name,
        **({"bbox": list(layer.bounds)} if len(layer.shapes) else {}),
        "sfumato": {**source.statement, "columns": layer.columns},
    }
    return {"": feature_collection(head, layer.table, layer.shapes)}


def feature_collection(head: Mapping[str, Any], table: pa.Table, shapes: NDArray[np.object_]) -> bytes:
    """Returns rows as features of a GeoJSON file. Outer rings are anticlockwise, as RFC 7946 requires.

    head: members of the file next to the features.
    """
    rows = ({name: _plain(value) for name, value in row.items()} for row in table.to_pylist())
    drawn = shapely.to_geojson(shapely.orient_polygons(shapes)).tolist()
    features = ",\n".join(
        f'{{"type":"Feature","id":{number},"properties":{json.dumps(row, allow_nan=False)},"geometry":{shape}}}'
        for number, (row, shape) in enumerate(zip(rows, drawn, strict=True))
    )
    text = json.dumps({"type": "FeatureCollection", **head}, ensure_ascii=False, allow_nan=False)
    return f'{text[:-1]}, "features": [\n{features}\n]}}\n'.encode()


def _plain(value: Any) -> Any:
    """Returns a value that JSON has; None for what is missing or not finite."""
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    return value if value is None or isinstance(value, str | int | list) else str(value)


def write_geoparquet(source: ExportSource) -> dict[str, bytes]:
    """Returns a GeoParquet 2.0 file, with shapes of Parquet's own type GEOMETRY; outer rings are anticlockwise."""
    layer = source.layer
    shapes = shapely.orient_polygons(layer.shapes)
    binary = pa.array(shapely.to_wkb(shapes), pa.binary())
    described = {
        "encoding": "WKB",
        "geometry_types": sorted({shape.geom_type for shape in shapes}),
        "orientation": "counterclockwise",
        **({"bbox": list(layer.bounds)} if len(shapes) else {}),
    }
    geo = {"version": "2.0.0", "primary_column": GEOMETRY, "columns": {GEOMETRY: described}}
    kind = WellKnownBinary()
    table = layer.table.append_column(pa.field(GEOMETRY, kind, True), pa.ExtensionArray.from_storage(kind, binary))
    statement = json.dumps(source.statement, ensure_ascii=False)
    return {"": parquet_bytes(table.replace_schema_metadata({"geo": json.dumps(geo), "sfumato": statement}))}


def write_geopackage(source: ExportSource) -> dict[str, bytes]:
    """Returns a file with one layer and the statement in its metadata. Raises RequestError without geopandas."""
    layer = source.layer
    with needs_extra("format gpkg"):
        import geopandas
        from pyogrio import set_gdal_config_options, write_dataframe
    # A GeoPackage has longitude first whatever its reference system says (OGC 12-128r19, Section 1.1.3.1.1).
    frame = geopandas.GeoDataFrame(layer.table.to_pandas(), geometry=layer.shapes, crs="EPSG:4326")
    file = io.BytesIO()
    columns = {f"column {name}": text for name, text in layer.columns.items() if text}
    # GDAL writes this time instead of that of the export, so that equal releases give equal bytes.
    set_gdal_config_options({_TIME: source.statement["published"][:19] + "Z"})
    try:
        write_dataframe(
            frame,
            file,
            layer=layer.name,
            driver="GPKG",
            dataset_metadata=source.statement,
            layer_metadata=columns,
            promote_to_multi=False,
            VERSION="1.3",  # which QGIS 3.22 and GDAL 3.6 know
            geometry_type=None if len(layer.shapes) else "Unknown",
        )
    finally:
        set_gdal_config_options({_TIME: None})
    return {"": file.getvalue()}


def zones_bytes(table: pa.Table, suffix: str) -> bytes:
    """Returns zones of a release as a file: GeoParquet, GeoJSON, or CSV without polygons. suffix: a ZONES_SUFFIXES."""
    if suffix == ".parquet":
        return parquet_bytes(table)
    rows = table.drop_columns(GEOMETRY)
    if suffix == ".csv":
        return csv_bytes(rows)
    origin = {"sfumato": json.loads(table.schema.metadata[b"sfumato"])}
    return feature_collection(origin, rows, shapely.from_wkb(table[GEOMETRY].to_numpy()))


GEOJSON = ExportFormat("geojson", (".geojson", ".json"), MAP, write_geojson)
GEOPARQUET = ExportFormat("geoparquet", (".parquet", ".geoparquet"), MAP, write_geoparquet)
GEOPACKAGE = ExportFormat("gpkg", (".gpkg",), MAP, write_geopackage)
