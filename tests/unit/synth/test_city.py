"""The synthetic city: its rasters, and the geography that its people live in."""

from __future__ import annotations

import json
import math
from functools import cache

import numpy as np
import pytest
import shapely
from shapely.geometry import shape
from shapely.geometry.base import BaseGeometry

from sfumato.schemas.region import Region
from sfumato.transforms.release.basemap_file import file_basemap
from sfumato.transforms.synth.city_map import city_geojson
from sfumato.transforms.synth.landscape import DISTRICTS, SIZE_KM, city_rasters

SIDE = 512


@pytest.fixture(scope="module")
def rasters() -> tuple[np.ndarray, ...]:
    return city_rasters(SIDE)


def at(raster: np.ndarray, x_km: float, y_km: float, radius_km: float = 0.15) -> float:
    """Mean of a raster in a square about a place."""
    scale = SIDE / SIZE_KM
    rows = slice(int((y_km - radius_km) * scale), int((y_km + radius_km) * scale) + 1)
    columns = slice(int((x_km - radius_km) * scale), int((x_km + radius_km) * scale) + 1)
    return float(raster[rows, columns].mean())


def test_densities_are_finite_and_water_is_empty(rasters: tuple[np.ndarray, ...]) -> None:
    total = sum(rasters)
    assert np.isfinite(total).all()
    assert min(raster.min() for raster in rasters) == 0
    assert 0.15 < np.mean(total == 0) < 0.45
    for place in ((0.2, 9.0), (13.0, 0.5), (6.0, 0.1)):  # ocean, bay, strait
        assert at(total, *place, radius_km=0.05) == 0


def test_only_bridges_cross_the_river(rasters: tuple[np.ndarray, ...]) -> None:
    total = sum(rasters)
    scale = SIDE / SIZE_KM
    rows = range(int(6 * scale), int(13 * scale))
    dry = []
    for row in rows:
        y = (row + 0.5) / scale
        course = 10.75 + 0.55 * math.sin(0.75 * (y - 5)) + 0.06 * (y - 5)
        dry.append(total[row, int(course * scale)] > 0)
    crossings = np.flatnonzero(np.diff(np.array([False, *dry]).astype(int)) == 1)
    assert len(crossings) == 3


# --- its map ---


KM = Region(0, 0, SIZE_KM / 100, SIZE_KM / 100)  # a hundredth of a degree a kilometre


@cache
def features() -> list[tuple[dict[str, str], BaseGeometry]]:
    return [(one["properties"], shape(one["geometry"])) for one in json.loads(city_geojson(KM))["features"]]


def place_at(x_km: np.ndarray, y_km: np.ndarray) -> np.ndarray:
    return shapely.points(x_km / 100, (SIZE_KM - y_km) / 100)


def test_people_live_on_land_and_in_districts() -> None:
    side = 256
    home = city_rasters(side)[0]
    water = shapely.union_all([area for tags, area in features() if tags.get("natural") == "water"])
    districts = [area for tags, area in features() if tags.get("boundary") == "district"]
    row, column = np.nonzero(home > 0)
    middles = place_at((column + 0.5) * SIZE_KM / side, (row + 0.5) * SIZE_KM / side)
    weight = home[row, column]
    shapely.prepare(water)
    assert weight[shapely.contains(water, middles)].sum() < 0.002 * weight.sum()
    inside = np.zeros(len(middles), dtype=int)
    for area in districts:
        shapely.prepare(area)
        inside += shapely.contains(area, middles)
    assert inside.max() == 1  # districts do not overlap
    assert weight[inside == 0].sum() < 0.002 * weight.sum()


def test_districts_are_named_once_and_hold_their_middles() -> None:
    districts = {tags["name"]: area for tags, area in features() if tags.get("boundary") == "district"}
    assert len(districts) == len(DISTRICTS)
    assert districts["North Beach"].contains(place_at(np.array(6.5), np.array(2.6)))
    assert "South of the Avenue" in districts
    places = {tags["name"] for tags, _ in features() if "place" in tags}
    assert places >= {"Penumbra", "Ferry Pier", "Long Park"}


def test_it_is_a_basemap() -> None:
    made = file_basemap("penumbra.geojson", city_geojson(KM), KM)
    assert made.source == "Penumbra, an invented city"
    assert len(made.zones) == len(DISTRICTS)
    assert len(made.water) == 1
    assert len(made.lines) > 100
    assert len(made.model_dump_json()) < 100_000
