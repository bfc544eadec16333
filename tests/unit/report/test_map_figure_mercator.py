"""Web Mercator."""

from __future__ import annotations

import math

import numpy as np
import pytest

from sfumato.schemas.views import Bounds
from sfumato.transforms.report.map_figure import Frame, mercator
from tests.unit.report.samples import REGION

WORLD = Bounds(west=-180, south=-90, east=180, north=90)
NORTH = Bounds(west=10, south=60, east=11, north=61)


def test_the_projection_is_web_mercators() -> None:
    assert mercator(85.0511287798066) == pytest.approx(math.pi, abs=1e-9)  # a square world
    assert mercator(0.0) == 0
    assert mercator(60.0) == pytest.approx(math.log(math.tan(math.pi / 4 + math.pi / 6)))
    assert np.isfinite(mercator(np.array([-90.0, 90.0]))).all()


@pytest.mark.parametrize("bounds", [REGION, NORTH, Bounds(west=-70, south=-55, east=-60, north=-20)])
def test_pixels_and_degrees_agree(bounds: Bounds) -> None:
    frame = Frame.around(bounds, 700, margin=0.1)
    assert frame.columns(np.array([frame.bounds.west, frame.bounds.east])) == pytest.approx([0, frame.width])
    assert frame.rows(np.array([frame.bounds.north, frame.bounds.south])) == pytest.approx([0, frame.height])
    assert max(frame.width, frame.height) == 700
    assert frame.bounds.west < bounds.west < bounds.east < frame.bounds.east
    low, high = frame.rows(np.array([bounds.south, bounds.north]))
    assert frame.height - low == pytest.approx(high, abs=1)  # as much room in the north as in the south


def test_a_frame_keeps_proportions_and_leaves_out_the_poles() -> None:
    frame = Frame.around(NORTH, 600)
    assert frame.width / frame.height == pytest.approx(math.cos(math.radians(60.5)), rel=0.01)
    assert frame.middle_latitude == pytest.approx(60.5, abs=0.01)
    world = Frame.around(WORLD, 500, margin=0.1)
    assert (world.width, world.height) == (500, 500)
    assert world.bounds.north == pytest.approx(85.0511, abs=1e-3)
    polar = Frame.around(Bounds(west=0, south=89, east=1, north=90), 300)  # nothing but the pole
    assert polar.height > 0
    assert polar.bounds.south == pytest.approx(89)
