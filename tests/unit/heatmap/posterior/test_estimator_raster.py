import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sfumato.schemas.region import by_row, deinterleave
from sfumato.schemas.tree import Tree
from sfumato.transforms.heatmap.posterior import estimator
from sfumato.transforms.heatmap.posterior.estimator import density, estimate_density, painted
from sfumato.transforms.heatmap.posterior.full_tree import FullTree
from sfumato.transforms.heatmap.state import Estimate
from tests.seeds import seeded_rng
from tests.unit.heatmap.posterior.oracle import trees as trees_of_depth
from tests.unit.schemas.test_tree import DEPTH, brute_owner, trees


def brute_density(tree, counts: np.ndarray, depth: int) -> np.ndarray:
    entries = tree.entries.tolist()
    owners = [entries.index(brute_owner(tree, code)) for code in range(4**DEPTH)]
    image = np.zeros((2**depth, 2**depth))
    for code, owner in enumerate(owners):
        x, y = (int(v[0]) >> (DEPTH - depth) for v in deinterleave(np.array([code], np.uint64)))
        image[y, x] += max(counts[owner], 0) / owners.count(owner)
    return image / image.sum() if image.sum() > 0 else np.full_like(image, 1 / image.size)


@pytest.mark.slow
@given(trees(), st.integers(0, 99), st.integers(1, DEPTH))
def test_density_against_brute_force(tree, seed: int, depth: int) -> None:
    counts = seeded_rng(seed).normal(50, 60, len(tree.entries))
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


@pytest.mark.slow
@given(trees())
def test_each_cell_is_painted_by_its_owner(tree: Tree) -> None:
    side = 1 << tree.level
    image, entries = painted(tree, np.arange(len(tree.entries)) + 0.5), tree.entries.tolist()
    assert image.shape == (side, side)
    shift = 2 * (DEPTH - tree.level)
    for code in range(4**tree.level):
        x, y = (int(one[0]) for one in deinterleave(np.array([code], np.uint64)))
        assert image[y, x] == entries.index(brute_owner(tree, code << shift)) + 0.5


SLOPES_DEPTH = 5


def estimate(tree: Tree, counts: np.ndarray, slope: float) -> Estimate:
    return Estimate(tree, counts, np.ones(len(counts)), slope=slope)


@given(trees_of_depth(SLOPES_DEPTH), st.integers(0, 2**31), st.floats(0.01, 1.0))
@settings(max_examples=50, deadline=None)
def test_every_entry_keeps_its_total(tree: Tree, seed: int, slope: float) -> None:
    full = FullTree.from_trees(tree).tree
    counts = seeded_rng(seed).gamma(0.3, 10, len(full.entries)) + 1e-9
    sloping = estimate_density(estimate(full, counts, slope))
    assert sloping.shape == (1 << SLOPES_DEPTH, 1 << SLOPES_DEPTH)
    assert (sloping >= 0).all()
    assert sloping.sum() == pytest.approx(1)
    owner = np.repeat(full.index.owner, np.diff(full.index.boundaries).astype(int))
    totals = np.bincount(by_row(owner).ravel(), sloping.ravel(), len(counts))
    np.testing.assert_allclose(totals, counts / counts.sum(), rtol=1e-9)


@given(trees_of_depth(SLOPES_DEPTH), st.integers(0, 2**31))
@settings(max_examples=20, deadline=None)
def test_without_a_slope_it_is_the_density(tree: Tree, seed: int) -> None:
    counts = seeded_rng(seed).normal(1, 5, len(tree.entries))
    assert (estimate_density(estimate(tree, counts, 0.0)) == density(tree, counts)).all()


def test_negative_counts_are_nothing_and_nothing_at_all_is_even() -> None:
    tree = Tree.uniform(3, 1)
    sloping = estimate_density(estimate(tree, np.array([10.0, -4.0, 0.0, -1.0]), 1.0))
    assert sloping[:4, :4].sum() == pytest.approx(1)
    assert (sloping[4:] == 0).all()
    assert (estimate_density(estimate(tree, np.full(4, -1.0), 1.0)) == 1 / 64).all()


def ramp(depth: int) -> np.ndarray:
    """Cells of a density that grows to the east and, more slowly, to the south: [row, column], sums to 1."""
    at = (np.arange(1 << depth) + 0.5) / (1 << depth)
    cells = 1 + at[None, :] + 0.5 * at[:, None]
    return cells / cells.sum()


def of_rows(rows: np.ndarray, depth: int) -> np.ndarray:
    """A picture's values by code: the inverse of `by_row`."""
    codes = by_row(np.arange(rows.size))
    values = np.empty(rows.size)
    values[codes.ravel()] = rows.ravel()
    return values


def test_a_plane_goes_on_inside_its_cells() -> None:
    """Measured on level 3; the halves and quarters of cells, levels 4 and 5, are exact away from the border."""
    counts = of_rows(ramp(3), 3) * 6_400
    inner = slice(8, 24)  # two cells of level 3 from the border: a neighbour of a neighbour counts for the quarters
    sloping = estimate_density(estimate(Tree.uniform(5, 3), counts, 1.0))
    np.testing.assert_allclose(sloping[inner, inner], ramp(5)[inner, inner], rtol=1e-9)
    half = estimate_density(estimate(Tree.uniform(5, 3), counts, 0.5))
    flat = density(Tree.uniform(5, 3), counts)
    first = np.add.reduceat(np.add.reduceat(half, np.arange(0, 32, 2), 0), np.arange(0, 32, 2), 1)[4:12, 4:12]
    exact, even = ramp(4)[4:12, 4:12], 4 * flat[::2, ::2][4:12, 4:12]
    np.testing.assert_allclose(first, (exact + even) / 2, rtol=1e-9)


def test_slopes_end_two_levels_below_a_cell() -> None:
    counts = of_rows(ramp(2), 2) * 1_600
    sloping = estimate_density(estimate(Tree.uniform(5, 2), counts, 1.0))
    blocks = sloping.reshape(16, 2, 16, 2)
    np.testing.assert_allclose(blocks, np.broadcast_to(blocks[:, :1, :, :1], blocks.shape), rtol=1e-12)
    assert (np.diff(sloping[::2, ::2][8]) > 0).all()


def test_trees_finer_than_the_picture(monkeypatch: pytest.MonkeyPatch) -> None:
    """Depth 14, shown at the most that is shown and at less: every cell of level 3 keeps its total."""
    monkeypatch.setattr(estimator, "MAX_RASTER_DEPTH", 8)  # in place of 12, for speed
    nodes = np.concatenate([Tree.uniform(14, 3).nodes, 4**13 + np.arange(64, dtype=np.uint64)])
    deep = FullTree.from_trees(Tree.of(14, nodes)).tree
    counts = seeded_rng(2).gamma(1.0, 10, len(deep.entries))
    levels = [(node.bit_length() - 1) // 2 for node in deep.entries.tolist()]
    above = [node - 4**level >> 2 * (level - 3) for node, level in zip(deep.entries.tolist(), levels, strict=True)]
    totals = by_row(np.bincount(above, counts / counts.sum()))
    for depth, side in ((None, 256), (6, 64)):
        shown = estimate_density(estimate(deep, counts, 0.8), depth)
        assert shown.shape == (side, side)
        np.testing.assert_allclose(shown.reshape(8, side // 8, 8, side // 8).sum(axis=(1, 3)), totals, rtol=1e-9)
    assert not np.allclose(estimate_density(estimate(deep, counts, 0.8), 6), density(deep, counts, 6))
