import numpy as np
import pytest

from sfumato.schemas.ranges import Boxes
from sfumato.transforms.ranges.field_counts import NoisyGrid, strip_edges
from sfumato.transforms.ranges.networks.examples import INPUTS, Surroundings
from tests.seeds import seeded_rng
from tests.unit.ranges.oracle import overlap

SIDE, NOISE, SMOOTHING = 96, 4.0, 7.0
X_EDGES, Y_EDGES = strip_edges(SIDE, 8), strip_edges(SIDE, 6)
COUNTS = seeded_rng(3).normal(5, 9, (16, 12))
GRID = NoisyGrid(X_EDGES, Y_EDGES, COUNTS, NOISE)
_SCALES = (1, 1.5, 2, 3, 4, 6, 9, 14, 22, 40)
_BESIDE = [(x, y) for x in (-1, 0, 1) for y in (-1, 0, 1) if (x, y) != (0, 0)]
SEEN = [
    *((0, 0, scale, scale) for scale in _SCALES),
    *((x, y, 1, 1) for x, y in _BESIDE),
    (0, 0, 3, 1),
    (0, 0, 1, 3),
]


def some_boxes() -> Boxes:
    """Inside, on cells' edges, across the border and outside; wide and high ones."""
    columns = np.array(
        [
            (30.0, 41.5, 12.0, 9.0),
            (44.0, 45.0, 8.0, 6.0),
            (2.0, 95.5, 10.0, 11.0),
            (-20.0, 50.0, 6.0, 6.0),
            (70.3, 20.2, 1.0, 25.0),
            (48.0, 48.0, 3.3, 2.2),
        ]
    )
    return Boxes.around(*columns.T)


def test_inputs_are_sums_of_counts_around_in_deviations_of_their_noise() -> None:
    boxes = some_boxes()
    inputs, own, deviation = Surroundings(GRID, SMOOTHING).features(boxes)
    assert inputs.shape == (len(boxes), INPUTS) == (6, len(SEEN) + 4)
    assert inputs.dtype == own.dtype == deviation.dtype == np.float32
    for number in range(len(boxes)):
        x0, y0, x1, y1 = (float(getattr(boxes, name)[number]) for name in ("x0", "y0", "x1", "y1"))
        width, height, x, y = x1 - x0, y1 - y0, (x0 + x1) / 2, (y0 + y1) / 2
        for seen, (dx, dy, wide, high) in enumerate(SEEN):
            left, top = x + dx * width - wide * width / 2, y + dy * height - high * height / 2
            total = 0.0
            for row in range(16):
                for column in range(12):
                    cell = 8 * column, 8 * column + 8, 6 * row, 6 * row + 6
                    across = overlap(cell[0], cell[1], left, left + wide * width)
                    down = overlap(cell[2], cell[3], top, top + high * height)
                    total += COUNTS[row, column] * across * down / 48
            noise = NOISE * np.sqrt(1 + wide * width * high * height / 48)
            assert inputs[number, seen] == pytest.approx(np.arcsinh(total / noise), abs=1e-5)
            if seen == 0:
                assert own[number] == pytest.approx(total, abs=1e-4)
                assert deviation[number] == pytest.approx(noise, rel=1e-6)
        assert inputs[number, -4] == pytest.approx(np.log(np.sqrt(width * height / 48)), abs=1e-6)
        assert inputs[number, -3] == pytest.approx(np.log(NOISE / SMOOTHING))
        assert inputs[number, -2] == pytest.approx(x / 8 - np.floor(x / 8), abs=1e-6)
        assert inputs[number, -1] == pytest.approx(y / 6 - np.floor(y / 6), abs=1e-6)


def test_nothing_is_counted_beyond_the_border() -> None:
    boxes = Boxes.around(np.array([-60.0]), np.array([48.0]), np.array([4.0]), np.array([4.0]))
    inputs, own, _ = Surroundings(GRID, SMOOTHING).features(boxes)
    assert own[0] == 0
    reaching = [seen for seen, (_, _, wide, _) in enumerate(SEEN) if wide * 2 > 60]
    assert (np.delete(inputs[0, : len(SEEN)], reaching) == 0).all()
    assert (inputs[0, reaching] != 0).all()


def test_twice_the_counts_and_noise_look_the_same_but_for_the_error_that_matters() -> None:
    boxes = some_boxes()
    inputs, own, deviation = Surroundings(GRID, SMOOTHING).features(boxes)
    doubled = NoisyGrid(X_EDGES, Y_EDGES, 2 * COUNTS, 2 * NOISE)
    seen, twice_own, twice_deviation = Surroundings(doubled, SMOOTHING).features(boxes)
    others = np.arange(INPUTS) != INPUTS - 3
    np.testing.assert_allclose(seen[:, others], inputs[:, others], rtol=1e-6)
    np.testing.assert_allclose(seen[:, -3] - inputs[:, -3], np.log(2), rtol=1e-5)
    np.testing.assert_allclose(twice_own, 2 * own, rtol=1e-6)
    np.testing.assert_allclose(twice_deviation, 2 * deviation, rtol=1e-6)
    np.testing.assert_allclose(Surroundings(doubled, 2 * SMOOTHING).features(boxes)[0], inputs, rtol=1e-6)
    louder = Surroundings(NoisyGrid(X_EDGES, Y_EDGES, COUNTS, 2 * NOISE), SMOOTHING).features(boxes)[0]
    assert (np.abs(louder[:, : len(SEEN)] - inputs[:, : len(SEEN)]) > 0.1).any(axis=1).all()


def test_a_larger_field_looks_the_same() -> None:
    boxes = some_boxes()
    larger = NoisyGrid(3 * X_EDGES, 3 * Y_EDGES, COUNTS, NOISE)
    scaled = Boxes(3 * boxes.x0, 3 * boxes.y0, 3 * boxes.x1, 3 * boxes.y1)
    one, other = Surroundings(GRID, SMOOTHING).features(boxes), Surroundings(larger, SMOOTHING).features(scaled)
    for mine, theirs in zip(one, other, strict=True):
        np.testing.assert_allclose(theirs, mine, rtol=1e-5, atol=1e-5)


def test_boxes_of_no_area_have_finite_inputs() -> None:
    flat = Boxes(*(np.array([value]) for value in (5.0, 5.0, 5.0, 9.0)))
    assert all(np.isfinite(one).all() for one in Surroundings(GRID, SMOOTHING).features(flat))
