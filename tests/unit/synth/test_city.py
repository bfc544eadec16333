import math

import numpy as np
import pytest

from sfumato.transforms.synth.city import ELSEWHERE, HOME, WORK
from sfumato.transforms.synth.landscape import SIZE_KM, city_rasters, line_distance, risk_raster, rounded

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


def test_the_same_city_every_time(rasters: tuple[np.ndarray, ...]) -> None:
    for one, other in zip(rasters, city_rasters(SIDE), strict=True):
        assert one.dtype == np.float32
        assert one.tobytes() == other.tobytes()


def test_densities_are_finite_and_water_is_empty(rasters: tuple[np.ndarray, ...]) -> None:
    total = sum(rasters)
    assert np.isfinite(total).all()
    assert min(raster.min() for raster in rasters) == 0
    assert 0.15 < np.mean(total == 0) < 0.45
    for place in ((0.2, 9.0), (13.0, 0.5), (6.0, 0.1)):  # ocean, bay, strait
        assert at(total, *place, radius_km=0.05) == 0


def test_downtown_works_suburbs_sleep_and_parks_are_quiet(rasters: tuple[np.ndarray, ...]) -> None:
    home, work, elsewhere = rasters[HOME], rasters[WORK], rasters[ELSEWHERE]
    assert at(work, 8.75, 5.0) > 20 * at(work, 2.8, 10.5)
    assert at(home, 7.0, 7.6) > 3 * at(home, 2.5, 11.0)
    assert at(home, 12.5, 6.5) < 0.1 * at(home, 7.0, 7.6)  # the port
    for raster in (home, work):
        assert at(raster, 3.0, 6.35, 0.1) == 0  # the large park
        assert at(raster, 5.3, 10.35, 0.3) == 0  # the mount
    assert 0 < at(elsewhere, 3.3, 6.4, 0.3) < 0.5 * at(elsewhere, 7.0, 7.6)  # its paths


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


def test_risk_is_highest_at_the_hot_spots() -> None:
    risk = risk_raster()
    assert 0.019 < risk.min() < 0.021
    assert 0.2 < risk.max() < 0.25


def test_distance_to_a_line() -> None:
    x, y = np.meshgrid(np.float32([0.0, 0.5, 1.2]), np.float32([0.0, 0.3]))
    found = line_distance(x, y, [(0.0, 0.0), (1.0, 0.0)])
    assert np.allclose(found, [[0, 0, 0.2], [0.3, 0.3, math.hypot(0.2, 0.3)]], atol=1e-6)


def test_rounding_keeps_the_ends() -> None:
    line = rounded([(0.0, 0.0), (1.0, 0.0), (1.0, 1.0)])
    assert (line[0], line[-1]) == ((0.0, 0.0), (1.0, 1.0))
    assert (1.0, 0.0) not in line
