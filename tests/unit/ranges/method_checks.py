"""What every method is held to."""

from __future__ import annotations

import numpy as np

from tests.statistics import FLAKE_RATE, chi_square_p, discrete_laplace_pmf


def assert_discrete_laplace(added: np.ndarray, epsilon: float, wrong: float) -> None:
    """The noise is that of epsilon, and the test can tell it from that of a wrong epsilon."""
    sample = added.astype(np.int64)
    np.testing.assert_array_equal(sample, added)
    reach = round(30 / min(epsilon, wrong))
    assert chi_square_p(sample, discrete_laplace_pmf(epsilon, reach)) > FLAKE_RATE
    assert chi_square_p(sample, discrete_laplace_pmf(wrong, reach)) < FLAKE_RATE
