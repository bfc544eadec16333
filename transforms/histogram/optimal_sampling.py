"""The sampling rate and threshold of least expected error under the exact guarantee.

For one (epsilon, delta) a larger threshold allows a larger rate: less is known of rare items, more of frequent ones.
What is best depends on the catalogue: how many users share how many items. It is taken to be Zipf's, the count of rank
r being proportional to 1 / r or, as likely, to 1 / r^2: with one exponent alone the threshold would be set just below
the count of the last item, as if that were known. With many users and few items (a million and 64, say) few items are
rare, and the choice goes to high rates and thresholds in the hundreds; where items are unlimited it goes to thresholds
of 10 to 35.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cache

import numpy as np
from numpy.typing import NDArray
from scipy import special, stats

from sfumato.schemas.errors import RequestError
from sfumato.transforms.histogram.accountant import check_delta, largest_rate, max_rate
from sfumato.transforms.histogram.composition import rounds_delta
from sfumato.transforms.histogram.sampling_round import Sampling, check_count
from sfumato.transforms.privacy.budget import check_epsilon

# Users and items of the catalogue where items are unlimited: counts from 10^9 down to less than 1.
_UNLIMITED = 2**31
_LARGEST_THRESHOLD = 2**10  # for time's sake; only catalogues without rare items would gain from more
# Grid points of rounds_delta, and the tolerance of rates: while comparing thresholds, and in the end.
_COARSE_STEPS, _COARSE_RATE = 40, 1e-3
_FINE_STEPS, _FINE_RATE = 200, 1e-6


def choose(
    epsilon: float, delta: float, population: int | None = None, items: int | None = None, rounds: int = 1
) -> Sampling:
    """The sampling of least expected error of which `rounds` rounds together are (epsilon, delta)-private.

    population: number of users; items: number of different items they may hold. Without both of them the number of
    items is unlimited, and the choice hardly depends on the population. Deterministic. Raises RequestError for
    parameters out of range, or if the population is so small that no item can be expected to pass even if everybody
    holds it.
    """
    check_epsilon("epsilon", epsilon)
    check_delta(delta)
    check_count("rounds", rounds)
    search = _Search(epsilon, delta, rounds, _Catalogue.of(population, items), population or math.inf)
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
    return Sampling.of(search.final_rate(threshold), threshold)


def expected_error(sampling: Sampling, population: int | None = None, items: int | None = None) -> float:
    """Mean absolute error per user, sum over items |estimate - count| / users; absent items count as estimates of 0.

    It is the average over Zipf catalogues of exponents 1 and 2. Publishing nothing at all has an error of 1. Without
    both numbers items are unlimited, as in `choose`. Raises RequestError unless the numbers given are integers >= 1.
    """
    return _Catalogue.of(population, items).error(sampling.rate, sampling.threshold)


def relative_error(counts: NDArray[np.int64], rate: float, threshold: int) -> NDArray[np.float64]:
    """E|estimate - c| / c, float64[n], for items of c users, int64[n] >= 1: exact.

    With X ~ Bin(c, p), de Moivre's identity E[(X - c p) 1{X >= t}] = c p (1 - p) b(t - 1; c - 1) gives
    Pr[X < tau] + (1 - p) (2 b(max(tau, m) - 1; c - 1) - b(tau - 1; c - 1)), with m the first whole number above c p.
    """
    below = 1 - special.betainc(threshold, np.maximum(counts - threshold + 1, 0.5), rate)
    absent = np.where(counts < threshold, 1.0, below)
    above = np.maximum(threshold, np.floor(counts * rate) + 1)
    peaks = 2 * stats.binom.pmf(above - 1, counts - 1, rate) - stats.binom.pmf(threshold - 1, counts - 1, rate)
    return np.asarray(absent + (1 - rate) * peaks)


@dataclass(frozen=True, eq=False)
class _Catalogue:
    """Groups of items of about equal counts: counts int64[n], and the shares float64[n] of users who hold one."""

    counts: NDArray[np.int64]
    shares: NDArray[np.float64]

    @classmethod
    def of(cls, population: int | None, items: int | None) -> _Catalogue:
        """Zipf's for both exponents. The first 200 ranks stand alone, then come 200 groups of ranks."""
        users = _UNLIMITED if population is None else check_count("population", population)
        ranks = _UNLIMITED if items is None else check_count("items", items)
        if population is None or items is None:
            users = ranks = _UNLIMITED
        tail = np.rint(np.geomspace(min(200, ranks), ranks, 201))
        last = np.unique(np.concatenate([np.arange(1, min(200, ranks) + 1), tail]))  # the last rank of each group
        counts, shares = [], []
        for total in (special.digamma(last + 1) + np.euler_gamma, special.zeta(2, 1) - special.zeta(2, last + 1)):
            held = np.diff(total, prepend=0) / total[-1]
            counts.append(users * held / np.diff(last, prepend=0))
            shares.append(held / 2)
        return cls(np.maximum(np.rint(np.concatenate(counts)), 1).astype(np.int64), np.concatenate(shares))

    def error(self, rate: float, threshold: int) -> float:
        """Mean absolute error per user."""
        return float(self.shares @ relative_error(self.counts, rate, threshold))

    def hidden(self, threshold: int) -> float:
        """The share of users whose items cannot pass, at whatever rate: no error can be smaller."""
        return float(self.shares[self.counts < threshold].sum())


class _Search:
    """The errors of thresholds, each with the largest rate that the guarantee allows it; remembers what it has seen."""

    def __init__(self, epsilon: float, delta: float, rounds: int, catalogue: _Catalogue, population: float) -> None:
        self.epsilon, self.delta, self.rounds = epsilon, delta, rounds
        self.catalogue, self.population = catalogue, population
        self.rates: dict[int, float] = {}
        self.error = cache(self._error)

    def best_threshold(self) -> int:
        """Thresholds 1, 2, 3, 5, 7, 10, ... as far as they can matter, then ever smaller steps from the best one."""
        best, threshold = 1, 1
        while threshold <= _LARGEST_THRESHOLD and self.catalogue.hidden(threshold) < self.error(best):
            best = min(best, threshold, key=self.error)
            threshold = max(threshold + 1, round(threshold * 1.5))
        step = max(1, best // 4)
        while step:
            near = min(best, max(1, best - step), min(best + step, _LARGEST_THRESHOLD), key=self.error)
            best, step = near, step if near != best else step // 2
        return best

    def final_rate(self, threshold: int) -> float:
        """The largest rate to the last digits that matter, on the fine grid of losses."""
        return self._rate(threshold, _FINE_STEPS, _FINE_RATE)

    def _error(self, threshold: int) -> float:
        """Infinite if no item can be expected to pass this threshold at the rate that it allows."""
        try:
            self.rates[threshold] = self._rate(threshold, _COARSE_STEPS, _COARSE_RATE)
        except RequestError:  # a threshold so low that no rate on the grid is private
            return math.inf
        if threshold > self.population * self.rates[threshold]:
            return math.inf
        return self.catalogue.error(self.rates[threshold], threshold)

    def _rate(self, threshold: int, steps: int, tolerance: float) -> float:
        def cost(rate: float) -> float:
            return rounds_delta(self.epsilon, rate, threshold, self.rounds, steps)

        seen = min(self.rates, key=lambda other: abs(other - threshold), default=None)
        if seen is None:  # a first guess: rounds that share the budget evenly
            return largest_rate(
                cost, self.delta, tolerance, max_rate(self.epsilon / self.rounds, self.delta / self.rounds, threshold)
            )
        return largest_rate(cost, self.delta, tolerance, self.rates[seen])
