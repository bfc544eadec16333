"""The sampling rate and the threshold of the sample-and-threshold paper (paper 004, Section 3.1). Pure.

`sfumato histogram --parameters paper` takes them, to reproduce the paper. The exact guarantee allows a larger rate at
the same (epsilon, delta), which is the default (`optimal_sampling.py`).
"""

from __future__ import annotations

import math

from sfumato.schemas.errors import RequestError
from sfumato.transforms.histogram.accountant import check_delta
from sfumato.transforms.histogram.sampling_round import Sampling, check_count
from sfumato.transforms.privacy.budget import check_epsilon

_ALPHA = 1 / 6  # of the paper's experiments (Section 5)
_EXPONENT = -math.log(_ALPHA) - 1 / (1 + _ALPHA)  # C_alpha


def corollary_rate(epsilon: float) -> float:
    """The paper's corollary: sampling rate p = alpha (1 - e^-epsilon)."""
    return _ALPHA * -math.expm1(-check_epsilon("epsilon", epsilon))


def corollary_threshold(delta: float) -> int:
    """The paper's corollary: threshold tau = ceil(ln(1 / delta) / C_alpha), whatever epsilon is."""
    return math.ceil(-math.log(check_delta(delta)) / _EXPONENT)


def paper_sampling(epsilon: float, delta: float, population: int | None = None, rounds: int = 1) -> Sampling:
    """The paper's sampling of `rounds` rounds that are (epsilon, delta)-private together.

    Each round has epsilon / rounds and delta / rounds (Section 4.1, basic composition).

    Args:
        epsilon: of all rounds together, > 0.
        delta: of all rounds together, 0 < delta < 1.
        population: number of users; None: unknown.
        rounds: number of rounds, >= 1.

    Raises:
        RequestError: an argument is out of range, or the population is so small that even an item of all users would
            probably stay below the threshold.
    """
    check_count("rounds", rounds)
    check_epsilon("epsilon", epsilon)
    check_delta(delta)
    sampling = Sampling.from_rate(corollary_rate(epsilon / rounds), corollary_threshold(delta / rounds))
    if population is not None and sampling.threshold > check_count("population", population) * sampling.rate:
        raise RequestError(
            f"population: with {population} users no item would pass the paper's threshold of {sampling.threshold}, "
            f"even if all of them held it; about {math.ceil(sampling.threshold / sampling.rate)} users are needed, and "
            "fewer without --parameters paper"
        )
    return sampling
