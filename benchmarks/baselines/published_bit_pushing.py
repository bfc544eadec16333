"""Bit pushing as its paper has it (paper 002, Algorithms 1 and 2), for comparison with `transforms/moments`.

It differs from the product in five points. Quotas of reports are exact (the paper's default, Section 3.1). Nothing is
added to the tallies: reports are epsilon-local, but the release has no guarantee of its own. The second round weighs by
the estimated bit means alone, without the variance of randomised response. Each bit is squashed by itself. And a bit
that nobody reports counts as empty.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.random import Generator
from numpy.typing import NDArray

from benchmarks.baselines.mean_mechanisms import check_values, respond

Floats = NDArray[np.float64]


@dataclass(frozen=True)
class PublishedBitPushing:
    """A mean from one bit of each client, of values that are rounded to whole numbers.

    Attributes:
        epsilon: of randomised response; None without it.
        first_share: delta, the share of the clients in round one; 0: one round (Algorithm 1).
        first_power: alpha of round one: bit j is asked with probability proportional to 2^(alpha j).
        power: with one round, its alpha. Of the second of two rounds: (4^j m_j (1 - m_j))^power.
        caching: whether reports of both rounds are pooled.
        squash: bits whose mean is below this multiple of the deviation of its randomised response are empty.
        quotas: exact numbers of reports on each bit; else every client draws a bit.
    """

    epsilon: float | None = None
    first_share: float = 1 / 3
    first_power: float = 0.5
    power: float = 0.5
    caching: bool = True
    squash: float = 0.0
    quotas: bool = True

    @property
    def name(self) -> str:
        """See MeanMechanism.name."""
        return "published bit pushing"

    @property
    def _report_variance(self) -> float:
        """Of one unbiased report, given the bit."""
        return 0.0 if self.epsilon is None else math.exp(self.epsilon) / math.expm1(self.epsilon) ** 2

    def estimate_mean(self, values: Floats, high: float, generator: Generator) -> float:
        """See MeanMechanism.estimate_mean; high: the largest number of the bit depth."""
        check_values(values, high)
        bits = int(high).bit_length()
        places = 2.0 ** np.arange(bits)
        codes = generator.permutation(np.rint(values).astype(np.int64))  # so that the first ones are a random part
        if not self.first_share:
            return float(places @ self._means(*self._ask(codes, places**self.power, generator)))
        border = round(self.first_share * len(codes))
        first = self._ask(codes[:border], places**self.first_power, generator)
        means = np.clip(self._means(*first), 0, 1)
        weights = (places**2 * means * (1 - means)) ** self.power
        second = self._ask(codes[border:], weights if weights.any() else places, generator)
        pooled = first[0] + second[0], first[1] + second[1]
        if self.caching:
            return float(places @ self._means(*pooled))
        # who was not asked again has the mean of round one, 0 or 1
        return float(places @ np.where(second[1] > 0, self._means(*second), means))

    def _ask(self, codes: NDArray[np.int64], weights: Floats, generator: Generator) -> tuple[Floats, Floats]:
        """Reported 1s and reports of each bit: float64[bits] each. weights: proportional to the probabilities."""
        shares = weights / weights.sum()
        counts = exact_quotas(shares, len(codes)) if self.quotas else generator.multinomial(len(codes), shares)
        bit = np.repeat(np.arange(len(shares)), counts)
        told = respond((codes >> bit & 1).astype(bool), self.epsilon, generator)
        return np.bincount(bit, told, len(shares)), counts.astype(np.float64)

    def _means(self, ones: Floats, reports: Floats) -> Floats:
        """Unbiased bit means, 0 where a bit is squashed or nobody reports it."""
        divisor = np.maximum(reports, 1)
        means = ones / divisor
        if self.epsilon is not None:
            means = 0.5 + (means - 0.5) / math.tanh(self.epsilon / 2)
        noise = np.sqrt(self._report_variance / divisor)
        return np.where((reports > 0) & (means >= self.squash * noise if self.squash else True), means, 0.0)


def exact_quotas(shares: Floats, clients: int) -> NDArray[np.int64]:
    """The numbers of reports nearest to the shares of all clients, by largest remainders: int64[bits]."""
    exact = shares * clients
    counts = np.floor(exact).astype(np.int64)
    counts[np.argsort(counts - exact, kind="stable")[: clients - counts.sum()]] += 1
    return counts
