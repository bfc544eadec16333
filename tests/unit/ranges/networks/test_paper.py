import math

import numpy as np
import pytest

from sfumato.schemas.ranges import Boxes, Field, Sizes
from sfumato.schemas.region import Grid, Region
from sfumato.transforms.ranges.field_counts import CollectionSpec, NoisyGrid, strip_edges
from sfumato.transforms.ranges.networks.paper import (
    PaperNetworks,
    PaperTrained,
    corner_squares,
    overlaps,
    paper_training,
    train_paper,
)
from tests.seeds import seeded_rng
from tests.unit.ranges.oracle import overlap, random_boxes

pytest.importorskip("optax")
SIDE = 256
# About 2.2 km high and, at latitude 60, 1.1 km wide: a base cell is 4.3 m wide and 8.7 m high.
FIELD = Field(Grid(Region(0, 60, 0.02, 60.02), 8))
ACROSS, DOWN = FIELD.cell_metres
SMALL = {"layers": 3, "width": 16, "epochs": 200}


def spec_of(low: float, high: float, users: float = 10_000.0) -> CollectionSpec:
    return CollectionSpec(FIELD, users, 0.5, Sizes(low, high))


def some_grid(seed: int = 1) -> NoisyGrid:
    generator = seeded_rng(seed)
    x_edges, y_edges = strip_edges(SIDE, 20), strip_edges(SIDE, 30)
    return NoisyGrid(x_edges, y_edges, generator.normal(3, 9, (len(y_edges) - 1, len(x_edges) - 1)), 2.5)


def networks(seed: int = 2, sizes: tuple[float, ...] = (100.0, 140.0, 220.0)) -> PaperNetworks:
    """Networks that nobody trained."""
    generator = seeded_rng(seed)

    def own(*shape: int) -> np.ndarray:
        return generator.normal(0, 0.5, shape).astype(np.float32)

    trained = [
        PaperTrained(
            size,
            3.0 + number,
            {
                "first": own(2, 5),
                "first_bias": own(5),
                "hidden": own(2, 5, 5),
                "hidden_bias": own(2, 5),
                "last": np.abs(own(5)),  # so that an output below 0, which is cut off, is rare
                "last_bias": np.float32(1.5),
            },
        )
        for number, size in enumerate(sizes)
    ]
    return PaperNetworks.from_grid(some_grid(), spec_of(80, 240), trained)


def box(x0: float, y0: float, x1: float, y1: float) -> Boxes:
    return Boxes(*(np.array([at], dtype=float) for at in (x0, y0, x1, y1)))


def test_sizes_are_the_middles_of_equal_parts() -> None:
    found = [one.size for one in paper_training(some_grid(), spec_of(100, 180), 4, None)]
    np.testing.assert_allclose(found, [110, 130, 150, 170])


def test_labels_are_sums_over_squares_at_lower_left_corners() -> None:
    """Cell by cell, y upwards, in metres, as the paper draws it."""
    grid = some_grid()
    rows, columns = grid.users.shape
    top, wide_cell, high_cell = SIDE * DOWN, SIDE * ACROSS / columns, SIDE * DOWN / rows
    for training in paper_training(grid, spec_of(100, 180), 2, None):
        expected, places = [], []
        beyond, below = math.ceil(training.size / wide_cell), math.ceil(training.size / high_cell)
        for row in range(rows + below):
            for column in range(-beyond, columns):
                x = grid.x_edges[column] * ACROSS if column >= 0 else column * wide_cell
                y = top - grid.y_edges[row + 1] * DOWN if row < rows else (rows - 1 - row) * high_cell
                total = 0.0
                for other_row in range(rows):
                    south, north = (top - grid.y_edges[other_row + one] * DOWN for one in (1, 0))
                    high = overlap(y, y + training.size, south, north) / (north - south)
                    for other in range(columns):
                        west, east = grid.x_edges[other] * ACROSS, grid.x_edges[other + 1] * ACROSS
                        wide = overlap(x, x + training.size, west, east) / (east - west)
                        total += wide * high * grid.users[other_row, other]
                expected.append(max(total, 0.0))
                places.append((x + training.size / 2, y + training.size / 2))
        np.testing.assert_allclose(training.labels, expected, rtol=1e-5, atol=1e-4)
        assert (training.labels == 0).any()
        assert (training.labels > 0).any()
        # What networks see is the centre, linearly: x eastwards, y southwards, -5 to 5.
        seen = np.array(places) * [10 / (SIDE * ACROSS), -10 / (SIDE * DOWN)] + [-5, 5]
        np.testing.assert_allclose(training.places, seen, atol=1e-5)


def test_errors_weigh_by_small_labels_down_to_psi() -> None:
    training = paper_training(some_grid(), spec_of(100, 180, users=5_000), 1, None)[0]
    np.testing.assert_allclose(training.weights, 1 / np.maximum(training.labels, 5.0), rtol=1e-6)
    assert (training.labels < 5).any()
    assert (training.labels > 5).any()


def test_w_counts_the_queries_of_the_workload_that_overlap() -> None:
    grid, workload = some_grid(), random_boxes(seeded_rng(3), SIDE, 60)
    aligned = box(40, 60, 60, 90)  # borders that only touch share no area
    workload = Boxes(*(np.append(getattr(workload, at), getattr(aligned, at)) for at in ("x0", "y0", "x1", "y1")))
    squares = corner_squares(grid, 150.0, FIELD.cell_metres)
    expected = np.zeros(len(squares))
    for one in range(len(squares)):
        for query in range(len(workload)):
            wide = overlap(workload.x0[query], workload.x1[query], squares.x0[one], squares.x1[one])
            high = overlap(workload.y0[query], workload.y1[query], squares.y0[one], squares.y1[one])
            expected[one] += wide * high > 0
    np.testing.assert_array_equal(overlaps(grid, 150.0, FIELD.cell_metres, workload), expected)
    assert len(np.unique(expected)) > 5
    [training], [uniform] = (paper_training(grid, spec_of(100, 200), 1, one) for one in (workload, None))
    np.testing.assert_array_equal(training.places, uniform.places[expected > 0])
    np.testing.assert_array_equal(training.labels, uniform.labels[expected > 0])
    weights = expected[expected > 0] / np.maximum(training.labels, 10.0)
    np.testing.assert_allclose(training.weights, weights, rtol=1e-6)
    assert 0 < len(training.places) < len(uniform.places)


def test_first_weights_are_uniform_of_variance_two_over_inputs() -> None:
    """The form of the paper's Section 6.1.2 and its authors' code: a sine, 20 layers of 80 units, a linear layer."""
    [training] = paper_training(some_grid(), spec_of(100, 200), 1, None)
    first = train_paper(training, epochs=0, patience=None).parameters
    assert {name: weights.shape for name, weights in first.items()} == {
        "first": (2, 80),
        "first_bias": (80,),
        "hidden": (20, 80, 80),
        "hidden_bias": (20, 80),
        "last": (80,),
        "last_bias": (),
    }
    for name, inputs in (("first", 2), ("hidden", 80), ("last", 80)):
        reach = math.sqrt(6 / inputs)
        assert np.abs(first[name]).max() <= reach
        # The mean square of n uniform values is off by more than 6 / sqrt(n) of itself with probability below 1e-9.
        spread = 6 / math.sqrt(first[name].size)
        assert np.mean(first[name] ** 2) == pytest.approx(2 / inputs, rel=spread)
    assert not any(first[name].any() for name in first if name.endswith("bias"))


@pytest.mark.slow
def test_first_step_of_adam_is_the_learning_rate() -> None:
    """Adam's first step moves each parameter by the learning rate, 0.001, against the sign of its gradient."""
    [training] = paper_training(some_grid(), spec_of(100, 200), 1, None)
    before, after = (
        train_paper(training, layers=3, width=16, epochs=epochs, patience=None).parameters["hidden"]
        for epochs in (0, 1)
    )
    assert np.median(np.abs(after - before)) == pytest.approx(1e-3, rel=1e-2)
    assert np.abs(after - before).max() < 1.01e-3


@pytest.mark.slow
def test_a_smooth_density_is_learned() -> None:
    lines = strip_edges(SIDE, 8)
    middle = (lines[1:] + lines[:-1]) / 2
    users = 60 * np.exp(-((middle - 100) ** 2) / 9000)[None, :] * np.exp(-((middle - 170) ** 2) / 7000)[:, None] + 10
    grid = NoisyGrid(lines, lines, users, 1e-6)
    trained = [
        train_paper(one, **{**SMALL, "epochs": 3000}) for one in paper_training(grid, spec_of(150, 250), 2, None)
    ]
    model = PaperNetworks.from_grid(grid, spec_of(150, 250), trained[::-1])
    generator = seeded_rng(8)
    size = generator.uniform(150, 250, 500)
    squares = Boxes.around(*generator.uniform(40, SIDE - 40, (2, 500)), size / ACROSS, size / DOWN)
    true, answers = grid.table().sum(squares), model.answer(squares)
    relative = np.abs(answers.users - true) / np.maximum(true, 10.0)
    assert relative.mean() < 0.04
    # Its stated error is that of its training: there is no noise, and the density is smooth.
    error = math.sqrt(np.mean((answers.users - true) ** 2) / np.mean(answers.stddev**2))
    assert 0.2 < error < 3


def output(model: PaperNetworks, number: int, x: float, y: float) -> float:
    """A network's count at a centre in base cells, in double precision."""
    weights = {name: values.astype(np.float64) for name, values in model.networks[number].parameters.items()}
    hidden = np.sin(
        np.array([x, y]) * 10 / SIDE @ weights["first"] - 5 * weights["first"].sum(axis=0) + weights["first_bias"]
    )
    for layer in range(len(weights["hidden"])):
        hidden = hidden @ weights["hidden"][layer] + weights["hidden_bias"][layer]
        hidden = hidden / (1 + np.exp(-hidden))
    return max(float(hidden @ weights["last"] + weights["last_bias"]), 0.0)


@pytest.mark.parametrize(("size", "nearest"), [(20, 0), (100, 0), (119, 0), (121, 1), (179, 1), (181, 2), (400, 2)])
def test_square_uses_the_nearest_size_scaled_by_area(size: float, nearest: int) -> None:
    """(r / r*)^2: the paper prints r / r*, which would not be right for counts."""
    model, x, y = networks(), 60.0, 170.0
    wide, high = size / ACROSS, size / DOWN
    found = model.answer(Boxes.around(*(np.array([one]) for one in (x, y, wide, high))))
    expected = output(model, nearest, x, y) * (size / model.networks[nearest].size) ** 2
    assert expected > 0
    assert found.users[0] == pytest.approx(expected, rel=1e-4)


def test_cut_square_is_answered_from_its_remaining_centre() -> None:
    model, size = networks(), 100.0
    wide, high = size / ACROSS, size / DOWN
    # 5 base cells are left. Of the network's square around their centre, half and 2.5 cells are in the field.
    cut = model.answer(box(SIDE - 5, 200 - high, SIDE, 200))
    share = 5 / (wide / 2 + 2.5)
    assert cut.users[0] == pytest.approx(output(model, 0, SIDE - 2.5, 200 - high / 2) * share, rel=1e-4)


def test_stated_error_is_cell_noise_and_residual() -> None:
    model = networks()
    x, y, size = 60.0, 200.0, 90.0
    found = model.answer(box(x, y - size / DOWN, x + size / ACROSS, y)).stddev[0]
    own, noise = model.networks[0], 0.0
    x, y = x + (size - own.size) / 2 / ACROSS, y - (size - own.size) / 2 / DOWN  # its square has the same centre
    for left, right in zip(model.x_edges[:-1], model.x_edges[1:], strict=True):
        for top, bottom in zip(model.y_edges[:-1], model.y_edges[1:], strict=True):
            wide = overlap(x, x + own.size / ACROSS, left, right) / (right - left)
            high = overlap(y - own.size / DOWN, y, top, bottom) / (bottom - top)
            noise += (2.5 * wide * high) ** 2
    assert found == pytest.approx(math.sqrt(noise + own.residual**2) * (size / own.size) ** 2, rel=1e-9)


def test_a_model_is_made_anew_from_its_arrays() -> None:
    model, boxes = networks(), random_boxes(seeded_rng(7), SIDE, 300).clipped(SIDE)
    again = PaperNetworks.load(model.arrays(), model.metadata())
    for name in ("users", "stddev"):
        np.testing.assert_array_equal(getattr(again.answer(boxes), name), getattr(model.answer(boxes), name))


@pytest.mark.parametrize("name", ["first", "last_bias"])
@pytest.mark.parametrize("damage", ["nan", "infinite", "shape", "models", "kind"])
def test_damaged_weights_are_refused(name: str, damage: str) -> None:
    model = networks()
    arrays = model.arrays()
    values = arrays[name].copy()
    if damage in ("nan", "infinite"):
        values.ravel()[-1] = np.nan if damage == "nan" else np.inf
    elif damage == "shape":
        values = values[..., None]
    elif damage == "models":
        values = values[:-1]
    else:
        values = values.astype(np.complex64)
    with pytest.raises((ValueError, TypeError)):
        PaperNetworks.load({**arrays, name: values}, model.metadata())


@pytest.mark.parametrize(
    "damage",
    [
        {"size": [100.0, 100.0, 220.0]},
        {"size": [100.0, 140.0]},
        {"size": [0.0, 140.0, 220.0]},
        {"size": []},
        {"residual": [1.0, -1.0, 2.0]},
        {"residual": None},
        {"noise_stddev": math.nan},
        {"cell_metres": [0.0, 1.0]},
        {"cell_metres": [1.0]},
    ],
)
def test_damaged_facts_are_refused(damage: dict) -> None:
    model = networks()
    with pytest.raises((ValueError, TypeError)):
        PaperNetworks.load(model.arrays(), {**model.metadata(), **damage})
