import numpy as np
import pytest

from sfumato.transforms.ranges.methods.dawa import hilbert_index, hilbert_xy


def drawn(depth: int) -> list[tuple[int, int]]:
    """The curve, by its rule: four smaller ones, the first and the last of them turned over."""
    if depth == 0:
        return [(0, 0)]
    half, smaller = 1 << (depth - 1), drawn(depth - 1)
    first = [(y, x) for x, y in smaller]
    last = [(2 * half - 1 - y, half - 1 - x) for x, y in smaller]
    return first + [(x, y + half) for x, y in smaller] + [(x + half, y + half) for x, y in smaller] + last


@pytest.mark.parametrize("depth", range(7))
def test_the_curve_is_the_one_drawn_by_its_rule(depth: int) -> None:
    x, y = hilbert_xy(np.arange(4**depth), depth)
    assert list(zip(x.tolist(), y.tolist(), strict=True)) == drawn(depth)
    np.testing.assert_array_equal(hilbert_index(x, y, depth), np.arange(4**depth))


def test_neighbours_on_a_deep_curve_share_a_side_and_all_cells_are_met_once() -> None:
    index = np.arange(4**10)
    x, y = hilbert_xy(index, 10)
    assert (np.abs(np.diff(x)) + np.abs(np.diff(y)) == 1).all()
    assert len(np.unique(x * 1024 + y)) == 4**10
    np.testing.assert_array_equal(hilbert_index(x, y, 10), index)


@pytest.mark.parametrize("level", range(11))
def test_runs_from_a_multiple_of_their_length_are_rectangles(level: int) -> None:
    x, y = (at.reshape(-1, 1 << level) for at in hilbert_xy(np.arange(4**5), 5))
    width, height = np.ptp(x, axis=1) + 1, np.ptp(y, axis=1) + 1
    assert (width * height == 1 << level).all()
    assert (np.maximum(width, height) <= 2 * np.minimum(width, height)).all()


def test_an_index_without_its_last_bits_is_that_of_a_coarser_cell() -> None:
    x, y = np.random.default_rng(1).integers(0, 1 << 12, (2, 500))
    for up in range(12):
        coarse = hilbert_index(x >> up, y >> up, 12 - up)
        np.testing.assert_array_equal(hilbert_index(x, y, 12) >> (2 * up), coarse)
