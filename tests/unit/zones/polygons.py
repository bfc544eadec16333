"""Zone files for tests: real GeoJSON and GeoParquet, and the brute-force answer to which zone holds a point."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import shapely
from numpy.typing import NDArray
from shapely.geometry import mapping
from shapely.geometry.base import BaseGeometry

from sfumato.transforms.geo.zone_file import Zones
from tests.seeds import seeded_rng


def zones_of(shapes: Sequence[BaseGeometry]) -> Zones:
    """Zones with the ids 0, 1, ..."""
    geometries = np.empty(len(shapes), dtype=object)
    geometries[:] = shapes
    return Zones(tuple(str(i) for i in range(len(shapes))), geometries)


def write_geojson(path: Path, rows: Sequence[tuple[BaseGeometry | None, Mapping[str, Any]]], **members: Any) -> str:
    features = [
        {"type": "Feature", "properties": dict(properties), "geometry": None if shape is None else mapping(shape)}
        for shape, properties in rows
    ]
    path.write_text(json.dumps({"type": "FeatureCollection", "features": features, **members}))
    return str(path)


class _Native(pa.ExtensionType):  # type: ignore[misc]
    """What Arrow writes as Parquet's type GEOMETRY, in a coordinate system."""

    def __init__(self, crs: Any) -> None:
        self._crs = crs
        super().__init__(pa.binary(), "geoarrow.wkb")

    def __arrow_ext_serialize__(self) -> bytes:
        return json.dumps({} if self._crs is None else {"crs": self._crs}).encode()


def write_native_parquet(
    path: Path, shapes: Sequence[BaseGeometry], columns: Mapping[str, Any], crs: Any = None, **metadata: str
) -> str:
    """A file that has Parquet's own type and no metadata `geo`. crs: None for the type's default, OGC:CRS84."""
    binary = pa.array(shapely.to_wkb(np.array(shapes, dtype=object)), pa.binary())
    table = pa.table({**columns, "geometry": pa.ExtensionArray.from_storage(_Native(crs), binary)})
    pq.write_table(table.replace_schema_metadata(metadata), path)
    return str(path)


def voronoi(count: int, seed: int, box: tuple[float, float, float, float] = (3.0, 1.0, 3.2, 1.2)) -> list[BaseGeometry]:
    """The Voronoi cells of random points, cut to a box: zones with shared borders that are not along the axes."""
    rng = seeded_rng(seed)
    west, south, east, north = box
    points = shapely.multipoints(rng.uniform([west, south], [east, north], size=(count, 2)))
    frame = shapely.box(*box)
    cells = shapely.get_parts(shapely.voronoi_polygons(points, extend_to=frame))
    return list(shapely.intersection(cells, frame))


def brute_force(zones: Zones, longitude: NDArray[np.float64], latitude: NDArray[np.float64]) -> NDArray[np.int64]:
    """The first zone that holds each point, border included; -1 where none does."""
    points = shapely.points(longitude, latitude)
    found = np.full(len(longitude), -1)
    for index in range(len(zones) - 1, -1, -1):
        found[shapely.intersects(zones.geometries[index], points)] = index
    return found
