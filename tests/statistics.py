"""Statistical oracles: exact distributions, and chi-square tests with a stated flake rate."""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray
from scipy import stats

FLAKE_RATE = 1e-9


def discrete_laplace_pmf(epsilon: float, reach: int) -> NDArray[np.float64]:
    """P[Z = k] for k in -reach..reach, paper 000, Eq. 4."""
    k = np.abs(np.arange(-reach, reach + 1))
    beta = np.exp(-epsilon)
    return (1 - beta) / (1 + beta) * beta**k


def polya_difference_pmf(shape: float, epsilon: float, reach: int) -> NDArray[np.float64]:
    """P[X - Y = k] for k in -reach..reach, X and Y Polya(shape, exp(-epsilon)), by direct summation."""
    one = stats.nbinom.pmf(np.arange(6 * reach), shape, -np.expm1(-epsilon))
    both = np.convolve(one, one[::-1])
    centre = len(one) - 1
    return both[centre - reach : centre + reach + 1]


def discrete_gaussian_pmf(sigma: float, k: NDArray[np.int64]) -> NDArray[np.float64]:
    """P[Z = k] for integers k of any shape, by summation; above a sigma of 1000 the sum is sigma sqrt(2 pi)."""
    if sigma <= 1000:
        above = np.arange(1, math.ceil(40 * sigma) + 2)
        total = 1 + 2 * math.fsum(np.exp(-((above / sigma) ** 2) / 2))
    else:
        total = sigma * math.sqrt(2 * math.pi)
    return np.exp(-((k / sigma) ** 2) / 2) / total


def discrete_gaussian_delta(sigma: float, epsilon: float, sensitivity: int = 1) -> float:
    """The smallest delta at an epsilon of one count with discrete Gaussian noise, for sigma up to 1000.

    It is the sum of max(0, P[Z = k] - e^epsilon P[Z = k + sensitivity]) (Canonne, Kamath, Steinke 2020, Theorem 7).
    """
    lowest = math.floor(epsilon * sigma**2 / sensitivity - sensitivity / 2)  # no lower -k has a loss above epsilon
    k = np.arange(lowest, max(lowest, 0) + math.ceil(40 * sigma) + 2 * sensitivity)
    loss = (2 * k + sensitivity) * sensitivity / (2 * sigma**2)
    return float((discrete_gaussian_pmf(sigma, k) * -np.expm1(np.minimum(epsilon - loss, 0))).sum())


def chi_square_p(sample: NDArray[np.int64], pmf: NDArray[np.float64]) -> float:
    """The p-value of a sample of integers against a pmf over -reach..reach; rare values are pooled by tail."""
    reach = len(pmf) // 2
    clipped = np.clip(sample, -reach, reach)
    observed = np.bincount(clipped + reach, minlength=len(pmf)).astype(float)
    expected = pmf * len(sample)
    expected[0] += len(sample) * max(0.0, (1 - pmf.sum()) / 2)
    expected[-1] += len(sample) * max(0.0, (1 - pmf.sum()) / 2)
    observed, expected = _pool(observed, expected)
    return float(stats.chisquare(observed, expected * observed.sum() / expected.sum()).pvalue)


def _pool(observed: NDArray[np.float64], expected: NDArray[np.float64]) -> tuple[NDArray, NDArray]:
    """Merges neighbours until each bin expects at least 20."""
    out_observed, out_expected = [], []
    seen = wanted = 0.0
    for o, e in zip(observed, expected, strict=True):
        seen, wanted = seen + o, wanted + e
        if wanted >= 20:
            out_observed.append(seen)
            out_expected.append(wanted)
            seen = wanted = 0.0
    out_observed[-1] += seen
    out_expected[-1] += wanted
    return np.array(out_observed), np.array(out_expected)
