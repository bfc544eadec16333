"""The landscape of the city: coast, bay, river, parks, large roads, and single places that attract people.

Lengths are in km in the city's square of 14 x 14 km, x from the west, y from the north.
"""

from __future__ import annotations

import numpy as np

from sfumato.transforms.synth.shapes import (
    Field,
    Point,
    bump,
    hill,
    line_distance,
    ramp,
    rectangle,
    rotate,
    rounded,
)

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
]
BAY_CENTRE = (14.6, 0.2)
BAY_RADIUS = 5.9


def depth_inland(x: Field, y: Field, coast: Field) -> tuple[Field, Field]:
    """The approximate distance to the water, negative on it, for all land and for the piers alone.

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
    """The share of a cell that is park, 0..1, and the weight of the paths in it. coast, patches: noise."""
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
    """The weight of places that attract people: stadium, ferry, museum, beach, squares, university."""
    ring = np.hypot(x - np.float32(10.0), y - np.float32(6.45)) - np.float32(0.1)
    weight = 14 * bump(ring, 0.03) + 25 * hill(x, y, FERRY, 0.05) + 10 * hill(x, y, (4.35, 6.33), 0.035)
    weight += 8 * hill(x, y, (0.95, 7.6), 0.05) + 9 * hill(x, y, (7.2, 8.3), 0.07)
    return weight + 12 * hill(x, y, (6.5, 5.9), 0.05) + 0.8 * hill(x, y, (4.9, 3.0), 0.3)


def freeway_distance(x: Field, y: Field) -> Field:
    """Distance to the nearest freeway."""
    return _nearest(x, y, [*FREEWAYS, BAY_BRIDGE])


def bridge_distance(x: Field, y: Field) -> Field:
    """Distance to the nearest bridge. Only bridges cross water."""
    return _nearest(x, y, [*RIVER_BRIDGES, BAY_BRIDGE])


def _nearest(x: Field, y: Field, lines: list[list[Point]]) -> Field:
    distance: Field = np.minimum.reduce([line_distance(x, y, points) for points in lines])
    return distance
