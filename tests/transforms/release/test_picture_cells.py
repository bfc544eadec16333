"""The picture of a map's published cells."""

from __future__ import annotations

import math

import numpy as np
import pytest

from sfumato.schemas.region import Region
from sfumato.transforms.release.picture_cells import (
    CELLS_GROUND,
    cells_raster,
    render_cells_picture,
    render_cells_thumbnail,
)
from tests.transforms.release.samples import city_cells
from tests.transforms.release.test_picture import MANHATTAN, pixels

GROUND = np.array([int(CELLS_GROUND[at : at + 2], 16) for at in (1, 3, 5)]) / 255
ONE = (np.array([2]), np.array([1]), np.array([500.0]))


def test_picture_is_colourful_large_and_repeatable() -> None:
    layer = city_cells((7,))[0]
    given = (7, layer.x, layer.y, layer.count, MANHATTAN)
    data = render_cells_picture(*given, epsilon=1.0, delta=1e-8, hidden_count=118)
    image = pixels(data)
    assert min(image.shape[:2]) >= 1000
    assert len(np.unique((image * 255).astype(np.uint8).reshape(-1, 3), axis=0)) > 100
    assert data == render_cells_picture(*given, epsilon=1.0, delta=1e-8, hidden_count=118)


def test_the_caption_says_what_is_promised_and_what_may_hide() -> None:
    text = render_cells_picture(3, *ONE, MANHATTAN, epsilon=0.5, delta=2.5e-9, hidden_count=118)
    assert b"About 500 users in 1 cell, each protected by differential privacy" in text
    assert "ε = 0.5 and δ = 2.5 × 10⁻⁹.".encode() in text
    assert b"A cell left dark has at most 118 users (99% sure), or nobody." in text
    unsafe = render_cells_picture(3, *ONE, MANHATTAN, epsilon=0.5, delta=2.5e-9, hidden_count=118, safe=False)
    assert b"NOT private" in unsafe
    assert b"protected by" not in unsafe


def test_without_cells_there_is_no_scale() -> None:
    none = np.zeros(0, int)
    text = render_cells_picture(3, none, none, np.zeros(0), MANHATTAN, epsilon=0.5, hidden_count=118)
    assert b"No cell was published." in text
    assert b"0 users" not in text
    right = pixels(text)[:, -200:]  # where the colour bar stands otherwise
    assert np.abs(right - right[0, -1]).max() < 0.01


def test_published_cells_stand_out_and_the_rest_is_ground() -> None:
    image = pixels(render_cells_thumbnail(3, *ONE))
    assert image.shape == (8, 8, 3)
    assert np.abs(image[1, 2] - GROUND).max() > 0.3  # row 1 from the north, column 2 from the west
    image[1, 2] = GROUND
    assert np.abs(image - GROUND).max() < 0.01


def test_the_least_cell_stands_out_too() -> None:
    image = pixels(render_cells_thumbnail(3, np.array([0, 7]), np.array([0, 7]), np.array([10.0, 1e7])))
    assert np.abs(image[0, 0] - GROUND).max() > 0.15


def test_fine_cells_are_added_up_never_lost() -> None:
    rng = np.random.default_rng(1)
    x, y, count = rng.integers(0, 1 << 20, 5000), rng.integers(0, 1 << 20, 5000), rng.integers(1, 99, 5000) * 1.0
    raster = cells_raster(20, x, y, count, 9)
    assert raster.shape == (512, 512)
    assert raster.sum() == count.sum()
    wanted = np.zeros((512, 512))
    np.add.at(wanted, (y >> 11, x >> 11), count)
    np.testing.assert_array_equal(raster, wanted)
    assert b"Drawn in squares of 1024" in render_cells_picture(20, x, y, count, MANHATTAN, epsilon=1.0)


@pytest.mark.parametrize("region", [Region(-180, -90, 180, 90), Region(10, 37.700, 10.15, 37.703)])
@pytest.mark.parametrize("n", [0, 1])
def test_odd_regions_and_no_cells_are_drawn(region: Region, n: int) -> None:
    x, y, count = (column[:n] for column in ONE)
    assert pixels(render_cells_picture(3, x, y, count, region)).shape[0] > 300
    assert pixels(render_cells_picture(0, x * 0, y * 0, count * 0, region)).shape[0] > 300


@pytest.mark.parametrize(
    ("level", "x", "count"), [(3, 8, 1.0), (3, -1, 1.0), (21, 1, 1.0), (3, 1, math.nan), (3, 1, -1.0)]
)
def test_cells_without_sense_are_refused(level: int, x: int, count: float) -> None:
    with pytest.raises(ValueError, match=r"^(x|level|count): must"):
        render_cells_picture(level, np.array([x]), np.array([1]), np.array([count]), MANHATTAN)
