"""Cloud-optimised GeoTIFF: the bands of a map's raster, with the release's statement in its tags."""

from __future__ import annotations

import numpy as np

from sfumato.transforms.export.export_source import RASTER, ExportFormat, ExportSource, needs_extra

_TILE = 256  # pixels along a side of a block
_OVERVIEWS = "every pixel of an overview is one pixel of the full resolution; nothing is averaged"


def write_geotiff(source: ExportSource) -> dict[str, bytes]:
    """Returns the file's bytes. Raises RequestError if rasterio is missing or the release has no raster."""
    raster = source.raster
    with needs_extra("format geotiff"):
        from rasterio import Affine
        from rasterio.io import MemoryFile
        from rasterio.shutil import copy
    rows, columns = raster.shape
    region = raster.region
    width, height = (region.east - region.west) / columns, (region.north - region.south) / rows
    profile = {
        "driver": "GTiff",
        "height": rows,
        "width": columns,
        "count": len(raster.bands),
        "dtype": "float32",
        "nodata": float("nan"),
        "crs": "EPSG:4326",  # in a GeoTIFF longitude comes first, as in OGC:CRS84
        "transform": Affine(width, 0, region.west, 0, -height, region.north),
    }
    options = {"BLOCKSIZE": _TILE, "COMPRESS": "DEFLATE", "PREDICTOR": "YES", "OVERVIEW_RESAMPLING": "NEAREST"}
    with MemoryFile() as plain, MemoryFile() as optimised:
        with plain.open(**profile) as dataset:
            for number, band in enumerate(raster.bands, 1):
                dataset.write(band.values.astype(np.float32), number)
                dataset.set_band_description(number, band.name)
                dataset.set_band_unit(number, band.unit)
                dataset.update_tags(number, description=band.text)
            dataset.update_tags(**source.statement, overviews=_OVERVIEWS, AREA_OR_POINT="Area")
        copy(plain.name, optimised.name, driver="COG", **options)
        return {"": bytes(optimised.read())}


FORMAT = ExportFormat("geotiff", (".tif", ".tiff"), RASTER, write_geotiff)
