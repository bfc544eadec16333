"""What a heatmap will cost and show, before any data is read: public figures alone. Pure."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from scipy.special import pdtr

from sfumato.schemas.guarantee import Population, SubQuery
from sfumato.transforms.bisection import bisect
from sfumato.transforms.heatmap.parameters import HeatmapParameters
from sfumato.transforms.heatmap.schedule import advance, plan, window_for
from sfumato.transforms.heatmap.state import Estimate, HeatmapState
from sfumato.transforms.privacy.budget import Budget
from sfumato.transforms.privacy.mechanism import discrete_laplace_stddev
from sfumato.transforms.secagg.encodings import TreeEncoding
from sfumato.transforms.secagg.shard_sums import ShardQuery, ShardTotals

VISIBLE_FROM = 2.0  # standard deviations of the noise


@dataclass(frozen=True)
class Plan:
    """A run as it will be if users are spread evenly over the map.

    Only the adaptive methods' sub-queries depend on where users are; every other method's are exact.
    sub_queries: in order; overflow: upper bounds of the chance that any sum wraps around, one a sub-query.
    """

    parameters: HeatmapParameters
    state: HeatmapState
    sub_queries: tuple[SubQuery, ...]
    overflow: tuple[float, ...]

    @property
    def central(self) -> bool:
        """Whether a trusted server adds the noise, so that there are no shards to lose and no modulus."""
        return self.parameters.noise == "central"

    @property
    def is_paper(self) -> bool:
        """Whether shards can be lost because of who takes part: the paper's participation model."""
        return self.parameters.participation == "paper"

    @property
    def spent(self) -> float:
        """What the sub-queries cost a user."""
        return self.state.budget.spent - self.state.population.epsilon

    @property
    def entries(self) -> int:
        """Vector entries that a client sends in all; the most of them, where each answers one sub-query."""
        return self.state.per_user_total([one.vector_length for one in self.sub_queries])

    @property
    def bits(self) -> int:
        """Bits that a client sends in all, likewise."""
        return self.state.per_user_total([one.bits_per_client for one in self.sub_queries])

    @property
    def noise_stddev(self) -> float:
        """Standard deviation of the noise in an entry of the last sub-query, in users."""
        return self.sub_queries[-1].noise_stddev

    @property
    def min_visible_users(self) -> float | None:
        """Users whom a cell needs to stand two standard deviations out of the last sub-query's noise.

        Other answers can only help. None for methods none of whose answers is that of all cells.
        """
        return VISIBLE_FROM * self.noise_stddev if self.parameters.method.LAST_QUERY_COVERS_MAP else None

    @property
    def visible_level(self) -> int | None:
        """The finest level asked for at which evenly spread users would be seen so; None as above."""
        encoding, least = self.state.results[-1].encoding, self.min_visible_users
        if least is None or not isinstance(encoding, TreeEncoding):
            return None
        cells = max(self.state.cohort.users / least, 1.0) if least > 0 else math.inf
        return encoding.tree.level if cells == math.inf else min(encoding.tree.level, int(math.log(cells, 4)))

    def shards_lost(self, dropout: float) -> float:
        """Expected share of the shards that are lost where so large a share of the devices vanishes.

        Of a real protocol, and of the paper's participation model: a shard's survivors are a Poisson number, since who
        is in it depends on hashes.
        """
        if self.central:
            return 0.0
        cohort = self.state.cohort
        expected = cohort.users / cohort.shards * (1 - dropout)
        return float(pdtr(cohort.required_survivors - 1, expected))


def make_plan(parameters: HeatmapParameters, prior: Estimate | None = None) -> Plan:
    """The plan for parameters.users (or the population). Raises RequestError as the run itself would.

    prior: the map of an earlier release to start from. Raises ValueError where no number of users is given.
    """
    users = parameters.population or parameters.users
    if users is None:
        raise ValueError("users: a plan needs to know how many")
    epsilon = parameters.admission().epsilon
    source = "noisy" if parameters.population is None else "public"
    population = Population(float(users), source, epsilon, discrete_laplace_stddev(epsilon), float(users))
    state = plan(population, Budget(parameters.epsilon).charge(epsilon), parameters, prior)
    overflow = []
    while state.query is not None:
        query, cohort = state.query, state.cohort
        overflow.append(overflow_probability(query, state))
        first, last = query.shard_range or (0, cohort.shards)
        asked = cohort.users * (last - first) / cohort.shards
        sums = np.round(query.encoding.shares * asked * state.unit).astype(np.int64)
        state = advance(state, ShardTotals(sums, last - first), parameters)
    return Plan(parameters, state, tuple(result.spent for result in state.results), tuple(overflow))


def overflow_probability(query: ShardQuery, state: HeatmapState) -> float:
    """An upper bound of the chance that any sum of a sub-query wraps around its modulus: the least that is certified.

    1 where nothing can be said.
    """

    def fits(log_probability: float) -> bool:
        window = window_for(query.encoding, query.epsilon, state, math.exp(log_probability))
        return window.modulus <= query.window.modulus

    return math.exp(bisect(fits, 0.0, math.log(1e-300), 40)[0]) if fits(-1e-9) else 1.0
