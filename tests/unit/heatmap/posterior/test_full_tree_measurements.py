import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sfumato.schemas.tree import Tree
from sfumato.transforms.heatmap.posterior.full_tree import FullTree, TreeMeasurement, add_up, measure
from tests.seeds import seeded_rng
from tests.unit.heatmap.methods.oracle import least_squares
from tests.unit.heatmap.posterior.oracle import Node, all_nodes, below, completed, nodes_of, trees

DEPTH = 3


def measured(tree: Tree, seed: int, sampling: float) -> TreeMeasurement:
    rng = seeded_rng(seed)
    count = len(tree.entries)
    return TreeMeasurement(tree, rng.normal(10, 5, count), rng.uniform(0.5, 4, count), sampling)


def pieces(one: TreeMeasurement) -> list[tuple[Node, float, float]]:
    """The leaves of the least full tree, each with its share, by area, of its entry's count and variance."""
    given_nodes = nodes_of(one.tree)
    entries = [n for n in given_nodes if sum((n[0] + 1, 4 * n[1] + c) in given_nodes for c in range(4)) < 4]
    owner = [max((n for n in entries if below((DEPTH, cell), n)), default=(0, 0)) for cell in range(4**DEPTH)]
    full, found = completed(one.tree), []
    for leaf in (node for node in full if (node[0] + 1, 4 * node[1]) not in full):
        cells = [cell for cell in range(4**DEPTH) if below((DEPTH, cell), leaf)]
        (entry,) = {owner[cell] for cell in cells}
        share = len(cells) / owner.count(entry)
        place = entries.index(entry)
        found.append((leaf, share * one.counts[place], share * one.variance[place]))
    return found


@given(st.lists(trees(DEPTH), min_size=1, max_size=3), st.integers(0, 2**31), st.sampled_from([0.0, 0.4]))
@settings(max_examples=50, deadline=None)
def test_sums_are_generalised_least_squares_of_what_lies_below(some: list[Tree], seed: int, sampling: float) -> None:
    """Each node is the best linear unbiased estimate from the measurements of itself and of its descendants."""
    results = [measured(tree, seed + i, sampling * i) for i, tree in enumerate(some)]
    full = FullTree.from_trees(*some)
    nodes = all_nodes(full)
    rng = seeded_rng(seed)
    expected = [rng.uniform(0, 20, len(codes)) for codes in full.codes]
    users = dict(zip(nodes, np.concatenate(expected), strict=True))
    rows = [
        (node, value, variance + one.sampling * users[node]) for one in results for node, value, variance in pieces(one)
    ]
    leaves = [node for node in nodes if (node[0] + 1, 4 * node[1]) not in nodes]
    sums = add_up(full, measure(full, results, expected))
    for node, value, variance in zip(nodes, np.concatenate(sums.users), np.concatenate(sums.variance), strict=True):
        mine = [leaf for leaf in leaves if below(leaf, node)]
        known = [row for row in rows if below(row[0], node)]
        design = np.array([[below(leaf, row[0]) for leaf in mine] for row in known], dtype=float)
        best, covariance = least_squares(design, np.array([row[1] for row in known]), np.array([r[2] for r in known]))
        assert value == pytest.approx(best.sum(), rel=1e-9, abs=1e-9)
        assert variance == pytest.approx(covariance.sum(), rel=1e-9)


def test_an_entrys_share_has_its_variance_when_it_is_added_up() -> None:
    """A root with one grandchild: the other fifteen sixteenths are three nodes and three smaller ones."""
    tree = Tree.of(2, np.array([16], dtype=np.uint64))
    full = FullTree.from_trees(tree)
    own = measure(full, [TreeMeasurement(tree, np.array([30.0, 7.0]), np.array([15.0, 2.0]))])
    variance = [1 / weights[leaf] for weights, leaf in zip(own.weights, full.leaves, strict=True)]
    assert [one.tolist() for one in variance] == [[], [4.0, 4.0, 4.0], [2.0, 1.0, 1.0, 1.0]]
    values = [value[leaf] / w[leaf] for value, w, leaf in zip(own.weighted, own.weights, full.leaves, strict=True)]
    assert [one.tolist() for one in values] == [[], [8.0, 8.0, 8.0], [7.0, 2.0, 2.0, 2.0]]
    assert add_up(full, own).variance[0] == 17.0


def test_sampling_counts_only_where_it_is_known_how_many_users_there_are() -> None:
    tree = Tree.uniform(2, 1)
    full = FullTree.from_trees(tree)
    one = TreeMeasurement(tree, np.arange(4.0), np.full(4, 2.0), 0.5)
    assert add_up(full, measure(full, [one])).variance[1].tolist() == [2, 2, 2, 2]
    expected = [np.array([10.0]), np.array([1.0, 2, 3, 4])]
    assert add_up(full, measure(full, [one], expected)).variance[1].tolist() == [2.5, 3, 3.5, 4]
