"""The method in the schedule's state machine against Algorithms 1 and 2 on dense pyramids."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from benchmarks.baselines.emd_trusted_server import emd_aggregate
from sfumato.schemas.errors import RequestError
from sfumato.schemas.places import Places
from sfumato.schemas.region import interleave
from sfumato.schemas.tree import Tree, node_levels, node_paths
from sfumato.transforms.heatmap.methods import METHODS
from sfumato.transforms.heatmap.methods.emd import Cells, Emd
from sfumato.transforms.heatmap.parameters import HeatmapParameters
from sfumato.transforms.heatmap.posterior.estimator import density
from sfumato.transforms.heatmap.schedule import advance, check_plan
from sfumato.transforms.heatmap.state import HeatmapState
from sfumato.transforms.locations.distributions import (
    bound_distributions,
    build_weighted_shard_group,
    split_distributions,
)
from sfumato.transforms.locations.encode import EncodedLocations
from sfumato.transforms.locations.spill import Spill
from sfumato.transforms.locations.users import split_by_user_group
from sfumato.transforms.privacy.keys import FixedSecret, RunKey
from sfumato.transforms.secagg.encodings import TreeEncoding
from sfumato.transforms.secagg.shard_sums import ShardTotals, sum_shards
from tests.admitted import start
from tests.rejections import rejects
from tests.seeds import seeded_rng
from tests.statistics import FLAKE_RATE
from tests.unit.heatmap.methods.test_emd_program import dense_cost, dense_pyramid

KEY = RunKey.derive(FixedSecret(b"emd" * 11), {})
GAMMA = 100


def parameters_of(depth: int, width: int, **others: object) -> HeatmapParameters:
    method = Emd(width, **{name: others.pop(name) for name in list(others) if name.startswith("emd_")})  # type: ignore[arg-type]
    given = {"population": 200, "shard_size": 200, "gamma": GAMMA, **others}
    return HeatmapParameters(depth=depth, method=method, **given)  # type: ignore[arg-type]


def finish(parameters: HeatmapParameters, pyramid: dict[int, NDArray[np.int64]]) -> HeatmapState:
    """Runs the schedule; pyramid: noisy counts of all cells of each level, by code, in units of 1 / gamma."""
    state = start(200, parameters, KEY)
    while state.query is not None:
        nodes = state.query.encoding.tree.entries  # type: ignore[attr-defined]
        level = int(node_levels(nodes[-1:])[0])
        sums = np.full(len(nodes), 10**9)  # what lies outside the cells asked for must not matter
        asked = node_levels(nodes) == level
        sums[asked] = pyramid[level][node_paths(nodes[asked]).astype(int)]
        state = advance(state, ShardTotals(sums, state.cohort.shards), parameters)
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
def test_cells_asked_for_and_map_are_those_of_the_dense_algorithm(
    seed: int, depth: int, width: int, keep_all: bool
) -> None:
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
def test_epsilons_follow_the_formula_and_add_up_to_the_budget(
    depth: int, width: int, decay: float, epsilon: float, public: bool
) -> None:
    counted = None if not public else 200
    parameters = parameters_of(depth, width, emd_decay=decay, epsilon=epsilon, population=counted)
    state = start(200, parameters, KEY)
    rng = seeded_rng(0)
    while state.query is not None:
        assert state.query.encoding.length <= 4 * width + 1
        sums = rng.integers(-1000, 20000, state.query.encoding.length)
        state = advance(state, ShardTotals(sums, state.cohort.shards), parameters)
    spent = [result.spent.epsilon for result in state.results]
    assert state.budget.spent == math.fsum([*spent, state.population.epsilon]) == epsilon
    first = min(depth, math.floor(math.log2(math.sqrt(width))))
    weights = [decay ** abs(i - first) for i in range(first, depth + 1)]
    wanted = [(epsilon - state.population.epsilon) * one / sum(weights) for one in weights]
    np.testing.assert_allclose(spent, wanted, rtol=1e-9)


def test_a_finest_level_that_gets_next_to_nothing_is_refused_before_anything_is_spent() -> None:
    with rejects("emd_decay"):
        parameters_of(20, 4, emd_decay=0.5)
    with rejects("gamma"):
        check_plan(parameters_of(20, 20, gamma=100_000))
    check_plan(parameters_of(20, 20, gamma=10_000))


def test_a_run_that_was_cut_short_has_a_map() -> None:
    parameters = parameters_of(6, 5)
    _, pyramid = noisy_pyramid(4, 6)
    state = finish(parameters, pyramid)
    short = replace(state, results=state.results[:3])
    estimate = parameters.method.decode(short, 6)
    assert estimate.tree.depth == 6
    assert estimate.tree.level == 3
    assert len(estimate.counts) == len(estimate.stddev) == len(estimate.tree.entries)


def test_the_map_is_in_users_and_its_deviations_are_those_of_differences() -> None:
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
    noise = {1 + place: result.spent.noise_stddev for place, result in enumerate(state.results)}
    nodes = set(estimate.tree.nodes.tolist())
    for node, stddev in zip(estimate.tree.entries.tolist(), estimate.stddev, strict=True):
        level = (node.bit_length() - 1) // 2
        there = sum(4 * node + child in nodes for child in range(4))
        assert there < 4
        below = there * noise[level + 1] ** 2 if there else 0.0
        assert stddev == pytest.approx(math.sqrt(noise[level] ** 2 + below))


@pytest.mark.parametrize("keep_all", [False, True])
def test_aggregation_with_central_noise_is_the_same_algorithm(keep_all: bool) -> None:
    depth, epsilon = 6, 1.5
    method = Emd(20, emd_fit="all" if keep_all else "refined")
    grid, _ = noisy_pyramid(3, depth)
    sums = np.zeros((64, 64))
    codes = interleave(*(np.indices((64, 64))[::-1].reshape(2, -1).astype(np.uint32)))  # x is the column
    sums.ravel()[:] = grid[codes.astype(int)] / GAMMA
    rng, scales, drawn = seeded_rng(8), [], []

    def noise(scale: float, count: int) -> NDArray[np.float64]:
        scales.append(scale)
        drawn.append(np.round(rng.laplace(0, scale, count) * GAMMA) / GAMMA)
        return drawn[-1]

    mine = emd_aggregate(sums, epsilon, method, noise)
    weights = [0.5 ** (abs(i - 2) / 2) for i in range(2, depth + 1)]
    np.testing.assert_allclose(scales, [sum(weights) / one / epsilon for one in weights])
    assert mine.sum() == pytest.approx(1)
    # The same noise through the state machine, sub-query by sub-query.
    parameters = parameters_of(depth, 20, emd_fit="all" if keep_all else "refined")
    state, left = start(200, parameters, KEY), list(drawn)
    while state.query is not None:
        nodes = state.query.encoding.tree.entries  # type: ignore[attr-defined]
        level = int(node_levels(nodes[-1:])[0])
        asked = node_levels(nodes) == level
        totals = np.zeros(len(nodes), dtype=np.int64)
        exact = grid.reshape(4**level, -1).sum(axis=1)[node_paths(nodes[asked]).astype(int)]
        totals[asked] = exact + np.rint(left.pop(0) * GAMMA).astype(np.int64)
        state = advance(state, ShardTotals(totals, state.cohort.shards), parameters)
    estimate = parameters.method.decode(state, depth)
    np.testing.assert_allclose(mine, density(estimate.tree, estimate.counts), atol=1e-9)


def test_aggregation_without_noise_returns_a_sparse_map() -> None:
    sums = np.zeros((256, 256))
    places = seeded_rng(1).choice(256 * 256, 15, replace=False)
    sums.ravel()[places] = np.arange(1, 16)
    result = emd_aggregate(sums, 1.0, Emd(), lambda scale, count: np.zeros(count))
    np.testing.assert_allclose(result, sums / sums.sum(), atol=1e-12)


def test_distributions_of_users_go_through_shards_and_noise() -> None:
    """A user's whole log counts: three records in one cell and one in another count as 3/4 and 1/4 of a user."""
    depth, users = 5, 4000
    rng = seeded_rng(2)
    hashes = rng.choice(2**62, users, replace=False).astype(np.uint64) << np.uint64(2)
    places = np.array([100, 100, 100, 900])
    spill = Spill()
    batch = EncodedLocations(np.repeat(hashes, 4), np.tile(places, users).astype(np.uint32), 4 * users, ())
    chunks = [chunk for _, chunk in split_by_user_group(batch, spill)]
    parameters = parameters_of(depth, 8, epsilon=10.0, population=users, shard_size=1000)
    state = start(users, parameters, KEY)
    groups: dict[int, list[bytes]] = {}
    for chunk in chunks:
        rows = bound_distributions([chunk], Places(depth), GAMMA)
        for number, part in split_distributions(rows, state.cohort, Places(depth), spill):
            groups.setdefault(number, []).append(part)
    built = [
        build_weighted_shard_group(number, mine, state.cohort, Places(depth), spill) for number, mine in groups.items()
    ]
    while state.query is not None:
        totals = [sum_shards(group, state.query, KEY) for group in built]
        state = advance(state, sum(totals[1:], start=totals[0]), parameters)
    assert {result.spent.shards_lost for result in state.results} == {0}
    truth = np.zeros(4**depth)
    truth[[100, 900]] = 0.75 * users, 0.25 * users
    target = []
    for level, result in zip(range(1, depth + 1), state.results, strict=True):
        nodes = result.encoding.tree.entries  # type: ignore[attr-defined]
        asked = node_levels(nodes) == level
        cells = Cells(nodes[asked], result.counts[asked])
        exact = truth.reshape(4**level, -1).sum(axis=1)[node_paths(cells.nodes).astype(int)]
        # Four shards' noise is above t if one's is above t / 4; survivors above the required number add less than that.
        reach = 8 * math.log(8 * len(nodes) * depth / FLAKE_RATE) / result.spent.epsilon
        assert reach < 0.2 * users
        np.testing.assert_allclose(cells.counts, exact, atol=reach)
        kept = cells.largest(8)
        y = np.zeros(4**level)
        y[node_paths(kept.nodes).astype(int)] = 2.0**-level * kept.counts
        target.append(y)
    estimate = parameters.method.decode(state, depth)
    map_ = (estimate.counts / np.maximum(estimate.tree.areas, 1))[estimate.tree.entry_of_cell]
    # Lemma 3.3's first step: |P(map - truth)| <= |y - P map| + |y - P truth|, of which the first is the least.
    matrix, y = dense_pyramid(1, depth), np.concatenate(target)
    assert np.abs(matrix @ (map_ - truth)).sum() <= 2 * np.abs(y - matrix @ truth).sum()


def test_the_program_stays_small_however_deep_the_grid() -> None:
    method = Emd(emd_fit="refined")
    assert (method.first_level(20), method.max_rounds(20)) == (2, 19)
    assert [Emd(width).first_level(20) for width in (1, 3, 4, 15, 16, 63, 64, 4096)] == [0, 0, 1, 1, 2, 2, 3, 6]
    assert Emd(4096).first_level(3) == 3
    measured: list[Cells] = []
    for _ in range(method.max_rounds(20)):
        nodes = method.next_cells(measured, 20)
        measured.append(Cells(nodes, seeded_rng(len(measured)).laplace(9, 5, len(nodes))))
    kept, masses = method.solve(measured)
    assert sum(len(cells.nodes) for cells in kept) == 16 + 18 * 20
    assert len(masses.nodes) <= 16 + 18 * 20


def test_it_is_registered_and_takes_distributions() -> None:
    assert METHODS["emd"] is Emd
    assert HeatmapParameters(method=Emd(), gamma=10_000).distribution_gamma == 10_000
    state = start(200, parameters_of(12, 20), KEY)
    assert state.query is not None
    assert state.query.encoding == TreeEncoding(Tree.uniform(12, 2))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"emd_width": 0}, r"emd_width: must be a whole number in 1\.\.4096, got 0"),
        ({"emd_width": 5000}, r"emd_width: must be a whole number in 1\.\.4096, got 5000"),
        ({"emd_width": 2.5}, "emd_width: must be a whole number"),
        ({"emd_decay": 0.4}, r"emd_decay: must be a number in \[0\.5, 1\], got 0\.4"),
        ({"emd_decay": float("nan")}, "emd_decay: must be a number"),
        ({"emd_fit": "most"}, "emd_fit: must be one of all, refined, got 'most'"),
    ],
)
def test_bad_options_are_refused(options: dict[str, float], message: str) -> None:
    with pytest.raises(RequestError, match=message):
        Emd(**options)  # type: ignore[arg-type]


@pytest.mark.parametrize("shape", [(3, 3), (4, 8), (4,), (0, 0)])
def test_grids_of_other_shapes_are_refused(shape: tuple[int, ...]) -> None:
    with rejects("sums"):
        emd_aggregate(np.zeros(shape), 1.0, Emd(), lambda scale, count: np.zeros(count))


def test_a_bad_epsilon_is_refused() -> None:
    with pytest.raises(RequestError, match="epsilon"):
        emd_aggregate(np.zeros((4, 4)), float("nan"), Emd(), lambda scale, count: np.zeros(count))
