import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sfumato.schemas.tree import Tree, node_levels, node_paths
from sfumato.transforms.heatmap.posterior.full_tree import FullTree, children_of
from tests.seeds import seeded_rng
from tests.unit.heatmap.methods.oracle import position
from tests.unit.heatmap.posterior.oracle import Node, all_nodes, completed, trees

DEPTH = 5


def values_of(full: FullTree, seed: int) -> list[np.ndarray]:
    rng = seeded_rng(seed)
    return [rng.normal(size=len(codes)) for codes in full.codes]


def as_dict(full: FullTree, values: list[np.ndarray]) -> dict[Node, float]:
    return dict(zip(all_nodes(full), np.concatenate(values).tolist(), strict=True))


@given(st.lists(trees(DEPTH), min_size=1, max_size=3))
@settings(max_examples=80, deadline=None)
def test_a_full_tree_is_the_least_that_has_all_nodes_and_four_children_or_none(some: list[Tree]) -> None:
    full = FullTree.from_trees(*some)
    assert set(all_nodes(full)) == completed(*some)
    assert full.depth == DEPTH
    for level, codes in enumerate(full.codes):
        assert (np.diff(codes.astype(np.int64)) > 0).all()
        assert len(codes) == 1 if level == 0 else len(codes) % 4 == 0
        assert (codes[::4] % 4 == 0).all()
    assert FullTree.from_trees(full.tree).tree == full.tree


@given(trees(DEPTH))
@settings(max_examples=60, deadline=None)
def test_parents_and_leaves(tree: Tree) -> None:
    full = FullTree.from_trees(tree)
    nodes = completed(tree)
    for level in range(1, len(full.codes)):
        for family, place in enumerate(full.parents[level]):
            assert full.codes[level - 1][place] == full.codes[level][4 * family] // 4
    for (level, path), leaf in zip(all_nodes(full), np.concatenate(full.leaves), strict=True):
        assert leaf == ((level + 1, 4 * path) not in nodes)


@given(trees(DEPTH), st.integers(0, 2**31))
@settings(max_examples=60, deadline=None)
def test_leaves_are_the_trees_entries_and_nodes_their_sums(tree: Tree, seed: int) -> None:
    full = FullTree.from_trees(tree)
    values = values_of(full, seed)
    known = as_dict(full, values)
    entries = [(int(level), int(path)) for level, path in zip(*_nodes(full.tree.entries), strict=True)]
    assert full.leaf_values(values).tolist() == [known[entry] for entry in entries]

    def total(level: int, path: int) -> float:
        if (level, path) in entries:
            return known[level, path]
        return sum(total(level + 1, 4 * path + child) for child in range(4))

    before = [value.copy() for value in values]
    for node, value in as_dict(full, full.sums(values)).items():
        assert value == pytest.approx(total(*node), abs=1e-12)
    assert all((a == b).all() for a, b in zip(before, values, strict=True))


def _nodes(nodes: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    return node_levels(nodes), node_paths(nodes)


def value_at(known: dict[Node, float], level: int, path: int) -> float:
    return known[level, path] if (level, path) in known else value_at(known, level - 1, path // 4) / 4


@given(trees(DEPTH), st.integers(0, 2**31), st.integers(0, DEPTH))
@settings(max_examples=60, deadline=None)
def test_where_a_node_is_not_there_the_leaf_above_shares_out_by_area(tree: Tree, seed: int, level: int) -> None:
    full = FullTree.from_trees(tree)
    values = values_of(full, seed)
    known = as_dict(full, values)
    wanted = seeded_rng(seed).integers(0, 4**level, 30).astype(np.uint64)
    expected = [value_at(known, level, int(path)) for path in wanted]
    np.testing.assert_allclose(full.values_at(level, wanted, values), expected, rtol=1e-15)
    # What lies deeper than the level does not matter: on the way down it is not known yet.
    assert (full.values_at(level, wanted, values[: level + 1]) == full.values_at(level, wanted, values)).all()


@given(trees(DEPTH), st.integers(0, 2**31))
@settings(max_examples=40, deadline=None)
def test_the_gradient_is_that_of_the_four_neighbours(tree: Tree, seed: int) -> None:
    full = FullTree.from_trees(tree)
    values = values_of(full, seed)
    known = as_dict(full, values)
    for level in range(1, len(full.codes)):
        places = seeded_rng(seed).integers(0, len(full.codes[level]), 5)
        there = {position(path, level): value_at(known, level, path) for path in range(4**level)}
        for row, place in zip(full.gradient(level, places, values), places, strict=True):
            x, y = position(int(full.codes[level][place]), level)
            east, west, south, north = (
                there.get((x + dx, y + dy), there[x, y]) for dx, dy in ((1, 0), (-1, 0), (0, 1), (0, -1))
            )
            # A child's centre is a quarter of a node's width off, and it has a quarter of the area.
            for child, value in enumerate(row):
                column, line = position(child, 1)
                off = ((2 * column - 1) * (east - west) / 2 + (2 * line - 1) * (south - north) / 2) / 4
                assert value == pytest.approx(off / 4, abs=1e-12)


@pytest.mark.parametrize("slope", [(3.0, 0.0), (0.0, -2.0), (1.5, 4.0)])
def test_the_gradient_foretells_the_children_of_a_plane(slope: tuple[float, float]) -> None:
    """Cells of a density that is linear in x and y: inside the region the prediction is exact."""
    full = FullTree.from_trees(Tree.uniform(5, 4))

    def plane(level: int) -> np.ndarray:
        x, y = (np.array(axis) for axis in zip(*(position(path, level) for path in range(4**level)), strict=True))
        width = 2.0**-level
        return (100 + slope[0] * (x + 0.5) * width + slope[1] * (y + 0.5) * width) * width**2

    values = [plane(level) for level in range(5)]
    x, y = (np.array(axis) for axis in zip(*(position(path, 3) for path in range(64)), strict=True))
    inner = np.flatnonzero((x > 0) & (x < 7) & (y > 0) & (y < 7))
    predicted = values[3][inner][:, None] / 4 + full.gradient(3, inner, values)
    np.testing.assert_allclose(predicted, values[4].reshape(-1, 4)[inner], rtol=1e-12)


def test_children_and_families() -> None:
    assert children_of(np.array([0, 5], dtype=np.uint64)).tolist() == [0, 1, 2, 3, 20, 21, 22, 23]
