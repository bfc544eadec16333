"""Cells of H3 and quadkeys against their own libraries, and cells that cover a region once."""

import h3
import mercantile
import numpy as np
import pytest
import shapely

from sfumato.schemas.region import Region
from sfumato.transforms.geo.cell_indexes import INDEXES, index_cells, index_names, index_polygons
from tests.rejections import rejects
from tests.seeds import seeded_rng

_RNG = seeded_rng(1)
LONGITUDE = np.concatenate([_RNG.uniform(-180, 180, 500), [-180.0, 180.0, 0.0, 0.0, 13.4, -122.4]])
LATITUDE = np.concatenate([np.degrees(np.arcsin(_RNG.uniform(-1, 1, 500))), [10.0, -10.0, 90.0, -90.0, 0.0, 37.7]])
REGIONS = [
    Region(-122.51, 37.70, -122.35, 37.82),
    Region(170.0, -20.0, 180.0, 20.0),
    Region(-180.0, 60.0, 180.0, 90.0),
    Region(8.001, 49.001, 8.002, 49.002),
]


def quadkey(longitude: float, latitude: float, level: int) -> str:
    """By mercantile."""
    return str(mercantile.quadkey(mercantile.tile(longitude, np.clip(latitude, -85.0511287, 85.0511287), level)))


@pytest.mark.parametrize(
    ("kind", "by_library", "levels"),
    [
        ("h3", lambda longitude, latitude, level: h3.latlng_to_cell(latitude, longitude, level), range(16)),
        ("quadkey", quadkey, range(1, 24)),
    ],
)
def test_names_are_those_of_the_index_own_library(kind, by_library, levels):
    points = list(zip(LONGITUDE.tolist(), LATITUDE.tolist(), strict=True))
    for level in levels:
        assert index_names(kind, level, LONGITUDE, LATITUDE).tolist() == [by_library(*at, level) for at in points]
    mixed = np.resize(np.array(levels), len(points))
    expected = [by_library(*at, level) for at, level in zip(points, mixed.tolist(), strict=True)]
    assert index_names(kind, mixed, LONGITUDE, LATITUDE).tolist() == expected
    assert index_names(kind, levels[0], LONGITUDE[:0], LATITUDE[:0]).shape == (0,)


@pytest.mark.parametrize("kind", INDEXES)
def test_a_point_lies_in_the_polygon_of_its_cell(kind):
    points = shapely.points(LONGITUDE, LATITUDE)
    for level in (1, 2, 3, 6, 9, 14):
        shapes = index_polygons(kind, index_names(kind, level, LONGITUDE, LATITUDE))
        assert shapely.is_valid(shapes).all()
        # Straight lines replace great circles: 0.0015 degrees of 80 degrees north.
        near = np.abs(LATITUDE) < 80
        assert shapely.distance(shapes, points)[near].max() < 0.0015
        assert shapely.distance(shapes, points)[~near & (np.abs(LATITUDE) < 90)].max() < 0.05


@pytest.mark.parametrize("region", REGIONS)
@pytest.mark.parametrize("kind", INDEXES)
def test_cells_of_a_region_cover_it_once(kind, region):
    box = shapely.box(region.west, region.south, region.east, region.north)
    for level in (1, 3):
        names, shapes = index_cells(kind, level, region)
        assert len(set(names.tolist())) == len(names)
        assert shapely.is_valid(shapes).all()
        inside = shapely.intersection(shapes, box)
        assert (shapely.area(inside) > 0).all()
        assert np.isclose(shapely.area(inside).sum(), box.area, rtol=1e-9)
        assert np.isclose(shapely.area(shapely.union_all(inside)), box.area, rtol=1e-9)


@pytest.mark.parametrize("kind", INDEXES)
def test_the_cells_of_the_globe_are_as_many_as_the_index_has(kind):
    count = {"h3": 2 + 120 * 7, "quadkey": 4}[kind]
    assert len(index_cells(kind, 1, Region(-180, -90, 180, 90))[0]) == count


@pytest.mark.parametrize("kind", INDEXES)
def test_the_resolution_is_that_of_the_nearest_area(kind):
    index = INDEXES[kind]
    for level in range(index.coarsest, index.finest + 1):
        assert index.resolution(index.area(level, 40.0) * 1.3, 40.0) == level
        assert index.resolution(index.area(level, 40.0) / 1.3, 40.0) == level
    assert index.resolution(1e9, 0.0) == index.coarsest
    assert index.resolution(1e-15, 0.0) == index.finest


def test_mean_areas_are_those_of_the_libraries():
    for level in range(16):
        assert np.isclose(INDEXES["h3"].area(level, 0), h3.average_hexagon_area(level, "km^2"), rtol=0.05)
    tile = index_polygons("quadkey", index_names("quadkey", 12, np.array([13.4]), np.array([52.5])))[0]
    width = np.radians(tile.bounds[2] - tile.bounds[0]) * 6371.0088 * np.cos(np.radians(52.5))
    height = np.radians(tile.bounds[3] - tile.bounds[1]) * 6371.0088
    assert np.isclose(INDEXES["quadkey"].area(12, 52.5), width * height, rtol=1e-3)


@pytest.mark.parametrize(
    ("kind", "level", "option"), [("h3", 16, "h3"), ("quadkey", 0, "quadkey"), ("geohash", 5, "index")]
)
def test_a_resolution_that_an_index_lacks_is_refused(kind, level, option):
    with rejects(option):
        index_names(kind, level, LONGITUDE, LATITUDE)
    with rejects(option):
        index_cells(kind, level, REGIONS[0])


def test_too_many_cells_are_refused_before_they_are_made():
    with rejects("h3"):
        index_cells("h3", 15, REGIONS[0])
