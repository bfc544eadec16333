import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sfumato.schemas.ranges import Boxes
from sfumato.transforms.ranges.field_counts import (
    MIN_CLUMPING,
    NoisyGrid,
    add_noise,
    centre_variance,
    strip_edges,
)
from sfumato.transforms.ranges.field_counts import clumping as clumping_of
from tests.seeds import seeded_rng
from tests.statistics import FLAKE_RATE, chi_square_p, discrete_laplace_pmf
from tests.unit.ranges.oracle import run_key


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


def test_users_all_in_one_half_of_everything_clump() -> None:
    users = np.zeros((64, 64))
    users[::2, ::2] = 100
    assert clumping_of(noisy_grid(users)) == pytest.approx(1 - 1 / 100)


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


def test_nobody_does_not_clump() -> None:
    assert clumping_of(noisy_grid(np.zeros((4, 4)))) == 0
    assert clumping_of(noisy_grid(np.zeros((1, 1)))) == 0


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


def test_a_box_that_covers_its_middles_cell_is_off_by_its_own_user_alone() -> None:
    cell, box = (Boxes(*(np.array([at]) for at in corners)) for corners in ((2.0, 2.0, 4.0, 4.0), (1.0, 2.0, 4.0, 5.0)))
    assert centre_variance(box, cell, np.full(1, 1e6), 0.2).tolist() == [1.0]
    assert centre_variance(box, cell, np.full(1, -5.0), 0.2).tolist() == [1.0]


EPSILON = 0.5
COUNTS = np.arange(200_000).reshape(400, 500) % 7


def drawn(epsilon: float = EPSILON, label: str = "a", key: int = 1) -> np.ndarray:
    return add_noise(COUNTS, epsilon, run_key(key), label) - COUNTS


def test_noise_is_discrete_laplace_of_scale_one_over_epsilon() -> None:
    sample = drawn().ravel().astype(np.int64)
    assert chi_square_p(sample, discrete_laplace_pmf(EPSILON, 60)) > FLAKE_RATE
    for wrong in (0.97, 1.03):
        assert chi_square_p(sample, discrete_laplace_pmf(EPSILON * wrong, 60)) < FLAKE_RATE


def test_noise_of_different_cells_is_independent() -> None:
    sample = drawn().ravel()
    for lag in (1, 500, 4096, 100_000):
        # Products of independent draws: mean 0, standard deviation s^2.
        z = (sample[:-lag] * sample[lag:]).mean() / sample.var() * np.sqrt(len(sample) - lag)
        assert abs(z) < 6.2


def test_a_key_and_a_label_give_the_same_noise_again() -> None:
    np.testing.assert_array_equal(drawn(), drawn())
    for other in (drawn(label="b"), drawn(key=2)):
        assert 0.05 < (drawn() == other).mean() < 0.3  # two draws are equal with probability 0.13


def test_shapes_are_kept() -> None:
    assert add_noise(np.zeros((0,), dtype=np.int64), 1.0, run_key(1), "a").shape == (0,)
    assert add_noise(np.zeros((3, 0, 2), dtype=np.int64), 1.0, run_key(1), "a").shape == (3, 0, 2)
    found = add_noise(np.zeros((1, 1), dtype=np.int64), 1.0, run_key(1), "a")
    assert found.shape == (1, 1)
    assert found.dtype == np.float64


def test_almost_no_noise_at_the_largest_epsilon() -> None:
    np.testing.assert_array_equal(drawn(epsilon=30.0), 0)


@pytest.mark.parametrize("epsilon", [0.0, 30.1, float("nan")])
def test_epsilons_that_noise_cannot_keep_are_refused(epsilon: float) -> None:
    with pytest.raises(ValueError, match="epsilon"):
        drawn(epsilon=epsilon)
