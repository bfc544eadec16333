"""What a Parquet file states of its shapes: GeoParquet's metadata, or Parquet's own type GEOMETRY, and files of both.

GeoParquet 1 describes columns of binaries in the file's metadata. GeoParquet 2 keeps that description and also gives
each such column the type GEOMETRY of Parquet itself; a file with this type and no description is readable, too.
"""

from __future__ import annotations

import json
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

CRS84 = "OGC:CRS84"  # of a column that states none
_WKB = "geoarrow.wkb"
_PROJJSON, _SRID = "projjson:", "srid:"


class WellKnownBinary(pa.ExtensionType):
    """Shapes in longitude and latitude, which Arrow writes to Parquet as GEOMETRY, with their bounds as statistics."""

    def __init__(self) -> None:
        super().__init__(pa.binary(), _WKB)

    def __arrow_ext_serialize__(self) -> bytes:
        return b"{}"

    @classmethod
    def __arrow_ext_deserialize__(cls, storage_type: pa.DataType, serialized: bytes) -> WellKnownBinary:
        return cls()


def geo_metadata(file: pq.ParquetFile) -> dict[str, Any]:
    """Returns GeoParquet's metadata of a file, or the same made from columns of type GEOMETRY; empty without either.

    A column's `crs` is as GeoParquet 1.1 has it, PROJJSON or None for one that is unknown, or a name such as
    EPSG:25833. The primary column is stated, or else the only one.
    """
    stated = _object((file.schema_arrow.metadata or {}).get(b"geo"))
    if stated:
        return stated
    columns = {}
    for number in range(len(file.schema)):
        column = file.schema.column(number)
        kind = _object(column.logical_type.to_json())
        if kind.get("Type") in ("Geometry", "Geography") and "." not in column.path:
            columns[column.path] = {"encoding": "WKB", "crs": _native_crs(kind.get("crs") or CRS84, file)}
    if not columns:
        return {}
    primary = {"primary_column": next(iter(columns))} if len(columns) == 1 else {}
    return {"version": "2.0.0", **primary, "columns": columns}


def _native_crs(text: str, file: pq.ParquetFile) -> Any:
    """Returns the coordinate system that a type names: inline, or by a key of the file's metadata, or a code."""
    if text.startswith(_PROJJSON):
        text = (file.metadata.metadata or {}).get(text.removeprefix(_PROJJSON).encode(), b"").decode("utf-8", "replace")
    if text.startswith(_SRID):
        number = text.removeprefix(_SRID)
        return f"EPSG:{number}" if number not in ("", "0") else None
    return _object(text) or text or None


def _object(text: str | bytes | None) -> dict[str, Any]:
    """Returns the object that JSON holds; an empty one for anything else."""
    try:
        found = json.loads(text or b"{}")
    except (ValueError, RecursionError):
        return {}
    return found if isinstance(found, dict) else {}
