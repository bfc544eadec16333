"""The picture of rates: what is known well is coloured, what is not is hatched or dark, and the words say so."""

from __future__ import annotations

import io
import math
from typing import Any

import numpy as np
import pytest
from matplotlib.image import imread
from numpy.typing import NDArray

from sfumato.schemas.region import Region
from sfumato.transforms.release.picture_rates import RATES_GROUND, render_rates_picture

REGION = Region(0, 0, 1, 1)


def pixels(data: bytes) -> NDArray[np.float64]:
    assert data.startswith(b"\x89PNG\r\n\x1a\n")
    image: Any = imread(io.BytesIO(data), format="png")
    return np.asarray(image[..., :3], dtype=np.float64)


def quarters(data: bytes) -> list[NDArray[np.float64]]:
    """Pixels well inside the map's quarters: north-west, north-east, south-west, south-east, [n, 3] each."""
    image = pixels(data)
    height, width = image.shape[:2]
    # The map is 8 inches wide and tall, with 0.95 inches on the left, above and below, and 1.45 on the right.
    left, right, top, bottom = 0.95 / 10.4, 1.45 / 10.4, 0.95 / 9.9, 0.95 / 9.9
    found = []
    for v in (0.25, 0.75):
        for u in (0.25, 0.75):
            x = round(width * (left + u * (1 - left - right)))
            y = round(height * (top + v * (1 - top - bottom)))
            found.append(image[y - 60 : y + 60, x - 60 : x + 60].reshape(-1, 3))
    return found


def colours(block: NDArray[np.float64]) -> int:
    return len(np.unique((255 * block).round().astype(int), axis=0))


# Known well and low; known well and high; high but known poorly; unknown.
RATE = np.kron(np.array([[0.05, 0.4], [0.35, np.nan]]), np.ones((4, 4)))
WIDTH = np.kron(np.array([[0.02, 0.04], [0.6, np.nan]]), np.ones((4, 4)))


def test_each_kind_of_cell_looks_its_own_way() -> None:
    data = render_rates_picture(RATE, WIDTH, REGION, category="infected", users=2e5, epsilon=1.0)
    low, high, poor, unknown = quarters(data)
    assert colours(low) == colours(high) == colours(unknown) == 1
    assert colours(poor) > 5  # hatched
    ground = [int(RATES_GROUND[at : at + 2], 16) / 255 for at in (1, 3, 5)]
    np.testing.assert_allclose(unknown[0], ground, atol=0.01)
    assert low[0, 2] > low[0, 0]  # blue
    assert high[0].sum() > low[0].sum() + 1  # light
    assert low[0].sum() > np.sum(ground) + 0.2  # a rate near 0 is not the ground
    assert poor.mean(axis=0).sum() < high[0].sum() - 0.5  # toned down
    assert data == render_rates_picture(RATE, WIDTH, REGION, category="infected", users=2e5, epsilon=1.0)


def test_the_caption_says_what_is_promised_and_what_hatching_means() -> None:
    data = render_rates_picture(RATE, WIDTH, REGION, category="infected", users=2e5, epsilon=0.5)
    assert "About 200,000 users, each protected by differential privacy with ε = 0.5.".encode() in data
    # The scale goes from 0 to 0.4, half of which is an interval of 0.2: 10 points each way.
    assert "Hatched: known to ± 10 points or worse, at 95%. Dark: too few users to tell.".encode() in data
    sure = render_rates_picture(RATE[:4, :4], WIDTH[:4, :4], REGION, category="infected", epsilon=0.5)
    assert b"Hatched" not in sure
    assert b"Dark" not in sure
    assert b"Every user is protected by" in sure
    unsafe = render_rates_picture(RATE, WIDTH, REGION, category="infected", epsilon=0.5, safe=False)
    assert b"NOT private" in unsafe
    assert b"protected by" not in unsafe


def test_nothing_known_is_drawn_too() -> None:
    unknown = np.full((2, 2), np.nan)
    assert b"Dark" in render_rates_picture(unknown, unknown, REGION, category="x")


def test_very_fine_rates_are_thinned_out() -> None:
    rate = np.tile(np.array([[0.1, 0.2], [0.1, 0.2]]), (1100, 1100))
    assert pixels(render_rates_picture(rate, np.full(rate.shape, 0.01), REGION, category="x")).shape[0] > 1000


@pytest.mark.parametrize(
    ("name", "rate", "width"),
    [
        ("rate", np.zeros((2, 3)), np.zeros((2, 3))),
        ("rate", np.zeros((0, 0)), np.zeros((0, 0))),
        ("width", np.zeros((2, 2)), np.zeros((3, 3))),
        ("rate", np.full((2, 2), 1.5), np.zeros((2, 2))),
        ("rate", np.full((2, 2), np.inf), np.zeros((2, 2))),
        ("width", np.zeros((2, 2)), np.full((2, 2), -0.1)),
    ],
)
def test_arrays_without_sense_are_refused(name: str, rate: NDArray[np.float64], width: NDArray[np.float64]) -> None:
    with pytest.raises(ValueError, match=f"^{name}: must"):
        render_rates_picture(rate, width, REGION, category="x")


@pytest.mark.parametrize("name", ["users", "epsilon"])
@pytest.mark.parametrize("value", [math.nan, math.inf, -1.0])
def test_bad_numbers_are_refused(name: str, value: float) -> None:
    with pytest.raises(ValueError, match=f"^{name}: must be a finite number >= 0"):
        render_rates_picture(RATE, WIDTH, REGION, category="x", **{name: value})
