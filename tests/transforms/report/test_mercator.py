"""Web Mercator, and cells painted in it."""

from __future__ import annotations

import math

import numpy as np
import pytest

from sfumato.schemas.views import Bounds
from sfumato.transforms.report.mercator import Frame, cell_raster, mercator
from tests.transforms.report.samples import REGION, layer_of

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
    np.testing.assert_allclose(frame.columns(frame.longitudes()), np.arange(frame.width) + 0.5, atol=1e-6)
    np.testing.assert_allclose(frame.rows(frame.latitudes()), np.arange(frame.height) + 0.5, atol=1e-6)
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


def test_every_pixel_has_the_deepest_cell_over_its_middle() -> None:
    """Against a direct search, on a region where a degree of latitude is twice as long as one of longitude."""
    cells = [(0, 0, 0), (1, 1, 0), (2, 0, 3), (3, 5, 1), (6, 10, 20), (6, 63, 63)]
    layer = layer_of(dict.fromkeys(cells, 0.5))
    frame = Frame.around(NORTH, 301, margin=0.05)
    found = cell_raster(layer, NORTH, frame)
    expected = np.full(found.shape, -1)
    for row, latitude in enumerate(frame.latitudes()):
        for column, longitude in enumerate(frame.longitudes()):
            u, v = longitude - NORTH.west, NORTH.north - latitude
            if 0 <= u < 1 and 0 <= v < 1:
                over = [i for i, (level, x, y) in enumerate(cells) if (int(u * 2**level), int(v * 2**level)) == (x, y)]
                expected[row, column] = max(over, default=-1)
    np.testing.assert_array_equal(found, expected)
    assert set(np.unique(found)) == {-1, *range(len(cells))}


def test_no_cell_is_lost_however_small() -> None:
    cells = {(20, 524_287, 1000): 0.5, (20, 1_048_575, 1_048_575): 0.5, (18, 3, 9): 0.5, (9, 100, 100): 0.5}
    found = cell_raster(layer_of(cells), REGION, Frame.around(REGION, 256))
    assert set(np.unique(found)) == {-1, 0, 1, 2, 3}
    rows, columns = np.nonzero(found == 3)
    assert (rows.tolist(), columns.tolist()) == ([255], [255])  # the south-eastern corner


def test_a_cell_on_bare_ground_is_a_square_of_some_pixels() -> None:
    found = cell_raster(layer_of({(12, 2048, 2048): 0.5, (2, 0, 0): 0.5}), REGION, Frame.around(REGION, 256), 5)
    rows, columns = np.nonzero(found == 1)
    assert (np.ptp(rows), np.ptp(columns), len(rows)) == (4, 4, 25)
    assert abs(rows.mean() - 128) <= 1
    assert abs(columns.mean() - 128) <= 1
    assert (found == 0).sum() == 64 * 64


def test_only_what_lies_in_the_frame_is_painted() -> None:
    frame = Frame.around(Bounds(west=0.5, south=0.25, east=0.75, north=0.5), 100)
    cells = {(2, 0, 0): 0.5, (2, 2, 2): 0.5, (15, 20_000, 20_000): 0.5, (15, 20, 20): 0.5}
    found = cell_raster(layer_of(cells), REGION, frame, 3)
    assert set(np.unique(found)) == {1, 3}
    assert (found == 3).sum() == 9


def test_a_layer_without_cells_is_empty() -> None:
    assert (cell_raster(layer_of({}), REGION, Frame.around(REGION, 16)) == -1).all()


def test_polygons_are_painted_where_they_are_with_holes_and_none_is_lost() -> None:
    def square(west: float, south: float, side: float) -> list[tuple[float, float]]:
        return [(west, south), (west + side, south), (west + side, south + side), (west, south + side), (west, south)]

    shapes = [
        [square(0.1, 0.1, 0.4), square(0.2, 0.2, 0.1)],  # with a hole
        [square(0.2, 0.2, 0.1)],  # in the hole
        [square(0.6, 0.6, 0.1), square(0.8, 0.8, 0.1)],  # two parts
        [square(0.90001, 0.10001, 1e-5)],  # smaller than a pixel
        [square(3, 3, 1)],  # beyond the frame
    ]
    layer = layer_of({}).model_copy(update={"shapes": shapes})
    painted = cell_raster(layer, REGION, Frame(REGION, 100, 100))

    def at(x: float, y: float) -> int:
        frame = Frame(REGION, 100, 100)
        return int(painted[int(frame.rows(np.array(y))), int(frame.columns(np.array(x)))])

    assert [at(*one) for one in ((0.15, 0.15), (0.25, 0.25), (0.65, 0.65), (0.85, 0.85))] == [0, 1, 2, 2]
    assert [at(*one) for one in ((0.05, 0.05), (0.75, 0.75), (0.55, 0.3))] == [-1, -1, -1]
    assert np.count_nonzero(painted == 3) == 1
    assert np.count_nonzero(painted == 0) == pytest.approx(1600 - 100, abs=10)
    assert not (painted == 4).any()
