"""Exact and noisy counts on a field: sums over boxes, noise, clumping, grids, and maps that agree with them."""

from __future__ import annotations

import pickle
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sfumato.schemas.ranges import Boxes, Field, Sizes
from sfumato.schemas.region import Grid, Region
from sfumato.transforms.privacy.additive_noise import GAUSSIAN
from sfumato.transforms.ranges.consistent_cells import Shape, consistent_table
from sfumato.transforms.ranges.field_counts import (
    MIN_CLUMPING,
    CellTally,
    CollectionSpec,
    NoisyGrid,
    SummedAreaTable,
    add_noise,
    centre_variance,
    strip_edges,
)
from sfumato.transforms.ranges.field_counts import clumping as clumping_of
from sfumato.transforms.ranges.methods import PlainGrid, collect_grid
from tests.seeds import seeded_rng
from tests.unit.ranges.method_checks import assert_discrete_laplace
from tests.unit.ranges.networks.common import CELL, clumped, counted
from tests.unit.ranges.oracle import image, overlap, people_at, random_boxes, run_key, spec_of, town

DEPTH = 5
X, Y = seeded_rng(4).integers(0, 1 << DEPTH, (2, 900))


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


SUMS_SIDE = 16
X_EDGES = np.array([0, 1, 2, 7, 8, 16])
Y_EDGES = np.array([0, 5, 6, 13, 16])
VALUES = seeded_rng(1).normal(3, 4, (len(Y_EDGES) - 1, len(X_EDGES) - 1))
BOXES = random_boxes(seeded_rng(2), SUMS_SIDE, 400)


def shares(boxes: Boxes, box: int) -> np.ndarray:
    """Of each cell, how much of it a box covers."""
    found = np.zeros(VALUES.shape)
    for row in range(len(Y_EDGES) - 1):
        for column in range(len(X_EDGES) - 1):
            across = overlap(boxes.x0[box], boxes.x1[box], X_EDGES[column], X_EDGES[column + 1]) / (
                X_EDGES[column + 1] - X_EDGES[column]
            )
            down = overlap(boxes.y0[box], boxes.y1[box], Y_EDGES[row], Y_EDGES[row + 1]) / (
                Y_EDGES[row + 1] - Y_EDGES[row]
            )
            found[row, column] = across * down
    return found


@pytest.mark.parametrize("power", [1, 2])
def test_sums_over_boxes_are_those_of_a_loop_over_cells(power: int) -> None:
    table = SummedAreaTable(X_EDGES, Y_EDGES, VALUES)
    found = table.sum(BOXES) if power == 1 else table.sum_of_squares(BOXES)
    expected = [(VALUES * shares(BOXES, box) ** power).sum() for box in range(len(BOXES))]
    np.testing.assert_allclose(found, expected, rtol=0, atol=1e-11)
    assert np.abs(found).max() > 10


FIELD = Field(Grid(Region(-122.5, 37.7, -122.36, 37.81), 12))
WANTED = CollectionSpec(FIELD, 217_438.0, 0.2, Sizes(25.0, 100.0))


def test_the_rule_by_hand() -> None:
    """In a region of 16 km, at squares of 25 m and n epsilon of 1e4: 46 x 5 x 11.2468 / 63.0957 m."""
    side = 16_000 / 111_195.08
    spec = CollectionSpec(Field(Grid(Region(0, -side / 2, side, side / 2), 12)), 1e5, 0.1, Sizes(12.5, 50.0))
    assert spec.default_width == pytest.approx(46 * 5 * 11.2468 / 63.0957, rel=1e-4)


@pytest.mark.parametrize("users", [-12.0, 0.0, 1.0])
def test_noisy_numbers_of_users_make_cells_that_fit(users: float) -> None:
    assert replace(WANTED, users=users).default_width == replace(WANTED, users=1.0).default_width
    assert replace(WANTED, users=users, cost=1e-9).default_width == min(FIELD.metres)


@given(st.integers(1, 4096), st.floats(1e-3, 1e5))
def test_edges_span_the_field_in_strips_of_about_one_width(side: int, cells: float) -> None:
    found = strip_edges(side, cells)
    widths = np.diff(found)
    assert found.dtype == np.int64
    assert found[0] == 0
    assert found[-1] == side
    assert widths.min() >= 1
    assert widths.max() - widths.min() <= 1
    strips = side / cells
    assert abs(len(widths) - min(max(strips, 1), side)) <= 0.5


def noisy_grid(users: np.ndarray, noise_stddev: float = 0.0) -> NoisyGrid:
    rows, columns = users.shape
    return NoisyGrid(np.arange(columns + 1), np.arange(rows + 1), users.astype(float), noise_stddev)


def test_users_spread_evenly_do_not_clump() -> None:
    users = seeded_rng(1).poisson(100, (64, 64))
    # (a - b)^2 - a - b has standard deviation sqrt(8) 100 in each of 2 x 2048 pairs, over a sum of 4 x 100^2.
    assert clumping_of(noisy_grid(users)) <= 6 * np.sqrt(8) * 100 / np.sqrt(4096) / (4 * 100**2)


def test_clumping_is_in_between_where_users_are() -> None:
    users = np.zeros((64, 64))
    users[::2] = 75
    users[1::2] = 25
    # Pairs down the map differ by half of their sum of 100; those across do not differ.
    above = 50**2 - 100 - (150 + 50) / 2
    assert clumping_of(noisy_grid(users)) == pytest.approx(above / (100**2 + (150**2 + 50**2) / 2))


def test_noise_is_not_taken_for_clumps() -> None:
    epsilon = 0.02
    counts = add_noise(np.full((64, 64), 100), epsilon, run_key(1), "test")
    # A squared difference has mean 2 s^2 = 10^4 by the noise, and a standard deviation below 2 x 10^4; over 4096 pairs,
    # whose sums squared are 4 x 10^4 without the noise, a standard error below 0.008.
    assert clumping_of(noisy_grid(counts, np.sqrt(2) / epsilon)) < 0.05
    assert clumping_of(noisy_grid(counts, 0.0)) > 0.15


@pytest.mark.parametrize("halvings", [1, 2, 3, 6])
@pytest.mark.parametrize("clumps", [0.3, 0.6, 1.0])
def test_a_box_about_somebody_holds_more_than_its_share(halvings: int, clumps: float) -> None:
    """Every way in which halvings pass on (1 + d) / 2 of a cell's users, d = +-sqrt(r), to one user's half."""
    share = 0.5**halvings
    half = (1 + np.array([1, -1]) * np.sqrt(clumps)) / 2
    held = np.ones(1)
    for _ in range(halvings):
        held = np.outer(held, half).ravel()  # of each part, which holds the user with this probability
    expected = (held * (held - share) ** 2).sum()
    cell, box = (
        Boxes(*(np.array([at]) for at in corners)) for corners in ((0.0, 0.0, 1.0, 1.0), (0.0, 0.0, share, 1.0))
    )
    found = centre_variance(box, cell, np.full(1, 50.0), 0.0)
    if clumps == MIN_CLUMPING:
        assert found == pytest.approx(1 + 50.0**2 * expected)
    counted = clumps * (share - share**2)
    found = centre_variance(box, cell, np.full(1, 50.0), clumps)
    assert found == pytest.approx(1 + 50.0**2 * max(expected - counted, 0))


def test_box_over_its_middle_cell_errs_by_its_own_user() -> None:
    cell, box = (Boxes(*(np.array([at]) for at in corners)) for corners in ((2.0, 2.0, 4.0, 4.0), (1.0, 2.0, 4.0, 5.0)))
    assert centre_variance(box, cell, np.full(1, 1e6), 0.2).tolist() == [1.0]
    assert centre_variance(box, cell, np.full(1, -5.0), 0.2).tolist() == [1.0]


EPSILON = 0.5
COUNTS = np.arange(200_000).reshape(400, 500) % 7


def drawn(epsilon: float = EPSILON, label: str = "a", key: int = 1) -> np.ndarray:
    return add_noise(COUNTS, epsilon, run_key(key), label) - COUNTS


def test_a_key_and_a_label_give_the_same_noise_again() -> None:
    np.testing.assert_array_equal(drawn(), drawn())
    for other in (drawn(label="b"), drawn(key=2)):
        assert 0.05 < (drawn() == other).mean() < 0.3  # two draws are equal with probability 0.13


PEOPLE = town(6, 3000)
LARGER_TOWN = town(6, 4000)


def test_cells_are_of_the_width_asked_for_in_metres() -> None:
    spec = spec_of(6, 3000.0, 30.0)
    width, height = spec.field.cell_metres
    found = PlainGrid(8 * height).collect(PEOPLE, spec, run_key(1))
    assert found.users.shape == (8, round(64 * width / (8 * height)))
    assert found.side == 64


@pytest.mark.false_alarm(1e-8)  # the squares are skewed: six standard errors are exceeded with 6e-9
def test_noise_is_that_of_the_whole_epsilon() -> None:
    lines = np.arange(65)
    exact = PEOPLE.on_grid(lines, lines)
    added = [collect_grid(PEOPLE, 1, 1, 0.4, run_key(key), "a").users - exact for key in range(20)]
    assert_discrete_laplace(np.concatenate(added).ravel(), 0.4, wrong=0.4 * 1.1)
    stated = collect_grid(PEOPLE, 1, 1, 0.4, run_key(1), "a").noise_stddev
    # Squares of Laplace noise have a standard deviation of sqrt(5) times their mean.
    assert np.var(added) == pytest.approx(stated**2, rel=6 * np.sqrt(5 / 81920))


def test_spec_with_rho_states_equal_laplace_noise() -> None:
    spec = replace(spec_of(6, 4000.0, 0.5), cost=0.01, noise_kind=GAUSSIAN)
    grid = PlainGrid(8 * spec.field.cell_metres[1]).collect(PEOPLE, spec, run_key(1))
    assert (spec.noise_kind, spec.cost) == (GAUSSIAN, 0.01)
    assert grid.noise_stddev == GAUSSIAN.stddev(0.01)


# The map that agrees with noisy counts: it adds up, has no cell below 0, and is right where counts are sure.

USERS, NOISE = 20_000, 14.0


def grid(rows: int = 48, columns: int = 37, noise: float = NOISE) -> tuple[np.ndarray, NoisyGrid]:
    """Clumps of users, exact and counted; not a power of two, and not as wide as high in cells."""
    users = clumped(64, 30, USERS, 4.0, 3)[:rows, :columns]
    x_edges, y_edges = (np.rint(np.linspace(0, 64 * CELL, cells + 1)).astype(np.int64) for cells in (columns, rows))
    return users, NoisyGrid(x_edges, y_edges, counted(users, noise).users, noise)


def shape(of: NoisyGrid, users: np.ndarray, doubt: float | np.ndarray) -> Shape:
    return Shape(users, np.broadcast_to(doubt, users.shape), of.x_edges, of.y_edges)


def tiles(side: int, size: float) -> Boxes:
    starts = np.append(np.arange(-0.3 * size, side, size), side)
    return Boxes.between(np.maximum(starts, 0), np.maximum(starts, 0))


@pytest.mark.false_alarm(1e-9)
@pytest.mark.parametrize("size", [3.0, 17.0, 64.0, 200.0])
@pytest.mark.parametrize("guessed", [False, True])
def test_tiles_sum_to_all_users_and_none_is_below_0(size: float, guessed: bool) -> None:
    users, noisy = grid()
    guess = shape(noisy, users + 5, 0.8) if guessed else None
    sums = consistent_table(noisy, users.sum() + 100, guess).sum(tiles(noisy.side, size))
    assert sums.sum() == pytest.approx(users.sum() + 100)
    assert sums.min() >= -1e-9
    # What it is for. Cutting off at 0 adds least where up to 20,000 users lie evenly over the 1,776 cells: 14% of them,
    # with a deviation of 1.2%.
    clipped = noisy.table(np.maximum(noisy.users, 0)).sum(tiles(noisy.side, size))
    assert clipped.sum() - noisy.users.sum() > 0.05 * users.sum()


@pytest.mark.false_alarm(1e-6)
@pytest.mark.parametrize("guessed", [False, True])
def test_empty_places_stay_empty_and_full_ones_full(guessed: bool) -> None:
    """Half of 64 x 64 cells is empty. The noise of all has a deviation of 896 users, and 6 of them are allowed.

    A total of counts that contradicts the number of users by 3 deviations replaces it, so the full half has its error.
    Counts that are cut off at 0 say 10,000 users in the empty half: 2,048 times half the mean of |noise|.
    """
    users = np.zeros((64, 64))
    users[:, 32:] = 5.0
    noisy = counted(users, NOISE)
    guess = shape(noisy, users + 3, 0.9) if guessed else None
    table = consistent_table(noisy, users.sum(), guess)
    halves = Boxes(*(np.array(edge, dtype=float) for edge in ((0, 256), (0, 0), (256, 512), (512, 512))))
    allowed = 6 * NOISE * np.sqrt(4096)
    np.testing.assert_allclose(table.sum(halves), [0, users.sum()], atol=allowed)
    assert noisy.table(np.maximum(noisy.users, 0)).sum(halves)[0] > 1.5 * allowed


def test_certain_part_is_kept_and_others_share_the_rest() -> None:
    """A count of 64 users in 4 cells, of which one is sure of 40. Noise hides which of the cells has them."""
    noisy = NoisyGrid(np.array([0, 4, 8]), np.array([0, 4, 8]), np.full((2, 2), 16.0), 1e6)
    guess = shape(noisy, np.array([[40.0, 30.0], [20.0, 10.0]]), np.array([[0.0, 1.0], [1.0, 1.0]]))
    cells = consistent_table(noisy, 64.0, guess).sum(Boxes.between(noisy.x_edges, noisy.y_edges))
    np.testing.assert_allclose(cells, [40.0, 12.0, 8.0, 4.0], rtol=1e-6)
