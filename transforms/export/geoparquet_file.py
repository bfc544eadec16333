"""GeoParquet 2.0: the rows of a map with shapes of Parquet's own type GEOMETRY, and the release's statement."""

from __future__ import annotations

import json

import pyarrow as pa
import shapely

from sfumato.transforms.export.export_format import ExportFormat
from sfumato.transforms.export.export_source import MAP, ExportSource
from sfumato.transforms.export.map_raster import GEOMETRY
from sfumato.transforms.geo.geoparquet import WellKnownBinary
from sfumato.transforms.release.metadata import parquet_bytes


def write_geoparquet(source: ExportSource) -> dict[str, bytes]:
    """Returns the file's bytes. Outer rings are counterclockwise, as `orientation` states."""
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


FORMAT = ExportFormat("geoparquet", (".parquet", ".geoparquet"), MAP, write_geoparquet)
