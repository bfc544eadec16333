"""Models of range queries, their files and their page."""

from __future__ import annotations

import json
import math
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from benchmarks.evaluation.in_memory import Rows, run_in_memory
from sfumato.schemas.errors import RequestError
from sfumato.schemas.locations import LocationColumns
from sfumato.schemas.ranges import Boxes, Field
from sfumato.schemas.region import Grid, Places, deinterleave
from sfumato.schemas.release import MANIFEST_FILE, MODEL_FILE
from sfumato.schemas.tree import Tree, node_levels, node_paths
from sfumato.transforms.counting.estimator import estimate_density
from sfumato.transforms.counting.state import Estimate
from sfumato.transforms.privacy.keys import FixedSecret, RunKey
from sfumato.transforms.privacy.mechanism import discrete_laplace_stddev
from sfumato.transforms.ranges import open_model
from sfumato.transforms.ranges.field_counts import ExactCounts, NoisyGrid, add_noise, centre_variance, clumping
from sfumato.transforms.ranges.model import GridModel, RangeModel, TreeModel
from sfumato.transforms.ranges.model_file import model_bytes, read_model
from sfumato.transforms.ranges.plan import Collected, RangesPlan, build, collect, collected_from_heatmap
from sfumato.transforms.ranges.release import ranges_files
from sfumato.transforms.ranges.view import embedded_model
from sfumato.transforms.release.metadata import ReleaseMetadata
from tests.conftest import REGION
from tests.rejections import rejects
from tests.seeds import seeded_rng
from tests.unit.ranges.models import FIELD, grid_model, some_squares
from tests.unit.ranges.oracle import admission_of, run_key
from tests.unit.ranges.page_answers import FILE, page_answers_text
from tests.unit.ranges.samples import slope_model
from tests.unit.ranges.test_plan import plan

# What a release of a model says of itself, and that its files are of the same model.

KEY = RunKey.derive(FixedSecret(b"assemble ranges" * 3), {"job": "ranges"})
FACTS = ReleaseMetadata(
    job="ranges",
    release_id="monday",
    created="2026-11-20T02:00:00+00:00",
    randomness="key file",
    safe=True,
    parameters={"columns": asdict(LocationColumns())},
)
USERS = 2000


def people(depth: int = 12) -> ExactCounts:
    """In the north-western quarter."""
    return ExactCounts.from_codes(depth, seeded_rng(0).integers(0, 4 ** (depth - 1), USERS).astype(np.uint64))


def counted(planned: RangesPlan) -> Collected:
    if planned.heatmap is None:
        return collect(people(), admission_of(people(), planned, KEY), planned, KEY)
    crowd, depth = people(), planned.heatmap.depth
    codes = np.repeat(crowd.codes, crowd.users) >> np.uint64(2 * (12 - depth))
    hashes = np.sort(seeded_rng(1).integers(0, 2**64, USERS, np.uint64))
    places = Places(depth)
    state = run_in_memory(Rows(places, hashes & ~places.mask, codes), USERS, planned.heatmap, KEY)
    return collected_from_heatmap(state, planned)


def released(
    planned: RangesPlan, metadata: ReleaseMetadata = FACTS
) -> tuple[dict[str, bytes], dict[str, Any], RangeModel]:
    files = ranges_files(build(counted(planned), planned, ()), planned, metadata)
    return files, json.loads(files[MANIFEST_FILE]), read_model(files[MODEL_FILE], "it")


@pytest.mark.slow
@pytest.mark.parametrize("safe", [True, False])
def test_what_shards_counted_is_told_as_a_heatmap_tells_it(safe: bool) -> None:
    # A shard has 400 users with a deviation of 18: hashes leave none with fewer than 240.
    shards = {"shard_size": 400, "dropout": 0.4, "population": USERS, "epsilon": 2.0}
    planned, metadata = plan("grid", trust="secagg", cell_width=9000.0, **shards), replace(FACTS, safe=safe)
    collected = counted(planned)
    manifest = json.loads(ranges_files(build(collected, planned, ()), planned, metadata)[MANIFEST_FILE])
    privacy = manifest["privacy"]
    assert (privacy["trust"], privacy["epsilon"], privacy["cohort"]["shards"]) == ("secagg", 2.0, 5)
    assert "secure-aggregation shards" in privacy["mechanism"]
    assert privacy["adjacency"].startswith("add or remove one user")
    assert len(privacy["sub_queries"]) == 1
    assert privacy["noise_stddev"] == pytest.approx(privacy["sub_queries"][0]["noise_stddev"])
    assert privacy["noise_stddev"] > 2 * discrete_laplace_stddev(2.0)  # of five shards
    assert privacy["randomness"]["safe"] is safe
    assert manifest["privacy"]["population"]["users"] == USERS
    assert manifest["cell_metres"][0] == pytest.approx(141_458 / 16, rel=1e-4)
    assert ["seed" in one for one in manifest["warnings"]] == ([] if safe else [True])


@pytest.mark.false_alarm(1e-8)
@pytest.mark.parametrize("trust", ["central", "secagg"])
def test_the_adaptive_tree(trust: str) -> None:
    """The stated error of a tree is a lower bound, as its manifest says: here two thirds of the error of all users."""
    planned = plan("adaptive", trust=trust, depth=7, population=USERS, epsilon=1.0, dropout=0.2)
    _, manifest, model = released(planned)
    assert (manifest["results"]["kind"], manifest["privacy"]["trust"]) == ("tree", trust)
    assert manifest["results"]["parts"] > 16
    assert manifest["results"]["users"] == pytest.approx(
        USERS, abs=10 * manifest["privacy"]["population"]["noise_stddev"]
    )
    assert manifest["privacy"]["adjacency"].startswith("add or remove one user")
    box = Boxes(*map(np.array, ([0.0], [0.0], [2048.0], [2048.0])))
    answer = model.model.answer(box)
    assert abs(answer.users[0] - USERS) < 10 * answer.stddev[0]
    assert answer.stddev[0] < 0.04 * USERS


# The page of a model of range queries: what it holds of the model, its first square, and its map.


@pytest.mark.pinned
def test_the_scripts_answers_are_up_to_date() -> None:
    assert FILE.read_text() == page_answers_text(), "run `python -m tests.unit.ranges.page_answers`"


def test_of_other_models_the_page_holds_a_raster_and_errors() -> None:
    model = slope_model()
    held = embedded_model(model)
    assert held["kind"] == "raster"
    assert len(held["x_edges"]) == len(held["y_edges"]) == 513
    whole = model.model.answer(Boxes(*(np.array([one]) for one in (0.0, 0.0, 4096.0, 4096.0)))).users[0]
    assert sum(held["users"]) == pytest.approx(whole, rel=1e-4)
    errors = held["errors"]
    assert len(errors["stddev"]) == len(errors["sizes"]) * errors["places"] ** 2
    assert errors["sizes"][0] < 50
    assert errors["sizes"][-1] == pytest.approx(min(FIELD.metres))
    # In the middle of the map, where no square is cut: a hundredth of the side in base cells, of geometric mean.
    middle = np.reshape(errors["stddev"], (len(errors["sizes"]), 16, 16))[:5, 8, 8]
    side = np.array(errors["sizes"][:5]) / math.sqrt(np.prod(FIELD.cell_metres))
    np.testing.assert_allclose(middle, 0.01 * side, rtol=2e-3)


# Answers from a heatmap's tree against sums over its finest cells, and against people who are spread as it says.

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
@pytest.mark.parametrize("seed", range(2))
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
    np.testing.assert_allclose(answers, expected, rtol=1e-9, atol=1e-9)
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


COUNTED_SIDE, CELLS, EPSILON, MEAN = 64, 32, 0.3, 400
LINES = np.arange(CELLS + 1) * (COUNTED_SIDE // CELLS)
EDGES = (1, 0, 3, 7), (1, 0, 9, 0), (2, 64, 44, 20), (2, 64, 60, 1)  # x0, y0, x1, y1
BOXES = Boxes(*(np.array(at, dtype=float) for at in EDGES))
RUNS = 400


def about_the_middle(grid: NoisyGrid) -> np.ndarray:
    """What GridModel adds for the cell in the middle of each of BOXES."""
    column, row = (middle.astype(int) // (COUNTED_SIDE // CELLS) for middle in BOXES.middles)
    edges = (LINES[column], LINES[row], LINES[column + 1], LINES[row + 1])
    return centre_variance(BOXES, Boxes(*edges), grid.users[row, column], clumping(grid))


def runs() -> tuple[np.ndarray, np.ndarray]:
    """Squared errors and stated variances of BOXES, float64[RUNS, boxes]."""
    generator, errors, stated = seeded_rng(6), [], []
    for run in range(RUNS):
        base = generator.poisson(MEAN / 4, (COUNTED_SIDE, COUNTED_SIDE))
        exact = base.reshape(CELLS, 2, CELLS, 2).sum(axis=(1, 3))
        counts = add_noise(exact, EPSILON, run_key(run), "test")
        grid = NoisyGrid(LINES, LINES, counts, discrete_laplace_stddev(EPSILON))
        answers = GridModel(grid).answer(BOXES)
        sides = (np.asarray(getattr(BOXES, name), dtype=int) for name in ("x0", "y0", "x1", "y1"))
        true = [base[y0:y1, x0:x1].sum() for x0, y0, x1, y1 in zip(*sides, strict=True)]
        errors.append((answers.users - true) ** 2)
        stated.append(answers.stddev**2 - about_the_middle(grid))
    return np.array(errors), np.array(stated)


def test_stated_error_holds_for_evenly_spread_users() -> None:
    errors, stated = runs()
    ratio = errors.mean(axis=0) / stated.mean(axis=0)
    # Squared errors have a standard deviation of sqrt(5) times their mean at most (Laplace's). Clumping found by chance
    # in 1024 pairs is below r = 6 sqrt(8) / sqrt(1024) / (4 MEAN) = 0.133 / MEAN, and states 13% more at most.
    allowed = 6 * np.sqrt(5 / RUNS)
    assert (ratio > 0.88 - allowed).all()
    assert (ratio < 1 + allowed).all()
    pooled, reach = ratio.mean(), 6 * np.sqrt(5 / RUNS / 4)
    assert 0.88 - reach < pooled < 1 + reach
    assert pooled / 0.7**2 > 1 + reach


def test_cells_below_0_count_as_they_are_and_answers_do_not() -> None:
    model = GridModel(NoisyGrid(np.array([0, 2, 4]), np.array([0, 4]), np.array([[-5.0, 8.0]]), 1.0))
    boxes = Boxes(*(np.array(at) for at in ([0.0, 0.0], [0.0, 0.0], [4.0, 2.0], [4.0, 4.0])))
    np.testing.assert_allclose(model.answer(boxes).users, [3.0, 0.0])
    assert (model.answer(boxes).stddev > 0).all()


@pytest.mark.parametrize("total", [None, 900.0])
def test_additive_answers_of_a_grid_sum_to_its_users(total: float | None) -> None:
    counts = seeded_rng(1).laplace(1.0, 8.0, (CELLS, CELLS))
    made = GridModel(NoisyGrid(LINES, LINES, counts, 8.0 * np.sqrt(2)), total)
    edges = np.append(np.arange(0, COUNTED_SIDE, 2.7), COUNTED_SIDE)
    tiles = Boxes.between(edges, edges)
    for model in (made, GridModel.load(made.arrays(), made.metadata())):
        found, plain = model.answer_additive(tiles), model.answer(tiles)
        assert found.users.sum() == pytest.approx(total or counts.sum())
        assert plain.users.sum() > found.users.sum()  # none of them is below 0
        np.testing.assert_allclose(found.stddev, np.hypot(plain.stddev, found.users - plain.users))
    older = {name: value for name, value in made.metadata().items() if name != "total"}
    assert GridModel.load(made.arrays(), older).additive_table.total == pytest.approx(counts.sum())
    with pytest.raises(ValueError, match="no number"):
        GridModel.load(made.arrays(), {**made.metadata(), "total": float("nan")})


def test_a_model_without_a_map_has_no_additive_answers() -> None:
    with rejects("additive"):
        slope_model().answer(*(np.array([one]) for one in (-122.44, 37.77, 500.0)), additive=True)


# Released models are opened without data, Beam or trust.


def test_a_release_or_its_model_is_opened_and_answers_the_same(tmp_path: Path) -> None:
    model = grid_model()
    (tmp_path / MODEL_FILE).write_bytes(model_bytes(model))
    (tmp_path / "another name").write_bytes(model_bytes(model))
    x, y, size = some_squares(200)
    expected, share = model.answer(x, y, size)
    assert 0 < np.count_nonzero(share < 1) < 200
    for path in (tmp_path, str(tmp_path) + "/", tmp_path / MODEL_FILE, str(tmp_path / "another name")):
        answers, inside = open_model(path).answer(x, y, size)
        np.testing.assert_allclose(answers.users, expected.users, rtol=1e-12)
        np.testing.assert_allclose(answers.stddev, expected.stddev, rtol=1e-12)
        np.testing.assert_array_equal(inside, share)


def test_damaged_files_are_no_models(tmp_path: Path) -> None:
    whole = model_bytes(grid_model(400))
    path = tmp_path / MODEL_FILE
    for length in range(0, len(whole), 97):
        path.write_bytes(whole[:length])
        with rejects("model"):
            open_model(path)
    rng = seeded_rng(2)
    for _ in range(300):  # a flipped byte is found out, or changes nothing that counts
        content = bytearray(whole)
        content[rng.integers(len(whole))] ^= int(rng.integers(1, 256))
        path.write_bytes(content)
        try:
            model = open_model(path)
        except RequestError:
            continue
        assert model_bytes(model) == whole
