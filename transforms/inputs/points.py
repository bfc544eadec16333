"""Places in other forms than two columns of degrees: points of WKB, WKT or GeoArrow, and cells of H3 or quadkeys. Pure.

Sources: OGC 06-103r4 for well-known binary and text, GeoParquet 1.1, and the Bing Maps tile system for quadkeys.

A value without a place is missing, and never an error: whether a run fails must not depend on one user's record. So
points are matched as patterns of fixed size here; a parser of all geometries follows whatever a value nests. The noisy
counts of users refuse a run in which many have no place.
"""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as pt
from numpy.typing import NDArray

from sfumato.schemas.errors import RequestError
from sfumato.schemas.locations import holds_text, is_text
from sfumato.schemas.log_layout import CellColumn
from sfumato.transforms.inputs.text_values import as_bytes, decoded

Degrees = tuple[pa.Array, pa.Array]  # latitudes and longitudes, float64[n], missing where there is no place
_WGS_84 = {("EPSG", "4326"), ("OGC", "CRS84")}
_WGS_84_SRID = 4326
# Kinds of a point in well-known binary, of ISO and with PostGIS's flags: by whether an SRID follows, and by axes.
_Z, _M, _SRID = 0x80000000, 0x40000000, 0x20000000
_POINT_KINDS = {
    (has_srid, axes): [kind | (_SRID if has_srid else 0) for kind in kinds]
    for has_srid in (False, True)
    for axes, kinds in {2: [1], 3: [1001, 2001, 1 | _Z, 1 | _M], 4: [3001, 1 | _Z | _M]}.items()
}
_WKB_SIZES = sorted({start + 8 * axes for start in (5, 9) for axes in (2, 3, 4)})
_WKT_NUMBER = r"[+-]?(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][+-]?[0-9]+)?"
_WKT_POINT = (
    rf"(?i)^\s*(?:SRID\s*=\s*{_WGS_84_SRID}\s*;)?\s*POINT\s*(?:ZM|Z|M)?\s*"
    rf"\(\s*(?P<x>{_WKT_NUMBER})\s+(?P<y>{_WKT_NUMBER})(?:\s+{_WKT_NUMBER}){{0,2}}\s*\)\s*$"
)
_HEX = np.full(256, 255, np.uint8)
_HEX[np.frombuffer(b"0123456789abcdef", np.uint8)] = np.arange(16)
_HEX[np.frombuffer(b"ABCDEF", np.uint8)] = np.arange(10, 16)


def check_points(schema: pa.Schema, name: str, path: str) -> None:
    """Raises RequestError unless a column can hold points of WGS 84, by its type and what the file states of it."""
    field = schema.field(name)
    kind = field.type.storage_type if isinstance(field.type, pa.BaseExtensionType) else field.type
    held = {part.name: part.type for part in kind} if pt.is_struct(kind) else {}
    numbers = (pt.is_floating, pt.is_integer, pt.is_null)  # nulls where no row has a place
    is_struct = all(axis in held and any(is_kind(held[axis]) for is_kind in numbers) for axis in "xy")
    if not (is_struct or holds_text(kind)):
        raise RequestError(
            f"{path}: column {name!r} must contain points as WKB, WKT, or structs of numbers x and y, got {kind}"
        )
    stated = _dict(_dict(_json((schema.metadata or {}).get(b"geo")).get("columns")).get(name))
    stated = stated or _json((field.metadata or {}).get(b"ARROW:extension:metadata"))
    if str(stated.get("encoding", "WKB")).lower() not in ("wkb", "point"):
        raise RequestError(f"{path}: column {name!r} must be encoded as WKB or point, got {stated['encoding']}")
    if "crs" in stated and not _is_wgs84(stated["crs"]):
        crs = stated["crs"].get("name", "another") if isinstance(stated["crs"], dict) else stated["crs"] or "unknown"
        raise RequestError(
            f"{path}: column {name!r} must use WGS 84 (EPSG:4326 or "
            f"OGC:CRS84), got {crs}; convert it, for example with to_crs(4326) of geopandas"
        )


def _json(text: bytes | None) -> dict[str, Any]:
    try:
        found = json.loads(text or b"{}")
    except ValueError:
        return {}
    return _dict(found)


def _dict(found: Any) -> dict[str, Any]:
    return found if isinstance(found, dict) else {}


def _is_wgs84(crs: Any) -> bool:
    if isinstance(crs, str):
        return crs.upper() in {f"{authority}:{code}" for authority, code in _WGS_84}
    code = _dict(crs.get("id")) if isinstance(crs, dict) else {}
    return (str(code.get("authority")), str(code.get("code"))) in _WGS_84


def points_of(column: pa.Array) -> Degrees:
    """Returns the places of a column of points. What is no point, or has an SRID other than 4326, is missing."""
    if isinstance(column, pa.ExtensionArray):
        column = column.storage
    column = decoded(column)
    if pt.is_struct(column.type):
        x, y = (pc.struct_field(column, axis).cast(pa.float64(), safe=False) for axis in ("x", "y"))
        return y, x
    texts = is_text(column.type)
    binary = as_bytes(column)
    places = np.full((2, len(column)), np.nan)  # longitudes and latitudes
    lengths = np.asarray(pc.binary_length(binary).fill_null(0))
    for size in _WKB_SIZES:
        rows = np.flatnonzero(lengths == size * (2 if texts else 1))
        if len(rows):
            places[:, rows] = _from_wkb(_rectangle(binary if len(rows) == len(binary) else binary.take(rows), texts))
    if texts and np.isnan(places[0]).any():
        places = np.where(np.isnan(places[0]), _from_wkt(binary), places)
    missing = ~np.isfinite(places).all(axis=0)
    return pa.array(places[1], mask=missing), pa.array(places[0], mask=missing)


def _rectangle(binary: pa.Array, texts: bool) -> NDArray[np.uint8]:
    """Returns the bytes of n values of one size, uint8[n, size]. texts: hexadecimal; invalid text gives no point."""
    offsets = np.frombuffer(binary.buffers()[1], np.int64)[binary.offset : binary.offset + len(binary) + 1]
    raw = np.frombuffer(binary.buffers()[2], np.uint8, int(offsets[-1] - offsets[0]), int(offsets[0]))
    raw = raw.reshape(len(binary), -1)
    if not texts:
        return raw
    nibbles = _HEX[raw]
    decoded = nibbles[:, 0::2] << 4 | nibbles[:, 1::2] & 15
    decoded[(nibbles == 255).any(axis=1), 0] = 255  # no byte order
    return np.asarray(decoded)


def _from_wkb(raw: NDArray[np.uint8]) -> NDArray[np.float64]:
    """Returns longitudes and latitudes, float64[2, n], of uint8[n, size]; NaN for values that are not points."""
    places = np.full((2, len(raw)), np.nan)
    for order, mark in (("<", 1), (">", 0)):
        kinds = np.ascontiguousarray(raw[:, 1:5]).view(f"{order}u4")[:, 0]
        for has_srid in (False, True):
            start = 9 if has_srid else 5
            axes, rest = divmod(raw.shape[1] - start, 8)
            if rest or not 2 <= axes <= 4:
                continue
            rows = np.flatnonzero((raw[:, 0] == mark) & np.isin(kinds, _POINT_KINDS[has_srid, axes]))
            if has_srid:
                srids = np.ascontiguousarray(raw[rows, 5:9]).view(f"{order}u4")[:, 0]
                rows = rows[srids == _WGS_84_SRID]
            places[:, rows] = np.ascontiguousarray(raw[rows, start : start + 16]).view(f"{order}f8").T
    return places


def _from_wkt(texts: pa.Array) -> NDArray[np.float64]:
    """Returns longitudes and latitudes, float64[2, n], of bytes; NaN for what is no point in well-known text."""
    found = pc.extract_regex(texts, _WKT_POINT)
    return np.stack([
        np.asarray(pc.struct_field(found, axis).cast(pa.large_string()).cast(pa.float64()).fill_null(np.nan))
        for axis in ("x", "y")
    ])  # fmt: skip


def check_cells(schema: pa.Schema, cells: CellColumn, path: str) -> None:
    """Raises RequestError unless a column can hold cells of the stated index."""
    kind = schema.field(cells.column).type
    kind = kind.value_type if pt.is_dictionary(kind) else kind
    if not (is_text(kind) or (cells.index == "h3" and pt.is_integer(kind))):
        also = " or integers" if cells.index == "h3" else ""
        raise RequestError(
            f"{path}: column {cells.column!r} must contain {cells.index} cells as text{also}, got {kind}"
        )


def centres_of(column: pa.Array, cells: CellColumn) -> Degrees:
    """Returns the centres of a column of cells. What is no cell of the stated resolution is missing."""
    encoded = column if pt.is_dictionary(column.type) else column.dictionary_encode()
    # A cell holds many records, so few are different.
    places = _h3_centres(encoded.dictionary, cells) if cells.index == "h3" else _tile_centres(encoded.dictionary, cells)
    known = pa.array(~np.isnan(places[:, 0]))
    axes = [pc.if_else(known, pa.array(places[:, axis]), None) for axis in (0, 1)]
    return axes[0].take(encoded.indices), axes[1].take(encoded.indices)


def _h3_centres(values: pa.Array, cells: CellColumn) -> NDArray[np.float64]:
    """Returns latitudes and longitudes of cell centres, float64[n, 2]; NaN for names of other resolutions."""
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
    """Returns the same for quadkeys, whose tiles are squares of Web Mercator."""
    length, places = cells.resolution, np.full((len(values), 2), np.nan)
    known = np.asarray(pc.match_substring_regex(values, f"^[0-3]{{{length}}}$").fill_null(False))
    digits = np.frombuffer("".join(values.filter(pa.array(known)).to_pylist()).encode(), np.uint8).reshape(-1, length)
    sides = 0.5 ** np.arange(1, length + 1)
    x, y = ((digits >> bit & 1) @ sides + sides[-1] / 2 for bit in (0, 1))
    places[known] = np.stack([np.degrees(np.arctan(np.sinh(np.pi * (1 - 2 * y)))), 360 * x - 180], 1)
    return places
