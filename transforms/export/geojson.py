"""GeoJSON (RFC 7946): the rows of a map as features, with the release's statement as a foreign member."""

from __future__ import annotations

import json
import math
from typing import Any

import shapely

from sfumato.transforms.export.export_format import ExportFormat
from sfumato.transforms.export.export_source import MAP, ExportSource
from sfumato.transforms.export.map_raster import MapLayer


def write_geojson(source: ExportSource) -> dict[str, bytes]:
    """Returns the file's bytes. Non-finite numbers are null. Outer rings are anticlockwise, as the RFC requires."""
    layer = source.layer
    head: dict[str, Any] = {
        "type": "FeatureCollection",
        "name": layer.name,
        **({"bbox": list(layer.bounds)} if len(layer.shapes) else {}),
        "sfumato": {**source.statement, "columns": layer.columns},
    }
    shapes = shapely.to_geojson(shapely.orient_polygons(layer.shapes)).tolist()
    features = ",\n".join(
        f'{{"type":"Feature","id":{number},"properties":{json.dumps(row, allow_nan=False)},"geometry":{shape}}}'
        for number, (row, shape) in enumerate(zip(plain_rows(layer), shapes, strict=True))
    )
    text = json.dumps(head, ensure_ascii=False, allow_nan=False)
    return {"": f'{text[:-1]}, "features": [\n{features}\n]}}\n'.encode()}


def plain_rows(layer: MapLayer) -> list[dict[str, Any]]:
    """Returns the rows of a layer as values that JSON has; None for what is missing or not finite."""
    return [{name: _plain(value) for name, value in row.items()} for row in layer.table.to_pylist()]


def _plain(value: Any) -> Any:
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    return value if value is None or isinstance(value, str | int | list) else str(value)


FORMAT = ExportFormat("geojson", (".geojson", ".json"), MAP, write_geojson)
