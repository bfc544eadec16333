import pickle

import numpy as np
import pytest

from sfumato.transforms.ranges.field_counts import CellTally, ExactCounts
from tests.seeds import seeded_rng
from tests.unit.ranges.oracle import image, people_at

DEPTH = 5
X, Y = seeded_rng(4).integers(0, 1 << DEPTH, (2, 900))


def test_of_counts_the_users_of_each_cell() -> None:
    people = people_at(DEPTH, X, Y)
    expected = np.zeros((32, 32), dtype=int)
    for x, y in zip(X, Y, strict=True):
        expected[y, x] += 1
    np.testing.assert_array_equal(image(people), expected)
    assert (np.diff(people.codes.astype(np.int64)) > 0).all()
    assert (people.users > 0).all()
    x, y = people.xy
    np.testing.assert_array_equal(expected[y, x], people.users)
    assert people.side == 32


def test_sum_is_all_the_parts() -> None:
    whole = people_at(DEPTH, X, Y)
    found = ExactCounts.sum(people_at(DEPTH, X[at], Y[at]) for at in np.array_split(np.arange(900), 7))
    assert found.depth == DEPTH
    np.testing.assert_array_equal(found.codes, whole.codes)
    np.testing.assert_array_equal(found.users, whole.users)


def test_nobody() -> None:
    nobody = ExactCounts.sum([people_at(DEPTH, [], []), people_at(DEPTH, [], [])])
    assert len(nobody.codes) == 0
    assert nobody.on_grid(np.array([0, 32]), np.array([0, 32])).tolist() == [[0]]


def test_on_grid_is_a_loop_over_cells() -> None:
    people = people_at(DEPTH, X, Y)
    x_edges, y_edges = np.array([0, 1, 10, 11, 32]), np.array([0, 16, 31, 32])
    found, base = people.on_grid(x_edges, y_edges), image(people)
    for row in range(3):
        for column in range(4):
            cells = base[y_edges[row] : y_edges[row + 1], x_edges[column] : x_edges[column + 1]]
            assert found[row, column] == cells.sum()
    assert found.shape == (3, 4)
    assert found.dtype == np.int64


@pytest.mark.parametrize("pieces", [1, 3, 200])
@pytest.mark.parametrize("users", [10, 60, 900])  # an array of all cells is used from 64 numbers on
def test_a_tally_is_the_sum_however_it_is_cut_and_sent(pieces: int, users: int) -> None:
    people = people_at(DEPTH, X[:users], Y[:users])
    codes = np.repeat(people.codes, people.users).view(np.int64)
    tally, other = CellTally(DEPTH), CellTally(DEPTH)
    for number, part in enumerate(np.array_split(codes, pieces)):
        (other if number % 2 else tally).add(part)
    for part in pickle.loads(pickle.dumps(other)).parts():
        tally.add(part)
    found = tally.total()
    np.testing.assert_array_equal(found.codes, people.codes)
    np.testing.assert_array_equal(found.users, people.users)
    assert (found.codes.dtype, found.users.dtype) == (np.uint64, np.int64)
