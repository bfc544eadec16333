"""Zones: named polygons of a file, or areas around its points, with the coarser levels that they add up to."""

from __future__ import annotations

import hashlib
import itertools
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from functools import cached_property
from typing import Any

import numpy as np
import shapely
from numpy.typing import NDArray
from shapely.geometry.base import BaseGeometry

from sfumato.schemas.charts import readable
from sfumato.schemas.errors import RequestError
from sfumato.schemas.region import EARTH_RADIUS_KM, Region, inner_points
from sfumato.transforms.geo.cell_indexes import index_cells
from sfumato.transforms.geo.feature_files import feature_bytes, read_features

INDEXES = {"h3": "H3 cells", "quadkey": "Quadkey tiles"}  # whose cells are zones
MAX_FILE_BYTES = 400 << 20
MAX_ZONES = 1 << 20
MAX_SHOWN = 20_000  # zones of a level; a page omits a level with more
MAX_OVERLAP = 1e-3  # of the smaller zone's area; a larger overlap is an error of the file
_SHOWN = 3  # zones that a message names
_POLAR = 85.0  # degrees of latitude; Mercator's projection stretches what lies beyond
_QUARTER = 8  # edges of a quarter of a circle


@dataclass(frozen=True)
class ZoneLevel:
    """A coarser level, such as `county`. Each of its zones is the union of zones of the next finer level."""

    name: str
    ids: tuple[str, ...]  # of its zones, in order of their first zone in the file
    parents: NDArray[np.int64]  # int64[zones of the next finer level], the index in `ids` of the zone that holds each


@dataclass(frozen=True)
class Zones:
    """Public zones that do not overlap. They need not cover everything between them.

    A point on a border, or in an overlap that is allowed, belongs to the zone that comes first.

    Attributes:
        ids: of the n zones, unique.
        geometries: object[n], valid shapely Polygons and MultiPolygons in degrees of longitude and latitude (WGS 84).
        name: of the level of these zones, the finest.
        levels: the coarser levels, from finer to coarser.
        source: of the polygons, for pages.
        labels: names of the n zones for people, None for a zone without; they identify nothing, and no digest holds
            them. None for zones without names.
        given: object[n], the shapely Points of the file around which the zones lie; None for polygons.
    """

    ids: tuple[str, ...]
    geometries: NDArray[np.object_]
    name: str = "zone"
    levels: tuple[ZoneLevel, ...] = ()
    source: str = ""
    labels: tuple[str | None, ...] | None = None
    given: NDArray[np.object_] | None = None

    def __len__(self) -> int:
        return len(self.ids)

    @property
    def region(self) -> Region:
        """The smallest rectangle that holds all zones."""
        west, south, east, north = (float(one) for one in shapely.total_bounds(self.geometries))
        return Region(west, south, east, north)

    @property
    def span(self) -> str:
        """The borders of this rectangle as W,S,E,N, in degrees to some 100 metres."""
        region = self.region
        return ",".join(f"{round(one, 3):g}" for one in (region.west, region.south, region.east, region.north))

    @property
    def level_names(self) -> tuple[str, ...]:
        """Names of all levels, from the finest to the coarsest."""
        return (self.name, *(level.name for level in self.levels))

    @property
    def ids_of_levels(self) -> tuple[tuple[str, ...], ...]:
        """The ids of the zones of every level, from the finest to the coarsest."""
        return (self.ids, *(level.ids for level in self.levels))

    def place(self) -> dict[str, Any]:
        """Returns where the finest zones are, for a manifest."""
        levels = [{"name": self.name, "zones": len(self)}]
        zones = {"source": self.source, "sha256": self.digest, "levels": levels}
        return {"region": asdict(self.region), "zones": zones}

    @cached_property
    def ancestors(self) -> tuple[NDArray[np.int64], ...]:
        """For each level, from the finest, the index of the zone that holds each finest zone: int64[n] each."""
        above = (level.parents for level in self.levels)
        return tuple(itertools.accumulate(above, lambda held, parents: parents[held], initial=np.arange(len(self.ids))))

    @cached_property
    def points(self) -> NDArray[np.float64]:
        """Longitude and latitude of a point in each finest zone, the file's own if it has points: float64[n, 2]."""
        given = inner_points(self.geometries) if self.given is None else self.given
        return np.asarray(shapely.get_coordinates(given))

    @cached_property
    def areas_km2(self) -> NDArray[np.float64]:
        """Areas of the finest zones on the sphere, float64[n], square kilometres."""
        return areas_km2(self.geometries)

    @cached_property
    def digest(self) -> str:
        """SHA-256 of the ids, polygons and levels. The same zones of another file or format have the same digest."""
        hashed = hashlib.sha256()
        for name, ids, parents in zip(self.level_names, self.ids_of_levels, self.ancestors, strict=True):
            hashed.update(repr((name, ids)).encode() + parents.tobytes())
        for one in shapely.to_wkb(self.geometries, byte_order=1):
            hashed.update(one)
        return hashed.hexdigest()


def read_zones(
    path: str,
    id_column: str,
    levels: Sequence[str] = (),
    label_column: str | None = None,
    radius: float | None = None,
) -> Zones:
    """Reads and checks the zones of a file.

    Args:
        path: of a GeoJSON, GeoParquet, GeoPackage, shapefile (.shp, its folder, or zipped) or CSV file of points, local
            or in a bucket.
        id_column: the property or column with the zones' ids, text or integers.
        levels: the columns of all levels, from the finest, `id_column`, to the coarsest; empty for one level.
        label_column: the property or column with names for people, which need not be unique; None without.
        radius: in metres, of the zones of a file of points, see `areas_of_points`; None for a file of polygons.

    Raises:
        RequestError: the file cannot be read, or its zones cannot be used. The message names the zone and the remedy.
    """
    names = tuple(levels) or (id_column,)
    if names[0] != id_column:
        raise RequestError(
            f"levels: names the columns of all levels from the finest, which is the id_column {id_column}, to the "
            f"coarsest, and starts with {names[0]}"
        )
    if len(set(names)) < len(names):
        raise RequestError(f"levels: {','.join(names)} names a column twice")
    content = feature_bytes("zones", path, MAX_FILE_BYTES)
    source, features = read_features("zones", path, content, lambda column: column in (*names, label_column))
    ids: list[tuple[str, ...]] = []
    labels: list[str | None] = []
    shapes: list[BaseGeometry] = []
    kinds = ("Polygon", "MultiPolygon") if radius is None else ("Point",)
    for number, (properties, shape) in enumerate(features):
        ids.append(tuple(_text_id(path, number, name, properties) for name in names))
        if label_column is not None:
            labels.append(_label(path, number, label_column, properties))
        if shape is None or shape.is_empty or shape.geom_type not in kinds:
            kind = "no geometry" if shape is None or shape.is_empty else f"a {shape.geom_type}"
            advice = "zones are polygons"
            if radius is not None:
                advice = "--radius applies only to points: leave it out"
            elif kind == "a Point":
                advice += "; give --radius METRES to count at each point what is nearer to it than to any other"
            raise RequestError(f"zones: {path}: {names[0]} {readable(ids[-1][0])} has {kind}, and {advice}")
        shapes.append(shape)
        if len(ids) > MAX_ZONES:
            raise RequestError(f"zones: {path} has more than {MAX_ZONES:,} zones; use a coarser level")
    if not ids:
        raise RequestError(f"zones: {path} has no zones")
    columns = list(zip(*ids, strict=True))
    geometries, points = shapely.force_2d(np.array(shapes, dtype=object)), None
    if radius is not None:
        points, geometries = geometries, areas_of_points(geometries, radius, columns[0])
    named = tuple(labels) if label_column is not None else None
    nested = _nested(path, names, columns)
    zones = Zones(columns[0], geometries, names[0], nested, source or _file_name(path), named, points)
    check_zones(zones, path)
    return zones


def areas_km2(shapes: NDArray[np.object_]) -> NDArray[np.float64]:
    """Areas of shapes in degrees on the sphere, float64[n], square kilometres.

    The cylindrical equal-area projection keeps areas: x is the longitude, y the sine of the latitude.
    """

    projected = shapely.transform(shapes, lambda x, y: (np.radians(x), np.sin(np.radians(y))), interleaved=False)
    return np.asarray(shapely.area(projected) * EARTH_RADIUS_KM**2)


def index_zones(kind: str, resolution: int, region: Region) -> Zones:
    """Returns the cells of an index that meet a region, as zones. Cells at the region's edge reach beyond it.

    kind: of INDEXES: h3 or quadkey. resolution: or level, of the index.

    Raises:
        RequestError: the index lacks the resolution, or the region has too many cells.
    """
    names, polygons = index_cells(kind, resolution, region)
    if len(names) > MAX_ZONES:
        raise RequestError(f"{kind}: the region must have at most {MAX_ZONES:,} cells, got {len(names):,}")
    return Zones(tuple(names.tolist()), polygons, kind, source=f"{kind} {resolution}")


def check_zones(zones: Zones, label: str) -> None:
    """Checks ids, coordinates, validity and overlaps. label: of the zones in messages, such as the path of their file.

    Raises:
        RequestError: for each of these. The message names up to three zones.
    """
    ids, geometries = zones.ids, zones.geometries
    repeated = [one for one, number in zip(*np.unique(ids, return_counts=True), strict=True) if number > 1]
    if repeated:
        raise RequestError(
            f"zones: {label}: {_named(zones.name, repeated)} occurs more than once; ids must be unique, the "
            "parts of a zone one MultiPolygon, and the first of the levels the finest"
        )
    bounds = shapely.bounds(geometries)
    beyond = (np.abs(bounds[:, [0, 2]]).max(axis=1) > 180) | (np.abs(bounds[:, [1, 3]]).max(axis=1) > 90)
    if beyond.any():
        first = int(np.flatnonzero(beyond)[0])
        west, south, east, north = bounds[first]
        if np.abs(bounds).max() <= 360 and max(abs(south), abs(north)) <= 90:
            remedy = "cut polygons at the antimeridian into parts of a MultiPolygon (RFC 7946, section 3.1.9)"
        else:
            remedy = "convert them to longitude and latitude (OGC:CRS84 or EPSG:4326), longitude first"
        raise RequestError(
            f"zones: {label}: {_named(zones.name, [ids[i] for i in np.flatnonzero(beyond)])} leaves the globe (it "
            f"spans {west:,.6g} to {east:,.6g} and {south:,.6g} to {north:,.6g}); {remedy}"
        )
    invalid = np.flatnonzero(~shapely.is_valid(geometries))
    if len(invalid):
        shape = geometries[invalid[0]]
        mended = shapely.make_valid(shape)
        parts = int(shapely.get_num_geometries(mended))
        raise RequestError(
            f"zones: {label}: {_named(zones.name, [ids[i] for i in invalid])} is not a valid polygon "
            f"({shapely.is_valid_reason(shape)}); shapely.make_valid would make it a {mended.geom_type} with {parts} "
            f"part{'s'[: parts != 1]}. Sfumato does not do this, as it may move users to another zone: fix the "
            "zone in the file, and check its shape"
        )
    empty = np.flatnonzero(shapely.area(geometries) == 0)
    if len(empty):
        raise RequestError(f"zones: {label}: {_named(zones.name, [ids[i] for i in empty])} has no area")
    pieces, owner = shapely.get_parts(geometries, return_index=True)
    part_bounds = shapely.bounds(pieces)
    wide = np.unique(owner[part_bounds[:, 2] - part_bounds[:, 0] > 180])
    if len(wide):
        raise RequestError(
            f"zones: {label}: {_named(zones.name, [ids[i] for i in wide])} spans more than 180 degrees of longitude; "
            "if it crosses the antimeridian, cut it there into parts of a MultiPolygon (RFC 7946, section 3.1.9), "
            "otherwise cut it in two"
        )
    _check_overlaps(zones, label)


def _check_overlaps(zones: Zones, label: str) -> None:
    """Raises RequestError where two zones overlap by more than MAX_OVERLAP of the smaller one."""
    geometries = zones.geometries
    if shapely.coverage_is_valid(geometries):  # neighbours have the same vertices: fast, and most files are so
        return
    first, second = shapely.STRtree(geometries).query(geometries, predicate="intersects")
    first, second = first[first < second], second[first < second]
    shared = shapely.area(shapely.intersection(geometries[first], geometries[second]))
    areas = shapely.area(geometries)
    share = shared / np.minimum(areas[first], areas[second])
    bad = np.flatnonzero(share > MAX_OVERLAP)
    if len(bad):
        worst = bad[np.argmax(share[bad])]
        pair = [readable(zones.ids[i]) for i in (first[worst], second[worst])]
        raise RequestError(
            f"zones: {label}: {len(bad):,} {'pair of zones overlaps' if len(bad) == 1 else 'pairs of zones overlap'}, "
            f"such as {zones.name} {pair[0]} and {pair[1]} by {share[worst]:.3g} of the smaller one's area "
            f"({MAX_OVERLAP:g} is allowed); a record counts in only one zone, so cut the overlap out of one of them; "
            "for circles around stops, give points and --radius"
        )


def no_id_column(path: str) -> RequestError:
    """Returns the error of zones of a file without an id_column, with the columns that the file has."""
    return RequestError(f"id_column: required with --zones{_columns(path) or ', such as --id_column tract'}")


def _file_name(path: str) -> str:
    return readable(path.rsplit("/", 1)[-1])


def _columns(path: str) -> str:
    """Returns the properties of a file's first feature, for the end of a message; nothing if there are none."""
    with suppress(RequestError):
        _, features = read_features("zones", path, feature_bytes("zones", path, MAX_FILE_BYTES), lambda _: True)
        properties, _ = next(features, ({}, None))
        if known := ", ".join(readable(one) for one in list(properties)[:20]):
            return f"; the file has {known}"
    return ""


def _text_id(path: str, number: int, name: str, properties: Any) -> str:
    """Returns the id of a feature in a column. Raises RequestError."""
    if name not in properties:
        raise RequestError(f"zones: {path}: feature {number} has no property or column {name!r}{_columns(path)}")
    value = properties[name]
    if isinstance(value, bool) or not isinstance(value, str | int) or value == "":
        raise RequestError(
            f"zones: {path}: feature {number} has {value!r} in {name}; every zone needs an id of text or an integer"
        )
    return str(value)


def _label(path: str, number: int, name: str, properties: Any) -> str | None:
    """Returns the name of a feature for people; None if it is empty. Raises RequestError."""
    if name not in properties:
        raise RequestError(f"label_column: {path}: feature {number} has no property or column {name!r}{_columns(path)}")
    value = properties[name]
    return None if value is None or value != value or value == "" else str(value)


def _nested(path: str, names: Sequence[str], columns: Sequence[tuple[str, ...]]) -> tuple[ZoneLevel, ...]:
    """Returns the coarser levels. Raises RequestError where a zone of one level is in two zones of the next."""
    levels: list[ZoneLevel] = []
    finer = np.arange(len(columns[0]))  # the zone of the next finer level of each row
    for below, name, column in zip(names, names[1:], columns[1:], strict=False):
        ids = tuple(dict.fromkeys(column))
        index = {one: i for i, one in enumerate(ids)}
        rows = np.array([index[one] for one in column])
        parents = np.zeros(finer.max() + 1, dtype=np.int64)
        parents[finer] = rows
        torn = np.flatnonzero(parents[finer] != rows)
        if len(torn):
            row = int(torn[0])
            zone = columns[len(levels)][row]
            both = sorted({one for one, other in zip(column, columns[len(levels)], strict=True) if other == zone})
            raise RequestError(
                f"levels: {path}: {below} {readable(zone)} is in {name} {readable(both[0])} and {readable(both[1])}; "
                f"every {below} must be in one {name}, with ids that are unique in the complete file"
            )
        levels.append(ZoneLevel(name, ids, parents))
        finer = rows
    return tuple(levels)


def areas_of_points(points: NDArray[np.object_], radius: float, ids: Sequence[str]) -> NDArray[np.object_]:
    """Returns a polygon around each point: the places that are nearer to it than to any other, up to the radius.

    Distances are compared in Mercator's projection, which is true to shape, so that a circle stays one.

    Args:
        points: object[n], shapely Points in degrees of longitude and latitude.
        radius: in metres.
        ids: of the points, for messages.

    Raises:
        RequestError: two points are at one place, or one is near a pole.
    """
    places = shapely.get_coordinates(points)
    if (np.abs(places[:, 1]) > _POLAR).any():
        raise RequestError(f"radius: points must lie between {_POLAR:g} degrees south and north")
    _, first, number = np.unique(places, axis=0, return_index=True, return_counts=True)
    if (number > 1).any():
        place = places[first[np.argmax(number)]]
        both = " and ".join(readable(ids[i]) for i in np.flatnonzero((places == place).all(axis=1))[:2])
        raise RequestError(f"radius: {both} are at one place, so no record is nearer to one of them; leave one out")
    north = np.radians(places[:, 1])
    projected = np.stack([np.radians(places[:, 0]), np.arctanh(np.sin(north))], axis=1)
    circles = shapely.buffer(
        shapely.points(projected), radius / (1000 * EARTH_RADIUS_KM * np.cos(north)), quad_segs=_QUARTER
    )
    if len(points) > 1:
        cells = shapely.voronoi_polygons(
            shapely.multipoints(projected), extend_to=shapely.box(*shapely.total_bounds(circles)), ordered=True
        )
        circles = shapely.intersection(circles, shapely.get_parts(cells))
    areas: NDArray[np.object_] = shapely.transform(
        circles, lambda x, y: (np.degrees(x), np.degrees(np.arcsin(np.tanh(y)))), interleaved=False
    )
    return areas


def _named(name: str, ids: Sequence[str]) -> str:
    shown = ", ".join(readable(str(one)) for one in ids[:_SHOWN])
    return f"{name} {shown}" + (f" and {len(ids) - _SHOWN:,} more" if len(ids) > _SHOWN else "")


def level_title(name: str, levels: int, noun: str = "zone") -> str:
    """Returns the name of a level's zones; that of the only level is a column's, which says nothing to a reader."""
    return INDEXES.get(name, readable(name) if levels > 1 else f"{noun.capitalize()}s")
