"""The program against a dense one: every cell of every level a coordinate, every cell of the grid a variable."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from scipy.optimize import linprog

from sfumato.schemas.region import deinterleave, interleave
from sfumato.schemas.tree import Tree, node_levels, node_paths
from sfumato.transforms.heatmap.methods.emd import Cells, reconstruct
from sfumato.transforms.heatmap.posterior.full_tree import children_of
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
def test_no_point_of_the_dense_program_is_cheaper(
    seed: int, depth: int, first: int, width: int, keep_all: bool
) -> None:
    levels = noisy_levels(seeded_rng(seed), depth, first, width if first == 0 else width + 3, keep_all)
    matrix, target = dense_pyramid(first, depth), dense_target(levels)
    masses = reconstruct(levels)
    assert (masses.counts >= 0).all()
    cost = np.abs(target - matrix @ spread(masses, levels)).sum()
    # HiGHS ends within 1e-7 of optimal in each dual; reconstruct itself only rounds.
    assert cost == pytest.approx(dense_cost(matrix, target), abs=1e-5)


def test_without_noise_a_sparse_map_comes_back() -> None:
    rng = seeded_rng(5)
    grid = np.zeros(4**6)
    places = rng.choice(4**6, 7, replace=False)
    grid[places] = rng.uniform(0.1, 9, 7)
    nodes, levels = np.arange(4, 8, dtype=np.uint64), []
    for level in range(1, 7):
        true = grid.reshape(4**level, -1).sum(axis=1)[node_paths(nodes).astype(int)]
        levels.append(Cells(nodes, true).largest(7))
        nodes = children_of(levels[-1].nodes)
    np.testing.assert_allclose(spread(reconstruct(levels), levels), grid, atol=1e-12)


def test_an_excess_is_taken_equally_from_children_and_a_lack_spread_evenly() -> None:
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


@given(st.integers(0, 2**31), st.booleans())
@settings(max_examples=30, deadline=None)
def test_the_map_turns_with_the_grid(seed: int, keep_all: bool) -> None:
    """A corner of the solutions would not: which one a solver ends in depends on the order of cells."""
    levels = noisy_levels(seeded_rng(seed), 5, 1, 6, keep_all)
    plain = spread(reconstruct(levels), levels)
    for turn in (lambda x, y, last: (last - x, y), lambda x, y, last: (y, x)):
        turned = [Cells(*turn_nodes(cells, turn)) for cells in levels]
        codes = np.arange(4**5, dtype=np.uint64)
        x, y = turn(*deinterleave(codes), 2**5 - 1)
        moved = spread(reconstruct(turned), turned)[interleave(x.astype(np.uint32), y.astype(np.uint32))]
        np.testing.assert_allclose(moved, plain, atol=1e-9)


def turn_nodes(cells: Cells, turn) -> tuple[NDArray[np.uint64], NDArray[np.float64]]:
    level = int(node_levels(cells.nodes[:1])[0])
    x, y = turn(*deinterleave(node_paths(cells.nodes)), 2**level - 1)
    nodes = interleave(x.astype(np.uint32), y.astype(np.uint32)) | np.uint64(1 << (2 * level))
    order = np.argsort(nodes)
    return nodes[order], cells.counts[order]


def test_counts_of_millions_on_a_grid_of_depth_20_keep_their_digits() -> None:
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


def test_nothing_but_noise_below_zero_is_an_empty_map() -> None:
    levels = [
        Cells(np.arange(4, 8, dtype=np.uint64), -np.ones(4)),
        Cells(np.array([16, 20]).astype(np.uint64), -np.ones(2)),
    ]
    np.testing.assert_array_equal(reconstruct(levels).counts, 0)


def test_the_largest_cells_are_chosen_and_of_equal_ones_the_first() -> None:
    cells = Cells(np.arange(16, 22, dtype=np.uint64), np.array([1.0, 3, 1, 7, 1, 3]))
    assert cells.largest(4).nodes.tolist() == [16, 17, 19, 21]
    assert cells.largest(4).counts.tolist() == [1, 3, 7, 3]
    assert cells.largest(9).nodes.tolist() == cells.nodes.tolist()


def test_a_solver_that_gives_up_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("scipy.optimize.linprog", lambda *_, **__: SimpleNamespace(status=1, message="iteration limit"))
    with pytest.raises(RuntimeError, match=r"linear program of 1 cells was not solved: iteration limit"):
        reconstruct([Cells(np.ones(1, dtype=np.uint64), np.ones(1))])
