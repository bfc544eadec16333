"""The exact epsilon of what honest clients' shares of the noise leave, against sums of exact probabilities."""

from __future__ import annotations

import math

import numpy as np
import pytest

from sfumato.transforms.privacy.colluding import colluding_epsilon
from tests.statistics import polya_difference_pmf


@pytest.mark.parametrize("epsilon", [0.05, 0.4, 1.0, 3.0])
@pytest.mark.parametrize("shape", [0.3, 0.5, 0.8, 0.95, 0.99])
def test_epsilon_is_the_largest_log_ratio_of_neighbouring_probabilities(epsilon: float, shape: float) -> None:
    reach = math.ceil(12 / epsilon)
    logs = np.log(polya_difference_pmf(shape, epsilon, 2 * reach))[reach:-reach]
    assert math.isclose(np.abs(np.diff(logs)).max(), colluding_epsilon(epsilon, 1, shape), rel_tol=1e-6)
    assert colluding_epsilon(epsilon, 1, shape) > epsilon


@pytest.mark.parametrize("shape", [0.3, 0.8, 0.95])
def test_the_logarithms_of_probabilities_are_convex_beside_zero(shape: float) -> None:
    """So a change of 1 in each of several entries costs most, and `colluding_epsilon` adds that up."""
    pmf = polya_difference_pmf(shape, 0.3, 60)
    assert (np.diff(np.log(pmf[60:]), 2) > 0).all()
    losses = [math.log(pmf[60] / pmf[60 + change]) for change in range(6)]
    bound = [change * colluding_epsilon(0.3, 1, shape) for change in range(6)]
    assert math.isclose(losses[1], bound[1], rel_tol=1e-9)
    assert all(loss < most for loss, most in zip(losses[2:], bound[2:], strict=True))
    assert math.isclose(colluding_epsilon(1.5, 5, shape), bound[5], rel_tol=1e-9)


def test_the_discrete_laplace_noise_and_more_have_the_stated_epsilon() -> None:
    for shape in (1.0, 1.05, 3.0):
        assert colluding_epsilon(0.7, 1, shape) == 0.7
    assert math.isclose(colluding_epsilon(0.7, 1, 1 - 1e-12), 0.7, rel_tol=1e-9)
    assert math.isclose(colluding_epsilon(1, 1, 0.95), 1.0479, rel_tol=1e-4)


def test_epsilon_is_finite_for_the_smallest_rates() -> None:
    epsilons = [colluding_epsilon(1, sensitivity, 0.95) for sensitivity in (1, 10, 10**3, 10**6)]
    assert epsilons == sorted(epsilons)
    assert epsilons[-1] < 4
