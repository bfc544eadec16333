import numpy as np
import pytest

from sfumato.schemas.ranges import Boxes
from sfumato.transforms.ranges.noisy_counts import Partition
from sfumato.transforms.ranges.summed_area_table import SummedAreaTable, paint_rectangles
from tests.transforms.ranges.oracle import overlap, random_boxes

SIDE = 16
X = np.array([0, 1, 2, 7, 8, 16])
Y = np.array([0, 5, 6, 13, 16])
VALUES = np.random.default_rng(1).normal(3, 4, (len(Y) - 1, len(X) - 1))
BOXES = random_boxes(np.random.default_rng(2), SIDE, 400)


def shares(boxes: Boxes, box: int) -> np.ndarray:
    """Of each cell, how much of it a box covers."""
    found = np.zeros(VALUES.shape)
    for row in range(len(Y) - 1):
        for column in range(len(X) - 1):
            across = overlap(boxes.x0[box], boxes.x1[box], X[column], X[column + 1]) / (X[column + 1] - X[column])
            down = overlap(boxes.y0[box], boxes.y1[box], Y[row], Y[row + 1]) / (Y[row + 1] - Y[row])
            found[row, column] = across * down
    return found


@pytest.mark.parametrize("power", [1, 2])
def test_sums_over_boxes_are_those_of_a_loop_over_cells(power: int) -> None:
    table = SummedAreaTable(X, Y, VALUES)
    found = table.sum(BOXES) if power == 1 else table.sum_of_squares(BOXES)
    expected = [(VALUES * shares(BOXES, box) ** power).sum() for box in range(len(BOXES))]
    np.testing.assert_allclose(found, expected, rtol=0, atol=1e-11)
    assert np.abs(found).max() > 10


def test_boxes_within_one_cell() -> None:
    box = Boxes(*(np.array([at]) for at in (3.0, 7.0, 5.5, 9.0)))
    share = 2.5 / 5 * 2 / 7
    np.testing.assert_allclose(SummedAreaTable(X, Y, VALUES).sum(box), VALUES[2, 2] * share)
    np.testing.assert_allclose(SummedAreaTable(X, Y, VALUES).sum_of_squares(box), VALUES[2, 2] * share**2)


def test_the_whole_field() -> None:
    table = SummedAreaTable(X, Y, VALUES)
    field = Boxes(*(np.array([at]) for at in (0.0, 0.0, 16.0, 16.0)))
    for total in (table.total, table.sum(field)[0], table.sum_of_squares(field)[0]):
        assert total == pytest.approx(VALUES.sum())


def cut(side: int, generator: np.random.Generator) -> list[tuple[int, int, int, int]]:
    """Rectangles by random cuts of random rectangles."""
    parts = [(0, 0, side, side)]
    for _ in range(60):
        x0, y0, x1, y1 = parts.pop(generator.integers(len(parts)))
        if x1 - x0 > 1 and (generator.random() < 0.5 or y1 - y0 == 1):
            at = int(generator.integers(x0 + 1, x1))
            parts += [(x0, y0, at, y1), (at, y0, x1, y1)]
        elif y1 - y0 > 1:
            at = int(generator.integers(y0 + 1, y1))
            parts += [(x0, y0, x1, at), (x0, at, x1, y1)]
        else:
            parts.append((x0, y0, x1, y1))
    return parts


@pytest.mark.parametrize("seed", range(5))
def test_rectangles_are_painted_as_a_loop_paints_them(seed: int) -> None:
    generator = np.random.default_rng(seed)
    parts = cut(SIDE, generator)
    painted = np.zeros((SIDE, SIDE), dtype=np.int32)
    for number, (x0, y0, x1, y1) in enumerate(parts):
        painted[y0:y1, x0:x1] = number
    x_edges, y_edges, found = paint_rectangles(SIDE, *np.array(parts).T)
    np.testing.assert_array_equal(np.repeat(np.repeat(found, np.diff(y_edges), 0), np.diff(x_edges), 1), painted)


def test_rectangles_that_overlap_are_refused() -> None:
    twice = [[0, 0, 8, 8]] * 3
    with pytest.raises(ValueError, match="overlap"):
        paint_rectangles(8, *np.array(twice).T)


@pytest.mark.parametrize("seed", range(5))
def test_a_value_is_spread_evenly_inside_its_rectangle(seed: int) -> None:
    generator = np.random.default_rng(seed)
    parts = cut(SIDE, generator)
    values = generator.normal(0, 5, len(parts))
    painted = np.zeros((SIDE, SIDE))
    for (x0, y0, x1, y1), value in zip(parts, values, strict=True):
        painted[y0:y1, x0:x1] = value / ((x1 - x0) * (y1 - y0))
    every = np.arange(SIDE + 1)
    partition = Partition(SIDE, *np.array(parts).T, values, np.ones(len(parts)))
    found = partition.table(partition.part_index())
    np.testing.assert_allclose(found.sum(BOXES), SummedAreaTable(every, every, painted).sum(BOXES), rtol=0, atol=1e-10)
    assert found.total == pytest.approx(values.sum())


def test_one_rectangle() -> None:
    partition = Partition(8, *(np.array([at]) for at in (0, 0, 8, 8)), np.array([5.0]), np.ones(1))
    one = partition.table(partition.part_index())
    assert one.sum(Boxes(*(np.array([at]) for at in (0.0, 2.0, 4.0, 4.0)))) == pytest.approx([5 / 8])
