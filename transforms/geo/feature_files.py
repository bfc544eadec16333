"""Features of GeoJSON, GeoParquet, GeoPackage, zipped shapefiles and CSV, in degrees of longitude and latitude."""

from __future__ import annotations

import csv
import io
import json
import math
import os
import re
import tempfile
import warnings
import zipfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import shapely
from shapely.errors import ShapelyError
from shapely.geometry import shape
from shapely.geometry.base import BaseGeometry

from sfumato.schemas.charts import readable
from sfumato.schemas.errors import RequestError, reason_of
from sfumato.schemas.log_roles import AXES, NAMES, find_roles
from sfumato.schemas.parquet_table import parquet_table
from sfumato.transforms.geo.geoparquet import geo_metadata
from sfumato.transforms.io.files import is_remote, near_file, open_file

_PARQUET = b"PAR1"
_GEOPACKAGE = b"SQLite format 3\0"
_ZIP = b"PK\x03\x04"  # of a shapefile
_BLANK = b"\xef\xbb\xbf \t\r\n"  # before JSON
_SHOWN = 300  # characters of a header
_CSV = (".csv", ".tsv", ".txt")  # which nothing in the content marks
SHAPEFILE = b"\x00\x00\x27\x0a"
_MAX_PART_BYTES = 1 << 30  # of a shapefile, unpacked
SHAPEFILE_PARTS = (".shp", ".shx", ".dbf", ".prj", ".cpg")
_SHAPEFILE_ADVICE = {  # where a part of a shapefile is missing
    "shx": "; a shapefile is several files: copy it next to the .shp",
    "dbf": "; a shapefile is several files: copy it next to the .shp",
    "prj": "; it states the coordinate system: copy it next to the .shp, or, if you know the system's EPSG number, run "
    "ogr2ogr -a_srs EPSG:NUMBER zones.gpkg {path}",
}
_DEGREES = "OGC:CRS84"
_NO_FEATURE = (KeyError, TypeError, ValueError, AttributeError, IndexError, ShapelyError, RecursionError)
_KNOWN_CRS = re.compile(r"(?:urn:ogc:def:crs:)?(?:OGC:(?:1\.3|2)?:?CRS84|EPSG:[0-9.]*:?4326)", re.IGNORECASE)
Feature = tuple[Mapping[str, Any], BaseGeometry | None]  # properties by name, and a shape, if it has one


def feature_bytes(option: str, path: str, most: int) -> bytes:
    """Returns the content of a file of features; of a shapefile, or of a folder with one, a zip of its parts.

    option: that names the file, for messages. most: bytes.

    Raises RequestError if it cannot be read, is too large, or a part of a shapefile is missing.
    """
    if not is_remote(path) and os.path.isdir(path):
        found = sorted(name for name in os.listdir(path) if name.lower().endswith(".shp"))
        if len(found) != 1:
            raise RequestError(f"{option}: the folder {path} must contain one .shp, got {', '.join(found) or 'none'}")
        path = os.path.join(path, found[0])

    def content(part: str, advice: str = "") -> bytes:
        try:
            with open_file(part) as file:
                read = file.read(most + 1)
        except OSError as error:
            near = near_file(part) if part == path else advice
            raise RequestError(f"{option}: {part} cannot be read ({reason_of(error)}){near}") from None
        if len(read) > most:
            raise RequestError(
                f"{option}: {part} has more than {most >> 20} MiB; cut out the region, or simplify the shapes, first"
            )
        return bytes(read)

    shapes = content(path)
    if not shapes.startswith(SHAPEFILE):
        return shapes
    stem = path.removesuffix(path[-4:])
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w") as file:
        file.writestr("shapes.shp", shapes)
        for ending, advice in _SHAPEFILE_ADVICE.items():
            file.writestr(f"shapes.{ending}", content(f"{stem}.{ending}", advice.format(path=path)))
        with suppress(OSError), open_file(f"{stem}.cpg") as encoding:  # of the text, where it is not Latin-1
            file.writestr("shapes.cpg", encoding.read())
    return packed.getvalue()


def in_degrees(option: str, frame: Any) -> Any:
    """Returns a GeoDataFrame or GeoSeries in degrees of longitude and latitude.

    Raises RequestError if it states no coordinate system. option: that holds it, for messages.
    """
    if frame.crs is None:
        raise RequestError(
            f"{option}: the frame states no coordinate system; if its coordinates are degrees, give "
            f"{option}=frame.set_crs(4326), otherwise the number of their system, such as frame.set_crs(25833)"
        )
    return frame.to_crs(_DEGREES)


def read_features(
    option: str, name: str, content: bytes, wanted: Callable[[str], bool]
) -> tuple[str, Iterator[Feature]]:
    """Returns the source that a file states, empty if it states none, and its features in order.

    A shape is None where the feature has none, and may be empty or invalid. Its coordinates are finite.

    Args:
        option: that names the file, for messages.
        name: of the file, for messages.
        content: GeoJSON, GeoParquet, GeoPackage or a zipped shapefile; CSV if the name ends like one. Coordinates in a
            system that the file states are converted to longitude and latitude, by geopandas, which also reads
            GeoPackages and shapefiles.
        wanted: whether a column of a GeoParquet file is read as a property. Other formats are read with all properties.

    Raises RequestError if the file cannot be read, states no coordinate system that is known, or requires geopandas
    and pyogrio where they are missing; also while the features are read.
    """
    if content[:4] == _PARQUET:
        return _parquet_features(option, name, content, wanted)
    if content.startswith((_GEOPACKAGE, _ZIP)):
        return "", _converted_features(option, name, content)
    if name.lower().endswith(_CSV) and not content.lstrip(_BLANK).startswith(b"{"):
        return "", _csv_features(option, name, content)
    return _json_features(option, name, content)


def _csv_features(option: str, name: str, content: bytes) -> Iterator[Feature]:
    """Returns a point for each row of a CSV file, such as stops.txt of GTFS; the other columns are properties, as text.

    Rows without coordinates are left out. Raises RequestError.
    """
    try:
        text = content.decode("utf-8-sig")
        delimiter = max(",;\t", key=text.partition("\n")[0].count)
        lines = csv.reader(io.StringIO(text, newline=""), delimiter=delimiter, skipinitialspace=True)
        (_, header), *rows = [line for line in enumerate(lines, 1) if line[1]] or [(1, [])]
    except (UnicodeDecodeError, csv.Error) as error:
        raise RequestError(f"{option}: {name} is not CSV in UTF-8 ({error}); save it as such") from None
    columns = [column.strip() for column in header]
    roles = find_roles(columns, {})
    if missing := [axis for axis in AXES if axis not in roles]:
        known = ", and ".join(f"a column of degrees named {' or '.join(NAMES[axis])}" for axis in missing)
        found = readable(", ".join(columns)[:_SHOWN]) or "none"
        raise RequestError(f"{option}: {name} must have {known}; rename one of its columns: {found}")
    if not rows:
        raise RequestError(f"{option}: {name} has no rows below its header")
    axes = [columns.index(roles[axis]) for axis in AXES]
    points = list[Feature]()
    for number, row in rows:
        if len(row) != len(columns):
            raise RequestError(f"{option}: {name}: row {number} must have {len(columns)} values, got {len(row)}")
        if not any(row[place].strip() for place in axes):
            continue  # GTFS has nodes and boarding areas without coordinates
        try:
            latitude, longitude = (float(row[place].replace(",", ".")) for place in axes)
        except ValueError:
            latitude = longitude = math.nan
        if not (abs(latitude) <= 90 and abs(longitude) <= 180):
            found = ", ".join(f"{readable(columns[place])} {readable(row[place])!r}" for place in axes)
            raise RequestError(f"{option}: {name}: row {number} must have degrees, got {found}; correct or remove it")
        properties = {columns[place]: value for place, value in enumerate(row) if place not in axes}
        points.append((properties, shapely.Point(longitude, latitude)))
    return iter(points)


def _json_features(option: str, name: str, content: bytes) -> tuple[str, Iterator[Feature]]:
    """Returns the source that a GeoJSON file names, and its features. Raises RequestError."""
    try:
        data = json.loads(content.lstrip(_BLANK))
    except (ValueError, RecursionError) as error:  # bytes that are no text are one, too
        why = f" ({error})" if content.lstrip().startswith(b"{") else ""
        raise RequestError(
            f"{option}: {name} must be GeoJSON, GeoParquet, a GeoPackage, a shapefile, or CSV of points with a name "
            f"that ends in {' or '.join(_CSV)}{why}"
        ) from None
    if not isinstance(data, dict) or not isinstance(data.get("type"), str):
        raise RequestError(f"{option}: {name} is not GeoJSON: it must be an object with a `type`")
    if "crs" in data:
        stated = _member(data["crs"], "properties", "name")
        if not isinstance(stated, str) or not _KNOWN_CRS.fullmatch(stated):
            if not isinstance(stated, str):
                raise _unknown_crs(option, name, stated)
            return "", _converted_features(option, name, content)
    features = data.get("features") if data["type"] == "FeatureCollection" else [data]
    if not isinstance(features, list):
        raise RequestError(f"{option}: {name} is not GeoJSON: a FeatureCollection must have a list of features")
    source = next((readable(data[key]) for key in ("attribution", "source") if isinstance(data.get(key), str)), "")

    def rows() -> Iterator[Feature]:
        for number, feature in enumerate(features):
            try:
                geometry = feature["geometry"] if feature["type"] == "Feature" else feature
                properties = {str(key): value for key, value in (feature.get("properties") or {}).items()}
                made = None if geometry is None else _finite(shape(geometry))
            except _NO_FEATURE as error:
                raise RequestError(f"{option}: {name}: feature {number} is not GeoJSON ({error})") from None
            yield properties, made

    return source, rows()


def _parquet_features(
    option: str, name: str, content: bytes, wanted: Callable[[str], bool]
) -> tuple[str, Iterator[Feature]]:
    """Returns the source of a GeoParquet file, and its rows. Raises RequestError."""
    try:
        file = pq.ParquetFile(pa.BufferReader(content))
        about = geo_metadata(file)
    except (pa.ArrowException, OSError, ValueError) as error:
        raise RequestError(f"{option}: {name} cannot be read as Parquet ({error})") from None
    try:
        column = about["primary_column"]
        described = about["columns"][column]
        encoding = described["encoding"]
    except (KeyError, TypeError):
        raise RequestError(
            f"{option}: {name} is Parquet, but not GeoParquet: it has neither the metadata `geo` nor one column "
            "of type GEOMETRY"
        ) from None
    if encoding != "WKB" or column not in file.schema_arrow.names:
        raise RequestError(f"{option}: {name} geometry must be WKB, got {encoding}")
    if "crs" in described:
        # PROJJSON, which must name the coordinates of GPS, in the order of GeoParquet: longitude first.
        crs, known = described["crs"], _member(described["crs"], "id")
        stated = f"{known.get('authority')}:{known.get('code')}" if isinstance(known, dict) else crs
        if not isinstance(stated, str) or not _KNOWN_CRS.fullmatch(stated):
            if crs is None:
                raise _unknown_crs(option, name, crs)
            return "", _converted_features(option, name, content, (column, crs))
    kept = [one for one in file.schema_arrow.names if one != column and wanted(one)]

    def rows() -> Iterator[Feature]:
        try:
            for batch in file.iter_batches(columns=[column, *kept], use_threads=False):
                shapes = shapely.from_wkb(_storage(batch.column(column)).to_numpy(zero_copy_only=False))
                for made, properties in zip(shapes, batch.select(kept).to_pylist() or [{}] * len(shapes), strict=True):
                    yield properties, None if made is None else _finite(made)
        except (pa.ArrowException, OSError, ValueError, TypeError, ShapelyError) as error:
            raise RequestError(f"{option}: {name} cannot be read as GeoParquet ({error})") from None

    return "", rows()


def _storage(column: pa.Array) -> pa.Array:
    """Returns the binaries of a column, also where a library of the process gives GEOMETRY a type of its own."""
    return column.storage if isinstance(column, pa.ExtensionArray) else column


def _converted_features(
    option: str, name: str, content: bytes, parquet: tuple[str, Any] | None = None
) -> Iterator[Feature]:
    """Returns the features of a file that geopandas reads, in degrees of longitude and latitude.

    parquet: for GeoParquet, the column of WKB and its coordinate system. Raises RequestError.
    """
    try:
        import geopandas
        import pyogrio
    except ImportError as error:
        raise RequestError(
            f"{option}: {name} requires {error.name}; run: pip install '.[geo]', or convert the file: "
            f"ogr2ogr -t_srs EPSG:4326 {option}.geojson {name}"
        ) from None
    try:
        if parquet is not None:  # geopandas itself would not read a file of GeoParquet 2.0 without the metadata `geo`
            table, (column, crs) = parquet_table(content), parquet
            shapes = shapely.from_wkb(_storage(table[column].combine_chunks()).to_numpy(zero_copy_only=False))
            frame = geopandas.GeoDataFrame(table.drop_columns([column]).to_pandas(), geometry=shapes, crs=crs)
        else:
            with tempfile.TemporaryDirectory(prefix="sfumato-") as folder, warnings.catch_warnings():
                warnings.simplefilter("ignore")  # of GDAL, about the temporary file
                file = _unpacked(folder, content)
                layers = [str(layer) for layer, kind in pyogrio.list_layers(file) if kind is not None]
                if len(layers) != 1:
                    found = ", ".join(map(readable, layers)) or "none"
                    raise RequestError(f"{option}: {name} must have one layer with geometries, got {found}")
                frame = geopandas.read_file(file, layer=layers[0], engine="pyogrio")
        if frame.crs is None:
            raise _unknown_crs(option, name, None)
        shapes = [None if made is None else _finite(made) for made in frame.to_crs(_DEGREES).geometry]
    except RequestError:
        raise
    except Exception as error:  # noqa: BLE001  (GDAL, PROJ, pyarrow and geopandas have no error in common)
        raise RequestError(f"{option}: {name} cannot be read ({reason_of(error)})") from None
    columns = frame.drop(columns=frame.geometry.name)
    names = [str(column) for column in columns]
    rows = zip(*(columns[column].tolist() for column in columns), strict=True) if names else iter([()] * len(shapes))
    return iter([(dict(zip(names, row, strict=True)), made) for row, made in zip(rows, shapes, strict=True)])


def _unpacked(folder: str, content: bytes) -> str:
    """Writes a file, or the parts of a zipped shapefile, for GDAL. Returns the path to open.

    GDAL chooses a reader by content, and some formats name further files or addresses to read. So the content is known
    here: nothing but the parts of one shapefile leaves a zip.

    Raises ValueError, or an error of zipfile.
    """
    if not content.startswith(_ZIP):
        path = os.path.join(folder, "file.gpkg" if content.startswith(_GEOPACKAGE) else "file.geojson")
        with open(path, "wb") as file:
            file.write(content)
        return path
    with zipfile.ZipFile(io.BytesIO(content)) as packed:
        stems = [one[:-4] for one in packed.namelist() if one.lower().endswith(".shp") and "__MACOSX" not in one]
        if len(stems) != 1:
            raise ValueError(f"a zip must contain one shapefile, got {len(stems)}")
        for member in packed.namelist():
            stem, ending = os.path.splitext(member)
            if stem == stems[0] and ending.lower() in SHAPEFILE_PARTS:
                if packed.getinfo(member).file_size > _MAX_PART_BYTES:
                    raise ValueError(f"{readable(member)} has more than {_MAX_PART_BYTES >> 20} MiB")
                part = packed.read(member)
                if ending.lower() == ".shp" and not part.startswith(SHAPEFILE):
                    raise ValueError(f"{readable(member)} is no shapefile")
                with open(os.path.join(folder, f"file{ending.lower()}"), "wb") as file:
                    file.write(part)
    encoding, table = os.path.join(folder, "file.cpg"), os.path.join(folder, "file.dbf")
    if not os.path.exists(encoding) and os.path.exists(table) and _is_utf8(table):
        with open(encoding, "w") as file:
            file.write("UTF-8")
    return os.path.join(folder, "file.shp")


def _is_utf8(path: str) -> bool:
    """Returns whether the records of a .dbf have characters beyond ASCII, and all are UTF-8, as no other text is."""
    with open(path, "rb") as file:
        table = file.read()
    records = table[int.from_bytes(table[8:10], "little") :]
    if records.isascii():
        return False
    try:
        records.decode("utf-8")
    except UnicodeDecodeError:
        return False
    return True


def _finite(made: BaseGeometry) -> BaseGeometry:
    if not np.isfinite(shapely.get_coordinates(made)).all():
        raise ValueError("a coordinate is not finite")
    return made


def _member(data: Any, *names: str) -> Any:
    """Returns a member of nested objects; None where there is none."""
    for name in names:
        data = data.get(name) if isinstance(data, dict) else None
    return data


def _unknown_crs(option: str, name: str, crs: Any) -> RequestError:
    label = crs.get("name") if isinstance(crs, dict) else crs
    stated = "does not state its coordinate system" if label is None else f"has coordinates in {readable(str(label))}"
    return RequestError(f"{option}: {name} {stated}; convert it to longitude and latitude (OGC:CRS84 or EPSG:4326)")
