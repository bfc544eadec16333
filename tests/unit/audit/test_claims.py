"""The audit's own accounting, against formulas and exact distributions that it does not use."""

from __future__ import annotations

import math

import numpy as np
import pytest

from sfumato.transforms.audit.answers import Layer, comparisons, tail_bound
from sfumato.transforms.audit.claims import Claim, StatedNoise, composed_epsilon
from sfumato.transforms.audit.measurements import _noise_of_round
from sfumato.transforms.privacy.mechanism import discrete_laplace_stddev, epsilon_for_delta


@pytest.mark.parametrize("sensitivity", [1, 7])
def test_composed_epsilon_adds_up_laplace(sensitivity: int) -> None:
    parts = [0.01, 0.3, 2.0]
    noises = [StatedNoise("laplace", discrete_laplace_stddev(part, sensitivity), sensitivity) for part in parts]
    assert composed_epsilon(tuple(noises)) == pytest.approx(math.fsum(parts), rel=1e-3)


def test_composed_epsilon_of_gaussians_is_that_of_rhos() -> None:
    noises = [StatedNoise("gaussian", 20.0, 2.0), StatedNoise("gaussian", 9.0)]
    rho = math.fsum(one.multiplier**-2 / 2 for one in noises)
    assert composed_epsilon(tuple(noises), 1e-6) == pytest.approx(epsilon_for_delta(rho, 1e-6), rel=1e-3)


@pytest.mark.parametrize(
    ("kind", "stddev"), [("laplace", 0.0), ("gaussian", 0.5), ("uniform", 2.0), ("laplace", math.nan)]
)
def test_noise_rejects_what_has_no_known_cost(kind: str, stddev: float) -> None:
    with pytest.raises(ValueError, match=r"standard deviation|noise"):
        StatedNoise(kind, stddev)


def test_noise_of_another_kind_is_not_taken_for_laplace() -> None:
    with pytest.raises(ValueError, match="gaussian"):
        _ = StatedNoise("gaussian", 20.0).decay
    with pytest.raises(ValueError, match="uniform"):
        _noise_of_round({"noise": "uniform", "noise_stddev": 20.0}, "central")


def test_claim_is_broken_by_understatement_and_nan() -> None:
    assert not Claim("epsilon", 1.0, None).is_broken
    assert not Claim("epsilon", 1.0, 1.001).is_broken
    assert Claim("epsilon", 0.95, 1.0).is_broken
    assert Claim("epsilon", math.nan, 1.0).is_broken


@pytest.mark.parametrize("stddev", [0.3, 2.0])
def test_tail_bound_is_above_the_exact_probability(stddev: float) -> None:
    """The difference of one answer and the sum of four, by convolution."""
    noise = StatedNoise("laplace", stddev)
    one = np.exp(-noise.decay * np.abs(np.arange(-300, 301)))
    one /= one.sum()
    exact = one
    for _ in range(4):
        exact = np.convolve(exact, one)
    middle = len(exact) // 2
    differences = np.arange(1, 25, dtype=float)
    probability = np.array([2 * exact[middle + int(x) :].sum() for x in differences])
    numbers = [(noise, np.full(24, 1.0)), (noise, np.full(24, 4.0))]
    bound = tail_bound(differences, numbers)
    assert (bound >= np.minimum(probability, 1) * (1 - 1e-9)).all()
    likely = probability > 1e-12
    assert (bound[likely] <= 60 * probability[likely]).all()  # of use


def test_comparisons_find_the_node_that_differs() -> None:
    fine = [f"r{a}{b}" for a in range(4) for b in range(4)]
    noise = StatedNoise("laplace", 2.0)
    before = Layer("before", ["r0", "r1", "r2", "r3"], np.array([40.0, 40.0, 140.0, 40.0]), noise)
    after = Layer("after", fine, np.full(16, 10.0), noise)
    (found,) = comparisons([before, after])
    assert (found.compared, found.worst[0]) == (5, "r2")
    assert found.worst[1] < 1e-9
