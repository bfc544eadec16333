"""Features of GeoJSON and GeoParquet files: shapes in degrees of longitude and latitude, and their properties. Pure."""

from __future__ import annotations

import io
import json
import re
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import shapely
from shapely.errors import ShapelyError
from shapely.geometry import shape
from shapely.geometry.base import BaseGeometry

from sfumato.schemas.charts import readable
from sfumato.schemas.errors import RequestError

_PARQUET = b"PAR1"
_NO_FEATURE = (KeyError, TypeError, ValueError, AttributeError, IndexError, ShapelyError, RecursionError)
_KNOWN_CRS = re.compile(r"(?:urn:ogc:def:crs:)?(?:OGC:(?:1\.3|2)?:?CRS84|EPSG:[0-9.]*:?4326)", re.IGNORECASE)
Feature = tuple[Mapping[str, Any], BaseGeometry | None]  # properties by name, and a shape, if it has one


def read_features(
    option: str, name: str, content: bytes, wanted: Callable[[str], bool]
) -> tuple[str, Iterator[Feature]]:
    """Returns the source that a file names, and its features in order.

    A shape is None where the feature has none, and may be empty or invalid. Its coordinates are finite.

    Args:
        option: that names the file, for messages.
        name: of the file, for messages and as the source if the file names none.
        content: GeoJSON, or GeoParquet, in degrees of longitude and latitude.
        wanted: whether a column of a GeoParquet file is read as a property. GeoJSON is read with all properties.

    Raises RequestError if the file cannot be read, or is not in degrees, also while the features are read.
    """
    if content[:4] == _PARQUET:
        return _parquet_features(option, name, content, wanted)
    return _json_features(option, name, content)


def _json_features(option: str, name: str, content: bytes) -> tuple[str, Iterator[Feature]]:
    """Returns the source that a GeoJSON file names, and its features. Raises RequestError."""
    try:
        data = json.loads(content)
    except (ValueError, RecursionError) as error:  # bytes that are no text are one, too
        raise RequestError(f"{option}: {name} is neither GeoJSON nor GeoParquet ({error})") from None
    if not isinstance(data, dict) or not isinstance(data.get("type"), str):
        raise RequestError(f"{option}: {name} is not GeoJSON: it must be an object with a `type`")
    if "crs" in data:
        stated = _member(data["crs"], "properties", "name")
        if not isinstance(stated, str) or not _KNOWN_CRS.fullmatch(stated):
            raise _unknown_crs(option, name, stated)
    features = data.get("features") if data["type"] == "FeatureCollection" else [data]
    if not isinstance(features, list):
        raise RequestError(f"{option}: {name} is not GeoJSON: a FeatureCollection must have a list of features")
    source = next((str(data[key]) for key in ("attribution", "source", "name") if isinstance(data.get(key), str)), name)

    def rows() -> Iterator[Feature]:
        for number, feature in enumerate(features):
            try:
                geometry = feature["geometry"] if feature["type"] == "Feature" else feature
                properties = {str(key): value for key, value in (feature.get("properties") or {}).items()}
                made = None if geometry is None else _finite(shape(geometry))
            except _NO_FEATURE as error:
                raise RequestError(f"{option}: {name}: feature {number} is not GeoJSON ({error})") from None
            yield properties, made

    return _source(source), rows()


def _parquet_features(
    option: str, name: str, content: bytes, wanted: Callable[[str], bool]
) -> tuple[str, Iterator[Feature]]:
    """Returns the source of a GeoParquet file, and its rows. Raises RequestError."""
    try:
        file = pq.ParquetFile(io.BytesIO(content))
        about = json.loads((file.schema_arrow.metadata or {}).get(b"geo", b"null"))
    except (pa.ArrowException, OSError, ValueError) as error:
        raise RequestError(f"{option}: {name} cannot be read as Parquet ({error})") from None
    try:
        column = about["primary_column"]
        described = about["columns"][column]
        encoding = described["encoding"]
    except (KeyError, TypeError):
        raise RequestError(f"{option}: {name} is Parquet, but not GeoParquet: its metadata `geo` is missing") from None
    if encoding != "WKB" or column not in file.schema_arrow.names:
        raise RequestError(f"{option}: {name} geometry must be WKB, got {encoding}")
    if "crs" in described:
        # PROJJSON, which must name the coordinates of GPS, in the order of GeoParquet: longitude first.
        crs, known = described["crs"], _member(described["crs"], "id")
        stated = f"{known.get('authority')}:{known.get('code')}" if isinstance(known, dict) else crs
        if not isinstance(stated, str) or not _KNOWN_CRS.fullmatch(stated):
            raise _unknown_crs(option, name, crs)
    kept = [one for one in file.schema_arrow.names if one != column and wanted(one)]

    def rows() -> Iterator[Feature]:
        try:
            for batch in file.iter_batches(columns=[column, *kept]):
                shapes = shapely.from_wkb(batch.column(column).to_numpy(zero_copy_only=False))
                for made, properties in zip(shapes, batch.select(kept).to_pylist() or [{}] * len(shapes), strict=True):
                    yield properties, None if made is None else _finite(made)
        except (pa.ArrowException, OSError, ValueError, TypeError, ShapelyError) as error:
            raise RequestError(f"{option}: {name} cannot be read as GeoParquet ({error})") from None

    return _source(name), rows()


def _finite(made: BaseGeometry) -> BaseGeometry:
    if not np.isfinite(shapely.get_coordinates(made)).all():
        raise ValueError("a coordinate is not finite")
    return made


def _member(data: Any, *names: str) -> Any:
    """Returns a member of nested objects; None where there is none."""
    for name in names:
        data = data.get(name) if isinstance(data, dict) else None
    return data


def _source(text: str) -> str:
    return readable(text.rsplit("/", 1)[-1] if "://" not in text else text)


def _unknown_crs(option: str, name: str, crs: Any) -> RequestError:
    label = crs.get("name") if isinstance(crs, dict) else crs
    stated = "does not state its coordinate system" if label is None else f"has coordinates in {readable(str(label))}"
    return RequestError(f"{option}: {name} {stated}; convert it to longitude and latitude (OGC:CRS84 or EPSG:4326)")
