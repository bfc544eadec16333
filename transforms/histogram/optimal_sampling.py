"""The sampling rate and threshold of least expected error under the exact guarantee.

For one (epsilon, delta) a larger threshold allows a larger rate: better estimates of frequent items, fewer rare items.
The best choice depends on the catalogue, that is on the numbers of users and items. The model is Zipf's law: the count
of rank r is proportional to 1 / r or, with the same probability, to 1 / r^2. (With one exponent, the threshold would be
just below the count of the last item, as if that were known.) With many users and few items, such as a million and 64,
few items are rare and the best thresholds are in the hundreds, with high rates. With unlimited items they are 10 to 35.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cache

import numpy as np
import scipy
from numpy.typing import NDArray

from sfumato.schemas.errors import RequestError
from sfumato.transforms.histogram.accountant import check_delta, largest_rate, max_rate
from sfumato.transforms.histogram.composition import rounds_delta
from sfumato.transforms.histogram.sampling_round import Sampling, check_count
from sfumato.transforms.privacy.budget import check_epsilon

# Users and items of the catalogue where items are unlimited: counts from 10^9 down to less than 1.
_UNLIMITED = 2**31
_MAX_THRESHOLD = 2**10  # bounds the search time; only catalogues without rare items would gain from more
# Grid points of rounds_delta and the tolerance of rates: to compare thresholds, and for the final rate.
_COARSE_STEPS, _COARSE_RATE = 40, 1e-3
_FINE_STEPS, _FINE_RATE = 200, 1e-6


@cache  # a job states its plan several times
def choose_sampling(
    epsilon: float, delta: float, population: int | None = None, items: int | None = None, rounds: int = 1
) -> Sampling:
    """The sampling of least expected error whose `rounds` rounds together are (epsilon, delta)-private. Deterministic.

    Args:
        epsilon: of all rounds together, > 0.
        delta: of all rounds together, 0 < delta < 1.
        population: number of users.
        items: number of different items. Unless both are given, items are unlimited and the population hardly matters.
        rounds: number of rounds, >= 1.

    Raises:
        RequestError: an argument is out of range, or the population is so small that even an item of all users would
            probably stay below the threshold.
    """
    check_epsilon("epsilon", epsilon)
    check_delta(delta)
    check_count("rounds", rounds)
    search = _Search(epsilon, delta, rounds, _Catalogue.from_numbers(population, items), population or math.inf)
    threshold = search.best_threshold()
    if not search.rates:
        raise RequestError(
            f"delta: {delta} is out of reach with epsilon {epsilon} in {rounds} round(s); raise one of them"
        )
    if math.isinf(search.error(threshold)):
        needed = math.ceil(min(tried / rate for tried, rate in search.rates.items()))
        raise RequestError(
            f"population: with {population} users no item would pass the threshold even if all of them held it; "
            f"epsilon {epsilon:g} and delta {delta:g} in {rounds} round(s) need about {needed} users"
        )
    return Sampling.from_rate(search.final_rate(threshold), threshold)


def expected_error(sampling: Sampling, population: int | None = None, items: int | None = None) -> float:
    """Mean absolute error per user: the sum over items of |estimate - count|, by the number of users.

    The estimate of an absent item is 0, so an empty release has an error of 1. The result is the average over Zipf
    catalogues of exponents 1 and 2. Unless both numbers are given, items are unlimited, as in `choose_sampling`.

    Raises:
        RequestError: population or items is not an integer >= 1.
    """
    return _Catalogue.from_numbers(population, items).error(sampling.rate, sampling.threshold)


def relative_error(counts: NDArray[np.int64], rate: float, threshold: int) -> NDArray[np.float64]:
    """E|estimate - c| / c, float64[n], exactly, for items of c users, int64[n] >= 1.

    With X ~ Bin(c, p), de Moivre's identity E[(X - c p) 1{X >= t}] = c p (1 - p) b(t - 1; c - 1) gives
    Pr[X < tau] + (1 - p) (2 b(max(tau, m) - 1; c - 1) - b(tau - 1; c - 1)), with m the first integer above c p.
    """
    below = 1 - scipy.special.betainc(threshold, np.maximum(counts - threshold + 1, 0.5), rate)
    absent = np.where(counts < threshold, 1.0, below)
    above = np.maximum(threshold, np.floor(counts * rate) + 1)
    probability = scipy.stats.binom.pmf
    peaks = 2 * probability(above - 1, counts - 1, rate) - probability(threshold - 1, counts - 1, rate)
    return np.asarray(absent + (1 - rate) * peaks)


@dataclass(frozen=True, eq=False)
class _Catalogue:
    """Groups of items of about equal counts.

    Attributes:
        counts: int64[n], users of one item of the group.
        shares: float64[n], share of all users that hold an item of the group.
    """

    counts: NDArray[np.int64]
    shares: NDArray[np.float64]

    @classmethod
    def from_numbers(cls, population: int | None, items: int | None) -> _Catalogue:
        """Zipf's law for both exponents: the first 200 ranks one by one, then 200 groups of ranks."""
        users = _UNLIMITED if population is None else check_count("population", population)
        ranks = _UNLIMITED if items is None else check_count("items", items)
        if population is None or items is None:
            users = ranks = _UNLIMITED
        tail = np.rint(np.geomspace(min(200, ranks), ranks, 201))
        last = np.unique(np.concatenate([np.arange(1, min(200, ranks) + 1), tail]))  # the last rank of each group
        counts, shares = [], []
        for total in (
            scipy.special.digamma(last + 1) + np.euler_gamma,
            scipy.special.zeta(2, 1) - scipy.special.zeta(2, last + 1),
        ):
            held = np.diff(total, prepend=0) / total[-1]
            counts.append(users * held / np.diff(last, prepend=0))
            shares.append(held / 2)
        return cls(np.maximum(np.rint(np.concatenate(counts)), 1).astype(np.int64), np.concatenate(shares))

    def error(self, rate: float, threshold: int) -> float:
        """Mean absolute error per user."""
        return float(self.shares @ relative_error(self.counts, rate, threshold))

    def hidden(self, threshold: int) -> float:
        """The share of users whose items cannot pass at any rate: a lower bound of the error."""
        return float(self.shares[self.counts < threshold].sum())


class _Search:
    """The errors of thresholds, each with the largest rate that the guarantee allows; caches its results."""

    def __init__(self, epsilon: float, delta: float, rounds: int, catalogue: _Catalogue, population: float) -> None:
        self.epsilon, self.delta, self.rounds = epsilon, delta, rounds
        self.catalogue, self.population = catalogue, population
        self.rates: dict[int, float] = {}
        self.error = cache(self._error)

    def best_threshold(self) -> int:
        """Tries thresholds 1, 2, 3, 5, 7, 10, ... as far as they can matter, then smaller steps around the best one."""
        best, threshold = 1, 1
        while threshold <= _MAX_THRESHOLD and self.catalogue.hidden(threshold) < self.error(best):
            best = min(best, threshold, key=self.error)
            threshold = max(threshold + 1, round(threshold * 1.5))
        step = max(1, best // 4)
        while step:
            near = min(best, max(1, best - step), min(best + step, _MAX_THRESHOLD), key=self.error)
            best, step = near, step if near != best else step // 2
        return best

    def final_rate(self, threshold: int) -> float:
        """The largest rate on the fine grid of privacy losses."""
        return self._rate(threshold, _FINE_STEPS, _FINE_RATE)

    def _error(self, threshold: int) -> float:
        """Mean absolute error per user; infinite if no item can be expected to pass the threshold at its rate."""
        try:
            self.rates[threshold] = self._rate(threshold, _COARSE_STEPS, _COARSE_RATE)
        except RequestError:  # no rate on the grid is private at so low a threshold
            return math.inf
        if threshold > self.population * self.rates[threshold]:
            return math.inf
        return self.catalogue.error(self.rates[threshold], threshold)

    def _rate(self, threshold: int, steps: int, tolerance: float) -> float:
        def cost(rate: float) -> float:
            return rounds_delta(self.epsilon, rate, threshold, self.rounds, steps)

        nearest = min(self.rates, key=lambda other: abs(other - threshold), default=None)
        if nearest is None:  # first guess: the rounds share the budget evenly
            return largest_rate(
                cost, self.delta, tolerance, max_rate(self.epsilon / self.rounds, self.delta / self.rounds, threshold)
            )
        return largest_rate(cost, self.delta, tolerance, self.rates[nearest])
