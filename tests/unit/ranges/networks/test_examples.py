"""Worlds that agree with noisy counts, and the examples that networks learn from."""

from __future__ import annotations

import math

import numpy as np
import pytest
from scipy import stats

from sfumato.schemas.ranges import Boxes
from sfumato.transforms.ranges.field_counts import NoisyGrid, strip_edges
from sfumato.transforms.ranges.networks import examples
from sfumato.transforms.ranges.networks.examples import (
    CONCENTRATIONS,
    INPUTS,
    QueryDistribution,
    Surroundings,
    World,
    make_examples,
    sample_world,
)
from tests.seeds import seeded_rng
from tests.statistics import FLAKE_RATE
from tests.unit.ranges.networks.common import CELL, clumped, coarse, counted
from tests.unit.ranges.oracle import overlap, random_boxes

SIDE = 64
USERS = seeded_rng(4).poisson(3, (6, 9)).astype(float)


@pytest.mark.parametrize(("stretch", "origin"), [(1.0, (0.0, 0.0)), (1.2, (-5.5, -3.25)), (0.8, (7.0, 9.5))])
def test_sums_are_those_of_the_stretched_and_shifted_cells(stretch: float, origin: tuple[float, float]) -> None:
    boxes = random_boxes(seeded_rng(1), SIDE, 40)
    found = World(USERS, SIDE, stretch, origin).sum(boxes)
    width, height = stretch * SIDE / 9, stretch * SIDE / 6
    for number in range(len(boxes)):
        x0, y0, x1, y1 = (float(getattr(boxes, name)[number]) for name in ("x0", "y0", "x1", "y1"))
        expected = 0.0
        for row in range(6):
            for column in range(9):
                left, top = origin[0] + column * width, origin[1] + row * height
                area = overlap(left, left + width, x0, x1) * overlap(top, top + height, y0, y1)
                expected += USERS[row, column] * area / (width * height)
        assert found[number] == pytest.approx(expected, abs=1e-9)


@pytest.mark.false_alarm(4e-9)
def test_places_are_where_users_are() -> None:
    stretch, (left, top) = 1.2, (-5.5, -3.25)
    x, y = World(USERS, SIDE, stretch, (left, top)).draw_users(50_000, seeded_rng(1))
    column, across = np.divmod((x - left) / (stretch * SIDE / 9), 1)
    row, down = np.divmod((y - top) / (stretch * SIDE / 6), 1)
    at = (row * 9 + column).astype(int)
    assert at.min() >= 0
    assert at.max() < USERS.size
    found, some = np.bincount(at, minlength=USERS.size), USERS.ravel() > 0
    assert found[~some].sum() == 0
    expected = USERS.ravel() / USERS.sum() * len(x)
    assert stats.chisquare(found[some], expected[some]).pvalue > FLAKE_RATE
    assert stats.chisquare(found[some], np.full(some.sum(), len(x) / some.sum())).pvalue < FLAKE_RATE
    for within in (across, down):
        assert stats.kstest(within, "uniform").pvalue > FLAKE_RATE


@pytest.mark.false_alarm(4e-9)
def test_squares_surround_users_in_the_requested_sizes() -> None:
    squares, world = QueryDistribution((2.0, 3.0), (8.0, 12.0)), World(USERS, SIDE, 1.2, (-5.5, -3.25))
    boxes = squares.draw(world, SIDE, 20_000, seeded_rng(1))
    width, height = boxes.x1 - boxes.x0, boxes.y1 - boxes.y0
    x, y = (boxes.x0 + boxes.x1) / 2, (boxes.y0 + boxes.y1) / 2
    for at in (x, y):
        assert at.min() >= -1e-9
        assert at.max() <= SIDE + 1e-9
    # Not all worlds lie within the field: what is beyond is left out, and no more.
    share = world.sum(Boxes(*(np.array([float(edge)]) for edge in (0, 0, SIDE, SIDE))))[0] / USERS.sum()
    assert 0.5 < share < 0.99
    assert len(boxes) / 20_000 == pytest.approx(share, abs=6 * np.sqrt(share * (1 - share) / 20_000))
    np.testing.assert_allclose(height, 1.5 * width)
    # All sizes alike, by their logarithms.
    assert stats.kstest(np.log(width / 2) / np.log(4), "uniform").pvalue > FLAKE_RATE

    lonely = np.zeros((6, 9))
    lonely[2, 3] = 1
    boxes = squares.draw(World(lonely, SIDE, 1.0, (0, 0)), SIDE, 100, seeded_rng(1))
    x, y = (boxes.x0 + boxes.x1) / 2, (boxes.y0 + boxes.y1) / 2
    assert ((x >= SIDE / 9 * 3) & (x <= SIDE / 9 * 4) & (y >= SIDE / 6 * 2) & (y <= SIDE / 6 * 3)).all()


def test_examples_match_their_worlds_and_squares(monkeypatch: pytest.MonkeyPatch) -> None:
    drawn = []

    class Recorded(QueryDistribution):
        def draw(self, world: World, side: int, count: int, rng: np.random.Generator) -> Boxes:
            boxes = super().draw(world, side, count, rng)
            drawn.append((world, boxes))
            return boxes

    # Spread evenly, because worlds of one clump may have it outside the field.
    grid = counted(np.full((8, 8), 8.0), 3.0)
    found = make_examples(grid, 500.0, 5.0, Recorded((6.0, 6.0), (20.0, 20.0)), 3, 200, seeded_rng(1))
    assert len(drawn) == 6
    assert drawn[0][0] is drawn[1][0]
    assert len({id(world) for world, _ in drawn}) == 3
    np.testing.assert_array_equal(
        found.users, np.concatenate([world.sum(boxes).astype(np.float32) for world, boxes in drawn])
    )
    assert found.inputs.shape == (len(found.users), INPUTS)
    assert all(len(column) == len(found.users) and column.dtype == np.float32 for column in found)
    assert 300 < len(found.users) <= 600  # 64% or more of a stretched world's area is inside the field
    assert np.isfinite(found.inputs).all()


def test_the_counts_of_examples_are_those_of_their_users() -> None:
    # Boxes of whole cells: with next to no noise, what is counted there is what is there, wherever a world lies.
    low, many = seeded_rng(1).integers(0, 5, (2, 30)) * CELL, seeded_rng(2).integers(1, 4, (2, 30)) * CELL
    whole = QueryDistribution((1.0, 1.0), (2.0, 2.0), Boxes(*low.astype(float), *(low + many).astype(float)))
    users = clumped(8, 20, 500, 0.7, 1)
    for noise in (1e-3, 4.0):
        found = make_examples(counted(users, noise), 500.0, 5.0, whole, 16, 400, seeded_rng(1))
        off = (found.own - found.users) / noise
        # The deviation is that of a box which meets one cell more than it has.
        cells = (found.deviation / noise) ** 2 - 1
        np.testing.assert_allclose(cells, np.rint(cells), atol=1e-3)
        # Float32 errs by 500 * 6e-8, much less than the small noise. With up to 9 cells of 64, 7 boxes of a draw share
        # none; the squares of sums of so many Laplace variables have variance 2.4, in units of their mean.
        assert np.mean(off**2 / cells) == pytest.approx(1.0, abs=6 * np.sqrt(2.4 / (16 * 2 * 7)))
    assert found.users.std() > 5


def test_worlds_lie_askew_and_the_generator_makes_them(monkeypatch: pytest.MonkeyPatch) -> None:
    made = []

    class Recorded(World):
        def __init__(self, users: np.ndarray, side: int, stretch: float, origin: tuple[float, float]):
            super().__init__(users, side, stretch, origin)
            made.append((users, stretch, origin))

    monkeypatch.setattr(examples, "World", Recorded)
    grid, squares = counted(clumped(8, 20, 500, 0.7, 1), 3.0), QueryDistribution((6.0, 6.0), (20.0, 20.0))
    one, again, other = (make_examples(grid, 500.0, 5.0, squares, 8, 20, seeded_rng(seed)) for seed in (1, 1, 2))
    for mine, same in zip(one, again, strict=True):
        np.testing.assert_array_equal(mine, same)
    assert len(other.users) != len(one.users) or (other.users != one.users).any()
    for users, stretch, (left, top) in made:
        assert (users == np.rint(users)).all()
        assert np.exp(-0.25) <= stretch <= np.exp(0.25)
        # Their middle is that of the field, or up to a cell to the right and below.
        for corner in (left, top):
            assert 0 <= corner + stretch * SIDE / 2 - SIDE / 2 <= CELL
    assert len({stretch for _, stretch, _ in made}) == 16


SEEN_SIDE, NOISE, SMOOTHING = 96, 4.0, 7.0
X_EDGES, Y_EDGES = strip_edges(SEEN_SIDE, 8), strip_edges(SEEN_SIDE, 6)
COUNTS = seeded_rng(3).normal(5, 9, (16, 12))
GRID = NoisyGrid(X_EDGES, Y_EDGES, COUNTS, NOISE)
_SCALES = (1, 1.5, 2, 3, 4, 6, 9, 14, 22, 40)
_BESIDE = [(x, y) for x in (-1, 0, 1) for y in (-1, 0, 1) if (x, y) != (0, 0)]
SEEN = [*((0, 0, scale, scale) for scale in _SCALES), *((x, y, 1, 1) for x, y in _BESIDE), (0, 0, 3, 1), (0, 0, 1, 3)]


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


def test_inputs_are_sums_in_units_of_noise() -> None:
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


SUBDIVISION = 2  # cells of a world along each side of a grid's cell
SMALL = seeded_rng(5).poisson(6, (13, 22)).astype(float)


def size_biased(users: np.ndarray, times: int) -> float:
    """How many users share a cell with a user, on average, where times x times cells are one."""
    cells = coarse(users, times)
    return float((cells**2).sum() / cells.sum())


@pytest.mark.parametrize("nodes", [3, 2000])
@pytest.mark.parametrize("users", [0.5, 20.0, 3000.0])  # of few, shares are proposed by the prior; of many, by counts
def test_shares_sum_to_one_inside_the_grid(nodes: int, users: float) -> None:
    inside = np.tile([1.0, 0.5, 1.0, 0.0], (nodes, 1))
    inside[0] = 0.0
    noise = 9.0 * np.sqrt(inside)
    measured = users / 2.5 * inside + seeded_rng(2).normal(size=inside.shape) * noise
    some = examples._Nodes(np.where(inside.any(axis=1), users, 0.0), measured, inside, noise)
    typical = np.full(len(CONCENTRATIONS), 1 / len(CONCENTRATIONS))
    shares, weights, typical = examples._draw_shares(some, typical, False, seeded_rng(1))
    np.testing.assert_allclose(shares[1:].sum(axis=1), 1.0)
    assert (shares >= 0).all()
    assert (shares[inside == 0] == 0).all()
    np.testing.assert_allclose(weights.sum(axis=1), 1.0)
    assert typical.sum() == pytest.approx(1.0)


@pytest.mark.false_alarm(1e-9)
def test_a_clumped_population_has_worlds_as_clumped() -> None:
    """Over eight populations. The worlds of 40 had an error with a standard deviation of 0.12 and no bias."""
    off, of_even = [], []
    for number in range(8):
        users = clumped(64, 1000, 20_000, 0.7, number)
        grid = counted(users, 28.0)
        worlds = [
            seeded_rng(9).poisson(coarse(sample_world(grid, users.sum(), seeded_rng(seed)), SUBDIVISION)).astype(float)
            for seed in range(4)
        ]
        even = seeded_rng(1).poisson(users.mean(), users.shape).astype(float)
        for times in (1, 4):
            truth = size_biased(users, times)
            off.append(math.log(np.mean([size_biased(world, times) for world in worlds]) / truth))
            of_even.append(math.log(size_biased(even, times) / truth))
    error, error_of_even = (math.sqrt(np.mean(np.square(one))) for one in (off, of_even))
    assert error < math.log(1.5) < error_of_even
