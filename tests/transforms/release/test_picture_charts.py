"""Pictures of items and of a distribution: scale, honesty of their labels, robustness to odd names."""

from __future__ import annotations

import math

import numpy as np
import pytest

from sfumato.schemas.charts import Curve, Quantile
from sfumato.transforms.release.picture_charts import drawable, render_items_picture, render_quantiles_picture
from tests.transforms.release.samples import trip_lengths, zipf_items
from tests.transforms.release.test_picture import pixels


def test_items_picture_is_large_and_repeatable() -> None:
    items = zipf_items(100)
    given = (items.name, items.count, items.stddev)
    data = render_items_picture(*given, epsilon=1.0, delta=1e-8, hidden_count=118)
    assert min(pixels(data).shape[:2]) >= 1000
    assert data == render_items_picture(*given, epsilon=1.0, delta=1e-8, hidden_count=118)
    assert (
        f"users who hold one of {len(items.name)} items, each protected by differential privacy with ε = 1".encode()
        in data
    )
    assert "δ = 10⁻⁸".encode() in data
    assert f"The 30 largest of {len(items.name)}.".encode() in data
    assert b"at most 118 users (99% sure), or nobody" in data
    unsafe = render_items_picture(*given, epsilon=1.0, safe=False)
    assert b"NOT private" in unsafe
    assert b"protected by" not in unsafe
    assert f"The 30 largest of {len(items.name)}.".encode() in unsafe
    assert b"users who hold the one item" in render_items_picture(["a"], np.ones(1), np.ones(1), epsilon=1.0)


def test_bars_are_as_long_as_their_counts() -> None:
    image = pixels(render_items_picture(["a", "b", "c"], np.array([100.0, 400.0, 200.0]), np.zeros(3)))
    warm = (image[..., 0] > 0.4) & (image[..., 2] < 0.5) & (image[..., 0] - image[..., 2] > 0.1)
    lengths = warm.sum(axis=1)
    runs = [
        int(np.median(part)) for part in np.split(lengths, np.flatnonzero(np.diff(lengths > 20)) + 1) if part[0] > 20
    ]
    assert len(runs) == 3
    assert runs[0] / runs[1] == pytest.approx(2, rel=0.02)  # largest first
    assert runs[0] / runs[2] == pytest.approx(4, rel=0.02)


@pytest.mark.parametrize(
    "name", ["$\\frac{1}{$", "東京 タワー", "\u202eabc", "a\nb\x00", "\ud800", "", "_^{}\\", "x" * 999, "👩‍🚀"]
)
def test_odd_names_are_drawn(name: str) -> None:
    assert pixels(render_items_picture([name], np.ones(1), np.ones(1), title=name)).shape[0] > 300
    assert pixels(render_quantiles_picture(*trip_lengths()[:2], column=name, title=name)).shape[0] > 300


def test_glyphs_that_the_font_lacks_become_boxes() -> None:
    assert drawable("café ⟨U+202E⟩ 10⁻⁸ …") == "café ⟨U+202E⟩ 10⁻⁸ …"
    assert drawable("a東b") == "a□b"


def test_quantiles_picture_is_large_and_repeatable() -> None:
    curve, quantiles, _ = trip_lengths()
    data = render_quantiles_picture(curve, quantiles, title="Trips", column="km", epsilon=1.0, delta=1e-8)
    assert min(pixels(data).shape[:2]) >= 1000
    assert data == render_quantiles_picture(curve, quantiles, title="Trips", column="km", epsilon=1.0, delta=1e-8)
    assert "Every user is protected by differential privacy with ε = 1 and δ = 10⁻⁸.".encode() in data
    assert b"NOT private" in render_quantiles_picture(curve, quantiles, epsilon=1.0, safe=False)


def test_no_item_no_point_and_one_point_are_drawn() -> None:
    assert pixels(render_items_picture([], np.zeros(0), np.zeros(0), epsilon=1.0)).shape[0] > 300
    assert pixels(render_items_picture(["a"], np.zeros(1), np.zeros(1), hidden_count=5.0)).shape[0] > 300
    assert pixels(render_quantiles_picture(Curve(*np.zeros((4, 0))), [])).shape[0] > 300
    point = Curve(*np.full((4, 1), 0.5))
    assert pixels(render_quantiles_picture(point, [Quantile(0.5, 0.5, 0.5, 0.5)])).shape[0] > 300
    huge = Curve(np.array([-1e300, 1e300]), *np.full((3, 2), 0.5))
    assert pixels(render_quantiles_picture(huge, [])).shape[0] > 300


@pytest.mark.parametrize(
    ("name", "count", "stddev"),
    [
        ("count", np.array([math.nan]), np.ones(1)),
        ("count", np.array([-1.0]), np.ones(1)),
        ("count", np.ones(2), np.ones(1)),
        ("stddev", np.ones(1), np.array([math.inf])),
    ],
)
def test_numbers_without_sense_are_refused(name: str, count: object, stddev: object) -> None:
    with pytest.raises(ValueError, match=rf"^{name}: must"):
        render_items_picture(["a"], np.asarray(count), np.asarray(stddev))
