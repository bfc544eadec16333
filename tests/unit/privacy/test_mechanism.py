import math

import mpmath
import pytest

from sfumato.transforms.privacy.mechanism import gaussian_delta, gaussian_rho, rho_for_delta, sigma_for_rho
from tests.statistics import discrete_gaussian_delta


def normal_quantile(tail: mpmath.mpf) -> mpmath.mpf:
    """Returns z with P[N(0, 1) > z] = tail, by Newton's method on the logarithm."""
    z = mpmath.sqrt(-2 * mpmath.log(tail))
    for _ in range(80):
        upper = mpmath.erfc(z / mpmath.sqrt(2)) / 2
        step = (mpmath.log(tail) - mpmath.log(upper)) * upper / mpmath.npdf(z)
        z -= step
        if abs(step) < 1e-30:
            break
    return z


@pytest.mark.parametrize("sigma", [0.1, 0.2, 0.3, 0.45, 0.54, 0.8, 1.0, 1.7, 4.0, 11.0, 49.0, 51.0])
def test_rho_bounds_the_trade_off_at_every_threshold(sigma: float) -> None:
    """g(k) - g(k - 1) over all k, in 50 digits, up to where the noise is never drawn."""
    with mpmath.workdps(50):
        s = mpmath.mpf(sigma)
        reach = math.ceil(10.2 * sigma) + 3
        weights = [mpmath.exp(-(k**2) / (2 * s * s)) for k in range(math.ceil(25 * sigma) + 40)]
        tails = [mpmath.fsum(weights[k:]) for k in range(reach + 2)] if sigma < 5 else None
        if tails is None:
            tails, left = [], mpmath.fsum(weights)
            for weight in weights[: reach + 2]:
                tails.append(left)
                left -= weight
        total = 2 * tails[1] + 1
        chosen = range(reach) if sigma < 5 else [*range(8), *range(8, reach, 23)]
        mu = mpmath.sqrt(2 * gaussian_rho(sigma))
        steps = []
        for k in chosen:
            below = normal_quantile(tails[k] / total) if k else -normal_quantile(tails[1] / total)
            steps.append(normal_quantile(tails[k + 1] / total) - below)
        assert max(steps) == steps[0]
        assert max(steps) <= mu * (1 + 1e-13)
        assert mu <= steps[0] * (1 + 2e-5)


@pytest.mark.parametrize("sigma", [0.3, 0.54, 2.0, 30.0, 600.0])
@pytest.mark.parametrize("sensitivity", [1, 3])
def test_rho_is_never_below_the_exact_loss_and_close_to_it(sigma: float, sensitivity: int) -> None:
    rho = gaussian_rho(sigma, sensitivity)
    for epsilon in (0.0, 0.3, 1.0, 5.0):
        exact = discrete_gaussian_delta(sigma, epsilon, sensitivity)
        assert exact <= gaussian_delta(rho, epsilon) * (1 + 1e-9)
    # At 3% less the bound breaks somewhere, where the noise is not very small.
    if sigma > 1 and sensitivity == 1:
        epsilons = [step * 0.05 / sigma for step in range(100)]
        assert any(discrete_gaussian_delta(sigma, one) > gaussian_delta(0.97 * rho, one) for one in epsilons)


@pytest.mark.parametrize("rho", [1e-12, 1e-6, 0.01, 0.5, 20.0])
@pytest.mark.parametrize("epsilon", [0.0, 0.01, 1.0, 10.0, 50.0])
def test_delta_agrees_with_high_precision_and_is_rounded_up(rho: float, epsilon: float) -> None:
    with mpmath.workdps(60):
        mu = mpmath.sqrt(2 * mpmath.mpf(rho))
        kept, lost = -mu / 2 - epsilon / mu, mu / 2 - epsilon / mu
        first = mpmath.ncdf(lost)
        exact = first - mpmath.exp(epsilon) * mpmath.ncdf(kept)
        found = gaussian_delta(rho, epsilon)
        assert exact <= found <= exact + 2e-9 * first + 5e-324


@pytest.mark.parametrize(("epsilon", "delta"), [(0.1, 1e-8), (1.0, 1e-6), (1.0, 1e-12), (10.0, 1e-6), (3.0, 0.1)])
def test_rho_for_delta_is_the_largest(epsilon: float, delta: float) -> None:
    rho = rho_for_delta(epsilon, delta)
    assert gaussian_delta(rho, epsilon) <= delta < gaussian_delta(rho * (1 + 1e-8), epsilon)


@pytest.mark.parametrize("sensitivity", [1, 1000])
@pytest.mark.parametrize("rho", [1e-9, 0.01, 0.5, 3.0])
def test_sigma_for_rho_is_the_smallest(rho: float, sensitivity: int) -> None:
    sigma = sigma_for_rho(rho, sensitivity)
    assert gaussian_rho(sigma, sensitivity) <= rho < gaussian_rho(sigma * (1 - 1e-8), sensitivity)
    with pytest.raises(ValueError, match="sigma must lie in"):
        sigma_for_rho(rho * 1e20)
