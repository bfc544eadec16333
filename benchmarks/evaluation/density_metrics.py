"""Metrics of an estimated density against the true one, from papers 000 and 001. Pure.

Densities are float64[side, side], finite, >= 0, and sum to 1.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable

import numpy as np
from numpy.typing import NDArray

from benchmarks.evaluation.earth_mover import earth_mover

Density = NDArray[np.float64]

# Keeps logarithms finite, as in the saliency benchmark (Bylinskii et al. 2019): the spacing of float64 at 1.
KL_EPSILON = float(np.finfo(np.float64).eps)
SUM_TOLERANCE = 1e-6
# A density whose deviations from its mean are smaller than this share of it is rounding noise around a constant.
CONSTANT = 1e-12


def mean_squared_error(estimate: Density, truth: Density) -> float:
    """Mean over all cells of the squared difference (paper 000, Section 6.1)."""
    return float(np.mean((estimate - truth) ** 2))


def absolute_difference(estimate: Density, truth: Density) -> float:
    """Sum over all cells of |e - t|: 0 to 2, twice the total variation distance."""
    return float(np.abs(estimate - truth).sum())


def matrix_norm(estimate: Density, truth: Density) -> float:
    """Largest column sum of |e - t|, the matrix norm that paper 000's published script calls L1.

    Unscaled: Table 3's 1.0e-3 at 1024 columns is a column's share of a sum of differences of about 0.6.
    """
    return float(np.abs(estimate - truth).sum(axis=0).max())


def percentage_error(estimate: Density, truth: Density) -> float:
    """Mean |e - t| / t; where t is 0, divided by the smallest positive t (paper 000, Appendix A.1). 1 is 100%."""
    denominator = np.where(truth > 0, truth, truth[truth > 0].min())
    return float(np.mean(np.abs(estimate - truth) / denominator))


def symmetric_percentage_error(estimate: Density, truth: Density) -> float:
    """Mean |e - t| / ((e + t) / 2), 0 to 2; cells where both are 0 count 0.

    Paper 000's Table 3 has values above 1, so its denominator is the mean of the two and not their sum.
    """
    total = estimate + truth
    return float(2 * np.mean(np.abs(estimate - truth) / np.where(total > 0, total, 1)))


def arctangent_percentage_error(estimate: Density, truth: Density) -> float:
    """Mean arctan(|e - t| / t), 0 to pi / 2; where t is 0, pi / 2 unless e is 0 too, which counts 0."""
    return float(np.mean(np.arctan2(np.abs(estimate - truth), truth)))


def histogram_intersection(estimate: Density, truth: Density) -> float:
    """Sum over all cells of min(e, t): 0 to 1, where 1 is perfect (paper 001, "similarity")."""
    return float(np.minimum(estimate, truth).sum())


def pearson_correlation(estimate: Density, truth: Density) -> float:
    """Pearson's correlation over the cells, -1 to 1; 0 where either density is constant."""
    e, t = estimate - estimate.mean(), truth - truth.mean()
    norm_e, norm_t = np.linalg.norm(e), np.linalg.norm(t)
    if norm_e <= CONSTANT * np.linalg.norm(estimate) or norm_t <= CONSTANT * np.linalg.norm(truth):
        return 0.0
    return float(np.clip(np.vdot(e / norm_e, t / norm_t), -1, 1))


def kl_divergence(estimate: Density, truth: Density) -> float:
    """KL(truth || estimate) = sum t ln(E + t / (e + E)), E = KL_EPSILON, in nats (Bylinskii et al. 2019).

    Finite, at most about 36, where the estimate is 0 and the truth is not.
    """
    return float((truth * np.log(KL_EPSILON + truth / (estimate + KL_EPSILON))).sum())


METRICS: dict[str, Callable[[Density, Density], float]] = {
    "mse": mean_squared_error,
    "l1": absolute_difference,
    "l1_matrix_norm": matrix_norm,
    "mape": percentage_error,
    "smape": symmetric_percentage_error,
    "maape": arctangent_percentage_error,
    "similarity": histogram_intersection,
    "pearson": pearson_correlation,
    "kl": kl_divergence,
    "emd": earth_mover,  # L1 on the unit square, exact (paper 001)
}
HIGHER_IS_BETTER = frozenset({"similarity", "pearson"})


def coarsen(density: Density, side: int) -> Density:
    """The density on a grid of side x side cells: sums of blocks. Raises ValueError if the sides do not divide."""
    if side < 1 or len(density) % side:
        raise ValueError(f"side: must divide {len(density)}, got {side}")
    block = len(density) // side
    coarse: Density = density.reshape(side, block, side, block).sum(axis=(1, 3))
    return coarse


def evaluate(estimate: Density, truth: Density, names: Iterable[str]) -> dict[str, float]:
    """The named metrics of an estimate, by name, in the order given.

    An estimate of zeros has no information on locations and counts as the uniform density. Raises ValueError where
    a shape or a value is not a density's, or the grid is too large for `emd`.
    """
    if estimate.shape != truth.shape or estimate.ndim != 2 or estimate.shape[0] != estimate.shape[1]:
        raise ValueError(f"estimate and truth must both be [side, side], got {estimate.shape} and {truth.shape}")
    if not estimate.any():
        estimate = np.full(truth.shape, 1 / truth.size)
    for name, density in (("estimate", estimate), ("truth", truth)):
        if not (density >= 0).all() or not math.isclose(density.sum(), 1, abs_tol=SUM_TOLERANCE):
            raise ValueError(f"{name}: must be finite, >= 0 and sum to 1")
    return {name: METRICS[name](estimate, truth) for name in names}
