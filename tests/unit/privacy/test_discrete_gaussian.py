"""Discrete Gaussian noise, its formulas and its cost, against sums in high precision."""

from __future__ import annotations

import hashlib
import itertools
import math
from fractions import Fraction

import mpmath
import numpy as np
import pytest

from sfumato.transforms.privacy.discrete_gaussian import (
    BlockTable,
    _keep,
    block_table,
    discrete_gaussian,
    discrete_gaussian_survival,
    discrete_variance,
)
from sfumato.transforms.privacy.keys import FixedSecret, RunKey
from sfumato.transforms.privacy.mechanism import gaussian_delta, gaussian_rho, rho_for_delta, sigma_for_rho
from tests.statistics import FLAKE_RATE, chi_square_p, discrete_gaussian_delta, discrete_gaussian_pmf

KEY = RunKey.derive(FixedSecret(b"gaussian tests" * 2), {"test": "gaussian"})
STREAMS = np.arange(200, dtype=np.uint64)


def draw(sigma: float, label: str = "a") -> np.ndarray:
    return discrete_gaussian(KEY, label, STREAMS, 1000, sigma)


def symmetric_pmf(sigma: float) -> np.ndarray:
    reach = math.ceil(7 * sigma) + 1
    return discrete_gaussian_pmf(sigma, np.arange(-reach, reach + 1))


@pytest.mark.false_alarm(1e-9)
@pytest.mark.parametrize("sigma", [0.3, 0.54, 1.0, 10.3, 127.9, 128.1, 300.0])
def test_it_has_its_distribution(sigma: float) -> None:
    sample = draw(sigma).ravel()
    assert chi_square_p(sample, symmetric_pmf(sigma)) > FLAKE_RATE
    for scale in (0.9, 1.1):
        assert chi_square_p(draw(sigma * scale, "wrong").ravel(), symmetric_pmf(sigma)) < FLAKE_RATE


def realised_pmf(table: BlockTable) -> list[Fraction]:
    edges = [0, *table.thresholds, 1 << 128]
    return [Fraction(b - a, 1 << 128) for a, b in itertools.pairwise(edges)]


@pytest.mark.parametrize("sigma", [0.1, 0.3, 0.54, 2.0, 10.3, 128.0, 1000.5, 1e9])
def test_every_block_is_as_exact_as_stated(sigma: float) -> None:
    """Every probability of the table, as an exact fraction, against the formula in 60 digits."""
    table = block_table(sigma)
    with mpmath.workdps(60):
        blocks = [table.first + number for number in range(len(table.thresholds) + 1)]
        nearest = [min(abs(b * table.width), abs((b + 1) * table.width - 1)) for b in blocks]
        weights = [mpmath.exp(-(mpmath.mpf(m) ** 2) / (2 * mpmath.mpf(sigma) ** 2)) for m in nearest]
        total = mpmath.fsum(weights)
        for weight, p in zip(weights, realised_pmf(table), strict=True):
            assert abs(mpmath.mpf(p.numerator) / p.denominator / (weight / total) - 1) < 2.0**-47
        # What the table leaves out.
        beyond = blocks[-1] * table.width + table.width
        if table.width == 1:
            rest = mpmath.nsum(lambda k: mpmath.exp(-(k**2) / (2 * mpmath.mpf(sigma) ** 2)), [beyond, mpmath.inf])
            assert 2 * rest / total < 1e-21
        else:
            assert mpmath.erfc(beyond / mpmath.sqrt(2) / sigma) < 1e-21


def test_an_integer_of_a_block_is_kept_with_its_probability() -> None:
    """The number of 53-bit numbers that keep an integer, by bisection, against the exponential in 40 digits."""
    for sigma in (129.0, 1000.5, 1e9):
        table = block_table(sigma)
        numbers = np.array([0, 1, len(table.thresholds) // 2, len(table.thresholds)])
        for offset in (0, 1, table.width // 2, table.width - 1):
            low, high = np.zeros(len(numbers), dtype=np.uint64), np.full(len(numbers), 1 << 53, dtype=np.uint64)
            for _ in range(54):
                middle = (low + high) // np.uint64(2)
                inner = np.stack([middle << np.uint64(11), np.full_like(middle, offset)], axis=1)
                integers, kept = _keep(table, numbers, inner, sigma)
                low, high = np.where(kept, middle, low), np.where(kept, high, middle)
            for integer, number, kept_numbers in zip(integers, numbers, low, strict=True):
                block = int(number) + table.first
                assert integer == block * table.width + offset
                nearest = min(abs(block * table.width), abs((block + 1) * table.width - 1))
                with mpmath.workdps(40):
                    exact = mpmath.exp(-(mpmath.mpf(int(integer)) ** 2 - nearest**2) / (2 * mpmath.mpf(sigma) ** 2))
                    assert exact > 0.83
                    assert abs((int(kept_numbers) + 1) / mpmath.mpf(2) ** 53 / exact - 1) < 2.0**-48


@pytest.mark.false_alarm(2e-9)
@pytest.mark.parametrize("sigma", [0.54, 40.0, 5000.0])
def test_a_row_depends_on_key_label_and_stream_alone(sigma: float) -> None:
    whole = draw(sigma)
    assert np.array_equal(discrete_gaussian(KEY, "a", STREAMS[[7, 3]], 1000, sigma), whole[[7, 3]])
    assert np.array_equal(discrete_gaussian(KEY, "a", STREAMS, 500, sigma), whole[:, :500])
    assert not np.array_equal(draw(sigma, "b"), whole)
    other = RunKey.derive(FixedSecret(b"gaussian tests" * 2), {"test": "another request"})
    assert not np.array_equal(discrete_gaussian(other, "a", STREAMS, 1000, sigma), whole)
    z = whole / math.sqrt(discrete_variance(sigma))
    for product in (z[1:] * z[:-1], z[:, 1:] * z[:, :-1], z[:, :500] * z[:, 500:]):
        assert abs(product.mean()) < 6.5 / math.sqrt(product.size)


@pytest.mark.pinned
def test_noise_of_earlier_versions_can_be_made_again() -> None:
    drawn = {
        sigma: hashlib.sha256(
            discrete_gaussian(KEY, "a", STREAMS[:50], 500, sigma).astype("<i8").tobytes()
        ).hexdigest()[:16]
        for sigma in (0.54, 10.3, 1e6)
    }
    assert drawn == {0.54: "a85ec154f5339a2c", 10.3: "9a07567c471e1304", 1e6: "476b6fa3f84742fb"}


@pytest.mark.parametrize("sigma", [0.3, 1.0, 3.9, 7.5, 900.0])
def test_formulas_agree_with_high_precision(sigma: float) -> None:
    with mpmath.workdps(40):
        reach = math.ceil(20 * sigma) + 2
        weights = [mpmath.exp(-(mpmath.mpf(k) ** 2) / (2 * mpmath.mpf(sigma) ** 2)) for k in range(reach + 1)]
        total = 2 * mpmath.fsum(weights) - 1
        variance = 2 * mpmath.fsum(k * k * weight for k, weight in enumerate(weights)) / total
        assert math.isclose(discrete_variance(sigma), variance, rel_tol=1e-12)
        for k in {0, 1, math.ceil(2 * sigma), math.ceil(7 * sigma)}:
            tail = mpmath.fsum(weights[k:]) / total
            assert math.isclose(discrete_gaussian_pmf(sigma, np.array(k)), weights[k] / total, rel_tol=1e-12)
            assert math.isclose(discrete_gaussian_survival(sigma, k), tail, rel_tol=1e-12)
            assert math.isclose(discrete_gaussian_survival(sigma, 1 - k), 1 - tail, rel_tol=1e-12, abs_tol=1e-15)


@pytest.mark.parametrize(("sigma", "sensitivity"), [(0.3, 1), (0.54, 1), (2.0, 1), (2.0, 5), (30.0, 1), (30.0, 7)])
@pytest.mark.parametrize("epsilon", [0.0, 0.1, 1.0, 10.0])
def test_delta_is_the_sum_over_all_outcomes(sigma: float, sensitivity: int, epsilon: float) -> None:
    with mpmath.workdps(50):
        reach = math.ceil(30 * sigma) + 2 * sensitivity
        p = {k: mpmath.exp(-(mpmath.mpf(k) ** 2) / (2 * mpmath.mpf(sigma) ** 2)) for k in range(-reach, reach + 1)}
        total = mpmath.fsum(p.values())
        lost = [p[k] - mpmath.exp(epsilon) * p.get(k + sensitivity, 0) for k in range(-reach, reach + 1 - sensitivity)]
        delta = mpmath.fsum(one for one in lost if one > 0) / total
    assert math.isclose(discrete_gaussian_delta(sigma, epsilon, sensitivity), delta, rel_tol=1e-9, abs_tol=1e-100)


# --- rho, delta and sigma ---


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
