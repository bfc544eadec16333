"""The hierarchy of noisy counts beside generalised least squares by matrices."""

from __future__ import annotations

import numpy as np
import pytest

from sfumato.transforms.histogram.item_encoding import NumberBins
from sfumato.transforms.privacy.keys import FixedSecret, RunKey
from sfumato.transforms.privacy.mechanism import discrete_laplace_stddev
from sfumato.transforms.quantiles.private_quantiles import HierarchyNoise, fit_hierarchy, measure_hierarchy
from tests.seeds import seeded_rng
from tests.statistics import FLAKE_RATE, chi_square_p, discrete_laplace_pmf
from tests.unit.quantiles.borders import spread

TREES = [(4, (2, 4)), (5, (1, 3, 5)), (3, (3,)), (6, (3, 5, 6))]
KEY = RunKey.derive(FixedSecret(bytes(range(32))), {"of": "a test"})


def queries(bits: int, levels: tuple[int, ...]) -> np.ndarray:
    """Every count of the tree as a row of weights over the bins."""
    return np.concatenate([np.kron(np.eye(1 << one), np.ones((1, 1 << (bits - one)))) for one in levels])


@pytest.mark.parametrize(("bits", "levels"), TREES)
def test_covariances_are_those_of_least_squares(bits: int, levels: tuple[int, ...]) -> None:
    noise, matrix = HierarchyNoise(bits, levels, 1.0), queries(bits, levels)
    own = discrete_laplace_stddev(1 / len(levels)) ** 2
    exact = np.linalg.inv(matrix.T @ matrix) * own
    values = np.sort(np.append(np.arange((1 << bits) + 1.0), [0.3, 1.7, (1 << bits) - 0.5]))
    below = np.clip(values[:, None] - np.arange(1 << bits), 0, 1)
    wanted = below @ exact @ below.T
    low, high = np.triu_indices(len(values))
    assert noise.covariance(values[low], values[high]) == pytest.approx(wanted[low, high], rel=1e-9, abs=1e-9 * own)


@pytest.mark.parametrize(("bits", "levels"), TREES)
def test_estimates_are_those_of_least_squares(bits: int, levels: tuple[int, ...]) -> None:
    noise, matrix = HierarchyNoise(bits, levels, 1.0), queries(bits, levels)
    counts = seeded_rng(bits).integers(300, 900, 1 << bits)
    noisy = measure_hierarchy(spread(counts.tolist(), bits), noise, KEY)
    exact = np.linalg.lstsq(matrix, np.concatenate(noisy).astype(float), rcond=None)[0]
    hierarchy = fit_hierarchy(noisy, noise, NumberBins(-3.0, 5.0, bits))
    assert np.diff(hierarchy.below) == pytest.approx(exact, rel=1e-9)
    answer = hierarchy.answer(-3 + 8 / (1 << bits), 1.0)
    assert answer.users == pytest.approx(exact[1 : 1 << (bits - 1)].sum(), rel=1e-9)
    curve = hierarchy.curve(bits)
    assert curve.share[::2] == pytest.approx(np.append(0, np.cumsum(exact)[:-1]) / exact.sum(), abs=1e-9)


def test_every_level_has_noise_of_its_own_share_drawn_once() -> None:
    noise = HierarchyNoise(12, (4, 8, 12), 0.3)
    users = spread([0, 5] * 2048, 12)
    once, again = (measure_hierarchy(users, noise, KEY) for _ in range(2))
    for one, other, level in zip(once, again, noise.levels, strict=True):
        assert np.array_equal(one, other)
        drawn = one - (np.tile([0, 5], 2048) if level == 12 else 5 << (11 - level))
        if level == 12:
            assert chi_square_p(drawn, discrete_laplace_pmf(0.1, 400)) > FLAKE_RATE
            assert chi_square_p(drawn, discrete_laplace_pmf(0.13, 400)) < FLAKE_RATE
        assert abs(drawn.mean()) < 6.2 * discrete_laplace_stddev(0.1) / (1 << level) ** 0.5 * 1.3


def test_a_tree_of_nobody_has_a_curve_or_says_so() -> None:
    for number in range(20):
        noise = HierarchyNoise(3, (3,), 0.1)
        key = KEY.narrowed({"number": number})
        hierarchy = fit_hierarchy(measure_hierarchy(spread([0] * 8, 3), noise, key), noise, NumberBins(0.0, 1.0, 3))
        assert hierarchy.users >= 0
        assert (np.diff(hierarchy.below) >= 0).all()
        if hierarchy.users:
            assert hierarchy.curve(3).share[-1] == 1
            assert hierarchy.answer(0.1, 0.7).users >= 0
