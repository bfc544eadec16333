"""The distance against a dense transport LP, a general flow solver, and closed forms."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from scipy.optimize import linprog
from scipy.sparse import eye_array, kron, vstack

from benchmarks.evaluation.earth_mover import earth_mover, round_masses
from tests.seeds import seeded_rng

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
def test_equals_the_dense_transport_problem_with_ties_and_empty_cells(pair) -> None:
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
