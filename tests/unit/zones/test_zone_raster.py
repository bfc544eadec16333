"""The zone of each point, against a brute-force test of every polygon."""

from __future__ import annotations

import pickle

import numpy as np
import pytest
import shapely
from numpy.typing import NDArray
from shapely.geometry import MultiPolygon, Polygon, box
from shapely.geometry.base import BaseGeometry

from sfumato.transforms.zones.zone_raster import OUTSIDE, ZoneLocator
from tests.seeds import seeded_rng
from tests.unit.zones.polygons import brute_force, voronoi, zones_of

STAR = Polygon([(0.5 + r * np.cos(a), 0.5 + r * np.sin(a)) for a, r in zip(
    np.linspace(0, 2 * np.pi, 40, endpoint=False), [0.5, 0.05] * 20, strict=True)])  # fmt: skip
COMB = shapely.union_all([box(0, 0, 1, 0.02), *(box(x, 0, x + 1e-4, 1) for x in np.linspace(0, 0.99, 100))])
HOLES = [box(x + 0.01, y + 0.01, x + 0.04, y + 0.04) for x in np.arange(0, 1, 0.05) for y in np.arange(0, 1, 0.05)]
LACE = shapely.difference(box(0, 0, 1, 1), shapely.union_all(HOLES))
FIJI = MultiPolygon([box(177, -19, 180, -16), box(-180, -19, -179, -16)])
CASES: dict[str, list[BaseGeometry]] = {
    "voronoi": voronoi(150, seed=1),
    "one square": [box(3.0, 1.0, 3.1, 1.1)],
    "squares with a shared border": [box(0, 0, 1, 1), box(1, 0, 2, 1), box(0, 1, 2, 2)],
    "star and what is around it": [STAR, shapely.difference(box(0, 0, 1, 1), STAR)],
    "comb thinner than a cell": [COMB],
    "lace of many holes": [LACE],
    "holes that are zones": [shapely.difference(box(0, 0, 1, 1), box(0.2, 0.2, 0.8, 0.8)), box(0.2, 0.2, 0.8, 0.8)],
    "a sliver of overlap": [box(0, 0, 1.0005, 1), box(1, 0, 2, 1)],
    "an overlap inside the second": [box(0.5, 0, 0.6, 1), box(0, 0, 1, 1)],
    "islands at the antimeridian": [FIJI, box(0, 0, 1, 1)],
    "tiny among large": [box(0, 0, 10, 10), box(10, 10, 10.0001, 10.0001)],
}


def points_for(shapes: list[BaseGeometry], seed: int) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Random points in and around the zones, their vertices, points on and just off their borders."""
    rng = seeded_rng(seed)
    west, south, east, north = shapely.total_bounds(shapes)
    vertices = shapely.get_coordinates(shapes)
    lines = shapely.get_parts(shapely.boundary(shapes))
    along = rng.random(20 * len(lines))
    on_line = shapely.get_coordinates(shapely.line_interpolate_point(np.repeat(lines, 20), along, normalized=True))
    near = on_line + rng.normal(0, 1e-9, on_line.shape)
    spread = rng.uniform([west - 0.1, south - 0.1], [east + 0.1, north + 0.1], (4000, 2))
    grid = np.stack(np.meshgrid(np.linspace(west, east, 33), np.linspace(south, north, 33)), axis=-1).reshape(-1, 2)
    longitude, latitude = np.concatenate([vertices, on_line, near, spread, grid]).T
    return longitude, latitude


@pytest.mark.parametrize("name", CASES)
def test_every_point_has_the_zone_of_a_brute_force_search(name: str) -> None:
    zones = zones_of(CASES[name])
    longitude, latitude = points_for(CASES[name], seed=3)
    expected = brute_force(zones, longitude, latitude)
    np.testing.assert_array_equal(ZoneLocator(zones).zone_of(longitude, latitude), expected)
    assert (expected >= 0).any()
    assert (expected == OUTSIDE).any()


def test_a_point_on_a_border_belongs_to_the_zone_that_stands_first() -> None:
    shapes = [box(0, 0, 1, 1), box(1, 0, 2, 1)]
    x, y = np.array([1.0, 1.0, 1.0]), np.array([0.0, 0.5, 1.0])
    for order in (shapes, shapes[::-1]):
        assert ZoneLocator(zones_of(order)).zone_of(x, y).tolist() == [0, 0, 0]


def test_coordinates_that_are_no_places_are_outside() -> None:
    locator = ZoneLocator(zones_of([box(-180, -90, 0, 90), box(0, -90, 180, 90)]))
    x = np.array([np.nan, 0.0, np.inf, -np.inf, 181.0, 10.0, 180.0])
    y = np.array([0.0, np.nan, 0.0, 0.0, 0.0, 91.0, 90.0])
    assert locator.zone_of(x, y).tolist() == [-1, -1, -1, -1, -1, -1, 1]
    inside, codes = locator.locate(x, y)
    assert inside.tolist() == [False] * 6 + [True]
    assert codes.tolist() == [1]


def test_no_points_are_in_no_zones() -> None:
    assert ZoneLocator(zones_of([box(0, 0, 1, 1)])).zone_of(np.zeros(0), np.zeros(0)).tolist() == []


@pytest.mark.parametrize(("count", "depth"), [(1, 1), (4, 1), (5, 2), (16, 2), (17, 3), (2500, 6)])
def test_the_codes_of_all_zones_fit_the_depth(count: int, depth: int) -> None:
    assert ZoneLocator(zones_of([box(0, 0, 1, 1)] * count)).depth == depth


def test_a_pickled_locator_finds_the_same_and_carries_no_raster() -> None:
    locator = ZoneLocator(zones_of(voronoi(50, seed=2)))
    longitude, latitude = points_for(list(locator.zones.geometries), seed=4)
    before = len(pickle.dumps(locator))
    found = locator.zone_of(longitude, latitude)
    assert len(pickle.dumps(locator)) == before < 100_000
    np.testing.assert_array_equal(pickle.loads(pickle.dumps(locator)).zone_of(longitude, latitude), found)
