"""A table of the users of H3 cells, as GeoParquet, with the release's statement in the file's metadata."""

from __future__ import annotations

import json

import pyarrow as pa

from sfumato.transforms.export.export_format import ExportFormat
from sfumato.transforms.export.export_source import HEATMAP, ExportSource
from sfumato.transforms.geo.cell_indexes import index_cells
from sfumato.transforms.release.metadata import parquet_bytes
from sfumato.transforms.zones.release_zones import zones_of_release
from sfumato.transforms.zones.zone_file import Zones


def write_h3(source: ExportSource) -> dict[str, bytes]:
    """Returns the file's bytes: users, their standard deviation and 95% interval for every cell that meets the map.

    Raises:
        RequestError: the region has more than a million cells of the resolution.
    """
    grid, resolution = source.release.grid, source.resolution
    assert grid is not None  # of a heatmap
    assert resolution is not None  # see `exported_files`
    names, shapes = index_cells("h3", resolution, grid.region)
    table = zones_of_release(source.release, Zones(tuple(names.tolist()), shapes, "h3"))
    zone = table.schema.get_field_index("zone")
    field = pa.field("h3", pa.string(), False, {"description": f"H3 cell of resolution {resolution}"})
    table = table.set_column(zone, field, table.column(zone))
    statement = json.dumps(source.statement, ensure_ascii=False).encode()
    metadata = {**(table.schema.metadata or {}), b"sfumato": statement}
    return {"": parquet_bytes(table.replace_schema_metadata(metadata))}


FORMAT = ExportFormat(
    "h3",
    "a table by H3 cell of `--resolution`: users, standard deviation, 95% interval, shape",
    (".h3.parquet",),
    HEATMAP,
    write_h3,
    resolution=True,
)
