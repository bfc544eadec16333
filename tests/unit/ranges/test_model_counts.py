import numpy as np
import pytest

from sfumato.schemas.ranges import Boxes
from sfumato.transforms.privacy.mechanism import discrete_laplace_stddev
from sfumato.transforms.ranges.field_counts import NoisyGrid, add_noise, centre_variance, clumping
from sfumato.transforms.ranges.model import GridModel
from tests.rejections import rejects
from tests.seeds import seeded_rng
from tests.unit.ranges.oracle import overlap, random_boxes, run_key
from tests.unit.ranges.samples import slope_model

SIDE, CELLS, EPSILON, MEAN = 64, 32, 0.3, 400
LINES = np.arange(CELLS + 1) * (SIDE // CELLS)
EDGES = (1, 0, 3, 7), (1, 0, 9, 0), (2, 64, 44, 20), (2, 64, 60, 1)  # x0, y0, x1, y1
BOXES = Boxes(*(np.array(at, dtype=float) for at in EDGES))
RUNS = 400


def about_the_middle(grid: NoisyGrid) -> np.ndarray:
    """What GridModel adds for the cell in the middle of each of BOXES."""
    column, row = (middle.astype(int) // (SIDE // CELLS) for middle in BOXES.middles)
    edges = (LINES[column], LINES[row], LINES[column + 1], LINES[row + 1])
    return centre_variance(BOXES, Boxes(*edges), grid.users[row, column], clumping(grid))


def runs() -> tuple[np.ndarray, np.ndarray]:
    """Squared errors and stated variances of BOXES, float64[RUNS, boxes]."""
    generator, errors, stated = seeded_rng(6), [], []
    for run in range(RUNS):
        base = generator.poisson(MEAN / 4, (SIDE, SIDE))
        exact = base.reshape(CELLS, 2, CELLS, 2).sum(axis=(1, 3))
        counts = add_noise(exact, EPSILON, run_key(run), "test")
        grid = NoisyGrid(LINES, LINES, counts, discrete_laplace_stddev(EPSILON))
        answers = GridModel(grid).answer(BOXES)
        sides = (np.asarray(getattr(BOXES, name), dtype=int) for name in ("x0", "y0", "x1", "y1"))
        true = [base[y0:y1, x0:x1].sum() for x0, y0, x1, y1 in zip(*sides, strict=True)]
        errors.append((answers.users - true) ** 2)
        stated.append(answers.stddev**2 - about_the_middle(grid))
    return np.array(errors), np.array(stated)


def test_the_stated_error_is_the_error_where_users_are_spread_evenly() -> None:
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


def test_the_stated_error_is_the_noises_where_boxes_cut_no_cells() -> None:
    generator = seeded_rng(2)
    counts = generator.poisson(50, (CELLS, CELLS)).astype(float)
    model = GridModel(NoisyGrid(LINES, LINES, counts, 3.0))
    box = Boxes(*(np.array([at]) for at in (4.0, 10.0, 14.0, 64.0)))
    assert model.answer(box).stddev == pytest.approx([np.sqrt(9.0 * 5 * 27 + 1)])
    assert model.answer(box).users == pytest.approx([counts[5:, 2:7].sum()])


def test_cells_below_0_count_as_they_are_and_answers_do_not() -> None:
    model = GridModel(NoisyGrid(np.array([0, 2, 4]), np.array([0, 4]), np.array([[-5.0, 8.0]]), 1.0))
    boxes = Boxes(*(np.array(at) for at in ([0.0, 0.0], [0.0, 0.0], [4.0, 2.0], [4.0, 4.0])))
    np.testing.assert_allclose(model.answer(boxes).users, [3.0, 0.0])
    assert (model.answer(boxes).stddev > 0).all()


def test_a_grid_is_answered_as_a_loop_over_cells_has_it() -> None:
    generator = seeded_rng(3)
    x, y = np.array([0, 3, 4, 9, 16]), np.array([0, 7, 16])
    counts = generator.uniform(1, 30, (2, 4))
    boxes = random_boxes(generator, 16, 100).clipped(16)
    found = GridModel(NoisyGrid(x, y, counts, 2.0)).answer(boxes).users
    for box in range(100):
        expected = 0.0
        for row in range(2):
            for column in range(4):
                across = overlap(boxes.x0[box], boxes.x1[box], x[column], x[column + 1]) / (x[column + 1] - x[column])
                down = overlap(boxes.y0[box], boxes.y1[box], y[row], y[row + 1]) / (y[row + 1] - y[row])
                expected += counts[row, column] * across * down
        assert found[box] == pytest.approx(expected, abs=1e-10)


def test_models_are_made_anew_from_their_arrays() -> None:
    made = GridModel(NoisyGrid(LINES, LINES, np.eye(CELLS), 2.0))
    again = GridModel.load(made.arrays(), made.metadata())
    boxes = random_boxes(seeded_rng(7), 8, 50).clipped(8)
    np.testing.assert_array_equal(again.answer(boxes).users, made.answer(boxes).users)
    np.testing.assert_array_equal(again.answer(boxes).stddev, made.answer(boxes).stddev)


@pytest.mark.parametrize("total", [None, 900.0])
def test_additive_answers_of_a_grid_sum_to_its_users(total: float | None) -> None:
    counts = seeded_rng(1).laplace(1.0, 8.0, (CELLS, CELLS))
    made = GridModel(NoisyGrid(LINES, LINES, counts, 8.0 * np.sqrt(2)), total)
    edges = np.append(np.arange(0, SIDE, 2.7), SIDE)
    tiles = Boxes.between(edges, edges)
    for model in (made, GridModel.load(made.arrays(), made.metadata())):
        found, plain = model.answer_additive(tiles), model.answer(tiles)
        assert found.users.sum() == pytest.approx(total or counts.sum())
        assert plain.users.sum() > 2 * found.users.sum()
        np.testing.assert_allclose(found.stddev, np.hypot(plain.stddev, found.users - plain.users))
    older = {name: value for name, value in made.metadata().items() if name != "total"}
    assert GridModel.load(made.arrays(), older).additive_table.total == pytest.approx(counts.sum())
    with pytest.raises(ValueError, match="no number"):
        GridModel.load(made.arrays(), {**made.metadata(), "total": float("nan")})


def test_a_model_without_a_map_has_no_additive_answers() -> None:
    with rejects("additive"):
        slope_model().answer(*(np.array([one]) for one in (-122.44, 37.77, 500.0)), additive=True)


def test_a_grid_whose_edges_do_not_fit_its_counts_is_refused() -> None:
    made = GridModel(NoisyGrid(LINES, LINES, np.eye(CELLS), 2.0))
    with pytest.raises(ValueError, match="do not fit"):
        GridModel.load({**made.arrays(), "users": np.eye(CELLS - 1)}, made.metadata())
