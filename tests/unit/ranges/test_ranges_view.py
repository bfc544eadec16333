"""The page of a model of range queries: what it holds of the model, its first square, and its map."""

from __future__ import annotations

import json
import math
from dataclasses import replace

import numpy as np
import pytest

from sfumato.schemas.ranges import Boxes
from sfumato.schemas.tree import Tree, node_names
from sfumato.schemas.views import PageView, RangesBody
from sfumato.transforms.heatmap.state import Estimate
from sfumato.transforms.ranges.field_counts import NoisyGrid, strip_edges
from sfumato.transforms.ranges.model import GridModel, RangeModel, TreeModel
from sfumato.transforms.ranges.model_file import model_bytes
from sfumato.transforms.ranges.ranges_view import MAX_NUMBERS, background, embedded_model, ranges_body, ranges_view
from tests.seeds import seeded_rng
from tests.unit.ranges.models import FIELD, grid_model
from tests.unit.ranges.page_answers import FILE, page_answers_text
from tests.unit.ranges.samples import network_model, ranges_manifest, slope_model

SIZES = (50.0, 1000.0)


def view(model: RangeModel, **manifest: object) -> PageView:
    files = {"manifest.json": json.dumps(ranges_manifest(model, **manifest)).encode(), "model.npz": model_bytes(model)}
    return ranges_view(files)


def test_the_scripts_answers_are_up_to_date() -> None:
    assert FILE.read_text() == page_answers_text(), "run `python -m tests.transforms.ranges.page_answers`"


def test_the_page_holds_all_of_a_grid() -> None:
    model = grid_model()
    grid = model.model.grid  # type: ignore[attr-defined]
    held = embedded_model(model)
    assert held["kind"] == "grid"
    assert (held["x_edges"], held["y_edges"]) == (grid.x_edges.tolist(), grid.y_edges.tolist())
    assert held["users"] == grid.users.ravel().tolist()
    assert min(held["users"]) < 0  # as they are; what an answer makes of it is the model's own
    assert held["noise"] == pytest.approx(grid.noise_stddev**2)
    assert held["metres"] == pytest.approx(FIELD.metres)


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


def test_a_grid_too_fine_for_a_page_is_a_raster_there() -> None:
    strips = strip_edges(FIELD.side, 4.0)
    assert (len(strips) - 1) ** 2 > MAX_NUMBERS
    grid = NoisyGrid(strips, strips, np.ones((1024, 1024)), 1.0)
    held = embedded_model(RangeModel(FIELD, GridModel(grid), "grid", 1.0))
    assert held["kind"] == "raster"
    assert len(held["users"]) == 512 * 512
    assert set(held["users"]) == {4}


@pytest.mark.parametrize("model", [grid_model(), slope_model(), network_model()])
@pytest.mark.parametrize("sizes", [SIZES, (2000.0, 3000.0), (1.0, 30.0)])
def test_the_first_square_is_of_a_size_the_model_was_made_for(model: RangeModel, sizes: tuple[float, float]) -> None:
    x, y, size = ranges_body(model, sizes).start
    assert sizes[0] <= size <= sizes[1]
    answers, inside = model.answer(np.array([x]), np.array([y]), np.array([size]))
    assert inside[0] > 0.5
    region = model.field.grid.region
    rng = seeded_rng(1)
    places = rng.uniform(region.west, region.east, 200), rng.uniform(region.south, region.north, 200)
    others = model.answer(*places, np.full(200, size))[0].users
    assert answers.users[0] >= np.quantile(others, 0.95)


def tree_model() -> RangeModel:
    """Cells of a tree, small in one corner; half of them are lost in noise."""
    nodes = np.concatenate([Tree.uniform(10, 4).nodes, Tree.uniform(10, 6).nodes[-1024:]])
    tree, rng = Tree.of(10, nodes), seeded_rng(7)
    counts = rng.gamma(1.0, 60.0, len(tree.entries))
    stddev = np.where(rng.random(len(counts)) < 0.5, counts, counts / 4)
    return RangeModel(FIELD, TreeModel(Estimate(tree, counts, stddev, slope=0.0)), "adaptive", 1.0)


def test_cells_of_a_tree_are_judged_one_by_one() -> None:
    model = tree_model()
    estimate = model.model.estimate  # type: ignore[attr-defined]
    layer = background(model).layers[0]
    names = {name: i for i, name in enumerate(node_names(estimate.tree.entries))}
    seen = set()
    for name, uncertain in zip(layer.cell_id, layer.measures[0].uncertain, strict=True):
        cell = next(names[name[:end]] for end in range(len(name), 0, -1) if name[:end] in names)
        assert uncertain == (estimate.counts[cell] <= 1.96 * estimate.stddev[cell])
        seen.add(cell)
    assert len(seen) == (estimate.tree.areas > 0).sum()


@pytest.mark.parametrize("model", [grid_model(), grid_model(20.0), slope_model(), tree_model()])
def test_the_background_is_the_models_own_density(model: RangeModel) -> None:
    body = background(model)
    layer, side = body.layers[0], 1 << body.depth
    painted, lost = np.full((side, side), np.nan), np.zeros((side, side), bool)
    measure = layer.measures[0]
    for i, (level, x, y) in enumerate(zip(layer.level, layer.x, layer.y, strict=True)):
        wide = side >> level
        square = (slice(y * wide, (y + 1) * wide), slice(x * wide, (x + 1) * wide))
        assert np.isnan(painted[square]).all()  # no cell lies over another
        painted[square], lost[square] = (measure.value[i] or 0.0) / wide**2, measure.uncertain[i]
    edges = strip_edges(FIELD.side, FIELD.side / side)
    expected = model.model.answer_additive(Boxes.between(edges, edges)).users.reshape(side, side)
    assert painted.sum() == pytest.approx(expected.sum(), rel=0.01)
    assert np.abs(painted - expected).max() <= 0.05 * expected.max() + 1e-9
    assert len(layer.level) < side * side  # what is alike is one cell
    if isinstance(model.model, GridModel):
        grid = model.model.grid
        column, row = (np.searchsorted(one, edges[:-1] + 8, "right") - 1 for one in (grid.x_edges, grid.y_edges))
        noise = grid.users[row[:, None], column[None, :]] <= 1.96 * grid.noise_stddev
        assert (lost == noise).mean() > 0.97  # joined cells are judged at their centres


@pytest.mark.slow
def test_pages_follow_from_their_files_alone() -> None:
    for model in (grid_model(), tree_model()):
        assert view(model) == view(model)
        assert view(model) == view(model, files={"model.npz": "0"})  # the list of digests is no part of a page
        body = view(model).body
        assert isinstance(body, RangesBody)
        assert body.sizes_metres == SIZES


def test_the_page_says_what_holds() -> None:
    shown = view(grid_model())
    assert "12,300 users" in shown.headline
    assert shown.alarm is None
    texts = " ".join(text for section in shown.sections for text in section.paragraphs)
    assert "the truth lies in the stated interval about 95 times in 100" in texts
    assert "too narrow for some squares" in " ".join(
        text for section in view(tree_model()).sections for text in section.paragraphs
    )
    unsafe = view(replace(grid_model(), safe=False), privacy={"randomness": {"source": "seed", "safe": False}})
    assert "known source" in str(unsafe.alarm)
