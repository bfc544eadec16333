"""How far the scales of colours reach: robust to a few crowded cells, and to noise in however many."""

from __future__ import annotations

import re

import numpy as np
import pytest

from sfumato.transforms.release.page_shell import PALETTE
from sfumato.transforms.release.picture_scale import RATE_PALETTE, density_top, nice, rate_ends, written_top
from sfumato.transforms.shrinkage import shrink


def brute_top(density: list[float], users: list[float]) -> float:
    """The rule of density_top, user by user: the unit of `users` is a whole person here."""
    each = sorted(d for d, many in zip(density, users, strict=True) for _ in range(int(many)))
    return min(each[int(np.ceil(0.99 * len(each))) - 1], 30 * each[int(np.ceil(0.5 * len(each))) - 1])


def test_top_is_that_of_the_users_one_by_one() -> None:
    rng = np.random.default_rng(11)
    for _ in range(50):
        density, users = 10 ** rng.uniform(-3, 5, 40), rng.integers(0, 30, 40).astype(float)
        top = brute_top(density.tolist(), users.tolist())
        assert density_top(density, users) == pytest.approx(top, rel=1e-12)
        written = written_top(density, users)
        assert top * (1 - 1e-9) <= written <= min(top * 1.1, density.max()) * (1 + 1e-9)
        assert written == density.max() or written == float(f"{written:.2g}")


def test_few_users_in_tiny_cells_do_not_set_the_scale() -> None:
    area = np.full(1000, 1.0)
    users = np.linspace(50, 150, 1000)
    plain = density_top(users / area, users)
    area[-5:] = 1e-6  # as dense as nothing else, and fewer than 1% of the users
    assert density_top(users / area, users) == pytest.approx(plain, rel=0.05)
    users[-5:] *= 30  # more than 10%: they count, and yet the median user's colour stays above a third of the scale
    top = density_top(users / area, users)
    median = np.sort(users)[np.searchsorted(np.cumsum(np.sort(users)), users.sum() / 2)]
    assert top == pytest.approx(30 * median)
    assert np.log1p(median * 150 / top) / np.log(151) > 1 / 3


def test_crowded_cells_with_most_users_do() -> None:
    density, users = np.array([1.0, 1000.0]), np.array([10.0, 90.0])
    assert density_top(density, users) == 1000


@pytest.mark.parametrize("values", [[], [0.0, 0.0], [0.0, -3.0]])
def test_nobody_has_a_scale_too(values: list[float]) -> None:
    assert density_top(np.array(values), np.array(values)) == written_top(np.array(values), np.array(values)) == 1


@pytest.mark.parametrize("tiny", [1e-300, 5e-324, 1e300])
def test_extreme_densities_have_a_finite_top(tiny: float) -> None:
    assert 0 < written_top(np.array([tiny, tiny]), np.array([1.0, 1.0])) < np.inf


def test_rates_fit_the_scale() -> None:
    rate, width = np.array([0.05, 0.06, 0.44]), np.array([0.02, 0.02, 0.08])
    assert rate_ends(rate, width) == (0.0, 0.5)
    assert rate_ends(np.array([0.45, 0.55]), np.array([0.01, 0.01])) == (0.44, 0.56)  # far from 0
    assert rate_ends(np.array([0.45, 0.55]), np.array([0.2, 0.3])) == (0.0, 1.0)  # hardly differ


def test_a_few_extreme_cells_stretch_no_scale() -> None:
    """One cell in a hundred has a rate of 90%, beyond doubt: the others' differences stay visible."""
    rate = np.append(np.linspace(0.1, 0.3, 990), np.full(10, 0.9))
    assert rate_ends(rate, np.full(1000, 0.02)) == (0.0, 0.3)
    assert rate_ends(rate[:-9], np.full(991, 0.02)) == (0.0, 0.3)


def test_noise_alone_stretches_no_scale() -> None:
    """65,000 cells of one rate, known to very different degrees: once shrunk, their errors do not set the scale."""
    rng = np.random.default_rng(4)
    deviation = 10 ** rng.uniform(-2.3, -0.7, 65_000)
    rate = 0.12 + deviation * rng.standard_normal(65_000)
    kept = (rate > 0) & (rate < 1)
    shrunk, _ = shrink(rate[kept], deviation[kept] ** 2, 0.12)
    low, high = rate_ends(shrunk, 2 * 1.96 * deviation[kept])
    assert low == 0
    assert 0.2 < high <= 0.35  # the largest rate itself is near 1
    assert rate[kept].max() > 0.8


@pytest.mark.parametrize("rate", [0.0, 1e-10, 0.5, 1.0, np.nan])
@pytest.mark.parametrize("width", [0.0, 1e-12, 0.3, 1.0])
def test_every_scale_of_rates_has_two_ends(rate: float, width: float) -> None:
    low, high = rate_ends(np.full((2, 2), rate), np.full((2, 2), width))
    assert 0 <= low < high <= 1


@pytest.mark.parametrize(("least", "step"), [(1.0, 1), (1.01, 2), (2.4, 5), (6, 10), (0.03, 0.05), (740, 1000)])
def test_nice_numbers(least: float, step: float) -> None:
    assert nice(least) == pytest.approx(step)


# Linear RGB as people without one kind of cone see it (Machado, Oliveira and Fernandes 2009, severity 1).
_BLIND = {
    "nobody": np.eye(3),
    "protan": [[0.152286, 1.052583, -0.204868], [0.114503, 0.786281, 0.099216], [-0.003882, -0.048116, 1.051998]],
    "deutan": [[0.367322, 0.860646, -0.227968], [0.280085, 0.672501, 0.047413], [-0.011820, 0.042940, 0.968881]],
    "tritan": [[1.255528, -0.076749, -0.178779], [-0.078411, 0.930809, 0.147602], [0.004733, 0.691367, 0.303900]],
}


@pytest.mark.parametrize("blindness", _BLIND)
def test_rates_get_lighter_all_the_way_for_everybody(blindness: str) -> None:
    colours = np.array([list(bytes.fromhex(part)) for part in re.findall("......", RATE_PALETTE)]) / 255
    linear = np.where(colours <= 0.04045, colours / 12.92, ((colours + 0.055) / 1.055) ** 2.4)
    luminance = np.clip(linear @ np.array(_BLIND[blindness]).T, 0, 1) @ [0.2126, 0.7152, 0.0722]
    lightness = 116 * np.cbrt(luminance) - 16
    assert (np.diff(lightness) > 1).all()
    assert np.ptp(lightness) > 70


def test_rates_look_nowhere_like_users() -> None:
    users, rates = (
        np.array([list(bytes.fromhex(part)) for part in re.findall("......", text)]) for text in (PALETTE, RATE_PALETTE)
    )
    assert len(rates) == 32
    middle = rates[2:-4]  # the ends of both are dark and light
    assert np.sqrt(((middle[:, None] - users[None]) ** 2).sum(axis=2)).min() > 45
