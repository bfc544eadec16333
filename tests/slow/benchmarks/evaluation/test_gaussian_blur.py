"""The Gaussian filter of paper 001 against its double sum."""

from __future__ import annotations

import math

import numpy as np
import pytest

from benchmarks.evaluation.gaussian_blur import gaussian_heatmap
from tests.rejections import rejects
from tests.seeds import seeded_rng


def scattered(side: int, seed: int):
    density = seeded_rng(seed).exponential(size=(side, side)) ** 3
    return density / density.sum()


def double_sum(density, sigma: float):
    """Paper 001, Section 2.3, as printed: every source over every cell, in cells' centres on the unit square."""
    side = len(density)
    row, column = np.mgrid[:side, :side] / side
    heatmap = np.zeros((side, side))
    for y in range(side):
        for x in range(side):
            weights = np.exp(-((row - y / side) ** 2 + (column - x / side) ** 2) / (2 * sigma**2))
            heatmap += weights / weights.sum() * density[y, x]
    return heatmap


@pytest.mark.parametrize("side", [1, 2, 16, 19])
@pytest.mark.parametrize("sigma", [0.004, 0.03, 0.1, 1.0, 50.0])
def test_equals_the_double_sum(side: int, sigma: float) -> None:
    density = scattered(side, side)
    # Both are sums of positive terms: relative error a few units in the last place a term. What is cut is below 1e-31.
    assert gaussian_heatmap(density, sigma) == pytest.approx(double_sum(density, sigma), rel=1e-12, abs=1e-30)


@pytest.mark.parametrize("sigma", [1e-320, 1e-3, 0.02, 0.5, 1e9, 1e300])
def test_mass_is_kept_at_the_borders_too(sigma: float) -> None:
    for place in ((0, 0), (0, 30), (63, 63), (32, 32)):
        point = np.zeros((64, 64))
        point[place] = 1
        heatmap = gaussian_heatmap(point, sigma)
        assert heatmap.sum() == pytest.approx(1, abs=1e-13)  # 2 x 64 weights, each exact to 1e-16
        assert heatmap.min() >= 0
        assert heatmap[place] == pytest.approx(heatmap.max(), rel=1e-12)


def test_sigma_is_in_sides_of_the_region() -> None:
    """The same blur of a finer grid, summed to the coarser one, is nearly the same; its deviation is sigma."""
    for side in (64, 256):
        point = np.zeros((side, side))
        point[side // 2, side // 2] = 1
        heatmap = gaussian_heatmap(point, 0.05)
        offset = (np.arange(side) - side // 2) / side
        # The lattice sum of a Gaussian of over 3 cells has its variance to exp(-2 pi^2 3.2^2); tails beyond 10 sigma.
        assert math.sqrt(heatmap.sum(axis=1) @ offset**2) == pytest.approx(0.05, rel=1e-9)
        assert math.sqrt(heatmap.sum(axis=0) @ offset**2) == pytest.approx(0.05, rel=1e-9)


def test_none_at_all() -> None:
    density = scattered(32, 1)
    assert (gaussian_heatmap(density, 0.0) == density).all()
    assert (gaussian_heatmap(density, 1e-9) == density).all()


@pytest.mark.parametrize("sigma", [-0.1, math.nan, math.inf, -math.inf])
def test_bad_sigma(sigma: float) -> None:
    with rejects("sigma"):
        gaussian_heatmap(scattered(4, 1), sigma)
