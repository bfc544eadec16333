"""The geography of Penumbra as GeoJSON: shores, parks, districts, large roads and names. No seed changes it."""

from __future__ import annotations

import json
from collections.abc import Iterator
from itertools import chain, pairwise
from typing import Any

import numpy as np
import shapely
from contourpy import FillType, contour_generator
from shapely.affinity import affine_transform, rotate, translate
from shapely.geometry import mapping
from shapely.geometry.base import BaseGeometry

from sfumato.schemas.region import Region
from sfumato.transforms.synth.landscape import (
    AVENUE,
    BAY_BRIDGE,
    DISTRICTS,
    FREEWAYS,
    RIVER_BRIDGES,
    SIZE_KM,
    District,
    Point,
    SmoothNoise,
    depth_inland,
)

_SIDE = 1024  # points along a side at which the shores are found
_AROUND = 8.0  # km of land and water beyond the city's square: what a wide page shows next to it
_FINEST = 0.012  # km: what is finer is smoothed away
_MAIN_STREET = 5  # every fifth street of a district
_NAMES = {district.name: district.name.title().replace("Of The", "of the") for district in DISTRICTS}
_PLACES = (
    ("Penumbra", "city", 8.2, 5.75),
    ("Ferry Pier", "locality", 10.0, 4.55),
    ("Stadium", "locality", 10.0, 6.45),
    ("Museum", "locality", 4.35, 6.33),
    ("Ocean Beach", "locality", 0.95, 7.6),
    ("University", "locality", 6.5, 5.9),
    ("Mount Umbra", "locality", 5.3, 10.35),
    ("Lantern Island", "locality", 12.1, 2.95),
)
_PARKS: tuple[tuple[str, Point, Point, float], ...] = (
    ("Long Park", (3.3, 6.4), (4.4, 0.86), 3),
    ("Old Square", (7.75, 4.25), (0.32, 0.26), 9),
)


def city_geojson(region: Region) -> bytes:
    """Returns water, parks, districts, roads and places, stretched over a region, in degrees to six decimals."""
    land = _land()
    bounds = shapely.box(-_AROUND, -_AROUND, SIZE_KM + _AROUND, SIZE_KM + _AROUND)
    parks = {}
    for name, centre, (width, height), degrees in _PARKS:
        shape = shapely.box(-width / 2, -height / 2, width / 2, height / 2)
        parks[name] = translate(rotate(shape, degrees, origin=(0, 0)), *centre)
    green = shapely.union_all(list(parks.values()))
    features = chain(
        [({"natural": "water", "name": "Penumbra Bay, the ocean and the river"}, bounds - land)],
        (({"leisure": "park", "label": ""}, park & land) for park in parks.values()),
        _districts(land, green),
        (({"highway": "motorway"}, shapely.LineString(line)) for line in (*FREEWAYS, BAY_BRIDGE, *RIVER_BRIDGES)),
        [({"highway": "primary", "name": "The Avenue"}, shapely.LineString(AVENUE))],
        (({"place": kind, "name": name}, shapely.Point(x, y)) for name, kind, x, y in _PLACES),
        (({"place": "locality", "name": name}, park.centroid) for name, park in parks.items()),
    )
    east, south = (region.east - region.west) / SIZE_KM, (region.north - region.south) / SIZE_KM

    def feature(properties: dict[str, Any], shape: BaseGeometry) -> dict[str, Any]:
        placed = affine_transform(shape, (east, 0, 0, -south, region.west, region.north))
        return {"type": "Feature", "properties": properties, "geometry": mapping(shapely.set_precision(placed, 1e-6))}

    return json.dumps(
        {
            "type": "FeatureCollection",
            "source": "Penumbra, an invented city",
            "features": [feature(*one) for one in features if not one[1].is_empty],
        },
        separators=(",", ":"),
    ).encode()


def _land() -> BaseGeometry:
    """Returns the land, in km, with the piers and the island."""
    noise = SmoothNoise(_SIDE, salt=11, knots=5, octaves=5).rows(0, _SIDE)  # as the city's coast has it
    step = SIZE_KM / _SIDE
    beyond = round(_AROUND / step) + 2  # a little more than is kept, which is cut off cleanly
    middle = (np.arange(-beyond, _SIDE + beyond) + 0.5) * step
    inside = np.clip(np.rint(middle / step - 0.5).astype(int), 0, _SIDE - 1)
    x, y = np.meshgrid(middle.astype(np.float32), middle.astype(np.float32))
    depth, _ = depth_inland(x, y, noise[np.ix_(inside, inside)])
    contours = contour_generator(middle, middle, depth, fill_type=FillType.OuterOffset)
    areas = []
    for ring, at in zip(*contours.filled(0, np.inf)[:2], strict=True):
        rings = [ring[first:last] for first, last in pairwise(at)]
        areas.append(shapely.Polygon(rings[0], rings[1:]))
    return shapely.make_valid(shapely.simplify(shapely.union_all(areas), _FINEST))


def _districts(land: BaseGeometry, parks: BaseGeometry) -> Iterator[tuple[dict[str, Any], BaseGeometry]]:
    """Yields each district's area, which is what is nearest to its middle, its name there, and its main streets."""
    middles = shapely.MultiPoint([(one.x, one.y) for one in DISTRICTS])
    square = shapely.box(0, 0, SIZE_KM, SIZE_KM)
    cells = list(shapely.voronoi_polygons(middles, extend_to=square.buffer(SIZE_KM)).geoms)
    for district in DISTRICTS:
        area = next(cell for cell in cells if cell.contains(shapely.Point(district.x, district.y))) & square & land
        yield {"boundary": "district", "name": _NAMES[district.name]}, area
        yield {"highway": "secondary"}, _streets(district) & (area - parks)


def _streets(district: District) -> BaseGeometry:
    """Returns the main streets of a district's grid, which goes on without end."""
    cosine, sine = np.cos(np.radians(district.degrees)), np.sin(np.radians(district.degrees))
    along = np.linspace(-SIZE_KM, SIZE_KM, 400)
    lines = []
    for block, frequency, phase, swap in ((district.block_u, 3.1, 1.0, False), (district.block_v, 3.7, 0.0, True)):
        apart = block * _MAIN_STREET
        for number in range(-int(SIZE_KM / apart), int(SIZE_KM / apart) + 1):
            across = number * apart - district.winding * np.sin(frequency * along + phase)
            u, v = (along, across) if swap else (across, along)
            lines.append(np.stack([district.x + u * cosine - v * sine, district.y + u * sine + v * cosine], axis=1))
    streets: BaseGeometry = shapely.simplify(shapely.MultiLineString(lines), _FINEST / 2, preserve_topology=False)
    return streets
