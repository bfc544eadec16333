"""How far the scales of colours reach: robust to a few crowded cells, and to noise in however many."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest

from sfumato.transforms.report.scales import (
    FADE,
    KNEE,
    count_scale,
    density_scale,
    linear_scale,
    position,
    rate_scale,
    uncertain,
)
from tests.seeds import seeded_rng


def brute_top(density: list[float], users: list[float]) -> float:
    """The rule of density_scale, user by user: the unit of `users` is a whole person here."""
    each = sorted(d for d, many in zip(density, users, strict=True) for _ in range(int(many)))
    return min(each[int(np.ceil(0.99 * len(each))) - 1], 30 * each[int(np.ceil(0.5 * len(each))) - 1])


def test_top_is_that_of_the_users_one_by_one() -> None:
    rng = seeded_rng(11)
    for _ in range(50):
        density, users = 10 ** rng.uniform(-3, 5, 40), rng.integers(0, 30, 40).astype(float)
        top = brute_top(density.tolist(), users.tolist())
        high = density_scale(density, users).high
        assert top * (1 - 1e-5) <= high <= min(top * 1.1, density.max()) * (1 + 1e-5)
        assert high == pytest.approx(density.max(), rel=1e-5) or high == float(f"{high:.2g}")


@pytest.mark.parametrize("seed", range(4))
def test_ticks_ascend_with_room_between_them(seed: int) -> None:
    rng = seeded_rng(seed)
    density = 10 ** rng.uniform(-6, 6) * rng.gamma(0.3, 1.0, 300)
    scale = density_scale(density, density)
    places = [math.log1p(value / (scale.knee or 1)) / math.log1p(1 / KNEE) for value, _ in scale.ticks]
    assert places[0] == 0
    assert len(places) >= 3
    assert all(after - before > 0.1 for before, after in itertools.pairwise(places))
    assert (scale.ticks[-1][1][0] == "≥") == bool((density > 1.001 * scale.high).any())


def test_few_colours_are_below_the_lowest_certain_count() -> None:
    counts = np.array([38.0, 60.0, 100.0, 160.0, 240.0, 330.0, 540.0])
    scale = count_scale(np.append(counts, 5.0), np.append(counts, 0.0), np.arange(8) < 7, "users")
    lowest, middle, highest = position(scale, np.array([38.0, 240.0, 540.0]))
    assert FADE < lowest <= 0.2  # opaque
    assert (middle < 0.7, highest) == (True, 1)
    assert [text for _, text in scale.ticks] == ["0", "30", "100", "300", "540"]
    wide = count_scale(np.array([1.0, 5000.0]), np.array([1.0, 5000.0]), np.ones(2, bool), "users")
    assert wide.knee == pytest.approx(5000 * KNEE)  # where the lowest count is far below: the scale of densities
    crowded = count_scale(np.append(np.full(999, 10.0), 1e4), np.ones(1000), np.ones(1000, bool), "users")
    assert crowded.ticks[-1] == (10.0, "≥ 10")


@pytest.mark.parametrize(
    ("counts", "high", "ticks"), [([], 10, ["0", "1", "3", "10"]), ([14.0, 0.0], 20, ["0", "3", "10", "20"])]
)
def test_counts_that_noise_explains_have_a_scale_of_whole_users(
    counts: list[float], high: float, ticks: list[str]
) -> None:
    scale = count_scale(np.array(counts), np.zeros(len(counts)), np.zeros(len(counts), bool), "users")
    assert (scale.high, [text for _, text in scale.ticks]) == (high, ticks)


def ends(rate: object, width: object) -> tuple[float, float]:
    scale = rate_scale(np.asarray(rate, dtype=np.float64), np.asarray(width, dtype=np.float64))
    return scale.low, scale.high


def test_rates_fit_the_scale() -> None:
    assert ends([0.05, 0.06, 0.44], [0.02, 0.02, 0.08]) == (0.0, 0.5)
    assert ends([0.45, 0.55], [0.01, 0.01]) == (0.44, 0.56)  # far from 0
    assert ends([0.45, 0.55], [0.2, 0.3]) == (0.0, 1.0)  # hardly differ


def test_a_few_extreme_cells_stretch_no_scale() -> None:
    """One cell in a hundred has a rate of 90%, beyond doubt: the others' differences stay visible."""
    rate = np.append(np.linspace(0.1, 0.3, 990), np.full(10, 0.9))
    scale = rate_scale(rate, np.full(1000, 0.02))
    assert (scale.low, scale.high) == (0.0, 0.3)
    assert scale.ticks[-1] == (0.3, "≥ 30%")
    assert ends(rate[:-9], np.full(991, 0.02)) == (0.0, 0.3)


@pytest.mark.parametrize("rate", [0.0, 1e-10, 0.5, 1.0, np.nan])
@pytest.mark.parametrize("width", [0.0, 1e-12, 0.3, 1.0])
def test_every_scale_of_rates_has_two_ends(rate: float, width: float) -> None:
    low, high = ends(np.full((2, 2), rate), np.full((2, 2), width))
    assert 0 <= low < high <= 1


def test_uncertain_cells_have_intervals_of_half_the_scale() -> None:
    scale = linear_scale(20.0, 120.0, "users")
    low, high = position(scale, np.array([scale.low])), position(scale, np.array([scale.high]))
    assert (low, high) == (0, 1)
    reach = scale.high - scale.low
    wide = np.array([0.3, 0.49, 0.51, 0.9, np.nan]) * reach
    assert uncertain(scale, np.full(5, scale.low), scale.low + wide).tolist() == [False, False, True, True, True]
