"""The guarantee of several sample-and-threshold rounds, by privacy loss distributions (the dp-accounting library).

Every round needs its own sample. In one common sample the children of a published prefix would add up to the parent,
so parent minus published children would reveal how many sampled users the threshold dropped. That is the leak of a
fixed sample size (paper 004, Section 3.2) again.

With independent samples, a later round may even depend on the published results of earlier ones. The supremum over
item counts of a round's privacy profile is itself a profile, so it has a dominating pair of distributions, and
dominating pairs compose adaptively (Zhu, Dong and Wang, Optimal accounting of differential privacy via characteristic
function, AISTATS 2022).
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from sfumato.transforms.histogram.accountant import delta, profile
from sfumato.transforms.histogram.sampling_round import check_count
from sfumato.transforms.privacy.budget import check_epsilon

if TYPE_CHECKING:
    from dp_accounting.pld.pld_pmf import PLDPmf

_MAX_LOSS_IN_EPSILONS = 2  # privacy losses above this multiple of the total epsilon count as infinite


def rounds_delta(epsilon: float, rate: float, threshold: int, rounds: int, steps: int = 200) -> float:
    """The delta of all rounds together at this total epsilon, rounded up; exact (to about 1e-9) for one round.

    Args:
        epsilon: of all rounds together, > 0.
        rate: sampling rate of each round, 0 < rate < 1.
        threshold: of each round, >= 1, in sampled users.
        rounds: number of rounds, >= 1.
        steps: grid points of privacy loss from 0 to epsilon. Any number is safe; 200 is within 0.5% of the limit.

    Returns:
        At most rounds * delta(epsilon / rounds).

    Raises:
        RequestError: an argument is out of range.
    """
    check_epsilon("epsilon", epsilon)
    check_count("rounds", rounds)
    check_count("steps", steps)
    added_up = min(1.0, rounds * delta(epsilon / rounds, rate, threshold))
    return added_up if rounds == 1 else min(added_up, _composed_delta(epsilon, rate, threshold, rounds, steps))


def _composed_delta(epsilon: float, rate: float, threshold: int, rounds: int, steps: int) -> float:
    # Imported here because it loads SciPy's statistics, and only several rounds need it.
    from dp_accounting.pld.privacy_loss_distribution import PrivacyLossDistribution

    step = epsilon / steps
    end = _MAX_LOSS_IN_EPSILONS * steps
    # Losses have two directions: remove compares data with a user to data without the user, add the reverse. One user
    # multiplies the probability of any outcome by at least 1 - rate. So no loss of the remove direction lies below
    # ln(1 - rate), and none of the add direction above its negative.
    edge = min(end, math.ceil(-math.log1p(-rate) / step))
    grid = np.arange(-end, end + 1)
    remove, add = profile(grid * step, rate, threshold)
    composed = PrivacyLossDistribution(
        _pmf(step, grid[end - edge :], remove[end - edge :]),
        _pmf(step, grid[: end + edge + 1], add[: end + edge + 1]),
    ).self_compose(rounds, tail_mass_truncation=0)
    return float(composed.get_delta_for_epsilon(epsilon)) + _rounding(rounds * (end + edge + 1), rounds)


def _pmf(step: float, grid: NDArray[np.int64], deltas: NDArray[np.float64]) -> PLDPmf:
    """Privacy losses on the grid with a profile that is nowhere below `deltas` and their chords in e^epsilon.

    True profiles decrease, so a value may be lowered to its predecessor and remains an upper bound.
    """
    from dp_accounting.pld.pld_pmf import create_pmf_pessimistic_connect_dots

    return create_pmf_pessimistic_connect_dots(step, grid, np.minimum.accumulate(deltas))


def _rounding(size: int, rounds: int) -> float:
    """Bounds the rounding error of a delta from a Fourier transform, a power, and the inverse.

    `size` is the number of losses of the composition. The library pads the transform to at most n = 2 size points. A
    transform of a vector of norm <= 1 is off by a vector of norm <= 8 u log2(n) (Higham, Accuracy and Stability of
    Numerical Algorithms, Theorem 24.2, u = 2^-53). The power multiplies that by `rounds`, and the inverse adds it once
    more. A sum of n entries with weights <= 1 is off by at most sqrt(n) times the norm. The error of each probability,
    u, adds less.
    """
    unit = np.finfo(np.float64).eps / 2
    return float(8 * unit * math.log2(2 * size) * (rounds + 1) * math.sqrt(2 * size))
