"""The release's picture: scale, proportion, honesty of its labels, and robustness to odd densities."""

from __future__ import annotations

import io
import math
import sys
from typing import Any

import numpy as np
import pytest
from matplotlib.image import imread
from numpy.typing import NDArray

from sfumato.schemas.region import Region
from sfumato.transforms.release.picture import coarsened, log_like, per_square_km, render_picture, users_in_words

MANHATTAN = Region(-74.04, 40.68, -73.88, 40.80)


def pixels(data: bytes) -> NDArray[np.float64]:
    assert data.startswith(b"\x89PNG\r\n\x1a\n")
    image: Any = imread(io.BytesIO(data), format="png")
    return np.asarray(image[..., :3], dtype=np.float64)


def bump(side: int = 64) -> NDArray[np.float64]:
    y, x = np.mgrid[0:side, 0:side] / side
    density = np.exp(-((x - 0.3) ** 2 + (y - 0.6) ** 2) / 0.02)
    density[: side // 4] = 0
    return density / density.sum()


def test_picture_is_colourful_large_and_repeatable() -> None:
    data = render_picture(bump(), MANHATTAN, title="A city", users=200_000, epsilon=1.0)
    image = pixels(data)
    assert min(image.shape[:2]) >= 1000
    assert len(np.unique((image * 255).astype(np.uint8).reshape(-1, 3), axis=0)) > 150
    assert data == render_picture(bump(), MANHATTAN, title="A city", users=200_000, epsilon=1.0)


def test_no_pyplot_is_imported() -> None:
    import subprocess

    script = (
        "import sys, numpy as np; from sfumato.schemas.region import Region;"
        "from sfumato.transforms.release.picture import render_picture;"
        "render_picture(np.ones((4, 4)) / 16, Region(0, 0, 1, 1));"
        "assert 'matplotlib.pyplot' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", script], check=True, timeout=120)


def test_the_caption_and_the_file_say_what_is_promised() -> None:
    safe = render_picture(bump(), MANHATTAN, users=54.6e6, epsilon=0.5)
    assert "About 54.6 million users, each protected by differential privacy with ε = 0.5.".encode() in safe
    unsafe = render_picture(bump(), MANHATTAN, users=54.6e6, epsilon=0.5, safe=False)
    assert b"NOT private" in unsafe
    assert b"protected by" not in unsafe
    assert b"NOT private" not in safe


def test_map_keeps_the_ground_in_proportion() -> None:
    # A tenth of a degree each way at 60 degrees north is half as wide as it is tall.
    image = pixels(render_picture(np.full((8, 8), 1 / 64), Region(10.0, 59.95, 10.1, 60.05), epsilon=1.0))
    brightest = np.abs(image - np.array([252, 255, 164]) / 255).max(axis=2) < 0.02
    # The map is the largest block of the top colour; the colour bar's tip is thin.
    columns = np.flatnonzero(brightest.sum(axis=0) > 0.5 * brightest.sum(axis=0).max())
    rows = np.flatnonzero(brightest.sum(axis=1) > 0.5 * brightest.sum(axis=1).max())
    assert np.ptp(columns) / np.ptp(rows) == pytest.approx(math.cos(math.radians(60)), rel=0.02)


def test_north_is_up_and_west_is_left() -> None:
    density = np.zeros((8, 8))
    density[0, 0] = 1.0
    image = pixels(render_picture(density, Region(0, 0, 1, 1)))
    height, width = image.shape[:2]
    bright = image.sum(axis=2)
    assert bright[: height // 4, : width // 4].max() > 2
    assert (bright[height // 3 : height // 2, width // 3 : width // 2] < 0.5).all()


@pytest.mark.parametrize(
    "region",
    [
        Region(-180, -90, 180, 90),
        Region(-122.51, 37.70, -122.50, 37.80),
        Region(10, 37.700, 10.15, 37.703),
        Region(0, 89.0, 1, 90.0),
        Region(12.0, 50.0, 12.0001, 50.0001),
    ],
)
@pytest.mark.parametrize("density", [np.zeros((4, 4)), np.ones((1, 1)), np.array([[1.0, -0.3], [0.0, 1e-300]])])
def test_odd_regions_and_densities_are_drawn(region: Region, density: NDArray[np.float64]) -> None:
    image = pixels(render_picture(density, region, users=10.0, epsilon=0.1))
    assert image.shape[0] > 300


@pytest.mark.parametrize("density", [np.zeros((2, 3)), np.zeros(4), np.zeros((0, 0)), np.full((2, 2), np.inf)])
def test_density_that_is_not_a_finite_square_is_refused(density: NDArray[np.float64]) -> None:
    with pytest.raises(ValueError, match=r"^density: must be"):
        render_picture(density, MANHATTAN)


@pytest.mark.parametrize("name", ["users", "epsilon", "top"])
@pytest.mark.parametrize("value", [math.nan, math.inf, -1.0])
def test_bad_numbers_are_refused(name: str, value: float) -> None:
    with pytest.raises(ValueError, match=f"^{name}: must be a finite number >= 0"):
        render_picture(bump(), MANHATTAN, **{name: value})


def test_density_per_square_km_adds_up_over_the_globe() -> None:
    density = np.full((64, 64), 1 / 64**2)
    per_km2 = per_square_km(density, Region(-180, -90, 180, 90))
    assert (density / per_km2).sum() == pytest.approx(510.066e6, rel=1e-4)  # the sphere's area in km^2


def test_scale_is_monotone_and_robust_to_zeros() -> None:
    norm = log_like(np.array([[0.0, 0.0], [1.0, 900.0]]))
    shades = np.asarray(norm(np.array([-5.0, 0.0, 1.0, 10.0, 100.0, 900.0, 1e9])), dtype=np.float64)
    assert shades[0] == shades[1] == 0
    assert (np.diff(shades[1:6]) > 0).all()
    assert shades[-1] == 1
    assert float(log_like(np.zeros((3, 3)))(0.0)) == 0


def test_a_tiny_crowded_cell_does_not_darken_the_map() -> None:
    """One cell a thousand times denser than any other keeps the colours of the rest, and the scale ends below it."""
    even = np.full((64, 64), 1.0)
    even[:32] = 3.0
    crowded = even.copy()
    crowded[5, 7] = 3000.0  # more than a quarter of all: by its share alone it would set the scale
    region = Region(0, 0, 1, 1)
    image, other = (pixels(render_picture(one / even.sum(), region, users=1e6)) for one in (even, crowded))
    rows, columns = (int(0.35 * size) for size in image.shape[:2])
    place = np.s_[rows : rows + 200, columns : columns + 200]
    assert image[place].sum(axis=2).min() > 1.5 * other[place].sum(axis=2).min() > 0.3
    assert len(np.unique(other[place].reshape(-1, 3), axis=0)) == len(np.unique(image[place].reshape(-1, 3), axis=0))


def test_a_given_top_is_the_scales() -> None:
    values = np.array([[0.0, 1.0], [2.0, 4.0]])
    assert log_like(values, top=2.0).vmax == 2.0
    assert float(log_like(values, top=2.0)(4.0)) == 1.0
    given = render_picture(bump(), MANHATTAN, users=1e5, top=1234.0)
    assert given != render_picture(bump(), MANHATTAN, users=1e5)


def test_fine_densities_are_added_up_not_thinned_out() -> None:
    density = np.zeros((4096, 4096))
    density[5, 7] = 0.25
    density[4095, 4095] = 0.75
    small = coarsened(density)
    assert small.shape == (2048, 2048)
    assert small[2, 3] == 0.25
    assert small[-1, -1] == 0.75


def test_nobody_at_all_is_drawn_too() -> None:
    assert b"About 0 users" in render_picture(np.zeros((4, 4)), MANHATTAN, users=0.0, epsilon=1.0)


def test_a_number_of_users_is_stated_with_its_error_and_few_users_with_a_bound() -> None:
    assert users_in_words(54_600_000, 200.0) == "About 54.6 million users"
    assert users_in_words(212.0, 28.0) == "About 212 ± 55 users"
    assert users_in_words(212.0) == "About 212 users"
    # 0 lies within the error: nothing tells these users from none.
    assert users_in_words(30.0, 28.0) == "Fewer than 85 users, too few to tell from none"
    assert users_in_words(0.0, 8.7) == "Fewer than 18 users, too few to tell from none"
    picture = render_picture(np.zeros((4, 4)), MANHATTAN, users=30.0, users_stddev=28.0, epsilon=1.0)
    assert b"Fewer than 85 users, too few to tell from none, each protected" in picture
