import re

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sfumato.schemas.tree import Tree, node_levels, node_names, node_paths, node_positions, nodes_from_names
from tests.seeds import seeded_rng

DEPTH = 4


@st.composite
def trees(draw: st.DrawFn) -> Tree:
    """Random sets of nodes: orphans and partial splits are the rule."""
    nodes = draw(
        st.lists(
            st.integers(0, DEPTH).flatmap(lambda level: st.integers(1 << (2 * level), (2 << (2 * level)) - 1)),
            max_size=60,
        )
    )
    full = draw(st.lists(st.sampled_from([1, 5, 6, 7, 21, 30]), max_size=4))  # some nodes with all children
    children = [4 * node + i for node in full for i in range(4)]
    return Tree.of(DEPTH, np.array(nodes + children, dtype=np.uint64))


def brute_owner(tree: Tree, code: int) -> int:
    """The deepest node over a finest cell, by walking up."""
    node = code | (1 << (2 * tree.depth))
    present = set(tree.nodes.tolist())
    while node not in present:
        node >>= 2
    return node


def brute_entries(tree: Tree) -> list[int]:
    present = set(tree.nodes.tolist())
    return sorted(n for n in present if sum(4 * n + i in present for i in range(4)) < 4)


@pytest.mark.slow
@given(trees())
@settings(max_examples=200)
def test_longest_prefix_counting_against_brute_force(tree: Tree) -> None:
    entries = brute_entries(tree)
    assert tree.entries.tolist() == entries
    rng = seeded_rng(len(entries))
    codes = np.sort(rng.integers(0, 4**DEPTH, 500).astype(np.uint64))
    expected = np.zeros(len(entries), dtype=int)
    for code in codes.tolist():
        expected[entries.index(brute_owner(tree, code))] += 1
    below = np.searchsorted(codes, tree.index.boundaries)
    assert tree.index.sum_intervals(np.diff(below)[None, :])[0].tolist() == expected.tolist()


@given(trees())
def test_areas_and_parents_against_brute_force(tree: Tree) -> None:
    owners = [brute_owner(tree, code) for code in range(4**DEPTH)]
    assert tree.areas.tolist() == [owners.count(entry) for entry in tree.entries.tolist()]
    present = set(tree.nodes.tolist())
    for node, parent in zip(tree.nodes.tolist(), tree.parents().tolist(), strict=True):
        above = node >> 2
        while above and above not in present:
            above >>= 2
        assert (int(tree.nodes[parent]) if parent >= 0 else 0) == above


@given(trees(), st.data())
def test_refine_adds_children_and_removes_nodes(tree: Tree, data: st.DataObject) -> None:
    entries = tree.entries.tolist()
    split = data.draw(st.lists(st.sampled_from(entries), unique=True))
    collapse = [n for n in data.draw(st.lists(st.sampled_from(entries), unique=True)) if n not in split]
    refined = set(tree.refine(np.array(split, np.uint64), np.array(collapse, np.uint64)).nodes.tolist())
    expected = set(tree.nodes.tolist()) - set(collapse) | {1}
    expected |= {4 * n + i for n in split if n < 4**DEPTH for i in range(4)}
    assert refined == expected


def test_levels_paths_names_and_positions() -> None:
    nodes = np.array([1, 4, 7, 0b1_10_11_00_01, 4**20, 2 * 4**20 - 1], dtype=np.uint64)
    assert node_levels(nodes).tolist() == [0, 1, 1, 4, 20, 20]
    assert node_paths(nodes).tolist() == [0, 0, 3, 0b10110001, 0, 4**20 - 1]
    assert node_names(nodes)[:4] == ["r", "r0", "r3", "r2301"]
    assert nodes_from_names(node_names(nodes), 20).tolist() == nodes.tolist()
    with pytest.raises(ValueError, match="is no cell id: r and at most 19 digits 0 to 3"):
        nodes_from_names(node_names(nodes), 19)
    level, x, y = node_positions(nodes)
    assert (level[3], x[3], y[3]) == (4, 0b1100, 0b0101)
    assert (x[5], y[5]) == (2**20 - 1, 2**20 - 1)


@pytest.mark.parametrize(
    "wrong",
    ["", "x", "4", "r4", "r/", "r:", "R0", "r01x", "0r", "r 0", "r0\n", "r0\0", "r۳", "r00000", "r" * 999, None, 3],
)
def test_what_is_no_cell_id_is_refused_by_name(wrong: object) -> None:
    with pytest.raises(ValueError, match=re.escape(f"{wrong!r} is no cell id")):
        nodes_from_names(["r0", wrong, "r12"], 4)  # type: ignore[list-item]


@given(trees())
def test_names_are_the_digits_of_the_path(tree: Tree) -> None:
    assert node_names(tree.nodes) == ["r" + np.base_repr(node, 4)[1:] for node in tree.nodes.tolist()]
    assert node_names(tree.nodes[:0]) == []
    assert nodes_from_names([], DEPTH).tolist() == []


def test_uniform_trees() -> None:
    tree = Tree.uniform(10, 3)
    assert len(tree.entries) == 64
    assert (tree.areas == 4**7).all()
    assert Tree.uniform(10, 0).entries.tolist() == [1]


def test_nodes_below_the_grid_are_refused() -> None:
    with pytest.raises(ValueError, match="between 0 and 4"):
        Tree.of(4, np.array([4**5], dtype=np.uint64))
