import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from sfumato.schemas.region import by_row, deinterleave
from sfumato.schemas.tree import Tree
from sfumato.transforms.heatmap.raster import coarsen, density, painted
from sfumato.transforms.heatmap.state import Estimate
from tests.schemas.test_tree import DEPTH, brute_owner, trees


def brute_density(tree, counts: np.ndarray, depth: int) -> np.ndarray:
    entries = tree.entries.tolist()
    owners = [entries.index(brute_owner(tree, code)) for code in range(4**DEPTH)]
    image = np.zeros((2**depth, 2**depth))
    for code, owner in enumerate(owners):
        x, y = (int(v[0]) >> (DEPTH - depth) for v in deinterleave(np.array([code], np.uint64)))
        image[y, x] += max(counts[owner], 0) / owners.count(owner)
    return image / image.sum() if image.sum() > 0 else np.full_like(image, 1 / image.size)


@given(trees(), st.integers(0, 99), st.integers(1, DEPTH))
def test_density_against_brute_force(tree, seed: int, depth: int) -> None:
    counts = np.random.default_rng(seed).normal(50, 60, len(tree.entries))
    image = density(tree, counts, depth)
    assert np.allclose(image, brute_density(tree, counts, depth), rtol=1e-12, atol=1e-15)
    assert np.isclose(image.sum(), 1)
    assert (image >= 0).all()


@given(trees())
def test_a_map_of_nothing_is_uniform(tree) -> None:
    assert np.allclose(density(tree, np.full(len(tree.entries), -1.0)), 4.0**-DEPTH)


def test_values_by_code_lie_north_up() -> None:
    assert by_row(np.arange(4)).tolist() == [[0, 2], [1, 3]]  # north-west, north-east; south-west, south-east
    assert by_row(np.arange(16))[0].tolist() == [0, 2, 8, 10]  # code 2 is the cell east of code 0


@given(trees(), st.integers(1, 40))
@settings(max_examples=60, deadline=None)
def test_coarsening_keeps_what_upper_levels_say(tree: Tree, entries: int) -> None:
    """Counts and variances add up by the deepest node that is left: one cell at a time, by dictionaries."""
    counts = np.arange(1.0, 1 + len(tree.entries))
    coarse = coarsen(Estimate(tree, counts, np.sqrt(counts)), entries)
    assert len(coarse.tree.entries) <= max(entries, 1)
    assert set(coarse.tree.nodes.tolist()) <= set(tree.nodes.tolist())
    expected = dict.fromkeys(coarse.tree.entries.tolist(), 0.0)
    for node, count in zip(tree.entries.tolist(), counts.tolist(), strict=True):
        while node not in expected:
            node >>= 2
        expected[node] += count
    assert coarse.counts.tolist() == list(expected.values())
    assert np.allclose(coarse.stddev**2, coarse.counts)


def test_categories_are_added_up_like_users() -> None:
    tree = Tree.uniform(DEPTH, 2)
    by_category = np.stack([np.arange(16.0), 100 - 5 * np.arange(16.0)])
    each = np.linspace(1, 4, 16)
    fine = Estimate(tree, by_category.sum(axis=0), np.sqrt(2) * each, by_category, each)
    coarse = coarsen(fine, 4)
    assert coarse.tree == Tree.uniform(DEPTH, 1)
    assert np.array_equal(coarse.by_category, by_category.reshape(2, 4, 4).sum(axis=2))
    assert np.allclose(coarse.category_stddev**2, (each**2).reshape(4, 4).sum(axis=1))
    assert np.array_equal(coarse.counts, coarse.by_category.sum(axis=0))
    assert coarsen(fine, 16) is fine


@given(trees())
def test_each_cell_is_painted_by_its_owner(tree: Tree) -> None:
    side = 1 << tree.level
    image, entries = painted(tree, np.arange(len(tree.entries)) + 0.5), tree.entries.tolist()
    assert image.shape == (side, side)
    shift = 2 * (DEPTH - tree.level)
    for code in range(4**tree.level):
        x, y = (int(one[0]) for one in deinterleave(np.array([code], np.uint64)))
        assert image[y, x] == entries.index(brute_owner(tree, code << shift)) + 0.5
