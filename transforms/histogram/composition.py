"""The guarantee of several sample-and-threshold rounds, by privacy loss distributions (the dp-accounting library).

Every round needs a sample of its own. In one common sample the children of a published prefix would add up to the
parent, so parent minus published children would reveal how many sampled users the threshold holds back; that is the
leak of a fixed sample size (paper 004, Section 3.2) again. With independent samples a later round may even depend on
what earlier ones published: the supremum over item counts of a round's privacy profile is itself a profile, so it has a
dominating pair of distributions, and dominating pairs compose adaptively (Zhu, Dong and Wang, Optimal
accounting of differential privacy via characteristic function, AISTATS 2022).
"""

from __future__ import annotations

import math

import numpy as np
from dp_accounting.pld.pld_pmf import PLDPmf, create_pmf_pessimistic_connect_dots
from dp_accounting.pld.privacy_loss_distribution import PrivacyLossDistribution
from numpy.typing import NDArray

from sfumato.transforms.histogram.accountant import delta, profile
from sfumato.transforms.histogram.sampling_round import check_count
from sfumato.transforms.privacy.budget import check_epsilon

# Losses are kept up to twice the total epsilon; what lies above counts as infinite.
_REACH = 2


def rounds_delta(epsilon: float, rate: float, threshold: int, rounds: int, steps: int = 200) -> float:
    """The delta of all rounds together at this total epsilon, rounded up; exact (to about 1e-9) for one round.

    Never more than rounds * delta(epsilon / rounds). `steps`: grid points of privacy loss from 0 to epsilon; any number
    is safe, and 200 is within 0.5% of the limit. Raises RequestError for parameters out of range.
    """
    check_epsilon("epsilon", epsilon)
    check_count("rounds", rounds)
    check_count("steps", steps)
    added_up = min(1.0, rounds * delta(epsilon / rounds, rate, threshold))
    return added_up if rounds == 1 else min(added_up, _composed_delta(epsilon, rate, threshold, rounds, steps))


def _composed_delta(epsilon: float, rate: float, threshold: int, rounds: int, steps: int) -> float:
    step = epsilon / steps
    reach = _REACH * steps
    # One user changes the chance of any outcome by a factor of at least 1 - p: no loss of the remove direction lies
    # below ln(1 - p), and none of the add direction above its negative.
    edge = min(reach, math.ceil(-math.log1p(-rate) / step))
    grid = np.arange(-reach, reach + 1)
    remove, add = profile(grid * step, rate, threshold)
    composed = PrivacyLossDistribution(
        _pmf(step, grid[reach - edge :], remove[reach - edge :]),
        _pmf(step, grid[: reach + edge + 1], add[: reach + edge + 1]),
    ).self_compose(rounds, tail_mass_truncation=0)
    return float(composed.get_delta_for_epsilon(epsilon)) + _rounding(rounds * (reach + edge + 1), rounds)


def _pmf(step: float, grid: NDArray[np.int64], deltas: NDArray[np.float64]) -> PLDPmf:
    """Privacy losses on the grid whose profile is nowhere below `deltas`, nor below their chords in e^epsilon.

    True profiles fall, so a value may be lowered to the one before it and remains an upper bound.
    """
    return create_pmf_pessimistic_connect_dots(step, grid, np.minimum.accumulate(deltas))


def _rounding(size: int, rounds: int) -> float:
    """Bounds the rounding error of a delta from a Fourier transform of `size` points, its power, and the way back.

    A transform of a vector of norm <= 1 is off by a vector of norm <= 8 u log2(size) (Higham, Accuracy and Stability of
    Numerical Algorithms, Theorem 24.2, u = 2^-53), the power multiplies that by `rounds`, and a sum of `size` entries
    with weights <= 1 is off by at most sqrt(size) times the norm. The probabilities are good to u each, which adds
    less.
    """
    unit = np.finfo(np.float64).eps / 2
    return float(8 * unit * math.log2(2 * size) * (rounds + 1) * math.sqrt(2 * size))
