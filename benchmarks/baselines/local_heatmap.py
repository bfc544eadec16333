"""Heatmaps under local differential privacy: each client reports the bits of its prefixes by randomised response.

It is the local baseline of paper 000, Figure 1. The rounds are those of a heatmap's method. In each of them a client
encodes its cell as a vector of bits, one for each entry of the tree: the one whose prefix covers the cell is 1. It
flips every bit by itself with probability 1 / (1 + e^(epsilon / 2)) and sends the vector. The vectors of two cells
differ in two bits, so a report is epsilon-locally private: whatever the cell, its probability changes by at most
e^epsilon (paper 000, Section 2.2). Nobody adds anything up, so every client is a shard of its own.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from sfumato.schemas.guarantee import NORMAL_SUMS, Population
from sfumato.transforms.counting.methods import Method
from sfumato.transforms.counting.state import CountState, NoisyCounts
from sfumato.transforms.locations.shards import ShardPlan
from sfumato.transforms.privacy.additive_noise import PureNoise
from sfumato.transforms.privacy.budget import Budget
from sfumato.transforms.privacy.keys import RunKey
from sfumato.transforms.privacy.shared_noise import Noise
from sfumato.transforms.secagg.encodings import TreeEncoding
from sfumato.transforms.secagg.modulus import Window
from sfumato.transforms.secagg.shard_sums import ShardQuery

_MIN_SHARE = 1e-5  # smallest share of epsilon for a round


@dataclass(frozen=True)
class RandomisedResponse(PureNoise):
    """The error of one client's bit, after division by the contrast 1 - 2 flip. Sums over clients are near normal."""

    NAME: ClassVar[str] = "randomised response"
    HAS_SHARES: ClassVar[bool] = False

    @staticmethod
    def flip(cost: float) -> float:
        """The probability that a bit is flipped."""
        return 1 / (1 + math.exp(cost / 2))

    def stddev(self, cost: float, sensitivity: float = 1) -> float:
        return 1 / (2 * math.sinh(cost / 4))  # sqrt(flip (1 - flip)) / (1 - 2 flip)

    def cost(self, stddev: float, sensitivity: float = 1) -> float:
        return 4 * math.asinh(1 / (2 * stddev))

    def min_cost(self, sensitivity: float = 1) -> float:
        return 1e-6

    def quantile(self, cost: float, probability: float, sensitivity: float = 1) -> int:
        return math.ceil((1 - self.flip(cost)) / (1 - 2 * self.flip(cost)))  # the largest error of one bit

    def kurtosis(self, cost: float, sensitivity: float = 1) -> float:
        variance = self.flip(cost) * (1 - self.flip(cost))
        return 1 / variance - 6

    def tail_sums(self, sums: int) -> int:
        return NORMAL_SUMS

    def draw(
        self, key: RunKey, label: str, streams: NDArray[np.uint64], count: int, cost: float, sensitivity: float = 1
    ) -> NDArray[np.int64]:
        raise TypeError("the error of a flipped bit depends on the bit: see `sum_reports`")


RANDOMISED_RESPONSE = RandomisedResponse()


def sum_reports(
    counts: NDArray[np.int64], clients: int, epsilon: float, rng: np.random.Generator
) -> NDArray[np.float64]:
    """Unbiased counts from the sums of the clients' flipped bits: float64[T].

    A bit is flipped by itself, so the reports of the c clients whose bit is 1 add up to a binomial number of c, and
    those of the others to one of the rest, independently for every entry.

    Args:
        counts: int64[T], clients whose bit is 1.
        clients: all of them.
        epsilon: of a client's vector.
        rng: of the flips.
    """
    flip = RANDOMISED_RESPONSE.flip(epsilon)
    reported = rng.binomial(counts, 1 - flip) + rng.binomial(clients - counts, flip)
    return np.asarray((reported - clients * flip) / (1 - 2 * flip))


def run_local(
    codes: NDArray[np.uint64], population: float, method: Method, depth: int, epsilon: float, rng: np.random.Generator
) -> CountState:
    """Runs all rounds of a method whose encodings are trees, and returns the final state.

    Args:
        codes: uint64[n], the finest cell of each client, in random order: a part of the clients is the first of them.
        population: the users that the clients were drawn from.
        method: with its options.
        depth: of the grid.
        epsilon: of each client, in all rounds together.
        rng: of the flips.
    """
    clients = len(codes)
    shard_plan = ShardPlan(population, clients, clients / population, shards=clients, required_survivors=1)
    state = CountState(
        Population(population, "public"), shard_plan, Budget(epsilon), 1, clients, noise=Noise(RANDOMISED_RESPONSE)
    )
    while state.next_query_budget.remaining > 0 and (query := method.next_query(state, depth)) is not None:
        if not isinstance(query.encoding, TreeEncoding):
            raise TypeError(f"method: {method.NAME} has encodings without prefixes")
        budget, takes_part = state.next_query_budget, (0, clients)
        cost = budget.affordable(min(query.cost, budget.remaining))
        if budget.remaining - cost < _MIN_SHARE * epsilon:  # the rest is too small for another round
            cost = budget.remaining
        if query.shard_fractions is not None:  # these clients take part in this round alone
            first, end = query.shard_fractions
            cost, takes_part = budget.remaining, (round(first * clients), round(end * clients))
        entries = query.encoding.tree.index.owners(codes[slice(*takes_part)])
        senders = takes_part[1] - takes_part[0]
        sums = sum_reports(np.bincount(entries, minlength=query.encoding.length), senders, cost, rng)
        scale = clients / senders
        has_part = query.shard_fractions is not None
        shard_query = ShardQuery(
            len(state.results) + 1,
            query.encoding,
            cost,
            Window(2, 0),
            state.noise,
            shard_range=takes_part if has_part else None,
        )
        result = NoisyCounts(shard_query, scale * sums, state.noise_stddev(cost) * math.sqrt(scale), senders)
        state = replace(state, budget=state.charged(cost, has_part), results=(*state.results, result))
    return state
