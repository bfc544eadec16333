import numpy as np
import pytest

from sfumato.transforms.ranges.noisy_counts import add_noise
from tests.statistics import FLAKE_RATE, chi_square_p, discrete_laplace_pmf
from tests.transforms.ranges.oracle import run_key

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
        assert 0.05 < (drawn() == other).mean() < 0.3  # two draws are equal with chance 0.13


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
