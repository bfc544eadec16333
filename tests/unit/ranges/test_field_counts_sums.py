import numpy as np
import pytest

from sfumato.schemas.ranges import Boxes
from sfumato.transforms.ranges.field_counts import SummedAreaTable
from tests.seeds import seeded_rng
from tests.unit.ranges.oracle import overlap, random_boxes

SIDE = 16
X = np.array([0, 1, 2, 7, 8, 16])
Y = np.array([0, 5, 6, 13, 16])
VALUES = seeded_rng(1).normal(3, 4, (len(Y) - 1, len(X) - 1))
BOXES = random_boxes(seeded_rng(2), SIDE, 400)


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
