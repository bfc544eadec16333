"""Measures of maps: earth mover's distance, density metrics, the blur, and the yardstick of even levels."""

from __future__ import annotations

import math

import numpy as np
import pytest
from scipy.optimize import linprog
from scipy.sparse import eye_array, kron, vstack

from benchmarks.baselines.level_errors import best_uniform_level, level_errors
from benchmarks.evaluation.density_metrics import HIGHER_IS_BETTER, KL_EPSILON, METRICS, evaluate
from benchmarks.evaluation.earth_mover import earth_mover, round_masses
from benchmarks.evaluation.gaussian_blur import gaussian_heatmap
from benchmarks.evaluation.uniform_levels import uniform_densities
from tests.seeds import seeded_rng

# The distance against a dense transport LP, a general flow solver, and closed forms.


# HiGHS keeps each constraint to 1e-7 of a unit of mass; on 64 cells no unit moves further than 2.
LP_TOLERANCE = 2 * 64 * 1e-7


def bound(side: int) -> float:
    """What the docstring promises, 1.2e-10 on the largest grid, and the rounding of a result of at most 2 on top."""
    return side / 2.0**41 + 4 * np.finfo(float).eps


def normal(masses):
    return masses / masses.sum()


def dense(side: int, seed: int, power: float = 1.0):
    return normal(seeded_rng(seed).random((side, side)) ** power)


def transport_lp(estimate, truth) -> float:
    """The textbook definition: a plan from every cell to every cell, of least total mass times distance.

    Of whole units, as many in both, so that the constraints agree exactly.
    """
    side, cells, total = len(estimate), estimate.size, estimate.sum()
    row, column = np.divmod(np.arange(cells), side)
    away = np.abs(row[:, None] - row) + np.abs(column[:, None] - column)
    one = np.ones((1, cells))
    marginals = vstack([kron(eye_array(cells), one), kron(one, eye_array(cells))]).tocsr()
    done = linprog(away.ravel() / side, A_eq=marginals, b_eq=np.r_[estimate.ravel(), truth.ravel()], method="highs")
    assert done.success, done.message
    return done.fun / total


@pytest.mark.parametrize("side", [1, 2, 4, 8])
@pytest.mark.parametrize("power", [1, 20])
def test_equals_the_dense_transport_problem(side: int, power: float) -> None:
    for seed in range(3):
        rng = seeded_rng(seed)
        estimate = rng.multinomial(1000, dense(side, seed, power).ravel()).reshape(side, side)
        truth = rng.multinomial(1000, dense(side, 100 + seed).ravel()).reshape(side, side)
        assert earth_mover(estimate, truth) == pytest.approx(transport_lp(estimate, truth), abs=LP_TOLERANCE)


@pytest.mark.parametrize("side", [1, 8, 256])
def test_rounding_keeps_its_bound(side: int) -> None:
    difference = dense(side, 1) - dense(side, 2, 30)
    units = round_masses(difference.copy())
    assert units.dtype == np.int64
    assert units.sum() == 0
    turned, exact = units.copy(), difference * 2.0**40
    turned[1::2], exact[1::2] = turned[1::2, ::-1], exact[1::2, ::-1]
    # Sums of fractions in float64, up to side^2 terms below 1, are exact to side^4 2^-53; and the sum of all may be
    # off by the rounding of the densities themselves, side^2 units in the last place of at most 2.0**40.
    slack = side**4 * 2.0**-52 + side * 2.0**40 * 2.0**-52
    whole = np.floor(exact).ravel()
    apart = np.cumsum(turned.ravel() - whole) - np.cumsum(exact.ravel() - whole)
    assert np.abs(apart).max() <= 0.5 + slack


# By hand: differences 0.1, 0.3, 0, 0.2 over t = 0.5, 0.3, 0.2, 0.
ESTIMATE = np.array([[0.6, 0.0], [0.2, 0.2]])
TRUTH = np.array([[0.5, 0.3], [0.2, 0.0]])
BY_HAND = {
    "mse": (0.01 + 0.09 + 0 + 0.04) / 4,
    "l1": 0.6,
    "l1_matrix_norm": 0.3 + 0.2,
    "mape": (0.1 / 0.5 + 0.3 / 0.3 + 0 + 0.2 / 0.2) / 4,
    "smape": (0.1 / 0.55 + 0.3 / 0.15 + 0 + 0.2 / 0.1) / 4,
    "maape": (math.atan(0.2) + math.atan(1) + 0 + math.pi / 2) / 4,
    "similarity": 0.5 + 0 + 0.2 + 0,
    "pearson": np.corrcoef(ESTIMATE.ravel(), TRUTH.ravel())[0, 1],
    "kl": 0.5 * math.log(0.5 / 0.6) + 0.3 * math.log(0.3 / KL_EPSILON),
    "emd": 0.15,  # 0.1 from the north-east to the north-west and 0.2 to the south-east, half a side each
}
PERFECT = {name: 1.0 if name in HIGHER_IS_BETTER else 0.0 for name in METRICS}


def needs_ortools(names) -> None:
    if "emd" in names:
        pytest.importorskip("ortools")


@pytest.mark.parametrize("name", METRICS)
def test_by_hand(name: str) -> None:
    needs_ortools([name])
    # An epsilon of 2e-16 beside 0.5, or a sum of four terms: 1e-14 is a hundred times the rounding.
    assert evaluate(ESTIMATE, TRUTH, [name]) == {name: pytest.approx(BY_HAND[name], rel=1e-14, abs=1e-12)}


@pytest.mark.parametrize("name", METRICS)
def test_the_truth_itself_is_best_and_better_says_which_way(name: str) -> None:
    needs_ortools([name])
    perfect, other = evaluate(TRUTH, TRUTH, [name])[name], evaluate(ESTIMATE, TRUTH, [name])[name]
    assert perfect == pytest.approx(PERFECT[name], abs=1e-14)
    assert (other > perfect) == (name not in HIGHER_IS_BETTER)


# The Gaussian filter of paper 001 against its double sum.


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


def sloping(side: int):
    """A density with people in one corner, and a sample of it."""
    rng = seeded_rng(3)
    truth = np.exp(-np.add.outer(np.arange(side), np.arange(side)) * 12 / side) + rng.random((side, side)) / 40
    truth /= truth.sum()
    return truth, rng.multinomial(500, truth.ravel()).reshape(side, side)


@pytest.mark.parametrize("side", [1, 2, 16, 32])
def test_errors_are_those_of_the_densities_cell_by_cell(side: int) -> None:
    truth, sample = sloping(side)
    wanted = []
    for level in range(side.bit_length()):
        block = side >> level
        estimate = np.zeros((side, side))
        for row in range(side):
            for column in range(side):
                top, left = row // block * block, column // block * block
                estimate[row, column] = sample[top : top + block, left : left + block].sum() / 500 / block**2
        wanted.append(np.mean((estimate - truth) ** 2))
    errors = level_errors(sample, truth)
    # Sums of fewer than 32^2 positive terms, each exact to a few units in the last place.
    assert errors == pytest.approx(wanted, rel=1e-12, abs=1e-32)
    assert best_uniform_level(sample, truth) == (
        int(np.argmin(wanted)),
        pytest.approx(min(wanted), rel=1e-12, abs=1e-32),
    )
    densities = list(uniform_densities(sample))
    assert [np.mean((density - truth) ** 2) for density in densities] == pytest.approx(wanted, rel=1e-12, abs=1e-32)
    for density in densities:
        assert density.shape == (side, side)
        assert density.sum() == pytest.approx(1, rel=1e-12)
