"""GeoPackage: the rows of a map as one layer, with the release's statement in its metadata tables."""

from __future__ import annotations

import io

from sfumato.transforms.export.export_format import ExportFormat, needs_extra
from sfumato.transforms.export.export_source import MAP, ExportSource


def write_geopackage(source: ExportSource) -> dict[str, bytes]:
    """The file's bytes. Raises RequestError if geopandas is missing."""
    layer = source.layer
    with needs_extra("format gpkg"):
        import geopandas
        from pyogrio import write_dataframe
    # A GeoPackage has longitude first whatever its reference system says (OGC 12-128r19, Section 1.1.3.1.1).
    frame = geopandas.GeoDataFrame(layer.table.to_pandas(), geometry=layer.shapes, crs="EPSG:4326")
    file = io.BytesIO()
    columns = {f"column {name}": text for name, text in layer.columns.items() if text}
    write_dataframe(
        frame,
        file,
        layer=layer.name,
        driver="GPKG",
        dataset_metadata=source.statement,
        layer_metadata=columns,
        promote_to_multi=False,
        geometry_type=None if len(layer.shapes) else "Unknown",
    )
    return {"": file.getvalue()}


FORMAT = ExportFormat(
    "gpkg",
    "one row of a layer for each row of the map",
    (".gpkg",),
    "application/geopackage+sqlite3",
    MAP,
    "QGIS, ArcGIS, GDAL, geopandas",
    "the tables `gpkg_metadata` and `gpkg_metadata_reference`",
    write_geopackage,
)
