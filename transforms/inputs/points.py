"""Places in other forms than two columns of degrees: points of WKB, WKT or GeoArrow, and cells of H3 or quadkeys. Pure.

Well-known binary and text are of OGC 06-103r4, GeoParquet of its specification 1.1, quadkeys of the Bing Maps tile
system.

A value that says no place is missing, and never an error: whether a run fails must not depend on one user's record. The
noisy counts of users refuse a run in which many have no place.
"""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as pt
import shapely
from numpy.typing import NDArray

from sfumato.schemas.errors import RequestError
from sfumato.schemas.locations import holds_text
from sfumato.schemas.log_layout import CellColumn
from sfumato.transforms.inputs.text_values import is_text

Degrees = tuple[pa.Array, pa.Array]  # latitudes and longitudes, float64[n], missing where there is no place
_WGS_84 = {("EPSG", "4326"), ("OGC", "CRS84")}
_POINT = np.dtype([("order", "u1"), ("kind", "<u4"), ("x", "<f8"), ("y", "<f8")])
_POINT_SRID = np.dtype([("order", "u1"), ("kind", "<u4"), ("srid", "<u4"), ("x", "<f8"), ("y", "<f8")])
_HAS_SRID = 0x20000000
_WGS_84_SRID = 4326
_HEX = np.full(256, 255, np.uint8)
_HEX[np.frombuffer(b"0123456789abcdef", np.uint8)] = np.arange(16)
_HEX[np.frombuffer(b"ABCDEF", np.uint8)] = np.arange(10, 16)


def check_points(schema: pa.Schema, name: str, path: str) -> None:
    """Raises RequestError unless a column can hold points of WGS 84, by its type and what the file states of it."""
    field = schema.field(name)
    kind = _storage_type(field.type)
    held = {part.name: part.type for part in kind} if pt.is_struct(kind) else {}
    is_struct = all(axis in held and (pt.is_floating(held[axis]) or pt.is_integer(held[axis])) for axis in "xy")
    if not (is_struct or holds_text(kind)):
        raise RequestError(
            f"{path}: column {name!r} must hold points as WKB, as WKT or as structs of numbers x and y; it holds {kind}"
        )
    stated = _json((schema.metadata or {}).get(b"geo")).get("columns", {}).get(name, {})
    stated = stated or _json((field.metadata or {}).get(b"ARROW:extension:metadata"))
    others = [one for one in stated.get("geometry_types", ()) if not str(one).startswith("Point")]
    if others:
        raise RequestError(f"{path}: column {name!r} holds {', '.join(others)}, and must hold points alone")
    if stated.get("encoding", "WKB").lower() not in ("wkb", "point"):
        raise RequestError(f"{path}: column {name!r} is encoded as {stated['encoding']}, and must be WKB or point")
    if "crs" in stated and not _is_wgs84(stated["crs"]):
        crs = stated["crs"].get("name", "another") if isinstance(stated["crs"], dict) else stated["crs"] or "unknown"
        raise RequestError(
            f"{path}: column {name!r} has the coordinate reference system {crs}; it must be WGS 84 (EPSG:4326 or "
            "OGC:CRS84): convert it, for example with geopandas' to_crs(4326)"
        )


def _json(text: bytes | None) -> dict[str, Any]:
    try:
        found = json.loads(text or b"{}")
    except ValueError:
        return {}
    return found if isinstance(found, dict) else {}


def _is_wgs84(crs: Any) -> bool:
    if isinstance(crs, str):
        return crs.upper() in {f"{authority}:{code}" for authority, code in _WGS_84}
    code = crs.get("id", {}) if isinstance(crs, dict) else {}
    return (str(code.get("authority")), str(code.get("code"))) in _WGS_84


def _storage_type(kind: pa.DataType) -> pa.DataType:
    return kind.storage_type if isinstance(kind, pa.BaseExtensionType) else kind


def points_of(column: pa.Array) -> Degrees:
    """The places of a column of points. What is no point, or has an SRID other than 4326, is missing."""
    if isinstance(column, pa.ExtensionArray):
        column = column.storage
    if pt.is_dictionary(column.type):
        column = column.dictionary_decode()
    if pt.is_struct(column.type):
        x, y = (pc.struct_field(column, axis).cast(pa.float64(), safe=False) for axis in ("x", "y"))
        return y, x
    texts = is_text(column.type)
    binary = column.cast(pa.large_string()).cast(pa.large_binary()) if texts else column.cast(pa.large_binary())
    lengths = pc.binary_length(binary)
    sizes = pc.unique(lengths.drop_null()).to_pylist()
    if len(sizes) == 1:  # logs have one form of point
        points = _uniform(binary, sizes[0], texts)
        if points is not None:
            rows, found = points
            if "srid" in (found.dtype.names or ()):
                rows, found = rows[found["srid"] == _WGS_84_SRID], found[found["srid"] == _WGS_84_SRID]
            x, y = np.full((2, len(column)), np.nan)
            x[rows], y[rows] = found["x"], found["y"]
            missing = np.ones(len(column), bool)
            missing[rows] = False
            return pa.array(y, mask=missing), pa.array(x, mask=missing)
    return _any_points(binary, texts)


def _uniform(binary: pa.Array, size: int, texts: bool) -> tuple[NDArray[np.int64], NDArray[Any]] | None:
    """The rows with a value and their points, if all are two-dimensional points of one size; None otherwise."""
    form = {21: _POINT, 25: _POINT_SRID}.get(size // 2 if texts else size)
    if form is None or (texts and size % 2):
        return None
    rows = np.flatnonzero(~np.asarray(binary.is_null()))
    # Without nulls the values lie without gaps in the buffer.
    values = binary.drop_null()
    offsets = np.frombuffer(values.buffers()[1], np.int64)[values.offset : values.offset + 2]
    raw: NDArray[Any] = np.frombuffer(values.buffers()[2], np.uint8, size * len(values), int(offsets[0]))
    if texts:
        nibbles = _HEX[raw]
        if (nibbles == 255).any():
            return None
        raw = nibbles[0::2] << 4 | nibbles[1::2]
    points = raw.view(form) if raw.flags["C_CONTIGUOUS"] else np.ascontiguousarray(raw).view(form)
    expected = 1 | (_HAS_SRID if form is _POINT_SRID else 0)
    return (rows, points) if ((points["order"] == 1) & (points["kind"] == expected)).all() else None


def _any_points(binary: pa.Array, texts: bool) -> Degrees:
    """Points of any form that Shapely reads, a Python object each. texts: whether they are hexadecimal WKB or WKT."""
    values = np.asarray(binary.to_numpy(zero_copy_only=False), dtype=object)
    if texts:
        texts_of = [None if value is None else value.decode(errors="replace") for value in values]
        values = np.array(texts_of, dtype=object)
        is_hex = np.array([value is not None and value[:1] in ("0",) for value in values], dtype=bool)
        shapes = np.full(len(values), None, dtype=object)
        shapes[is_hex] = shapely.from_wkb(values[is_hex], on_invalid="ignore")
        shapes[~is_hex] = shapely.from_wkt(values[~is_hex], on_invalid="ignore")
    else:
        shapes = shapely.from_wkb(values, on_invalid="ignore")
    usable = (shapely.get_type_id(shapes) == 0) & np.isin(shapely.get_srid(shapes), (0, _WGS_84_SRID))
    return pa.array(shapely.get_y(shapes), mask=~usable), pa.array(shapely.get_x(shapes), mask=~usable)


def check_cells(schema: pa.Schema, cells: CellColumn, path: str) -> None:
    """Raises RequestError unless a column can hold cells of the stated index."""
    kind = schema.field(cells.column).type
    kind = kind.value_type if pt.is_dictionary(kind) else kind
    if not (is_text(kind) or (cells.index == "h3" and pt.is_integer(kind))):
        also = " or integers" if cells.index == "h3" else ""
        raise RequestError(f"{path}: column {cells.column!r} must hold {cells.index} cells as text{also}, not {kind}")


def centres_of(column: pa.Array, cells: CellColumn) -> Degrees:
    """The centres of a column of cells. What is no cell of the stated resolution is missing."""
    encoded = column if pt.is_dictionary(column.type) else column.dictionary_encode()
    # A cell holds many records, so few are different.
    places = _h3_centres(encoded.dictionary, cells) if cells.index == "h3" else _tile_centres(encoded.dictionary, cells)
    known = pa.array(~np.isnan(places[:, 0]))
    axes = [pc.if_else(known, pa.array(places[:, axis]), None) for axis in (0, 1)]
    return axes[0].take(encoded.indices), axes[1].take(encoded.indices)


def _h3_centres(values: pa.Array, cells: CellColumn) -> NDArray[np.float64]:
    """Latitudes and longitudes of n cells' centres, float64[n, 2], NaN for what is no cell of the resolution."""
    import h3.api.basic_int as h3

    places = np.full((len(values), 2), np.nan)
    if is_text(values.type):
        values = values.cast(pa.large_string()).cast(pa.large_binary())  # which need not be UTF-8
    for place, value in enumerate(values.to_pylist()):
        try:
            cell = int(value, 16) if isinstance(value, bytes) else value
        except ValueError:
            continue
        if 0 < cell < 1 << 64 and h3.is_valid_cell(cell) and h3.get_resolution(cell) == cells.resolution:
            places[place] = h3.cell_to_latlng(cell)
    return places


def _tile_centres(values: pa.Array, cells: CellColumn) -> NDArray[np.float64]:
    """The same for quadkeys, whose tiles are squares of Web Mercator."""
    length, places = cells.resolution, np.full((len(values), 2), np.nan)
    known = np.asarray(pc.match_substring_regex(values, f"^[0-3]{{{length}}}$").fill_null(False))
    digits = np.frombuffer("".join(values.filter(pa.array(known)).to_pylist()).encode(), np.uint8).reshape(-1, length)
    sides = 0.5 ** np.arange(1, length + 1)
    x, y = ((digits >> bit & 1) @ sides + sides[-1] / 2 for bit in (0, 1))
    places[known] = np.stack([np.degrees(np.arctan(np.sinh(np.pi * (1 - 2 * y)))), 360 * x - 180], 1)
    return places
