"""GeoPackage: the rows of a map as one layer, with the release's statement in its metadata tables."""

from __future__ import annotations

import io

from sfumato.transforms.export.export_format import ExportFormat, needs_extra
from sfumato.transforms.export.export_source import MAP, ExportSource

_TIME = "OGR_CURRENT_DATE"


def write_geopackage(source: ExportSource) -> dict[str, bytes]:
    """Returns the file's bytes. Raises RequestError if geopandas is missing."""
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


FORMAT = ExportFormat("gpkg", (".gpkg",), MAP, write_geopackage)
