"""PMTiles: vector tiles of a map, by GDAL's driver, with the release's statement in the archive's metadata."""

from __future__ import annotations

import io
import json
import math

import numpy as np

from sfumato.schemas.errors import RequestError
from sfumato.transforms.export.export_source import MAP, ExportFormat, ExportSource, needs_extra

_BOUNDS = ("west", "south", "east", "north")  # which the shapes have
_THREADS = "GDAL_NUM_THREADS"
_UNITS = 4096  # along a tile's side; GDAL drops a cell that is smaller than one of them
_ZOOMS = 5
_LAST_ZOOM = 22
_NO_LIMIT = str(2**30)  # of a tile's bytes and features: beyond GDAL's own limits it drops rows


def write_pmtiles(source: ExportSource) -> dict[str, bytes]:
    """Returns the archive's bytes. Raises RequestError if a library is missing or the table has no rows."""
    layer = source.layer
    if not len(layer.shapes):
        raise RequestError(f"format: pmtiles requires rows, but table {layer.name} of {source.release.path} is empty")
    with needs_extra("format pmtiles"):
        import geopandas
        from pyogrio import set_gdal_config_options, write_dataframe
    table = layer.table.drop_columns([name for name in _BOUNDS if name in layer.table.column_names])
    frame = geopandas.GeoDataFrame(table.to_pandas(), geometry=layer.shapes, crs="EPSG:4326")
    first = _first_zoom(source)
    options = {
        "NAME": source.statement["title"],
        "DESCRIPTION": json.dumps({**source.statement, "columns": layer.columns}, ensure_ascii=False),
        "TYPE": "overlay",
        "MINZOOM": str(first),
        "MAXZOOM": str(min(first + _ZOOMS - 1, _LAST_ZOOM)),
        "MAX_SIZE": _NO_LIMIT,
        "MAX_FEATURES": _NO_LIMIT,
    }
    file = io.BytesIO()
    # With several threads the order of a tile's features depends on their speed. Equal releases give equal bytes.
    set_gdal_config_options({_THREADS: 1})
    try:
        write_dataframe(frame, file, layer=layer.name, driver="PMTiles", dataset_options=options)
    finally:
        set_gdal_config_options({_THREADS: None})
    return {"": file.getvalue()}


def _first_zoom(source: ExportSource) -> int:
    """Returns the largest zoom whose tile covers the map, or the first that shows a heatmap's smallest cells."""
    west, south, east, north = source.layer.bounds
    stretch = math.cos(math.radians(min(max(-south, north, 0), 85)))  # of Web Mercator, at the most
    zoom = math.floor(math.log2(360 / max(east - west, (north - south) / stretch, 360 / 2**_LAST_ZOOM)))
    grid, table = source.release.grid, source.layer.table
    if grid is not None and "depth" in table.column_names:
        region, cells = grid.region, 2 ** int(np.max(table["depth"].to_numpy()))
        side = min(region.east - region.west, region.north - region.south) / cells
        zoom = max(zoom, math.ceil(math.log2(360 / _UNITS / side)))
    return min(max(zoom, 0), _LAST_ZOOM)


FORMAT = ExportFormat("pmtiles", (".pmtiles",), MAP, write_pmtiles)
