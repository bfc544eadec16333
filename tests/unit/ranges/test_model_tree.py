"""Answers from a heatmap's tree against sums over its finest cells, and against people who are spread as it says."""

from __future__ import annotations

import numpy as np
import pytest
from scipy import stats

from sfumato.schemas.errors import RequestError
from sfumato.schemas.ranges import Boxes, Field
from sfumato.schemas.region import Grid, deinterleave
from sfumato.schemas.tree import Tree, node_levels, node_paths
from sfumato.transforms.heatmap.posterior.estimator import estimate_density
from sfumato.transforms.heatmap.state import Estimate
from sfumato.transforms.ranges.field_counts import centre_variance
from sfumato.transforms.ranges.model import RangeModel, TreeModel
from sfumato.transforms.ranges.model_file import model_bytes, read_model
from tests.conftest import REGION
from tests.seeds import seeded_rng
from tests.statistics import FLAKE_RATE

SIDE = 4096


def random_tree(rng: np.random.Generator, depth: int, nodes: int, *, orphans: bool) -> Tree:
    """Random nodes below the root; without orphans every family is whole."""
    if orphans:
        levels = rng.integers(1, depth + 1, nodes)
        return Tree.of(depth, (4**levels + rng.integers(0, 4**levels)).astype(np.uint64))
    tree = Tree.of(depth, np.ones(1, np.uint64))
    for _ in range(nodes):
        tree = tree.refine(rng.choice(tree.entries, 1), np.empty(0, np.uint64))
    return tree


def random_boxes(rng: np.random.Generator, number: int) -> Boxes:
    """Of all sizes, with corners within cells, some of them of the whole field or beyond its middle lines."""
    low, high = np.sort(rng.uniform(0, SIDE, (2, 2, number)), axis=0)
    low[:, 0], high[:, 0] = 0, SIDE
    return Boxes(low[0], low[1], high[0], high[1])


def owners(tree: Tree) -> np.ndarray:
    """The entry of every finest cell, [row, column], by walking up from the cell."""
    place = {node: number for number, node in enumerate(tree.entries.tolist())}
    present = set(tree.nodes.tolist())
    found = np.empty((1 << tree.depth, 1 << tree.depth), np.int64)
    codes = np.arange(4**tree.depth, dtype=np.uint64)
    for code, x, y in zip(codes.tolist(), *(one.tolist() for one in deinterleave(codes)), strict=True):
        node = code | 4**tree.depth
        while node not in present:
            node >>= 2
        found[y, x] = place[node]
    return found


def overlaps(boxes: Boxes, number: int, cells: int) -> np.ndarray:
    """The share of each of cells x cells cells, [row, column], that one box covers."""
    borders = np.arange(cells + 1) * (SIDE / cells)

    def along(low: float, high: float) -> np.ndarray:
        return np.maximum(np.minimum(borders[1:], high) - np.maximum(borders[:-1], low), 0) * cells / SIDE

    return np.outer(along(boxes.y0[number], boxes.y1[number]), along(boxes.x0[number], boxes.x1[number]))


@pytest.mark.parametrize("orphans", [True, False])
@pytest.mark.parametrize("seed", range(3))
def test_users_are_those_of_the_finest_cells(seed: int, orphans: bool) -> None:
    rng = seeded_rng(seed)
    tree = random_tree(rng, 5, 25, orphans=orphans)
    counts = rng.uniform(-20, 100, len(tree.entries))
    model = TreeModel(Estimate(tree, counts, np.ones(len(counts))))
    boxes, owner = random_boxes(rng, 40), owners(tree)
    cells = np.bincount(owner.ravel(), minlength=len(counts))
    seen = np.where(cells > 0, np.maximum(counts, 0), 0)  # a node whose descendants cover it holds nobody
    per_cell = (np.maximum(counts, 0) / np.maximum(cells, 1))[owner] * (np.maximum(counts, 0).sum() / seen.sum())
    expected = [(overlaps(boxes, one, 32) * per_cell).sum() for one in range(len(boxes))]
    np.testing.assert_allclose(model.answer(boxes).users, expected, rtol=1e-9, atol=1e-9)


def test_cells_slope_as_in_the_heatmaps_density() -> None:
    rng = seeded_rng(7)
    tree = random_tree(rng, 8, 60, orphans=False)
    counts = rng.uniform(0, 100, len(tree.entries))
    estimate = Estimate(tree, counts, np.ones(len(counts)), slope=0.6)
    boxes, density = random_boxes(rng, 30), estimate_density(estimate) * counts.sum()
    sloping, even = (TreeModel(Estimate(tree, counts, np.ones(len(counts)), slope=slope)) for slope in (0.6, 0.0))
    expected = [(overlaps(boxes, one, 256) * density).sum() for one in range(len(boxes))]
    answers = sloping.answer(boxes).users
    np.testing.assert_allclose(answers, expected, rtol=1e-9)
    assert np.abs(answers - even.answer(boxes).users).max() > 1  # and that is another answer
    np.testing.assert_allclose(answers[0], counts.sum())


def test_the_error_of_boxes_that_cover_cells_and_that_cut_them() -> None:
    """Of leaves alone, by the shares of them that a box covers; siblings are alike, so nothing clumps."""
    rng = seeded_rng(3)
    tree = Tree.uniform(6, 2).refine(np.array([16, 21], np.uint64), np.empty(0, np.uint64))
    stddev, users = rng.uniform(2, 9, len(tree.entries)), np.full(len(tree.entries), 50.0)
    model = TreeModel(Estimate(tree, users, stddev))
    boxes, owner = random_boxes(rng, 30), owners(tree)
    cells = np.bincount(owner.ravel())
    for number in range(len(boxes)):
        share = np.bincount(owner.ravel(), overlaps(boxes, number, 64).ravel()) / cells
        expected = (share**2 * stddev**2 + (share - share**2) * users).sum()
        one = boxes.part(slice(number, number + 1))
        x, y = (int(middle[0]) * 64 // SIDE for middle in one.middles)
        row, column = np.nonzero(owner == owner[y, x])
        corners = (column.min(), row.min(), column.max() + 1, row.max() + 1)
        cell = Boxes(*(np.array([corner * SIDE / 64]) for corner in corners))
        expected += centre_variance(one, cell, np.full(1, 50.0), 0.0)[0]
        assert model.answer(one).stddev[0] == pytest.approx(np.sqrt(expected), rel=1e-6)


@pytest.mark.slow
def test_the_error_is_that_of_people_who_are_spread_as_the_model_says() -> None:
    """Leaves of even people, counted with noise: errors over their deviations are standard normal.

    Of two thirds of a leaf of 400 people, noise of 14 has a variance of 87 and their even spread one of 89. The sum of
    10,000 squares has a deviation of 1.4%, so that it would be 10 of them off with 30% less or more of either.
    """
    rng = seeded_rng(11)
    tree, runs, noise = Tree.uniform(6, 1), 2500, 14.0
    left, top = (np.array(at) * SIDE / 2 for at in ([0, 0, 1, 1], [0, 1, 0, 1]))  # of the leaves, in the tree's order
    boxes = Boxes(left, top, left + SIDE / 3, top + SIDE / 2)  # two thirds of each leaf
    cells = Boxes(left, top, left + SIDE / 2, top + SIDE / 2)
    squares = 0.0
    for users in rng.normal(400.0, noise, (runs, 4)):
        model = TreeModel(Estimate(tree, users, np.full(4, noise)))
        found = model.answer(boxes)
        # Without what is said of squares about somebody: these are not.
        middle = centre_variance(boxes, cells, model._counts, model._clumping)
        squares += (np.square(found.users - rng.binomial(400, 2 / 3, 4)) / (found.stddev**2 - middle)).sum()
    low, high = stats.chi2(4 * runs).ppf([FLAKE_RATE, 1 - FLAKE_RATE])
    assert low < squares < high


def test_uneven_families_say_that_cells_are_uneven_inside() -> None:
    tree, box = Tree.uniform(6, 3), Boxes(*(np.array([at]) for at in (0.0, 0.0, 100.0, 100.0)))
    even, uneven = np.full(64, 100.0), np.where(np.arange(64) % 4 == 0, 400.0, 0.0)
    uneven[0] = 100.0  # the cell that is asked about is the same
    errors = [TreeModel(Estimate(tree, users, np.ones(64))).answer(box).stddev[0] for users in (even, uneven)]
    assert errors[1] > 3 * errors[0]


def test_nobody_in_a_cell_is_never_certain() -> None:
    tree = Tree.uniform(6, 2)
    model = TreeModel(Estimate(tree, np.zeros(16), np.full(16, 1e-12)))
    answers = model.answer(Boxes(*(np.array([at]) for at in (0.0, 0.0, 1024.0, 1024.0))))
    assert answers.users[0] == 0
    assert answers.stddev[0] == pytest.approx(np.sqrt(1.0 + 1.0))
    users = np.where(np.arange(16) < 4, 0.0, 50.0)  # somebody is elsewhere, known to 10 and more
    model = TreeModel(Estimate(tree, users, np.where(users > 0, 10.0, 0.0)))
    answers = model.answer(Boxes(*(np.array([at]) for at in (0.0, 0.0, 1024.0, 1024.0))))
    assert (answers.users[0], answers.stddev[0]) == (0, pytest.approx(np.sqrt(101.0)))


def test_a_tree_that_is_finer_than_what_is_told_apart() -> None:
    """Down to half a base cell: whoever is in a square of two base cells is spread evenly over it."""
    rng, nothing = seeded_rng(5), np.empty(0, np.uint64)
    tree = random_tree(rng, 14, 20, orphans=False)
    for _ in range(14):  # always the deepest: one path down to the finest level
        tree = tree.refine(tree.entries[-1:], nothing)
    counts, stddev = rng.uniform(0, 50, (2, len(tree.entries)))
    model, levels = TreeModel(Estimate(tree, counts, stddev)), node_levels(tree.entries)
    assert levels[-1] == 14
    whole = model.answer(Boxes(*(np.array([at]) for at in (0.0, 0.0, SIDE, SIDE))))
    assert whole.users[0] == pytest.approx(counts.sum())
    assert whole.stddev[0] == pytest.approx(np.sqrt((stddev**2).sum()), rel=0.01)
    cell = tree.entries[-1] >> np.uint64(6)
    assert node_levels(cell[None])[0] == 11
    inside = (levels > 11) & (tree.entries >> (2 * (levels - 11)).clip(0).astype(np.uint64) == cell)
    assert inside.sum() == 10
    x, y = (2.0 * one for one in deinterleave(node_paths(cell[None])))
    assert model.answer(Boxes(x, y, x + 2, y + 2)).users[0] == pytest.approx(counts[inside].sum())
    assert model.answer(Boxes(x, y, x + 0.5, y + 1)).users[0] == pytest.approx(counts[inside].sum() / 8)


def saved(estimate: Estimate) -> bytes:
    return model_bytes(RangeModel(Field(Grid(REGION, 12)), TreeModel(estimate), "adaptive", 0.5))


def test_it_is_read_as_it_was_written() -> None:
    rng = seeded_rng(1)
    tree = random_tree(rng, 9, 30, orphans=True)
    counts, stddev = rng.uniform(0, 9, (2, len(tree.entries)))
    estimate = Estimate(tree, counts, stddev, slope=0.4)
    content = saved(estimate)
    model = read_model(content, "it")
    assert model_bytes(model) == content
    boxes = random_boxes(rng, 20)
    for name in ("users", "stddev"):
        want, have = (getattr(one.answer(boxes), name) for one in (TreeModel(estimate), model.model))
        np.testing.assert_array_equal(have, want)
    assert (model.method, model.epsilon) == ("adaptive", 0.5)


@pytest.mark.parametrize("damage", ["short", "unsorted", "no root", "too deep", "no slope"])
def test_what_is_no_tree_is_refused(damage: str) -> None:
    tree = Tree.uniform(4, 2)
    model = TreeModel(Estimate(tree, np.ones(16), np.ones(16)))
    arrays, metadata = model.arrays(), model.metadata()
    nodes = arrays["nodes"]
    if damage == "short":
        arrays["users"] = arrays["users"][1:]
    elif damage == "unsorted":
        arrays["nodes"] = nodes[::-1]
    elif damage == "no root":
        arrays["nodes"] = nodes[1:]
    elif damage == "too deep":
        metadata["depth"] = 1
    else:
        del metadata["slope"]
    with pytest.raises((ValueError, KeyError)):
        TreeModel.load(arrays, metadata)
    broken = saved(Estimate(tree, np.ones(16), np.ones(16)))
    with pytest.raises(RequestError, match="damaged"):
        read_model(broken[: len(broken) // 2], "it")
