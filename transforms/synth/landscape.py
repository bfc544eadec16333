"""The shapes of the city, from its coast to its street grids, and the density rasters that they make.

Lengths are in km in the city's square of 14 x 14 km, x from the west, y from the north. Arrays are
float32[rows, columns]. A district is the part of the city that is nearest to the district's centre; its wavy border is
a road. Each has its own axes, block size and densities. Streets are drawn by distance to the nearest grid line.
"""

from __future__ import annotations

import math
from itertools import pairwise
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

Field = NDArray[np.float32]
CellIndex = NDArray[np.int32]  # a coordinate or a number of lattice cells
Point = tuple[float, float]

REACH_KM = 0.6  # larger distances to a line are cut to it
SIZE_KM = 14.0
SIDE = 2048  # cells along one side, 6.8 m each
RISK_SIDE = 256
_STRIP_ROWS = 64  # rows that are painted at a time: they fit the processor's cache

BASE_RISK = 0.02
HOT_SPOTS = (((7.3, 8.6), 0.9, 0.20), ((12.9, 10.9), 0.8, 0.14), ((3.6, 3.7), 0.7, 0.12))
"""Centre (km), radius (km) and the added risk of infection at the centre."""

CENTRES = (
    ((8.75, 5.0), 0.55, 60.0),
    ((8.9, 6.0), 0.9, 9.0),
    ((7.2, 8.3), 0.4, 12.0),
    ((6.1, 2.7), 0.4, 9.0),
    ((3.6, 4.4), 0.25, 7.0),
    ((3.0, 9.3), 0.3, 7.0),
    ((12.9, 10.3), 0.4, 10.0),
    ((6.4, 12.7), 0.35, 9.0),
    ((2.4, 12.3), 0.3, 8.0),
    ((6.5, 5.9), 0.35, 10.0),
)
"""Downtown and the sub-centres: centre (km), radius (km), density relative to a residential street."""


def bump(distance: Field, radius: float | Field) -> Field:
    """Returns exp(-(distance / radius)^2): 1 at distance 0, nearly 0 at three radii."""
    ratio = distance / np.float32(radius) if isinstance(radius, float) else distance / radius
    height: Field = np.exp(-ratio * ratio)
    return height


def hill(x: Field, y: Field, centre: Point, radius: float) -> Field:
    """Returns a `bump` of height 1 around a centre."""
    east, south = x - np.float32(centre[0]), y - np.float32(centre[1])
    height: Field = np.exp((east * east + south * south) * np.float32(-1 / radius**2))
    return height


def ramp(value: Field, width: float) -> Field:
    """Returns a soft edge: 0 for value <= 0, 1 for value >= width, linear between."""
    share: Field = np.clip(value * np.float32(1 / width), 0, 1)
    return share


def line_distance(x: Field, y: Field, points: list[Point]) -> Field:
    """Returns the distance to a polyline, at most REACH_KM."""
    nearest_squared = np.full(x.shape, REACH_KM**2, dtype=np.float32)
    top, bottom = float(y.min()) - REACH_KM, float(y.max()) + REACH_KM
    for (x0, y0), (x1, y1) in pairwise(points):
        if max(y0, y1) < top or min(y0, y1) > bottom:
            continue  # most lines are far from most strips
        length = math.hypot(x1 - x0, y1 - y0)
        ux, uy = np.float32((x1 - x0) / length), np.float32((y1 - y0) / length)
        east, south = x - np.float32(x0), y - np.float32(y0)
        along = east * ux + south * uy
        along -= np.clip(along, 0, np.float32(length))  # distance beyond an end
        across = east * uy - south * ux
        np.minimum(nearest_squared, along * along + across * across, out=nearest_squared)
    return np.sqrt(nearest_squared)


def rounded(points: list[Point]) -> list[Point]:
    """Returns the polyline with its corners cut twice (Chaikin 1974). The ends stay."""
    for _ in range(2):
        cut = [
            (x0 + (x1 - x0) * share, y0 + (y1 - y0) * share)
            for (x0, y0), (x1, y1) in pairwise(points)
            for share in (0.25, 0.75)
        ]
        points = [points[0], *cut[1:-1], points[-1]]
    return points


def rectangle(x: Field, y: Field, centre: Point, size: Point, degrees: float) -> Field:
    """Returns the distance of points to the border of a rotated rectangle, negative outside. size: width and height.

    Outside it is the larger distance along the rectangle's two axes. Off a corner the Euclidean distance is longer.
    """
    u, v = rotate(x - np.float32(centre[0]), y - np.float32(centre[1]), degrees)
    return np.minimum(np.float32(size[0] / 2) - np.abs(u), np.float32(size[1] / 2) - np.abs(v))


def rotate(x: Field, y: Field, degrees: float) -> tuple[Field, Field]:
    """Coordinates of points along axes that are rotated by an angle."""
    cosine, sine = np.float32(math.cos(math.radians(degrees))), np.float32(math.sin(math.radians(degrees)))
    return x * cosine + y * sine, y * cosine - x * sine


def lattice_hash(a: CellIndex, b: CellIndex, salt: CellIndex | int) -> Field:
    """Returns a hash in [0, 1) of each lattice cell (a, b) and salt."""
    bits = a.astype(np.uint32) * np.uint32(0x9E3779B1)
    bits ^= b.astype(np.uint32) * np.uint32(0x85EBCA77)
    bits ^= np.asarray(salt).astype(np.uint32) * np.uint32(0xC2B2AE3D)
    bits ^= bits >> np.uint32(15)
    bits *= np.uint32(0x2C1B3C6D)
    bits ^= bits >> np.uint32(12)
    bits *= np.uint32(0x297A2D39)
    bits ^= bits >> np.uint32(15)
    return (bits >> np.uint32(8)).astype(np.float32) * np.float32(2.0**-24)


class SmoothNoise:
    """A smooth random field over a square raster, with mean about 0.

    Its standard deviation is about 1 for one octave and about 1.15 for several. The field is a sum of octaves. Each is
    a lattice of normal numbers, interpolated with cubic B-splines. The interpolation is separable, so rows of the field
    are a product of two small matrices.
    """

    def __init__(self, side: int, salt: int, knots: int, octaves: int) -> None:
        generator = np.random.Generator(np.random.PCG64(salt))
        self._parts: list[tuple[Field, Field]] = []
        for octave in range(octaves):
            splines = _splines(side, knots << octave)
            lattice = generator.standard_normal((splines.shape[1], splines.shape[1])).astype(np.float32)
            # 2.1 restores the variance that smoothing removes. Each octave has half the height of the one before.
            self._parts.append((splines, lattice @ splines.T * np.float32(2.1 * 0.5**octave)))

    def rows(self, first: int, last: int) -> Field:
        """Rows first .. last - 1 of the field, float32[last - first, side]."""
        field = self._parts[0][0][first:last] @ self._parts[0][1]
        for splines, columns in self._parts[1:]:
            field += splines[first:last] @ columns
        return field


def _splines(side: int, knots: int) -> Field:
    """Returns cubic B-splines on `knots` intervals, at the centres of `side` cells: float32[side, knots + 3]."""
    place = (np.arange(side) + 0.5) * (knots / side)
    interval = place.astype(np.int64)
    t = place - interval
    matrix = np.zeros((side, knots + 3), dtype=np.float32)
    row = np.arange(side)
    for offset, weight in enumerate(((1 - t) ** 3, 3 * t**3 - 6 * t**2 + 4, -3 * t**3 + 3 * t**2 + 3 * t + 1, t**3)):
        matrix[row, interval + offset] = weight / 6
    return matrix


FERRY = (10.0, 4.55)
AVENUE = [FERRY, (4.3, 9.9), (3.6, 11.4), (3.4, 14.0)]
FREEWAYS = [
    rounded([(9.35, 14), (9.2, 11.6), (9.75, 9.2), (9.5, 7.4), (9, 6.2), (9.6, 5.4), (10.2, 4.9), (12.1, 3)]),
    rounded([(0.0, 13.6), (2.6, 13.7), (5.0, 12.2), (7.2, 11.3), (9.2, 11.6), (11.6, 12.0), (14.0, 11.7)]),
]
BAY_BRIDGE = [(10.2, 4.9), (12.1, 3.0), (14.0, 1.3)]
RIVER_BRIDGES = [
    [(9.6, 7.35), (12.2, 7.2)],
    [(9.6, 9.45), (12.2, 9.2)],
    [(9.6, 11.65), (11.6, 12.0), (12.6, 11.9)],
]  # with the bay's the only lines that cross water
ROADS, BRIDGES = [*FREEWAYS, BAY_BRIDGE], [*RIVER_BRIDGES, BAY_BRIDGE]
BAY_CENTRE = (14.6, 0.2)
BAY_RADIUS = 5.9


def depth_inland(x: Field, y: Field, coast: Field) -> tuple[Field, Field]:
    """Returns the approximate distance to the water, negative on it, for all land and for the piers only.

    coast: noise that makes shores irregular.
    """
    ocean = x - (0.95 + 0.45 * np.sin(0.42 * y + 0.9)) - 0.16 * coast
    bay_east, bay_south = (x - np.float32(BAY_CENTRE[0])) * 0.95, (y - np.float32(BAY_CENTRE[1])) * 1.07
    bay = np.hypot(bay_east, bay_south) - BAY_RADIUS - 0.2 * coast
    north = y - (0.75 - 0.06 * x) - 0.2 * coast
    course = 10.75 + 0.55 * np.sin(0.75 * (y - 5.0)) + 0.06 * (y - 5.0)
    # The river widens towards its mouth and ends in the bay.
    width = 0.11 + 0.3 * np.exp(-0.9 * np.maximum(y - 4.6, 0)) - 0.7 * np.maximum(4.6 - y, 0)
    river = np.abs(x - course - 0.05 * coast) - width
    island = 0.33 - np.hypot(x - np.float32(12.1), (y - np.float32(2.95)) * 1.3) + 0.05 * coast
    # A pier every 170 m along the old harbour.
    along = np.arctan2(bay_south, -bay_east)
    piers = 0.024 - np.abs(np.mod(along * BAY_RADIUS, 0.17) - 0.085)
    harbour = np.minimum.reduce([bay + 0.13, 0.2 - bay, (along - 0.40) * 5, (0.78 - along) * 5, ocean - 5])
    piers = np.minimum(piers, harbour)
    return np.maximum.reduce([np.minimum.reduce([ocean, bay, north, river]), island, piers]), piers


def parks(x: Field, y: Field, coast: Field, patches: Field) -> tuple[Field, Field]:
    """Returns the share of a cell that is park, 0..1, and the weight of the paths in it. coast, patches: noise."""
    large = rectangle(x, y, (3.3, 6.4), (4.4, 0.86), 3)
    u, v = rotate(x - np.float32(3.3), y - np.float32(6.4), 3)
    square = rectangle(x, y, (7.75, 4.25), (0.32, 0.26), 9)
    mount = 0.75 - np.hypot(x - np.float32(5.3), (y - np.float32(10.35)) * 1.2) + 0.1 * coast
    lakeside = 0.52 - np.hypot((x - np.float32(2.35)) * 1.3, y - np.float32(12.9)) + 0.08 * coast
    green = np.maximum.reduce([large, square, mount, lakeside])
    lake = np.hypot((u + 0.6) * 0.55, v - 0.12 * np.sin(5 * u)) - 0.09
    winding = bump(v - 0.22 * np.sin(2.6 * u), 0.012) + bump(v + 0.2 * np.sin(1.9 * u + 1), 0.009)
    winding += 0.8 * bump(u - 1.1 - 0.25 * v, 0.012) + 0.6 * bump(u + 1.45 + 0.2 * v, 0.012)
    winding += 0.4 * bump(lake - 0.03, 0.008)
    winding = winding * ((large > 0) & (lake > 0))
    diagonals = bump(np.abs(x - 7.75) - 1.2 * np.abs(y - 4.25), 0.008) * (square > 0)
    # On the mount: an irregular road around it, and a trail over the top.
    trails = 0.8 * bump(mount - 0.24 - 0.05 * patches, 0.011)
    trails += 0.5 * bump(x - 5.3 - 0.12 * np.sin(6 * y) + 0.7 * (y - 10.35), 0.009)
    trails = trails * (mount > 0) + 0.7 * bump(lakeside - 0.09, 0.011)
    return ramp(green, 0.02), 0.55 * winding + 4 * diagonals + 0.35 * trails + 0.03 * (square > 0)


def venues(x: Field, y: Field) -> Field:
    """Returns the weight of places that attract people: stadium, ferry, museum, beach, squares, university."""
    ring = np.hypot(x - np.float32(10.0), y - np.float32(6.45)) - np.float32(0.1)
    weight = 14 * bump(ring, 0.03) + 25 * hill(x, y, FERRY, 0.05) + 10 * hill(x, y, (4.35, 6.33), 0.035)
    weight += 8 * hill(x, y, (0.95, 7.6), 0.05) + 9 * hill(x, y, (7.2, 8.3), 0.07)
    return weight + 12 * hill(x, y, (6.5, 5.9), 0.05) + 0.8 * hill(x, y, (4.9, 3.0), 0.3)


def nearest_line(x: Field, y: Field, lines: list[list[Point]]) -> Field:
    """Returns the distance to the nearest of some polylines."""
    distance: Field = np.minimum.reduce([line_distance(x, y, points) for points in lines])
    return distance


class District(NamedTuple):
    """A district of the city."""

    name: str  # for readers of this file
    x: float  # and y: its centre, in km
    y: float
    degrees: float  # rotation of its street grid
    block_u: float  # and block_v: sides of a block along the grid's axes, in km
    block_v: float
    home: float  # and work: relative densities
    work: float
    winding: float = 0.0  # amplitude of the curves of its streets, in km


DISTRICTS = (
    District("downtown", 8.6, 4.6, 9, 0.135, 0.088, 3.0, 5.0),
    District("south of the avenue", 9.3, 6.4, 43, 0.25, 0.16, 1.8, 3.0),
    District("north beach", 6.5, 2.6, 9, 0.125, 0.09, 3.2, 0.8),
    District("west addition", 6.5, 4.9, 9, 0.13, 0.105, 2.6, 0.8),
    District("avenues north", 3.5, 4.3, 3, 0.075, 0.19, 1.4, 0.3),
    District("avenues south", 3.1, 8.6, 3, 0.075, 0.20, 1.2, 0.25),
    District("mission", 7.3, 8.2, -4, 0.095, 0.165, 3.0, 0.9),
    District("hills", 5.2, 10.0, 20, 0.11, 0.17, 0.7, 0.1, 0.16),
    District("south", 6.4, 12.7, -19, 0.085, 0.19, 1.3, 0.3),
    District("south-east", 8.7, 11.0, 27, 0.085, 0.18, 1.5, 0.4),
    District("lake", 2.2, 12.6, 12, 0.10, 0.18, 0.8, 0.2, 0.10),
    District("port", 12.5, 7.0, 61, 0.33, 0.21, 0.08, 2.2),
    District("east", 12.9, 10.6, -9, 0.09, 0.17, 1.7, 0.4),
    District("south-east shore", 12.6, 13.6, 15, 0.10, 0.17, 1.0, 0.5, 0.06),
    District("yards", 9.9, 8.7, 75, 0.30, 0.18, 0.25, 2.0),
)


def lay_streets(x: Field, y: Field, noise: Field) -> tuple[Field, Field, Field, Field, Field]:
    """Densities of houses, streets, shops, homes and works of all districts. noise: makes the borders wavy."""
    label, border_km = _nearest_district(x + 0.10 * noise, y - 0.08 * noise)
    columns = np.array([district[1:] for district in DISTRICTS], dtype=np.float32).T
    middle_x, middle_y, _, block_u, block_v, home, work, winding = (column[label] for column in columns)
    cosine, sine = np.cos(np.radians(columns[2]))[label], np.sin(np.radians(columns[2]))[label]
    east, south = x - middle_x, y - middle_y
    u, v = east * cosine + south * sine, south * cosine - east * sine
    u, v = u + winding * np.sin(3.1 * v + 1), v + winding * np.sin(3.7 * u)

    cross_u, cross_v = np.rint(u / block_u), np.rint(v / block_v)  # number of the nearest street on each axis
    off_u, off_v = np.abs(u - cross_u * block_u), np.abs(v - cross_v * block_v)
    block_i, block_j = np.floor(u / block_u).astype(np.int32), np.floor(v / block_v).astype(np.int32)
    street_u, shops_u = _street(cross_u.astype(np.int32), block_j, off_u, label, 0)
    street_v, shops_v = _street(cross_v.astype(np.int32), block_i, off_v, label, 1)
    border = bump(border_km, 0.012)
    street = np.maximum(np.maximum(street_u, street_v), 2.4 * border)

    edge = np.minimum(np.minimum(off_u, off_v), border_km)
    lots = lattice_hash(np.floor(u / 0.017).astype(np.int32), np.floor(v / 0.017).astype(np.int32), label)
    blocks = lattice_hash(block_i, block_j, label + 100)
    # Houses are along the streets around a courtyard. One block in thirty is a square or a yard.
    built = ramp(edge - 0.008, 0.006) * (0.45 + 0.55 * bump(edge - 0.022, 0.02))
    built *= (0.35 + 1.3 * lots) * (0.5 + blocks) * np.where(blocks > 0.035, np.float32(1), np.float32(0.06))
    shops = np.maximum(np.maximum(shops_u, shops_v), bump(border_km, 0.035))
    return built, street, shops, home, work


def _nearest_district(x: Field, y: Field) -> tuple[CellIndex, Field]:
    """Returns the index of the district, and the distance in km to its border."""
    best = np.full(x.shape, np.inf, dtype=np.float32)
    second = best.copy()
    label = np.zeros(x.shape, dtype=np.int32)
    for index, district in enumerate(DISTRICTS):
        squared = (x - np.float32(district.x)) ** 2 + (y - np.float32(district.y)) ** 2
        nearer = squared < best
        second = np.where(nearer, best, np.minimum(second, squared))
        best = np.where(nearer, squared, best)
        label[nearer] = index
    return label, (np.sqrt(second) - np.sqrt(best)) * np.float32(0.5)


def _street(number: CellIndex, along: CellIndex, off: Field, label: CellIndex, way: int) -> tuple[Field, Field]:
    """Weights of the street that is nearest on one axis (`way`, 0 or 1) and of its shops.

    number: of the street. along: number of the block along it. off: distance to it, in km. label: index of the
    district.
    """
    traffic = lattice_hash(number, number, label * 2 + way)
    main = (number % 5) == 0
    weight = np.where(main, np.float32(1.3) + traffic, np.float32(0.25) + np.float32(0.5) * traffic)
    closed = (lattice_hash(number, along, label * 2 + way + 1000) < 0.12) & ~main
    width = np.where(main, np.float32(0.010), np.float32(0.0065))
    weight = weight * bump(off, width) * np.where(closed, np.float32(0.3), np.float32(1))
    return weight, bump(off, 0.035) * (main & (traffic > 0.6))


def risk_raster() -> NDArray[np.float64]:
    """Returns the probability that a person who lives in a cell is infected: float64[RISK_SIDE, RISK_SIDE]."""
    km = cell_centres(RISK_SIDE)
    risk = np.full((RISK_SIDE, RISK_SIDE), BASE_RISK)
    for centre, radius, height in HOT_SPOTS:
        risk += height * hill(km[None, :], km[:, None], centre, radius)
    return risk


def cell_centres(side: int) -> Field:
    """Returns the centres of `side` cells along an axis of the city, in km from the west or north: float32[side]."""
    return ((np.arange(side) + 0.5) * (SIZE_KM / side)).astype(np.float32)


def city_rasters(side: int) -> tuple[Field, Field, Field]:
    """Returns the relative densities of HOME, WORK and ELSEWHERE: float32[side, side] each. Water is 0."""
    coast = SmoothNoise(side, salt=11, knots=5, octaves=5)
    patches = SmoothNoise(side, salt=23, knots=14, octaves=3)
    km = cell_centres(side)
    rasters = tuple(np.empty((side, side), dtype=np.float32) for _ in range(3))
    for first in range(0, side, _STRIP_ROWS):
        last = min(first + _STRIP_ROWS, side)
        x = np.broadcast_to(km[None, :], (last - first, side))
        y = np.broadcast_to(km[first:last, None], (last - first, side))
        strip = _paint(x, y, coast.rows(first, last), patches.rows(first, last))
        for raster, part in zip(rasters, strip, strict=True):
            raster[first:last] = part
    return rasters[0], rasters[1], rasters[2]


def _paint(x: Field, y: Field, coast: Field, patches: Field) -> tuple[Field, Field, Field]:
    """Returns the three densities at positions in km. coast, patches: noise for shores and for neighbourhoods."""
    land_km, piers_km = depth_inland(x, y, coast)
    land = ramp(land_km, 0.02)
    park, paths = parks(x, y, coast, patches)
    houses, street, shops, homes, works = lay_streets(x, y, coast)
    avenue = line_distance(x, y, AVENUE)
    freeway = nearest_line(x, y, ROADS)
    promenade = bump(land_km - np.float32(0.06), 0.018)
    # No houses on large roads, at the shore and in parks.
    built = houses * ramp(avenue - 0.018, 0.01) * ramp(freeway - 0.03, 0.015)
    built *= ramp(land_km - 0.09, 0.03) * (1 - park)

    centres = sum(height * hill(x, y, centre, radius) for centre, radius, height in CENTRES)
    corridor = 2.5 * bump(avenue, 0.16) + 1.2 * shops
    texture = np.exp(np.float32(0.40) * patches)
    # Density falls by a factor of seven over ten kilometres from the centre.
    dense = np.float32(0.25) + 1.75 * np.exp(-np.hypot(x - 8.2, (y - 5.6) * 0.85) / 3.2)
    home = homes * dense * texture * (1 + 0.12 * np.minimum(centres, 10)) * built
    work = (works + centres + corridor * 0.8) * built

    # Records on streets make the blocks visible on a map.
    busy = dense * (0.35 + 0.55 * homes * texture) + 0.5 * centres + 0.7 * corridor
    streets = street * busy * (1 - park) * (1 - bump(freeway, 0.04))
    roads = 9.0 * bump(avenue, 0.016) * (0.5 + dense + 0.2 * centres) + 7.0 * bump(freeway, 0.012)
    roads += promenade * (0.8 * dense + 0.4 * centres)
    elsewhere = streets + roads * (1 - 0.9 * park) + 0.10 * (0.2 + centres + corridor) * built
    elsewhere += paths + venues(x, y) + 0.8 * ramp(piers_km, 0.01)
    crossing = 6.0 * bump(nearest_line(x, y, BRIDGES), 0.011)
    over_water = np.maximum(elsewhere * land, crossing * (crossing > 0.5) * (1 - land))
    home += np.float32(0.05) * homes * street * (1 - park)  # positions have errors: homes leak to streets
    return home * land, work * land, over_water
