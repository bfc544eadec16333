"""PMTiles: vector tiles of a map with a pyramid of zooms, with the release's statement in the archive's metadata."""

from __future__ import annotations

import gzip
import io
from typing import Any

from sfumato.schemas.errors import RequestError
from sfumato.transforms.export.export_format import ExportFormat, needs_extra
from sfumato.transforms.export.export_source import MAP, ExportSource
from sfumato.transforms.export.geojson import plain_rows
from sfumato.transforms.export.map_layer import MapLayer
from sfumato.transforms.export.merged_cells import CellErrors
from sfumato.transforms.export.tile_pyramid import EXTENT, tiles, zoom_layers

_E7 = 10_000_000  # the header has degrees as integers
_TYPES = {"string": "String", "bool": "Boolean"}


def write_pmtiles(source: ExportSource) -> dict[str, bytes]:
    """The archive's bytes. Raises RequestError if a library is missing or the table has no rows."""
    layer = source.layer
    if not len(layer.shapes):
        raise RequestError(f"format: pmtiles needs rows, and table {layer.name} of {source.release.path} has none")
    with needs_extra("format pmtiles"):
        import mapbox_vector_tile
        from pmtiles.tile import Compression, TileType, zxy_to_tileid
        from pmtiles.writer import Writer
    zooms = zoom_layers(layer, source.release.grid, CellErrors.of(source.release), nested=source.nested)
    found: dict[int, bytes] = {}
    for shown in zooms:
        rows = plain_rows(shown.layer)
        for column, row, inside, shapes in tiles(shown.layer.shapes, shown.zoom):
            features = [
                {"id": number, "geometry": shape, "properties": _known(rows[number])}
                for number, shape in zip(inside.tolist(), shapes.tolist(), strict=True)
            ]
            tile = mapbox_vector_tile.encode(
                [{"name": layer.name, "features": features}],
                default_options={"extents": EXTENT, "y_coord_down": True},
            )
            found[zxy_to_tileid(shown.zoom, column, row)] = gzip.compress(tile, mtime=0)
    file = io.BytesIO()
    writer = Writer(file)
    for number in sorted(found):
        writer.write_tile(number, found[number])
    west, south, east, north = layer.bounds
    first, last = zooms[0].zoom, zooms[-1].zoom
    header = {
        "tile_type": TileType.MVT,
        "tile_compression": Compression.GZIP,
        "min_zoom": first,
        "max_zoom": last,
        "min_lon_e7": round(west * _E7),
        "min_lat_e7": round(south * _E7),
        "max_lon_e7": round(east * _E7),
        "max_lat_e7": round(north * _E7),
        "center_zoom": first,
        "center_lon_e7": round((west + east) / 2 * _E7),
        "center_lat_e7": round((south + north) / 2 * _E7),
    }
    writer.finalize(header, _metadata(source, zooms[-1].layer, zooms[0].layer, first, last))
    return {"": file.getvalue()}


def _known(row: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in row.items() if value is not None}


def _metadata(source: ExportSource, finest: MapLayer, coarsest: MapLayer, first: int, last: int) -> dict[str, Any]:
    statement = source.statement
    fields = {
        field.name: _TYPES.get(str(field.type), "Number") for field in (*coarsest.table.schema, *finest.table.schema)
    }
    return {
        "name": statement["title"],
        "description": statement["guarantee"],
        "attribution": statement["licence"],
        "type": "overlay",
        "vector_layers": [{"id": finest.name, "fields": fields, "minzoom": first, "maxzoom": last}],
        "sfumato": {**statement, "columns": {**coarsest.columns, **finest.columns}},
    }


FORMAT = ExportFormat(
    "pmtiles",
    "vector tiles with a pyramid of zooms; cells too small for a zoom are merged, with exact sums",
    (".pmtiles",),
    "application/vnd.pmtiles",
    MAP,
    "MapLibre, Protomaps, QGIS, GDAL",
    "the member `sfumato` of the archive's metadata",
    write_pmtiles,
)
