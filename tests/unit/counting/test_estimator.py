"""From answers to a map, and from a map to a picture."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sfumato.schemas.guarantee import Population
from sfumato.schemas.region import by_row, deinterleave
from sfumato.schemas.tree import Tree
from sfumato.transforms.counting import estimator
from sfumato.transforms.counting.estimator import (
    density,
    estimate_density,
    estimate_of,
    move_to_tree,
    painted,
    posterior_of,
    prior_posterior,
)
from sfumato.transforms.counting.state import CountState, Estimate, NoisyCounts
from sfumato.transforms.locations.shards import ShardPlan
from sfumato.transforms.privacy.budget import Budget
from sfumato.transforms.privacy.shared_noise import Noise
from sfumato.transforms.secagg.encodings import TreeEncoding
from sfumato.transforms.secagg.modulus import Window
from sfumato.transforms.secagg.shard_sums import ShardQuery
from sfumato.transforms.statistics.posterior.full_tree import FullTree
from tests.seeds import seeded_rng
from tests.unit.counting.methods.oracle import spread
from tests.unit.schemas.test_tree import DEPTH as TREE_DEPTH
from tests.unit.schemas.test_tree import brute_owner
from tests.unit.schemas.test_tree import trees as any_trees
from tests.unit.statistics.posterior.oracle import city, on, result, trees

DEPTH, USERS, SHARDS = 5, 8_000, 8


def state_of(
    *results: NoisyCounts, categories: int = 1, prior: Estimate | None = None, population: int = USERS
) -> CountState:
    """The final state of 8,000 users in 8 shards."""
    shard_plan = ShardPlan.for_users(population, USERS, 1_000, 0.05)
    assert shard_plan.shards == SHARDS
    budget = Budget(1.0, (1.0,))
    known = Population(float(population), "public")
    return CountState(known, shard_plan, budget, 1, SHARDS, results=results, categories=categories, prior=prior)


def answered(
    tree: Tree,
    cells: np.ndarray,
    stddev: float,
    seed: int,
    shards: tuple[int, int] | None = None,
    lost: int = 0,
    categories: int = 1,
) -> NoisyCounts:
    """What a sub-query says of cells float64[categories, 4^depth] (or one category's), with normal noise."""
    rng = seeded_rng(seed)
    cells = cells.reshape(categories, -1)
    counts = np.concatenate([result(one, tree, stddev, rng).counts for one in cells])
    queried_shards = SHARDS if shards is None else shards[1] - shards[0]
    query = ShardQuery(1, TreeEncoding(tree, categories), 0.5, Window(1 << 20, 1 << 19), Noise(), shard_range=shards)
    return NoisyCounts(query, counts, stddev, queried_shards, lost)


def people(seed: int = 0) -> np.ndarray:
    return seeded_rng(seed).multinomial(USERS, city(DEPTH)).astype(float)


@pytest.mark.parametrize(("shards", "lost", "share"), [((0, 2), 0, 1 / 4), ((0, 4), 2, 1 / 4), (None, 6, 1 / 4)])
def test_posterior_of_a_part_has_the_variance_of_a_guess(
    shards: tuple[int, int] | None, lost: int, share: float
) -> None:
    """Of a quarter of the shards a cell's T users are guessed with a variance of (1 / (1/4) - 1) T = 3 T."""
    cells, tree = people(), Tree.uniform(DEPTH, 4)
    found = posterior_of(state_of(answered(tree, cells, 2.0, 1, shards, lost)))
    everybody = posterior_of(state_of(answered(tree, cells, 2.0, 1)))
    users = on(FullTree.from_trees(tree), cells)[4]
    extra = found.measured.variance[4] - everybody.measured.variance[4]
    np.testing.assert_allclose(everybody.measured.variance[4], 4.0)
    crowded = users > 100
    # The users are known within some 20 of more than 100 each, and the variance of each with them.
    np.testing.assert_allclose(extra[crowded], (1 / share - 1) * users[crowded], rtol=0.25)
    assert (found.measured.variance[4] >= 4.0).all()
    assert extra.sum() == pytest.approx((1 / share - 1) * USERS, rel=0.05)


@pytest.mark.parametrize("categories", [1, 3])
def test_estimate_is_of_leaves_or_of_the_last_trees_entries(categories: int) -> None:
    """The last tree has an orphan, and is coarser than the first where nobody is."""
    first = Tree.uniform(DEPTH, 3)
    orphan = Tree.of(DEPTH, np.array([4**5 + 7], dtype=np.uint64))
    last = Tree.of(DEPTH, np.concatenate([Tree.uniform(DEPTH, 2).nodes, orphan.nodes]))
    cells = people()
    each = seeded_rng(5).multinomial(cells.astype(int), np.full(categories, 1 / categories)).T.astype(float)
    results = [answered(tree, each, 2.0, i, categories=categories) for i, tree in enumerate((first, last))]
    state = state_of(*results, categories=categories)
    posterior = posterior_of(state)
    found = estimate_of(posterior, state)
    assert found.counts.sum() == pytest.approx(USERS)
    assert found.slope == posterior.slope
    full = FullTree.from_trees(first, last)
    if categories == 1:
        assert found.tree == full.tree
        assert (found.counts == full.leaf_values(posterior.users)).all()
        assert (found.stddev == np.sqrt(full.leaf_values(posterior.variance))).all()
        assert found.by_category is None
        return
    assert found.tree == last
    assert found.by_category is not None
    assert (found.by_category == results[-1].counts.reshape(categories, -1)).all()
    assert found.category_stddev is not None
    assert (found.category_stddev == 2.0).all()
    owner = _owners(last)
    counts, variance = np.zeros(len(last.entries)), np.zeros(len(last.entries))
    leaves = Estimate(full.tree, full.leaf_values(posterior.users), full.leaf_values(posterior.variance))
    for node, users, doubt in zip(leaves.tree.entries.tolist(), leaves.counts, leaves.stddev, strict=True):
        level = (node.bit_length() - 1) // 2
        entry = owner[(node - 4**level) << (2 * (DEPTH - level))]
        counts[entry] += users
        variance[entry] += doubt
    np.testing.assert_allclose(found.counts, counts)
    np.testing.assert_allclose(found.stddev, np.sqrt(variance))


def _owners(tree: Tree) -> np.ndarray:
    """The entry of every finest cell, by the deepest node above it."""
    owners = []
    for cell in range(4**tree.depth):
        above = [(4**tree.depth + cell) >> (2 * up) for up in range(tree.depth + 1)]
        owners.append(next(i for node in above for i in np.flatnonzero(tree.entries == node)))
    return np.array(owners)


@given(trees(3), trees(3), st.integers(0, 2**31), st.booleans())
@settings(max_examples=50, deadline=None)
def test_move_to_tree_keeps_the_users_of_every_place(before: Tree, after: Tree, seed: int, by_category: bool) -> None:
    """Cell by cell: an entry's users lie evenly over the cells that count for it."""
    rng, count = seeded_rng(seed), len(before.entries)
    some = rng.normal(5, 3, (2, count)) if by_category else None
    estimate = Estimate(before, rng.normal(5, 3, count), rng.uniform(1, 2, count), some)
    old, new = _owners(before), _owners(after)
    found = move_to_tree(estimate, after)

    def moved(values: np.ndarray) -> np.ndarray:
        cells = (values / np.maximum(np.bincount(old, minlength=count), 1))[old]
        return np.bincount(new, cells, len(after.entries))

    assert found.tree == after
    np.testing.assert_allclose(found.counts, moved(estimate.counts), atol=1e-12)
    np.testing.assert_allclose(found.stddev, np.sqrt(moved(estimate.stddev**2)), atol=1e-12)
    if some is None:
        assert found.by_category is None
    else:
        assert found.by_category is not None
        np.testing.assert_allclose(found.by_category, np.stack([moved(one) for one in some]), atol=1e-12)


def test_prior_posterior_is_scaled_to_todays_users() -> None:
    tree, cells = Tree.uniform(DEPTH, 4), people()
    sums = on(FullTree.from_trees(tree), cells)[4]
    prior = Estimate(tree, sums, np.full(256, 1e-3))
    posterior = prior_posterior(prior, 2.0 * USERS)
    np.testing.assert_allclose(posterior.users[4], 2 * sums, atol=0.1)
    nobody = prior_posterior(replace(prior, counts=np.full(256, -3.0)), 100.0)
    np.testing.assert_allclose(nobody.users[4], 100 / 256)


@pytest.mark.false_alarm(1e-8)
def test_prior_helps_where_right_and_hardly_hurts_elsewhere() -> None:
    tree = Tree.uniform(DEPTH, 5)
    errors = {"none": 0.0, "right": 0.0, "wrong": 0.0}
    for seed in range(5):
        cells = people(seed)
        yesterday = seeded_rng(seed + 99).multinomial(USERS, city(DEPTH)).astype(float)
        other = seeded_rng(seed).permutation(yesterday)
        for name, before in (("none", None), ("right", yesterday), ("wrong", other)):
            prior = None if before is None else Estimate(tree, before, np.full(4**DEPTH, 2.0))
            state = state_of(answered(tree, cells, 6.0, seed), prior=prior)
            errors[name] += ((spread(estimate_of(posterior_of(state), state)) - cells) ** 2).sum()
    assert errors["right"] < 0.95 * errors["none"]  # 0.70 with a deviation of 0.035 over seeds
    assert errors["wrong"] < 1.03 * errors["none"]


def brute_density(tree, counts: np.ndarray, depth: int) -> np.ndarray:
    entries = tree.entries.tolist()
    owners = [entries.index(brute_owner(tree, code)) for code in range(4**TREE_DEPTH)]
    image = np.zeros((2**depth, 2**depth))
    for code, owner in enumerate(owners):
        x, y = (int(v[0]) >> (TREE_DEPTH - depth) for v in deinterleave(np.array([code], np.uint64)))
        image[y, x] += max(counts[owner], 0) / owners.count(owner)
    return image / image.sum() if image.sum() > 0 else np.full_like(image, 1 / image.size)


@pytest.mark.slow
@given(any_trees(), st.integers(0, 99), st.integers(1, TREE_DEPTH))
def test_density_against_brute_force(tree, seed: int, depth: int) -> None:
    counts = seeded_rng(seed).normal(50, 60, len(tree.entries))
    image = density(tree, counts, depth)
    assert np.allclose(image, brute_density(tree, counts, depth), rtol=1e-12, atol=1e-15)
    assert np.isclose(image.sum(), 1)
    assert (image >= 0).all()


def test_by_row_lies_north_up() -> None:
    assert by_row(np.arange(4)).tolist() == [[0, 2], [1, 3]]  # north-west, north-east; south-west, south-east
    assert by_row(np.arange(16))[0].tolist() == [0, 2, 8, 10]  # code 2 is the cell east of code 0


@pytest.mark.slow
@given(any_trees())
def test_painted_cells_have_the_value_of_their_owner(tree: Tree) -> None:
    side = 1 << tree.level
    image, entries = painted(tree, np.arange(len(tree.entries)) + 0.5), tree.entries.tolist()
    assert image.shape == (side, side)
    shift = 2 * (TREE_DEPTH - tree.level)
    for code in range(4**tree.level):
        x, y = (int(one[0]) for one in deinterleave(np.array([code], np.uint64)))
        assert image[y, x] == entries.index(brute_owner(tree, code << shift)) + 0.5


SLOPES_DEPTH = 5


def estimate(tree: Tree, counts: np.ndarray, slope: float) -> Estimate:
    return Estimate(tree, counts, np.ones(len(counts)), slope=slope)


@given(trees(SLOPES_DEPTH), st.integers(0, 2**31), st.floats(0.01, 1.0))
@settings(max_examples=50, deadline=None)
def test_estimate_density_keeps_the_total_of_every_entry(tree: Tree, seed: int, slope: float) -> None:
    full = FullTree.from_trees(tree).tree
    counts = seeded_rng(seed).gamma(0.3, 10, len(full.entries)) + 1e-9
    sloping = estimate_density(estimate(full, counts, slope))
    assert sloping.shape == (1 << SLOPES_DEPTH, 1 << SLOPES_DEPTH)
    assert (sloping >= 0).all()
    assert sloping.sum() == pytest.approx(1)
    owner = np.repeat(full.index.owner, np.diff(full.index.boundaries).astype(int))
    totals = np.bincount(by_row(owner).ravel(), sloping.ravel(), len(counts))
    np.testing.assert_allclose(totals, counts / counts.sum(), rtol=1e-9)


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


def test_estimate_density_continues_a_plane_inside_its_cells() -> None:
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


def test_estimate_density_of_trees_finer_than_the_picture(monkeypatch: pytest.MonkeyPatch) -> None:
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
