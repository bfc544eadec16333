"""Measures of maps: earth mover's distance, density metrics, the blur, and the yardstick of even levels."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from scipy.optimize import linprog
from scipy.sparse import eye_array, kron, vstack

from benchmarks.baselines.level_errors import best_uniform_level, level_errors
from benchmarks.evaluation.density_metrics import HIGHER_IS_BETTER, KL_EPSILON, METRICS, coarsen, evaluate
from benchmarks.evaluation.earth_mover import earth_mover, round_masses
from benchmarks.evaluation.gaussian_blur import gaussian_heatmap
from benchmarks.evaluation.uniform_levels import uniform_densities
from tests.rejections import rejects
from tests.seeds import seeded_rng

# The distance against a dense transport LP, a general flow solver, and closed forms.

max_flow = pytest.importorskip("ortools.graph.python.max_flow")
min_cost_flow = pytest.importorskip("ortools.graph.python.min_cost_flow")

# HiGHS keeps each constraint to 1e-7 of a unit of mass; on 64 cells no unit moves further than 2.
LP_TOLERANCE = 2 * 64 * 1e-7


def bound(side: int) -> float:
    """What the docstring promises, 1.2e-10 on the largest grid, and the rounding of a result of at most 2 on top."""
    return side / 2.0**41 + 4 * np.finfo(float).eps


def normal(masses):
    return masses / masses.sum()


def dense(side: int, seed: int, power: float = 1.0):
    return normal(seeded_rng(seed).random((side, side)) ** power)


def clustered(side: int, seed: int):
    rng = seeded_rng(seed)
    places = (rng.random((20, 1, 2)) + rng.normal(0, 0.02, (20, 10, 2))).reshape(-1, 2)
    rows, columns = np.clip(places * side, 0, side - 1).astype(int).T
    return normal(np.bincount(rows * side + columns, minlength=side**2).reshape(side, side).astype(float))


def noisy(truth, epsilon: float, seed: int):
    """200 users' counts with Laplace noise, negatives zeroed: paper 001's baseline."""
    noise = seeded_rng(seed).laplace(0, 1 / epsilon, truth.shape)
    return normal(np.maximum(200 * truth + noise, 0))


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


def general_flow(estimate, truth) -> float:
    """Minimum-cost flow on the grid by a general solver (cost scaling), masses rounded in another way and finer."""
    side, cells = len(estimate), np.arange(estimate.size).reshape(estimate.shape)
    units = np.rint((estimate - truth) * 2.0**44).astype(np.int64)
    units[0, 0] -= units.sum()
    tail = np.concatenate([cells[:, :-1].ravel(), cells[:-1].ravel()])
    head = np.concatenate([cells[:, 1:].ravel(), cells[1:].ravel()])
    solver = min_cost_flow.SimpleMinCostFlow()
    solver.add_arcs_with_capacity_and_unit_cost(
        np.r_[tail, head], np.r_[head, tail], np.full(2 * len(tail), 2**45), np.ones(2 * len(tail), dtype=np.int64)
    )
    solver.set_nodes_supplies(cells.ravel(), units.ravel())
    assert solver.solve() == solver.OPTIMAL
    return solver.optimal_cost() / 2.0**44 / side


@pytest.mark.parametrize("side", [1, 2, 4, 8])
@pytest.mark.parametrize("power", [1, 20])
def test_equals_the_dense_transport_problem(side: int, power: float) -> None:
    for seed in range(3):
        rng = seeded_rng(seed)
        estimate = rng.multinomial(1000, dense(side, seed, power).ravel()).reshape(side, side)
        truth = rng.multinomial(1000, dense(side, 100 + seed).ravel()).reshape(side, side)
        assert earth_mover(estimate, truth) == pytest.approx(transport_lp(estimate, truth), abs=LP_TOLERANCE)


@given(arrays(np.int64, (2, 4, 4), elements=st.sampled_from([0, 0, 0, 1, 2, 50])))
@settings(max_examples=60, deadline=None)
def test_distance_equals_dense_transport_with_ties(pair) -> None:
    pair[:, 0, 0] += 1
    estimate, truth = pair[0] * pair[1].sum(), pair[1] * pair[0].sum()
    assert earth_mover(estimate, truth) == pytest.approx(transport_lp(estimate, truth), abs=LP_TOLERANCE)


@pytest.mark.parametrize("seed", range(3))
def test_equals_a_general_flow_solver(seed: int) -> None:
    side = 32
    truth = clustered(side, seed)
    pairs = [(dense(side, seed), dense(side, seed + 9)), (noisy(truth, 1, seed), truth), (truth, clustered(side, 7))]
    for estimate, target in pairs:
        # The oracle's own rounding: half a unit of 2^-44 a cell, moved 2 at most, and the rest moved to a corner.
        slack = bound(side) + 2 * side**2 / 2.0**44
        assert earth_mover(estimate, target) == pytest.approx(general_flow(estimate, target), abs=slack)


@pytest.mark.parametrize("side", [2, 16, 256])
def test_single_points(side: int) -> None:
    for a, b in (((0, 0), (side - 1, side - 1)), ((side - 1, 0), (0, side // 2)), ((1, 1), (1, 1)), ((0, 1), (1, 0))):
        estimate, truth = np.zeros((side, side)), np.zeros((side, side))
        estimate[a] = truth[b] = 1
        assert earth_mover(estimate, truth) == (abs(a[0] - b[0]) + abs(a[1] - b[1])) / side


@pytest.mark.parametrize("column", [False, True])
def test_one_row_is_the_difference_of_distribution_functions(column: bool) -> None:
    side = 256
    estimate, truth = np.zeros((side, side)), np.zeros((side, side))
    estimate[77], truth[77] = dense(16, 1).ravel(), dense(16, 2, 5).ravel()
    wanted = np.abs(np.cumsum(estimate[77] - truth[77])).sum() / side
    pair = (estimate.T, truth.T) if column else (estimate, truth)
    assert earth_mover(*pair) == pytest.approx(wanted, abs=bound(side))


def test_a_shift_of_a_large_dense_map() -> None:
    """Moving everything the same way costs the way: the means differ by it, and no plan can be cheaper."""
    side, right, down = 256, 5, 2
    estimate, truth = np.zeros((side, side)), np.zeros((side, side))
    part = seeded_rng(1).exponential(size=(240, 240))
    estimate[:240, :240], truth[down : 240 + down, right : 240 + right] = part, part
    assert earth_mover(normal(estimate), normal(truth)) == pytest.approx((right + down) / side, abs=bound(side))


def test_it_is_a_metric() -> None:
    side = 64
    maps = [dense(side, 1), clustered(side, 2), noisy(clustered(side, 3), 1, 4), normal(np.ones((side, side)))]
    away = np.array([[earth_mover(a, b) for b in maps] for a in maps])
    assert (np.diag(away) == 0).all()
    assert away == pytest.approx(away.T, abs=2 * bound(side))
    assert (away + np.eye(4) > 0).all()
    for a in range(4):
        for b in range(4):
            assert (away[a, b] <= away[a] + away[:, b] + 3 * bound(side)).all()


def test_scale_does_not_matter() -> None:
    estimate, truth = dense(16, 1), dense(16, 2)
    assert earth_mover(300 * estimate, truth / 7) == pytest.approx(earth_mover(estimate, truth), abs=2 * bound(16))


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


def test_rounding_takes_nothing_from_the_caller() -> None:
    estimate, truth = dense(8, 1), dense(8, 2)
    before = estimate.copy(), truth.copy()
    earth_mover(estimate, truth)
    assert (estimate == before[0]).all()
    assert (truth == before[1]).all()


def test_a_grid_too_large_says_which_size_works() -> None:
    large = np.full((512, 512), 1 / 512**2)
    with pytest.raises(ValueError, match="up to 256 x 256 cells, got 512 x 512"):
        earth_mover(large, large)


@pytest.mark.parametrize("shape", [(4, 8), (3, 3), (0, 0), (16,)])
def test_other_shapes(shape: tuple[int, ...]) -> None:
    with pytest.raises(ValueError, match=r"\[2\^d, 2\^d\]"):
        earth_mover(np.ones(shape), np.ones(shape))


@pytest.mark.parametrize("empty", [0.0, np.nan])
def test_no_mass(empty: float) -> None:
    with pytest.raises(ValueError, match="some mass"):
        earth_mover(np.full((4, 4), empty), np.ones((4, 4)))


@pytest.mark.parametrize(
    "case", [pytest.param("dense", marks=pytest.mark.exhaustive), pytest.param("noisy", marks=pytest.mark.slow)]
)
def test_equals_a_general_flow_solver_on_the_largest_grid(case: str) -> None:
    side = 256
    truth = dense(side, 2) if case == "dense" else clustered(side, 2)
    estimate = dense(side, 1) if case == "dense" else noisy(truth, 1, 1)
    slack = bound(side) + 2 * side**2 / 2.0**44
    assert earth_mover(estimate, truth) == pytest.approx(general_flow(estimate, truth), abs=slack)


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


@pytest.mark.parametrize("name", METRICS)
def test_constant_and_empty_densities_have_numbers(name: str) -> None:
    needs_ortools([name])
    uniform = np.full((8, 8), 1 / 64)
    point = np.zeros((8, 8))
    point[2, 5] = 1
    for estimate, truth in ((uniform, point), (point, uniform), (uniform, uniform)):
        assert math.isfinite(evaluate(estimate, truth, [name])[name])
    # An estimate that says nothing counts as the uniform one.
    assert evaluate(np.zeros((8, 8)), point, [name]) == evaluate(uniform, point, [name])


def test_pearson_of_a_constant_is_zero_whatever_its_rounding() -> None:
    third = np.full((8, 8), 1 / 3) / (64 / 3)
    third[0, 0] = np.nextafter(third[0, 0], 1)
    sloping = np.arange(64.0).reshape(8, 8) / np.arange(64).sum()
    assert METRICS["pearson"](third, sloping) == 0
    assert METRICS["pearson"](sloping, third) == 0
    assert METRICS["pearson"](np.zeros((8, 8)), sloping) == 0
    # A slope of a millionth is no rounding.
    assert METRICS["pearson"](third + 1e-6 * sloping, sloping) == pytest.approx(1, abs=1e-6)


def test_matrix_norm_sums_columns_and_not_rows() -> None:
    estimate, truth = np.zeros((4, 4)), np.zeros((4, 4))
    estimate[:, 1], truth[:, 2] = 0.25, 0.25
    assert evaluate(estimate, truth, ["l1_matrix_norm"]) == {"l1_matrix_norm": 1.0}
    assert evaluate(estimate.T, truth.T, ["l1_matrix_norm"]) == {"l1_matrix_norm": 0.5}


def test_mape_divides_by_the_smallest_positive_truth() -> None:
    estimate, truth = np.array([[0.5, 0.5], [0, 0]]), np.array([[0.75, 0.25], [0, 0]])
    assert evaluate(estimate, truth, ["mape"])["mape"] == pytest.approx((1 / 3 + 1) / 4)
    moved = np.array([[0.5, 0.25], [0.25, 0]])
    assert evaluate(moved, truth, ["mape"])["mape"] == pytest.approx((1 / 3 + 0 + 1) / 4)


def test_evaluate_keeps_the_order() -> None:
    assert list(evaluate(ESTIMATE, TRUTH, ["kl", "mse", "l1"])) == ["kl", "mse", "l1"]
    assert evaluate(ESTIMATE, TRUTH, []) == {}


@pytest.mark.parametrize(
    ("estimate", "truth"),
    [
        (np.full((2, 2), 0.25), np.full((4, 4), 1 / 16)),
        (np.full(4, 0.25), np.full(4, 0.25)),
        (np.full((1, 4), 0.25), np.full((1, 4), 0.25)),
        (np.array([[1.5, -0.5], [0, 0]]), TRUTH),
        (np.array([[math.nan, 0.5], [0.5, 0]]), TRUTH),
        (np.array([[math.inf, 0.5], [0.5, 0]]), TRUTH),
        (ESTIMATE * 1.01, TRUTH),
        (ESTIMATE, TRUTH / 2),
        (ESTIMATE, np.zeros((2, 2))),
    ],
)
def test_what_is_no_density(estimate, truth) -> None:
    with pytest.raises(ValueError, match=r"\[side, side\]|sum to 1"):
        evaluate(estimate, truth, ["mse"])


def test_coarsen() -> None:
    fine = np.arange(16.0).reshape(4, 4)
    assert (coarsen(fine, 2) == [[0 + 1 + 4 + 5, 2 + 3 + 6 + 7], [8 + 9 + 12 + 13, 10 + 11 + 14 + 15]]).all()
    assert (coarsen(fine, 4) == fine).all()
    assert coarsen(fine, 1) == [[120]]
    for side in (0, 3, 8):
        with pytest.raises(ValueError, match="side: must divide 4"):
            coarsen(fine, side)


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


def test_the_best_level_lies_between_noise_and_blur() -> None:
    truth, sample = sloping(32)
    assert 0 < best_uniform_level(sample, truth)[0] < 5
    counts = np.rint(truth * 2**40)
    assert best_uniform_level(counts, counts / counts.sum()) == (5, 0.0)
    assert best_uniform_level(np.ones((32, 32), dtype=np.int64), np.full((32, 32), 1 / 1024)) == (0, 0.0)


def test_weights_are_as_good_as_counts() -> None:
    truth, sample = sloping(16)
    assert level_errors(sample / 500, truth) == pytest.approx(level_errors(sample, truth), rel=1e-12)


def test_bad_input() -> None:
    for sample in (np.ones((4, 2)), np.ones((3, 3)), np.ones(4), np.ones((0, 0))):
        with pytest.raises(ValueError, match="sample: must be"):
            level_errors(sample, np.full((4, 4), 1 / 16))
        with pytest.raises(ValueError, match="sample: must be"):
            list(uniform_densities(sample))
    with pytest.raises(ValueError, match="has no users"):
        level_errors(np.zeros((4, 4)), np.full((4, 4), 1 / 16))
    with pytest.raises(ValueError, match="truth: must have"):
        level_errors(np.ones((4, 4)), np.full((2, 2), 1 / 4))
