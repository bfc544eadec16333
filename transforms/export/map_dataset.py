"""A map's raster as an xarray.Dataset, and its table as a GeoDataFrame, with the release's statement in `attrs`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from sfumato.schemas.errors import RequestError
from sfumato.transforms.export.export_source import MAP, PARTS, RASTER, ExportSource, needs_extra

if TYPE_CHECKING:
    import geopandas
    import xarray

_CRS = "crs"  # the variable that the climate and forecast conventions name as `grid_mapping`


def map_dataset(source: ExportSource) -> xarray.Dataset:
    """Returns the bands as variables over y and x, in degrees, by the climate and forecast conventions (CF 1.11).

    A table with slots of time gives the dimension `slot` before them.

    Raises:
        RequestError: the release has no map of cells, the named table has no slots, or xarray is missing.
    """
    _check(source, RASTER, "to_xarray")
    with needs_extra("to_xarray"):
        import xarray
    if source.table_name is not None and not source.slots:
        raise RequestError(f"table: {source.table_name} has no time slots; omit it to export the map")
    rasters = list(source.slots.values()) or [source.raster]
    raster = rasters[0]
    dimensions = ("slot", "y", "x") if source.slots else ("y", "x")
    variables = {
        band.name: (
            dimensions,
            np.stack([one.bands[number].values for one in rasters]) if source.slots else band.values,
            {"units": band.unit or "1", "long_name": band.text, "grid_mapping": _CRS},
        )
        for number, band in enumerate(raster.bands)
    }
    crs = {
        "grid_mapping_name": "latitude_longitude",
        "semi_major_axis": 6378137.0,
        "inverse_flattening": 298.257223563,
        "crs_wkt": 'GEOGCS["WGS 84",DATUM["WGS_1984",SPHEROID["WGS 84",6378137,298.257223563]],'
        'PRIMEM["Greenwich",0],UNIT["degree",0.0174532925199433],AUTHORITY["EPSG","4326"]]',
    }
    axes: dict[str, Any] = {"slot": ("slot", list(source.slots), {"long_name": "slot of time"})} if source.slots else {}
    axes |= {
        "y": ("y", raster.latitudes, {"standard_name": "latitude", "units": "degrees_north", "axis": "Y"}),
        "x": ("x", raster.longitudes, {"standard_name": "longitude", "units": "degrees_east", "axis": "X"}),
    }
    return xarray.Dataset(
        {**variables, _CRS: ((), 0, crs)}, coords=axes, attrs={"Conventions": "CF-1.11", **source.statement}
    )


def map_frame(source: ExportSource) -> geopandas.GeoDataFrame:
    """Returns the rows of a map with their shapes.

    Raises:
        RequestError: the release has no map, or geopandas is missing.
    """
    _check(source, MAP, "to_geodataframe")
    layer = source.layer
    with needs_extra("to_geodataframe"):
        import geopandas
    frame = geopandas.GeoDataFrame(layer.table.to_pandas(), geometry=layer.shapes, crs="OGC:CRS84")
    frame.attrs.update(source.statement)
    return frame


def _check(source: ExportSource, part: str, name: str) -> None:
    if part not in source.parts:
        job = source.release.manifest.get("job")
        raise RequestError(f"{name}: requires {PARTS[part]}, which this `sfumato {job}` release does not contain")
