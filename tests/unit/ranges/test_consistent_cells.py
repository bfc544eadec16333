"""The map that agrees with noisy counts: it adds up, has no cell below 0, and is right where counts are sure."""

from __future__ import annotations

import numpy as np
import pytest

from sfumato.schemas.ranges import Boxes
from sfumato.transforms.ranges import consistent_cells
from sfumato.transforms.ranges.consistent_cells import Shape, consistent_table
from sfumato.transforms.ranges.field_counts import NoisyGrid
from tests.unit.ranges.networks.common import CELL, clumped, counted

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


@pytest.mark.parametrize("size", [3.0, 17.0, 64.0, 200.0])
@pytest.mark.parametrize("guessed", [False, True])
def test_tiles_sum_to_all_users_and_none_is_below_0(size: float, guessed: bool) -> None:
    users, noisy = grid()
    guess = shape(noisy, users + 5, 0.8) if guessed else None
    sums = consistent_table(noisy, users.sum() + 100, guess).sum(tiles(noisy.side, size))
    assert sums.sum() == pytest.approx(users.sum() + 100)
    assert sums.min() >= -1e-9
    clipped = noisy.table(np.maximum(noisy.users, 0)).sum(tiles(noisy.side, size))
    assert clipped.sum() > 1.2 * users.sum()  # what it is for


def test_sure_counts_are_kept() -> None:
    users, noisy = grid(noise=1e-6)
    for guess in (None, shape(noisy, np.ones_like(users), 1.0)):
        cells = consistent_table(noisy, users.sum(), guess).sum(Boxes.between(noisy.x_edges, noisy.y_edges))
        np.testing.assert_allclose(cells, users.ravel(), atol=1e-2)


def test_a_number_of_users_that_the_counts_contradict_is_not_used() -> None:
    users, noisy = grid()
    deviation = NOISE * np.sqrt(users.size)
    for number in (None, users.sum() + 100 * deviation, users.sum() - 100 * deviation):
        assert consistent_table(noisy, number).total == pytest.approx(noisy.users.sum())


@pytest.mark.parametrize("guessed", [False, True])
def test_empty_places_stay_empty_and_full_ones_full(guessed: bool) -> None:
    """Half of 64 x 64 cells is empty. The noise of a half has a deviation of 634 users, and 5 of them are allowed.

    Counts that are cut off at 0 say 10,000 users in the empty half: 2,048 times half the mean of |noise|.
    """
    users = np.zeros((64, 64))
    users[:, 32:] = 5.0
    noisy = counted(users, NOISE)
    guess = shape(noisy, users + 3, 0.9) if guessed else None
    table = consistent_table(noisy, users.sum(), guess)
    halves = Boxes(*(np.array(edge, dtype=float) for edge in ((0, 256), (0, 0), (256, 512), (512, 512))))
    allowed = 5 * NOISE * np.sqrt(2048)
    np.testing.assert_allclose(table.sum(halves), [0, users.sum()], atol=allowed)
    assert noisy.table(np.maximum(noisy.users, 0)).sum(halves)[0] > 2 * allowed


def test_cells_have_less_error_than_counts() -> None:
    users, noisy = grid()
    error = {
        name: np.sqrt(np.mean((cells.reshape(users.shape) - users) ** 2))
        for name, cells in {
            "counts": noisy.users,
            "clipped": np.maximum(noisy.users, 0),
            "map": consistent_table(noisy, users.sum()).sum(Boxes.between(noisy.x_edges, noisy.y_edges)),
        }.items()
    }
    assert error["map"] < 0.9 * error["clipped"] < 0.9 * error["counts"]


def test_a_part_without_doubt_is_kept_and_the_others_of_its_block_share_the_rest() -> None:
    """A count of 64 users in 4 cells, of which one is sure of 40. Noise hides which of the cells has them."""
    noisy = NoisyGrid(np.array([0, 4, 8]), np.array([0, 4, 8]), np.full((2, 2), 16.0), 1e6)
    guess = shape(noisy, np.array([[40.0, 30.0], [20.0, 10.0]]), np.array([[0.0, 1.0], [1.0, 1.0]]))
    cells = consistent_table(noisy, 64.0, guess).sum(Boxes.between(noisy.x_edges, noisy.y_edges))
    np.testing.assert_allclose(cells, [40.0, 12.0, 8.0, 4.0], rtol=1e-6)


def test_cells_can_be_cut_into_parts() -> None:
    users, noisy = grid()
    edges = [
        np.rint(np.linspace(0, noisy.side, 3 * len(one) - 2)).astype(np.int64) for one in (noisy.x_edges, noisy.y_edges)
    ]
    parts = np.kron(users, np.ones((3, 3))) + 1
    table = consistent_table(noisy, users.sum(), Shape(parts, np.full(parts.shape, 0.5), *edges))
    assert table.total == pytest.approx(users.sum())


def test_a_fine_grid_is_counted_in_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    users, noisy = grid(noise=1.0)
    whole = consistent_table(noisy, users.sum()).sum(Boxes.between(noisy.x_edges, noisy.y_edges))
    monkeypatch.setattr(consistent_cells, "MAX_SIDE", 16)  # blocks of 3 x 3 cells, the last of a row smaller
    table = consistent_table(noisy, users.sum())
    assert table.total == pytest.approx(users.sum())
    blocks = Boxes.between(np.append(noisy.x_edges[:-1:3], noisy.side), noisy.y_edges[::3])
    exact = NoisyGrid(noisy.x_edges, noisy.y_edges, users, NOISE).table().sum(blocks)
    assert np.corrcoef(table.sum(blocks), exact)[0, 1] > 0.99
    assert not np.allclose(table.sum(Boxes.between(noisy.x_edges, noisy.y_edges)), whole)


@pytest.mark.parametrize("times", [1, 2])
def test_a_first_guess_of_a_fine_grid_is_fitted_in_the_same_blocks(times: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of a region that is wider than high: 49 x 37 cells in blocks of 4 x 4, the last ones smaller."""
    users, noisy = grid(rows=49, noise=1e-3)
    monkeypatch.setattr(consistent_cells, "MAX_SIDE", 16)
    edges = [
        np.rint(np.linspace(0, noisy.side, times * (len(one) - 1) + 1)).astype(np.int64)
        for one in (noisy.x_edges, noisy.y_edges)
    ]
    parts = np.ones((times * users.shape[0], times * users.shape[1]))
    table = consistent_table(noisy, users.sum(), Shape(parts, np.ones_like(parts), *edges))
    assert table.total == pytest.approx(users.sum())
    blocks = Boxes.between(*(np.append(one[:-1:4], noisy.side) for one in (noisy.x_edges, noisy.y_edges)))
    exact = NoisyGrid(noisy.x_edges, noisy.y_edges, users, NOISE).table().sum(blocks)
    np.testing.assert_allclose(table.sum(blocks), exact, atol=0.05)


@pytest.mark.parametrize("guessed", [False, True])
def test_a_region_without_users_has_a_map_of_zeros(guessed: bool) -> None:
    noisy = NoisyGrid(np.array([0, 4, 8]), np.array([0, 4, 8]), np.full((2, 2), -3.0), 2.0)
    guess = shape(noisy, np.zeros((2, 2)), 0.5) if guessed else None
    for number in (0.0, -5.0, None):
        assert consistent_table(noisy, number, guess).total == pytest.approx(0.0, abs=1e-6)


def test_a_first_guess_of_nobody_spreads_users_evenly() -> None:
    noisy = NoisyGrid(np.array([0, 4, 8]), np.array([0, 4, 8]), np.full((2, 2), 2.0), 1e6)
    cells = consistent_table(noisy, 8.0, shape(noisy, np.zeros((2, 2)), 0.5))
    np.testing.assert_allclose(cells.sum(Boxes.between(noisy.x_edges, noisy.y_edges)), 2.0)
