import math

import numpy as np
import pytest

from sfumato.transforms.privacy.additive_noise import GAUSSIAN, LAPLACE, AdditiveNoise
from sfumato.transforms.privacy.discrete_gaussian import discrete_gaussian, discrete_gaussian_survival
from sfumato.transforms.privacy.keys import FixedSecret, RunKey
from sfumato.transforms.privacy.mechanism import sigma_for_rho
from sfumato.transforms.privacy.noise import discrete_laplace

KEY = RunKey.derive(FixedSecret(b"additive noise" * 2), {})
STREAMS = np.arange(50, dtype=np.uint64)


@pytest.mark.parametrize("noise", [LAPLACE, GAUSSIAN], ids=lambda noise: noise.NAME)
@pytest.mark.parametrize("sensitivity", [1, 1000])
@pytest.mark.parametrize("cost", [1e-4, 0.01, 1.0])
def test_the_drawn_noise_has_the_stated_deviation_cost_and_quantile(
    noise: AdditiveNoise, cost: float, sensitivity: int
) -> None:
    stddev = noise.stddev(cost, sensitivity)
    z = noise.draw(KEY, "a", STREAMS, 1000, cost, sensitivity).ravel() / stddev
    # 50,000 squares, whose variance is at most 5 (Laplace): 6.2 deviations of their mean.
    assert abs((z**2).mean() - 1) < 6.2 * math.sqrt(5 / z.size)
    assert math.isclose(noise.cost(stddev, sensitivity), cost, rel_tol=2e-3 if sensitivity == 1 else 1e-9)
    assert noise.min_cost(sensitivity) < cost
    noise.draw(KEY, "least", STREAMS[:1], 2, noise.min_cost(sensitivity), sensitivity)
    t = noise.quantile(cost, 0.01, sensitivity)
    share = (z * stddev > t).mean()
    assert share <= 0.01 + 6.2 * math.sqrt(0.01 / z.size)


def test_they_draw_what_the_samplers_draw() -> None:
    assert np.array_equal(LAPLACE.draw(KEY, "a", STREAMS, 9, 0.3, 7), discrete_laplace(KEY, "a", STREAMS, 9, 0.3, 7))
    sigma = sigma_for_rho(0.3, 7.5)
    assert np.array_equal(GAUSSIAN.draw(KEY, "a", STREAMS, 9, 0.3, 7.5), discrete_gaussian(KEY, "a", STREAMS, 9, sigma))
    t = GAUSSIAN.quantile(0.3, 1e-9, 7.5)
    assert discrete_gaussian_survival(sigma, t + 1) <= 1e-9 < discrete_gaussian_survival(sigma, t)
    assert GAUSSIAN.tail_sums(3) > 1000 > LAPLACE.tail_sums(3) == 3
