"""Runs a method on one cohort in memory: the stages of the job, without a runner. Pure."""

from __future__ import annotations

import functools
import operator
from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pyarrow.parquet as pq
from numpy.typing import NDArray

from sfumato.schemas.locations import LocationColumns
from sfumato.schemas.region import Grid, Places
from sfumato.transforms.counting.parameters import CountParameters
from sfumato.transforms.counting.state import CountState, Estimate
from sfumato.transforms.counting.sub_queries import advance_run, first_state, population_and_budget
from sfumato.transforms.locations.distributions import (
    Distributions,
    bound_distributions,
    build_weighted_shard_group,
    split_distributions,
)
from sfumato.transforms.locations.encode import encode_locations
from sfumato.transforms.locations.shards import (
    ShardGroup,
    ShardPlan,
    build_shard_group,
    empty_shard_groups,
    split_by_shard_group,
)
from sfumato.transforms.locations.spill import Spill
from sfumato.transforms.locations.users import bound_users
from sfumato.transforms.privacy.admission import UserCounts, count_users
from sfumato.transforms.privacy.keys import RunKey, keyed_hash
from sfumato.transforms.secagg.shard_sums import NOTHING, sum_shards


@dataclass(frozen=True)
class Rows:
    """Users and their cells, in the order of the users.

    Attributes:
        places: the grid.
        users: hashes, uint64[n].
        codes: of the cells, uint64[n].
        weights: of the cell in the user's distribution, int64[n]; None if each user has one row, of weight 1.
    """

    places: Places
    users: NDArray[np.uint64]
    codes: NDArray[np.uint64]
    weights: NDArray[np.int64] | None = None

    @classmethod
    def read(
        cls, paths: Iterable[str], grid: Grid, user_key: bytes, top: bool = False, total: int | None = None
    ) -> Rows:
        """Reads Parquet logs with the default columns.

        Args:
            paths: the files.
            grid: of the map.
            user_key: of the hashes of users.
            top: whether users have their most frequent location in place of a random one.
            total: the sum of the weights of a user's distribution; None for one location a user.
        """
        batches = [batch for path in paths for batch in pq.read_table(path).to_batches()]
        encoded = [encode_locations(batch, LocationColumns(), grid, user_key) for batch in batches]
        places = Places(grid.depth)
        columns = [np.concatenate([getattr(one, name) for one in encoded]) for name in ("users", "codes")]
        chunk = Spill().store(*(column.data for column in columns))
        if total is None:
            packed = bound_users([chunk], places, top=top)
            return cls(places, packed & ~places.mask, packed & places.mask)
        rows = bound_distributions([chunk], places, total)
        return cls(places, rows.users, rows.codes.astype(np.uint64), rows.weights)

    def only(self, mask: NDArray[Any]) -> Rows:
        """The rows where a mask, bool[n], is true, or at the given places, int64[m]."""
        weights = None if self.weights is None else self.weights[mask]
        return Rows(self.places, self.users[mask], self.codes[mask], weights)

    def in_order(self) -> Rows:
        """The rows in the order of their users."""
        return self.only(np.argsort(self.users, kind="stable"))

    def rehashed(self, subkey: bytes) -> Rows:
        """The same rows with new hashes of their users.

        The new upper bits depend on the old upper bits only, so a draw picks the same users whether they have one
        location or a distribution. The lower bits still distinguish users.
        """
        upper = self.users & ~self.places.mask
        hashes = keyed_hash(subkey, upper) & ~self.places.mask
        return Rows(self.places, hashes | (self.users ^ upper), self.codes, self.weights)

    def below(self, rate: float) -> NDArray[np.bool_]:
        """Whether the hash of each row's user, as a number in [0, 1), is below the rate: bool[n]."""
        shift = max(self.places.bits, 11)
        return (self.users >> np.uint64(shift)) * 2.0 ** (shift - 64) < rate

    def coarser(self, depth: int) -> Rows:
        """The same users and weights on a coarser grid."""
        places = replace(self.places, depth=depth)
        return Rows(places, self.users, self.codes >> np.uint64(2 * (self.places.depth - depth)), self.weights)

    def histogram(self) -> NDArray[np.float64]:
        """The exact sums by code, float64[categories * 4^depth], one block for each category."""
        length = self.places.bins * 4**self.places.depth
        return np.bincount(self.codes.astype(np.int64), self.weights, length).astype(np.float64)

    def shard_groups(self, shard_plan: ShardPlan) -> list[ShardGroup]:
        """Divides the users among shards, as the job does."""
        spill, places = Spill(), self.places
        if self.weights is None:
            packed = (self.users & ~places.mask) | self.codes
            split, build = split_by_shard_group(packed, shard_plan, places, spill), build_shard_group
        else:
            distributions = Distributions(self.users, self.codes.astype(places.dtype), self.weights)
            split, build = split_distributions(distributions, shard_plan, places, spill), build_weighted_shard_group
        chunks = {number: [empty] for number, empty in empty_shard_groups(shard_plan, self.weights is not None)}
        for number, chunk in split:
            chunks[number].append(chunk)
        return [build(number, parts, shard_plan, places, spill) for number, parts in chunks.items()]


def run_in_memory(
    rows: Rows, population: int, parameters: CountParameters, key: RunKey, prior: Estimate | None = None
) -> CountState:
    """Runs all sub-queries and returns the final state. A job with the same public population has the same state.

    Args:
        rows: of all users, or of the cohort.
        population: public number of users that the rows were drawn from.
        parameters: of the run.
        key: of the run.
        prior: the map to start from.

    Raises:
        RefusedError: every shard of a sub-query was lost.
    """
    state = planned_state(population, parameters, key, prior)
    groups = rows.shard_groups(state.shard_plan)
    while state.query is not None:
        parts = [
            sum_shards(group, state.query, key, parameters.shard_noise_source, parameters.simulated_dropout)
            for group in groups
        ]
        totals = functools.reduce(operator.add, parts, NOTHING)
        state = advance_run(state, totals, parameters, key)
    return state


def planned_state(
    population: int, parameters: CountParameters, key: RunKey, prior: Estimate | None = None
) -> CountState:
    """The state with the first sub-query. The noisy user count is paid for, and the run is planned for the public one.

    For the arguments see `run_in_memory`.
    """
    counted, budget = population_and_budget(
        count_users(UserCounts(population), parameters.admission(), key), parameters
    )
    return first_state(replace(counted, users=float(population), source="public"), budget, parameters, prior)
