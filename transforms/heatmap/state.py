"""What the server of a heatmap knows between sub-queries, and what it asks and publishes. Nothing here is raw."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from sfumato.schemas.guarantee import Population, SubQuery
from sfumato.schemas.tree import Tree
from sfumato.transforms.locations.shards import Cohort
from sfumato.transforms.privacy.admission import noise_quantile
from sfumato.transforms.privacy.budget import Budget
from sfumato.transforms.privacy.mechanism import discrete_laplace_stddev
from sfumato.transforms.secagg.encodings import Encoding
from sfumato.transforms.secagg.rounding import Rounding, l1_sensitivity
from sfumato.transforms.secagg.shards import ShardQuery

EVERYTHING = math.inf


@dataclass(frozen=True)
class Question:
    """What clients are to send next, and the epsilon it may cost; EVERYTHING spends all that remains.

    part: which of the shards are asked, as two shares of them: (0, 0.1) are the first tenth. Parts must not overlap, so
    that no user is asked twice and each has the whole budget for hers. None asks all shards.
    """

    encoding: Encoding
    epsilon: float
    part: tuple[float, float] | None = None


@dataclass(frozen=True)
class Answer:
    """A sub-query's noisy sums, float64[length], in users of the whole cohort, for the entries of its encoding.

    shards: the first of the shards that were asked, and the one after the last; None for all.
    """

    encoding: Encoding
    counts: NDArray[np.float64]
    spent: SubQuery
    shards: tuple[int, int] | None = None


@dataclass(frozen=True)
class HeatmapState:
    """What the server knows between sub-queries. query is None when all is done.

    unit: what a user's weights sum to (1 for one location a user). noisy_sums: sums that carry noise of their own and
    are added up: the shards, or one where the noise is central. categories: of the auxiliary data, 1 without any.
    rounding: of the users' distributions. prior: the map of an earlier release, from which this one starts.
    """

    population: Population
    cohort: Cohort
    budget: Budget
    unit: int
    noisy_sums: int
    query: ShardQuery | None = None
    answers: tuple[Answer, ...] = ()
    categories: int = 1
    rounding: Rounding = "systematic"
    prior: Estimate | None = None

    @property
    def purse(self) -> Budget:
        """The budget of the users of the next sub-query: in parts they have been asked nothing but to be counted."""
        if self.answers and self.answers[-1].shards is not None and self.unasked:
            return self.at_first
        return self.budget

    @property
    def at_first(self) -> Budget:
        """The budget before the first sub-query."""
        return self.budget.first(self._common)

    @property
    def in_parts(self) -> bool:
        """Whether sub-queries are of parts of the shards, so that a user answers one of them."""
        return any(answer.shards is not None for answer in self.answers)

    @property
    def central(self) -> bool:
        """Whether noise is added once to the sums of several shards; False for one shard, which has one in any case."""
        return self.noisy_sums != self.cohort.shards

    def of_user(self, each: Sequence[int]) -> int:
        """What a user does in all of so much in each sub-query: the most of them where she answers one."""
        return max(each) if self.in_parts else sum(each)

    @property
    def unasked(self) -> int:
        """How many shards have not been asked yet, where sub-queries are of parts of them."""
        return self.cohort.shards - (self.answers[-1].shards or (0, 0))[1] if self.answers else self.cohort.shards

    def charged(self, epsilon: float, in_part: bool) -> Budget:
        """The budget of whoever has spent most once a sub-query's users have spent epsilon more."""
        mine = self.purse.charge(epsilon)
        return max(self.budget, mine, key=lambda one: one.spent) if in_part else mine

    def most_users(self, probability: float) -> float:
        """A number of users that there are more than with at most this probability, by the private count alone."""
        population = self.population
        if population.counted is None:
            return population.users
        return max(1.0, population.counted + noise_quantile(population.epsilon, probability))

    @property
    def counted_users(self) -> float:
        """The cohort's users by the private count alone, which may be negative; the planned ones without a count."""
        counted = self.population.counted
        return self.cohort.users if counted is None else counted * self.cohort.sampling_rate

    def users_estimate(self) -> tuple[float, float]:
        """The number of users of the cohort, and its standard deviation, from all noisy figures.

        The private count and the total of every answer, each with weight by its inverse variance. Users who were drawn
        for a sub-query are a sample of the cohort's. Not negative.

        Returns:
            Users and standard deviation, in users; the public figure and 0 where nothing was counted.
        """
        rate, counted = self.cohort.sampling_rate, self.counted_users
        variance = (self.population.noise_stddev * rate) ** 2
        if not (self.answers and variance):
            return max(counted, 0.0), math.sqrt(variance)
        size = max(counted, 1.0)  # of which a sample's variance is a share
        totals, variances = [], []
        for answer in self.answers:
            spent, entries = answer.spent, answer.encoding.sensitivity
            asked = (spent.shards - spent.shards_lost) / self.cohort.shards
            totals.append(float(answer.counts.sum()) / entries)
            variances.append(spent.vector_length * (spent.noise_stddev / entries) ** 2 + (1 / asked - 1) * size)
        answered, error = _combined(totals, variances)
        users, error = _combined([counted, answered], [variance, error + (1 - rate) * size])
        return max(users, 0.0), math.sqrt(error)

    @property
    def _common(self) -> int:
        """How many charges every user bears, whatever her part."""
        return 1 if self.population.epsilon else 0

    def sensitivity(self, length: int | None = None, entries: int = 1) -> int:
        """The largest L1 norm of a user's vector of so many entries; without length, of as many as the last had.

        entries: to how many of them a location adds.
        """
        if length is None:
            length = len(self.answers[-1].counts) if self.answers else 0
        return l1_sensitivity(self.unit, self.rounding, length, entries)

    def noise_stddev(self, epsilon: float, sensitivity: int = 1, length: int | None = None) -> float:
        """Standard deviation, in users, of an entry's sum over all shards at this epsilon (Eq. 5).

        sensitivity: to how many entries a location adds. length: of the vector, by default that of the last answer.
        """
        one = discrete_laplace_stddev(epsilon, self.sensitivity(length, sensitivity)) / self.unit
        return math.sqrt(self.noisy_sums) * one


def _combined(values: Sequence[float], variances: Sequence[float]) -> tuple[float, float]:
    """The mean of independent values, weighted by inverse variance, and its variance."""
    weights = [1 / max(variance, 1e-12) for variance in variances]
    total = math.fsum(weights)
    return math.fsum(w * value for w, value in zip(weights, values, strict=True)) / total, 1 / total


@dataclass(frozen=True)
class Estimate:
    """A method's map: users float64[T] for the entries of a tree, and their standard deviations float64[T].

    With auxiliary data: by_category float64[categories, T], noisy users of each category at the same entries, and the
    standard deviation of the noise in each of them, float64[T], independent between categories. slope: how much of the
    growth from neighbour to neighbour goes on inside a cell; at 0 its users are spread evenly.
    """

    tree: Tree
    counts: NDArray[np.float64]
    stddev: NDArray[np.float64]
    by_category: NDArray[np.float64] | None = None
    category_stddev: NDArray[np.float64] | None = None
    slope: float = 0.0
