"""The state of a run between sub-queries, the next query of a method, and the published estimate.

Nothing here is raw: every number is public or has noise.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sfumato.schemas.guarantee import Population, Trust
from sfumato.schemas.tree import Tree
from sfumato.transforms.locations.shards import ShardPlan
from sfumato.transforms.privacy.budget import Budget
from sfumato.transforms.privacy.shared_noise import Noise
from sfumato.transforms.secagg.encodings import Encoding, Rounding, TreeEncoding, sensitivity_of
from sfumato.transforms.secagg.shard_sums import ShardQuery
from sfumato.transforms.split.prio3 import report_size

ALL_REMAINING = math.inf


@dataclass(frozen=True)
class Query:
    """The next sub-query as a method requests it. `sub_queries` makes a ShardQuery of it.

    Attributes:
        encoding: how a client's cells become a vector.
        cost: in the unit of the budget, epsilon or rho; ALL_REMAINING spends the rest of the budget.
        shard_fractions: the part of the shards to query, as two fractions: (0, 0.1) is the first tenth. None is all.
            The parts of a run must not overlap. Each user is then queried once, and has the whole budget for it.

    >>> Query(TreeEncoding(Tree.uniform(depth=8, level=2)), cost=0.5).encoding.length
    16
    """

    encoding: Encoding
    cost: float
    shard_fractions: tuple[float, float] | None = None


@dataclass(frozen=True)
class NoisyCounts:
    """The shards' answer to a sub-query. Every figure is public or differentially private.

    Attributes:
        query: the sub-query.
        counts: float64[length], the noisy sums, in users of all shards.
        noise_stddev: standard deviation of one count, in users.
        shards: number of shards that were queried.
        shards_lost: number of those that had too few survivors.
    """

    query: ShardQuery
    counts: NDArray[np.float64]
    noise_stddev: float
    shards: int
    shards_lost: int = 0

    @property
    def encoding(self) -> Encoding:
        """The encoding by which clients' cells became the counts."""
        return self.query.encoding

    @property
    def shard_range(self) -> tuple[int, int] | None:
        """The first shard that was queried and the one after the last; None for all shards."""
        return self.query.shard_range

    @property
    def cost(self) -> float:
        """The cost of the sub-query for a user who takes part, in the unit of its noise."""
        return self.query.cost

    @property
    def shards_answered(self) -> int:
        """The queried shards that were not lost."""
        return self.shards - self.shards_lost

    @property
    def vector_length(self) -> int:
        """Entries that a client sends."""
        return self.encoding.length

    @property
    def bits_per_client(self) -> int:
        """Bits that a client sends."""
        if self.query.servers:
            return 8 * report_size(self.vector_length, int(self.query.sensitivity))
        return self.vector_length * self.query.window.bits

    def entry(self) -> dict[str, Any]:
        """Returns the fields that a manifest states: either epsilon or rho, and all but the counts."""
        fields = {
            "index": self.query.index,
            "epsilon": self.cost,
            "vector_length": self.vector_length,
            "noise_stddev": self.noise_stddev,
            "shards": self.shards,
            "shards_lost": self.shards_lost,
            "modulus": self.query.window.modulus,
            "bits_per_client": self.bits_per_client,
            "rho": self.cost,
        }
        del fields["rho" if self.query.noise.kind.UNIT == "epsilon" else "epsilon"]
        if self.query.servers:
            fields["servers"] = self.query.servers
        return fields

    @property
    def tree(self) -> Tree:
        """The tree whose entries were counted. Raises TypeError where the encoding is not of a tree."""
        if not isinstance(self.encoding, TreeEncoding):
            raise TypeError(f"the counts are not of a tree but of {type(self.encoding).__name__}")
        return self.encoding.tree

    def to_estimate(self) -> Estimate:
        """Returns the users at each entry of the tree, over all categories, with the noise's deviation. See `tree`."""
        tree, noise = self.tree, self.noise_stddev
        by_category = self.counts.reshape(-1, len(tree.entries))
        each = np.full(len(tree.entries), noise)
        if len(by_category) == 1:
            return Estimate(tree, self.counts, each)
        return Estimate(tree, by_category.sum(axis=0), math.sqrt(len(by_category)) * each, by_category, each)


@dataclass(frozen=True)
class CountState:
    """The state of a run between sub-queries.

    Attributes:
        population: the number of users that the run is planned for.
        shard_plan: how users are spread over shards.
        budget: the budget of the user who has spent most, in the unit of the noise: epsilon or rho.
        gamma: the sum of a user's weights; 1 for one location a user; the most records of a user with several.
        noisy_sums: number of sums with independent noise that are added up: the shards; 1 where a curator adds noise,
            and 2 where two servers do.
        query: the sub-query to run next; None when the run is complete.
        results: the noisy counts of all sub-queries so far, in order.
        categories: number of categories of the auxiliary data; 1 without any.
        rounding: how users' distributions become integers.
        prior: the map of an earlier release that this one starts from.
        noise: the noise of every sum.
        slots: number of slots of time by which the last sub-query counts; 1 without any.
        records_per_user: the most slots in which a user counts. Above 1, all counts are of user-slots.
        rotation: the number of rotating cohorts. Above 1, all counts are of the users of the active cohort.
        trust: the party that adds the noise.
    """

    population: Population
    shard_plan: ShardPlan
    budget: Budget
    gamma: int
    noisy_sums: int
    query: ShardQuery | None = None
    results: tuple[NoisyCounts, ...] = ()
    categories: int = 1
    rounding: Rounding = "systematic"
    prior: Estimate | None = None
    noise: Noise = field(default_factory=Noise)
    slots: int = 1
    records_per_user: int = 1
    rotation: int = 1
    trust: Trust = Trust.SECAGG

    @property
    def unit(self) -> int:
        """The weight that counts as one in the results: a whole user's, or that of one of several records."""
        return 1 if self.records_per_user > 1 else self.gamma

    @property
    def map_results(self) -> tuple[NoisyCounts, ...]:
        """The results that count all slots together; all results of a map without slots."""
        return self.results if self.slot_result is None else self.results[:-1]

    @property
    def slot_result(self) -> NoisyCounts | None:
        """The result by slot, the last one; None before it and without slots."""
        last = self.results[-1] if self.slots > 1 and self.results else None
        return last if last is not None and len(last.counts) != len(last.tree.entries) else None

    @property
    def next_query_budget(self) -> Budget:
        """The budget of the next sub-query's users; those of new shards have paid only for the noisy user count."""
        if self.has_disjoint_shards and self.remaining_shards:
            return self.initial_budget
        return self.budget

    @property
    def initial_budget(self) -> Budget:
        """The budget before the first sub-query, after the noisy user count."""
        return self.budget.first(1 if self.population.cost else 0)

    @property
    def has_disjoint_shards(self) -> bool:
        """Whether each sub-query has shards of its own, so that a user takes part in one of them."""
        return any(result.shard_range is not None for result in self.results)

    @property
    def tail_sums(self) -> int:
        """How many Laplace variables have a sum with the tails of the noise of a count."""
        return self.noise.kind.tail_sums(self.noisy_sums)

    @property
    def answered_tail_sums(self) -> int:
        """The `tail_sums` of the last result, without the shards that it lost."""
        return self.noise.kind.tail_sums(self.noisy_sums if self.is_one_batch else self.results[-1].shards_answered)

    @property
    def is_one_batch(self) -> bool:
        """Whether noise is added to one sum of all users, and not to the sum of each shard."""
        return self.trust != Trust.SECAGG

    @property
    def entries_per_client(self) -> int:
        """Vector entries that a client sends in all sub-queries; with disjoint shards at most, in one of them."""
        each = [result.vector_length for result in self.results]
        return max(each) if self.has_disjoint_shards else sum(each)

    @property
    def bits_per_client(self) -> int:
        """Bits that a client sends in all sub-queries; with disjoint shards at most, in one of them."""
        each = [result.bits_per_client for result in self.results]
        return max(each) if self.has_disjoint_shards else sum(each)

    @property
    def remaining_shards(self) -> int:
        """Shards that have not been queried yet, with disjoint shards."""
        return (
            self.shard_plan.shards - (self.results[-1].shard_range or (0, 0))[1]
            if self.results
            else self.shard_plan.shards
        )

    def charged(self, cost: float, has_shard_range: bool) -> Budget:
        """Returns the budget of the user who has spent most, after the next sub-query.

        Args:
            cost: of the sub-query.
            has_shard_range: whether it queries a part of the shards.
        """
        charged = self.next_query_budget.charge(cost)
        return max(self.budget, charged, key=lambda budget: budget.spent) if has_shard_range else charged

    def max_users(self, probability: float) -> float:
        """Returns an upper bound of the users by the noisy user count. It fails with at most this probability."""
        population = self.population
        if population.counted is None:
            return population.users
        return max(1.0, population.counted + self.noise.kind.quantile(population.cost, probability))

    @property
    def counted_users(self) -> float:
        """The users who take part by the noisy user count, which may be negative; the planned users without a count."""
        counted = self.population.counted
        return self.shard_plan.users if counted is None else counted * self.shard_plan.sampling_rate

    def users_estimate(self) -> tuple[float, float]:
        """Returns the number of users who take part and its standard deviation, from all noisy figures.

        The noisy user count and the total of every result are weighted by inverse variance. The users of a sub-query
        are a sample of all who take part. With several records a user it is the number of user-slots, which the noisy
        user count does not know.

        Returns:
            Users, at least 0, and the standard deviation, both in users; the public figure and 0 without any count.
        """
        rate, counted = self.shard_plan.sampling_rate, self.counted_users
        variance = (self.population.noise_stddev * rate) ** 2
        if not (self.results and variance):
            return max(counted, 0.0), math.sqrt(variance)
        size = max(counted, 1.0)  # a sample's variance is a share of it
        totals, variances = [], []
        for result in self.results:
            entries = result.encoding.entries_per_location
            queried = result.shards_answered / self.shard_plan.shards
            totals.append(float(result.counts.sum()) / entries)
            variances.append(result.vector_length * (result.noise_stddev / entries) ** 2 + (1 / queried - 1) * size)
        summed, error = _weighted_mean(totals, variances)
        if self.records_per_user > 1:
            return max(summed, 0.0), math.sqrt(error + (1 - rate) * size)
        users, error = _weighted_mean([counted, summed], [variance, error + (1 - rate) * size])
        return max(users, 0.0), math.sqrt(error)

    def all_users_estimate(self) -> tuple[float, float]:
        """Returns the number of users of all rotating cohorts and its standard deviation, in users.

        One of `rotation` cohorts was counted. Its size is a binomial number of all T users, whose variance adds
        (rotation - 1) T. Without a rotation it is `users_estimate`.
        """
        users, stddev = self.users_estimate()
        sampling = self.rotation * (self.rotation - 1) * users
        return self.rotation * users, math.sqrt((self.rotation * stddev) ** 2 + sampling)

    def sensitivity(self, length: int | None = None, entries: int = 1) -> float:
        """Returns the largest norm of a user's vector, the one that the noise protects.

        Args:
            length: entries of the vector; None takes the last result's.
            entries: how many entries a location adds to.
        """
        if length is None:
            length = len(self.results[-1].counts) if self.results else 0
        return sensitivity_of(self.noise.kind, self.gamma, self.rounding, length, entries)

    def noise_stddev(self, cost: float, entries_per_location: int = 1, length: int | None = None) -> float:
        """Returns the standard deviation, in users, of an entry's sum over all shards (paper 000, Eq. 5).

        Args:
            cost: of the sub-query.
            entries_per_location: how many entries a location adds to.
            length: entries of the vector; None takes the last result's.
        """
        return self.noise.stddev(cost, self.sensitivity(length, entries_per_location), self.noisy_sums, self.unit)

    def epsilon_against(self, share: float) -> float:
        """Returns the epsilon of a real protocol's run so far against its server and the clients who collude with it.

        Args:
            share: fraction of a shard's required clients who collude, below 1; rounded down to whole clients. The noise
                must be Laplace noise in the sums of shards.
        """
        costs = [self.noise.epsilon_against(share, result.cost, result.query.sensitivity) for result in self.results]
        return self.population.cost + (max if self.has_disjoint_shards else math.fsum)(costs)


def _weighted_mean(values: Sequence[float], variances: Sequence[float]) -> tuple[float, float]:
    """Returns the mean of independent values, weighted by inverse variance, and its variance."""
    weights = [1 / max(variance, 1e-12) for variance in variances]
    total = math.fsum(weights)
    return math.fsum(w * value for w, value in zip(weights, values, strict=True)) / total, 1 / total


@dataclass(frozen=True)
class Estimate:
    """A method's map: the users at each entry of a tree.

    Attributes:
        tree: with T entries.
        counts: float64[T], users.
        stddev: float64[T], their standard deviations, in users.
        by_category: float64[categories, T], noisy users of each category; None without auxiliary data.
        category_stddev: float64[T], standard deviation of the noise in each of them, independent between categories.
        slope: the share of the gradient between neighbours that continues inside a cell; 0 spreads users evenly.
        memory: for a map that is predicted from earlier nights, roughly how many nights' measurements of one node it
            adds up; 1 for other maps. With more of them, nodes that are too fine for the noise of one night are useful.
    """

    tree: Tree
    counts: NDArray[np.float64]
    stddev: NDArray[np.float64]
    by_category: NDArray[np.float64] | None = None
    category_stddev: NDArray[np.float64] | None = None
    slope: float = 0.0
    memory: float = 1.0

    def scaled(self, factor: float) -> Estimate:
        """Returns the map with this many times the users. Maps by category are not scaled: no rotation has them."""
        return replace(self, counts=factor * self.counts, stddev=factor * self.stddev)
