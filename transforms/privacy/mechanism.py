"""Formulas of the noise mechanisms. `discrete_laplace.py` and `discrete_gaussian.py` sample them.

The discrete Laplace mechanism: paper 000, Equations 4, 5 and 8.

The discrete Gaussian mechanism, by rho. This project says that a release has a rho if no two neighbouring datasets can
be distinguished by it better than N(0, 1) from N(sqrt(2 rho), 1). That is Gaussian differential privacy with
mu = sqrt(2 rho) (Dong, Roth and Su 2022), and it implies rho-zCDP (Bun and Steinke 2016). Rhos of releases add up, even
if each release is chosen after seeing the earlier ones (Smith and Thakurta, Fully adaptive composition for Gaussian
differential privacy, NeurIPS 2022). The conversion to (epsilon, delta) is exact, unlike that of zCDP.
"""

from __future__ import annotations

import math
from functools import lru_cache
from statistics import NormalDist

from sfumato.transforms.statistics.bisection import bisect

MIN_SIGMA, MAX_SIGMA = 0.1, 1e9
# Of discrete Gaussian noise: its draws end at 10 sigma, which adds up to 1e-21 for each entry that a user changes.
MIN_GAUSSIAN_DELTA = 1e-15
_NORMAL = NormalDist()


def discrete_laplace_stddev(epsilon: float, sensitivity: int = 1) -> float:
    """Returns the standard deviation sqrt(2 beta) / (1 - beta), beta = exp(-epsilon / sensitivity) (Eq. 5).

    Written as 1 / (sqrt(2) sinh(epsilon / (2 sensitivity))), which loses no digits for small epsilon.
    Returns 0 where the noise is too small for a float.
    """
    half = epsilon / (2 * sensitivity)
    return 1 / (math.sqrt(2) * math.sinh(half)) if half < 700 else 0.0


def epsilon_for_stddev(stddev: float, sensitivity: int = 1) -> float:
    """Returns the epsilon whose discrete Laplace noise has this standard deviation (Eq. 8, the inverse of Eq. 5).

    The printed form -ln((s^2 + 1 - sqrt(2 s^2 + 1)) / s^2) equals 2 asinh(1 / (s sqrt(2))).

    >>> round(discrete_laplace_stddev(epsilon_for_stddev(20.0)), 6)
    20.0
    """
    return 2 * sensitivity * math.asinh(1 / (stddev * math.sqrt(2)))


def noise_quantile(epsilon: float, probability: float, sensitivity: int = 1) -> int:
    """Returns the least t with P[Z > t] <= probability. Z is discrete Laplace: P[Z > t] = beta^(t + 1) / (1 + beta)."""
    rate = epsilon / sensitivity
    log_tail = math.log(probability) + math.log1p(math.exp(-rate))
    return max(0, math.ceil(-log_tail / rate) - 1)


def check_sigma(sigma: float) -> None:
    """Raises ValueError unless sigma is in MIN_SIGMA..MAX_SIGMA."""
    if not MIN_SIGMA <= sigma <= MAX_SIGMA:
        raise ValueError(f"sigma must lie in {MIN_SIGMA}..{MAX_SIGMA}, got {sigma}")


def gaussian_rho(sigma: float, sensitivity: float = 1) -> float:
    """Returns the rho of counts with discrete Gaussian noise.

    With Phi the normal distribution function, F that of the noise and g(k) = Phi^-1(F(k)), a change of a count by one
    is as distinguishable at the threshold k as N(0, 1) and N(g(k) - g(k - 1), 1). The largest difference is the one
    across the centre, k = 0: 2 Phi^-1(1/2 + P[Z = 0] / 2), which is (1 + 1 / (24 sigma^2) + ...) / sigma. A change by d
    counts d times, and changes of several counts compose by their squares.

    sensitivity: L2 norm of the largest change of the counts by one user. All changes are integers.

    The result is about sensitivity^2 / (2 sigma^2), the rho of zCDP, and slightly above it: by 0.8% at sigma 3.
    """
    check_sigma(sigma)
    if sigma > 5:
        mu = (1 + 0.042 / sigma**2) / sigma
    else:
        above = math.fsum(math.exp(-((k / sigma) ** 2) / 2) for k in range(1, math.ceil(9 * sigma) + 2))
        mu = -2 * _NORMAL.inv_cdf(above / (1 + 2 * above))  # of P[Z >= 1]
    return (sensitivity * mu) ** 2 / 2


@lru_cache(maxsize=1024)
def sigma_for_rho(rho: float, sensitivity: float = 1) -> float:
    """Returns the smallest sigma whose `gaussian_rho` is at most rho. Raises ValueError if it is out of range."""
    ideal = sensitivity / math.sqrt(2 * rho)
    check_sigma(ideal)
    outside, inside = max(MIN_SIGMA, ideal * (1 - 1e-12)), 2 * ideal
    return bisect(lambda sigma: gaussian_rho(sigma, sensitivity) <= rho, inside, outside, 60)[0]


def gaussian_delta(rho: float, epsilon: float) -> float:
    """Returns the delta of a rho at an epsilon: Phi(mu/2 - epsilon/mu) - e^epsilon Phi(-mu/2 - epsilon/mu).

    mu is sqrt(2 rho) (Balle and Wang 2018, Theorem 8). The result is rounded up by 1e-9 of the first term.
    """
    mu = math.sqrt(2 * rho)
    if mu == 0:
        return 0.0
    lost = (epsilon / mu - mu / 2) / math.sqrt(2)
    kept = (epsilon / mu + mu / 2) / math.sqrt(2)
    first = math.erfc(lost) / 2
    if first == 0:
        return 5e-324  # below the smallest float
    # e^epsilon erfc(kept) without overflow: erfc(kept) is below e^(-kept^2) <= e^-epsilon.
    second = math.exp(epsilon + math.log(math.erfc(kept) / 2)) if kept < 26 else 0.0
    return min(1.0, max(0.0, first - second) + 1e-9 * first)


def epsilon_for_delta(rho: float, delta: float) -> float:
    """Returns the smallest epsilon with `gaussian_delta` at most delta, for rho > 0 and 0 < delta < 1.

    >>> round(epsilon_for_delta(rho=0.05, delta=1e-8), 2)
    1.66
    """
    if gaussian_delta(rho, 0.0) <= delta:
        return 0.0
    high = 1.0
    while gaussian_delta(rho, high) > delta:
        high *= 2
    return bisect(lambda epsilon: gaussian_delta(rho, epsilon) <= delta, high, 0.0, 60)[0]


def rho_for_delta(epsilon: float, delta: float) -> float:
    """Returns the largest rho with `gaussian_delta` at most delta, for epsilon > 0 and 0 < delta < 1."""
    high = 1e-12
    while gaussian_delta(high, epsilon) <= delta:
        high *= 2
    return bisect(lambda rho: gaussian_delta(rho, epsilon) <= delta, high / 2, high, 60)[0]
