"""The method emd against Algorithms 1 and 2 on dense pyramids, and its program against a dense one."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from scipy.optimize import linprog

from benchmarks.baselines.emd_trusted_server import emd_aggregate
from sfumato.schemas.region import interleave
from sfumato.schemas.tree import Tree, node_levels, node_paths
from sfumato.transforms.counting.estimator import density
from sfumato.transforms.counting.methods.emd import Cells, Emd, reconstruct
from sfumato.transforms.counting.parameters import CountParameters
from sfumato.transforms.counting.state import CountState
from sfumato.transforms.counting.sub_queries import advance
from sfumato.transforms.privacy.keys import FixedSecret, RunKey
from sfumato.transforms.secagg.shard_sums import ShardTotals
from sfumato.transforms.statistics.posterior.full_tree import children_of
from tests.admitted import start
from tests.seeds import seeded_rng

Levels = list[Cells]


def noisy_levels(rng: np.random.Generator, depth: int, first: int, width: int, keep_all: bool) -> Levels:
    """Kept cells of a sparse grid with noise that grows downwards."""
    grid = rng.multinomial(60, rng.dirichlet(np.full(4**depth, 0.05)))
    nodes, levels = np.arange(4**first, 2 * 4**first, dtype=np.uint64), []
    for level in range(first, depth + 1):
        true = grid.reshape(4**level, -1).sum(axis=1)[node_paths(nodes).astype(int)]
        measured = Cells(nodes, true + rng.laplace(0, 1 + level, len(nodes)))
        largest = measured.largest(width)
        levels.append(measured if keep_all else largest)
        nodes = children_of(largest.nodes)
    return levels


def dense_pyramid(first: int, depth: int) -> NDArray[np.float64]:
    """Rows 2^-level for all cells of levels first..depth in the order of nodes, a column a finest cell by code."""
    eye = np.eye(4**depth)
    return np.concatenate(
        [2.0**-i * eye.reshape(4**i, 4 ** (depth - i), 4**depth).sum(axis=1) for i in range(first, depth + 1)]
    )


def dense_target(levels: Levels) -> NDArray[np.float64]:
    """y restricted to the kept cells, 0 elsewhere: scaled, all cells of all levels."""
    first, depth = (int(node_levels(cells.nodes[:1])[0]) for cells in (levels[0], levels[-1]))
    target = []
    for level, cells in zip(range(first, depth + 1), levels, strict=True):
        y = np.zeros(4**level)
        y[node_paths(cells.nodes).astype(int)] = 2.0**-level * cells.counts
        target.append(y)
    return np.concatenate(target)


def dense_cost(matrix: NDArray[np.float64], target: NDArray[np.float64]) -> float:
    """Algorithm 2, line 9, word for word."""
    rows, columns = matrix.shape
    both = np.block([[matrix, -np.eye(rows)], [-matrix, -np.eye(rows)]])
    cost = np.concatenate([np.zeros(columns), np.ones(rows)])
    return float(linprog(cost, A_ub=both, b_ub=np.concatenate([target, -target])).fun)


def spread(remainders: Cells, levels: Levels) -> NDArray[np.float64]:
    """The remainders' masses on the finest cells by code, uniform in each."""
    depth = int(node_levels(levels[-1].nodes[:1])[0])
    first = int(node_levels(levels[0].nodes[:1])[0])
    tree = Tree.of(depth, np.concatenate([Tree.uniform(depth, first).nodes, *[cells.nodes for cells in levels]]))
    np.testing.assert_array_equal(tree.entries, remainders.nodes)
    per_cell = remainders.counts / np.maximum(tree.areas, 1)
    return per_cell[tree.entry_of_cell]


@given(st.integers(0, 2**31), st.integers(1, 4), st.integers(0, 1), st.integers(1, 12), st.booleans())
@settings(max_examples=60, deadline=None)
def test_reconstruct_is_the_optimum_of_the_dense_program(
    seed: int, depth: int, first: int, width: int, keep_all: bool
) -> None:
    levels = noisy_levels(seeded_rng(seed), depth, first, width if first == 0 else width + 3, keep_all)
    matrix, target = dense_pyramid(first, depth), dense_target(levels)
    masses = reconstruct(levels)
    assert (masses.counts >= 0).all()
    cost = np.abs(target - matrix @ spread(masses, levels)).sum()
    # HiGHS ends within 1e-7 of optimal in each dual; reconstruct itself only rounds.
    assert cost == pytest.approx(dense_cost(matrix, target), abs=1e-5)


def test_reconstruct_takes_an_excess_and_spreads_a_lack() -> None:
    """Worked by hand: the parent is worth 2 units, so it keeps its value, and its children change."""
    parent = np.arange(4, 8, dtype=np.uint64)
    zeros = np.zeros(4)

    def solve(count: float, kept: list[int], counts: list[float]) -> NDArray[np.float64]:
        above = Cells(parent, np.array([count, *zeros[1:]]))
        levels = [above, Cells(np.array(kept, dtype=np.uint64), np.array(counts))]
        return spread(reconstruct(levels), levels)[:4]

    np.testing.assert_allclose(solve(20, [16, 17, 18, 19], [8, 20, 0, 0]), [4, 16, 0, 0])
    np.testing.assert_allclose(solve(20, [16, 17, 18, 19], [8, 4, 0, 0]), [10, 6, 2, 2])
    # Children that were not kept have y = 0 and cost the same as more than y in one that was.
    np.testing.assert_allclose(solve(20, [16, 17], [8, 4]), [10, 6, 2, 2])
    np.testing.assert_allclose(solve(-3, [16, 17], [8, 4]), 0)


def test_reconstruct_keeps_digits_of_millions_at_depth_20() -> None:
    rng = seeded_rng(11)
    nodes, levels, true = np.arange(16, 32, dtype=np.uint64), [], {}
    for level in range(2, 21):
        if level == 2:
            counts = rng.uniform(0, 5e7, 16)
        else:  # three children have the cell's users, so that w = 20 leaves some of them out
            share = rng.dirichlet(np.ones(3), len(levels[-1].nodes))
            counts = np.concatenate([share, np.zeros((len(share), 1))], axis=1) * levels[-1].counts[:, None]
            counts = counts.ravel()
        true[level] = counts.sum()
        levels.append(Cells(nodes, counts).largest(20))
        nodes = children_of(levels[-1].nodes)
    masses = reconstruct(levels)
    assert masses.counts.sum() == pytest.approx(true[2], rel=1e-12)
    assert len(masses.nodes) <= 16 + 18 * 20


def test_largest_cells_are_the_first_of_equal_ones() -> None:
    cells = Cells(np.arange(16, 22, dtype=np.uint64), np.array([1.0, 3, 1, 7, 1, 3]))
    assert cells.largest(4).nodes.tolist() == [16, 17, 19, 21]
    assert cells.largest(4).counts.tolist() == [1, 3, 7, 3]
    assert cells.largest(9).nodes.tolist() == cells.nodes.tolist()


KEY = RunKey.derive(FixedSecret(b"emd" * 11), {})


GAMMA = 100


def parameters_of(depth: int, width: int, **others: object) -> CountParameters:
    method = Emd(width, **{name: others.pop(name) for name in list(others) if name.startswith("emd_")})  # type: ignore[arg-type]
    given = {"population": 200, "shard_size": 200, "gamma": GAMMA, **others}
    return CountParameters(depth=depth, method=method, **given)  # type: ignore[arg-type]


def asked_cells(state: CountState) -> tuple[int, NDArray[np.bool_], NDArray[np.int64]]:
    """The level that is asked for, which entries of the query are its cells, and the codes of these."""
    assert state.query is not None
    nodes = state.query.encoding.tree.entries  # type: ignore[attr-defined]
    level = int(node_levels(nodes[-1:])[0])
    is_queried = node_levels(nodes) == level
    return level, is_queried, node_paths(nodes[is_queried]).astype(int)


def finish(parameters: CountParameters, pyramid: dict[int, NDArray[np.int64]]) -> CountState:
    """Runs the schedule; pyramid: noisy counts of all cells of each level, by code, in units of 1 / gamma."""
    state = start(200, parameters, KEY)
    while state.query is not None:
        level, is_queried, codes = asked_cells(state)
        sums = np.full(len(is_queried), 10**9)  # what lies outside the cells asked for must not matter
        sums[is_queried] = pyramid[level][codes]
        state = advance(state, ShardTotals(sums, state.shard_plan.shards), parameters)
    return state


def noisy_pyramid(seed: int, depth: int) -> tuple[NDArray[np.int64], dict[int, NDArray[np.int64]]]:
    """A clustered grid, int64[4^depth] by code, and its level sums with noise on every cell."""
    rng = seeded_rng(seed)
    grid = rng.multinomial(200 * GAMMA, rng.dirichlet(np.full(4**depth, 0.05)))
    levels = {i: grid.reshape(4**i, -1).sum(axis=1) for i in range(depth + 1)}
    return grid, {i: sums + rng.integers(-30 * GAMMA, 30 * GAMMA, len(sums)) for i, sums in levels.items()}


def algorithm_2(pyramid: dict[int, NDArray[np.int64]], first: int, width: int, keep_all: bool) -> list[set[int]]:
    """The coordinates of y that are kept, codes by level, cell by cell as the paper has it."""
    kept, above = [], None
    for level in range(first, max(pyramid) + 1):
        cells = range(4**level) if above is None else [4 * parent + child for parent in above for child in range(4)]
        above = sorted(cells, key=lambda code: (-pyramid[level][code], code))[:width]
        kept.append(set(cells) if keep_all else set(above))
    return kept


@given(st.integers(0, 2**31), st.integers(1, 4), st.integers(1, 17), st.booleans())
@settings(max_examples=40, deadline=None)
def test_emd_asks_and_maps_as_the_dense_algorithm(seed: int, depth: int, width: int, keep_all: bool) -> None:
    parameters = parameters_of(depth, width, emd_fit="all" if keep_all else "refined")
    _, pyramid = noisy_pyramid(seed, depth)
    state = finish(parameters, pyramid)
    estimate = parameters.method.decode(state, depth)
    first = min(depth, math.floor(math.log2(math.sqrt(width))))
    kept = algorithm_2(pyramid, first, width, keep_all)
    target = []
    for level, codes in zip(range(first, depth + 1), kept, strict=True):
        y = np.zeros(4**level)
        y[list(codes)] = 2.0**-level * pyramid[level][list(codes)] / GAMMA
        target.append(y)
        mine = estimate.tree.nodes[node_levels(estimate.tree.nodes) == level]
        assert set(node_paths(mine).tolist()) == codes
    matrix, y = dense_pyramid(first, depth), np.concatenate(target)
    per_cell = estimate.counts / np.maximum(estimate.tree.areas, 1)
    cost = np.abs(y - matrix @ per_cell[estimate.tree.entry_of_cell]).sum()
    assert cost == pytest.approx(dense_cost(matrix, y), abs=1e-4)  # HiGHS ends within 1e-7 of optimal in each dual


@given(st.integers(1, 20), st.integers(1, 100), st.floats(0.67, 1), st.floats(0.1, 10), st.booleans())
@settings(max_examples=40, deadline=None)
def test_emd_epsilons_follow_the_formula_and_add_up(
    depth: int, width: int, decay: float, epsilon: float, public: bool
) -> None:
    counted = None if not public else 200
    parameters = parameters_of(depth, width, emd_decay=decay, epsilon=epsilon, population=counted)
    state = start(200, parameters, KEY)
    rng = seeded_rng(0)
    while state.query is not None:
        assert state.query.encoding.length <= 4 * width + 1
        sums = rng.integers(-1000, 20000, state.query.encoding.length)
        state = advance(state, ShardTotals(sums, state.shard_plan.shards), parameters)
    spent = [result.cost for result in state.results]
    assert state.budget.spent == math.fsum([*spent, state.population.cost]) == epsilon
    first = min(depth, math.floor(math.log2(math.sqrt(width))))
    weights = [decay ** abs(i - first) for i in range(first, depth + 1)]
    wanted = [(epsilon - state.population.cost) * one / sum(weights) for one in weights]
    np.testing.assert_allclose(spent, wanted, rtol=1e-9)


def test_emd_map_is_in_users_with_deviations_of_differences() -> None:
    depth, width = 5, 5
    grid = np.zeros(4**depth, dtype=np.int64)
    grid[[3, 77, 300, 900]] = np.array([20, 30, 70, 80]) * GAMMA
    pyramid = {i: grid.reshape(4**i, -1).sum(axis=1) for i in range(depth + 1)}
    parameters = parameters_of(depth, width)
    state = finish(parameters, pyramid)
    estimate = parameters.method.decode(state, depth)
    assert estimate.counts.sum() == pytest.approx(200)
    np.testing.assert_allclose(estimate.counts[estimate.counts > 1e-9], [20, 30, 70, 80])
    np.testing.assert_allclose(density(estimate.tree, estimate.counts).max(), 0.4)
    noise = {1 + place: result.noise_stddev for place, result in enumerate(state.results)}
    nodes = set(estimate.tree.nodes.tolist())
    for node, stddev in zip(estimate.tree.entries.tolist(), estimate.stddev, strict=True):
        level = (node.bit_length() - 1) // 2
        there = sum(4 * node + child in nodes for child in range(4))
        assert there < 4
        below = there * noise[level + 1] ** 2 if there else 0.0
        assert stddev == pytest.approx(math.sqrt(noise[level] ** 2 + below))


@pytest.mark.parametrize("keep_all", [False, True])
def test_emd_aggregate_with_central_noise_is_the_same_algorithm(keep_all: bool) -> None:
    depth, epsilon, gamma = 6, 1.5, 128  # a power of two: sums are exact, so both break ties alike
    method = Emd(20, emd_fit="all" if keep_all else "refined")
    grid, _ = noisy_pyramid(3, depth)
    sums = np.zeros((64, 64))
    codes = interleave(*(np.indices((64, 64))[::-1].reshape(2, -1).astype(np.uint32)))  # x is the column
    sums.ravel()[:] = grid[codes.astype(int)] / gamma
    rng, scales, drawn = seeded_rng(8), [], []

    def noise(scale: float, count: int) -> NDArray[np.float64]:
        scales.append(scale)
        drawn.append(np.round(rng.laplace(0, scale, count) * gamma) / gamma)
        return drawn[-1]

    mine = emd_aggregate(sums, epsilon, method, noise)
    weights = [0.5 ** (abs(i - 2) / 2) for i in range(2, depth + 1)]
    np.testing.assert_allclose(scales, [sum(weights) / one / epsilon for one in weights])
    assert mine.sum() == pytest.approx(1)
    # The same noise through the state machine, sub-query by sub-query.
    parameters = parameters_of(depth, 20, emd_fit="all" if keep_all else "refined", gamma=gamma)
    state, left = start(200, parameters, KEY), list(drawn)
    while state.query is not None:
        level, is_queried, codes = asked_cells(state)
        totals = np.zeros(len(is_queried), dtype=np.int64)
        totals[is_queried] = grid.reshape(4**level, -1).sum(axis=1)[codes] + np.rint(left.pop(0) * gamma).astype(
            np.int64
        )
        state = advance(state, ShardTotals(totals, state.shard_plan.shards), parameters)
    estimate = parameters.method.decode(state, depth)
    np.testing.assert_allclose(mine, density(estimate.tree, estimate.counts), atol=1e-9)


def test_emd_aggregate_returns_a_sparse_map_without_noise() -> None:
    sums = np.zeros((256, 256))
    places = seeded_rng(1).choice(256 * 256, 15, replace=False)
    sums.ravel()[places] = np.arange(1, 16)
    result = emd_aggregate(sums, 1.0, Emd(), lambda scale, count: np.zeros(count))
    np.testing.assert_allclose(result, sums / sums.sum(), atol=1e-12)


def test_emd_program_stays_small_on_deep_grids() -> None:
    method = Emd(emd_fit="refined")
    assert (method.first_level(20), method.most_sub_queries(20)) == (2, 19)
    assert [Emd(width).first_level(20) for width in (1, 3, 4, 15, 16, 63, 64, 4096)] == [0, 0, 1, 1, 2, 2, 3, 6]
    assert Emd(4096).first_level(3) == 3
    measured: list[Cells] = []
    for _ in range(method.most_sub_queries(20)):
        nodes = method.next_cells(measured, 20)
        measured.append(Cells(nodes, seeded_rng(len(measured)).laplace(9, 5, len(nodes))))
    kept, masses = method.solve(measured)
    assert sum(len(cells.nodes) for cells in kept) == 16 + 18 * 20
    assert len(masses.nodes) <= 16 + 18 * 20
