"""The steps of a build as plain functions: collect noisy counts once, train, and make the model. Pure.

ExactCounts, or a heatmap's final state -> Collected -> trainings, trained one at a time -> Built
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from sfumato.schemas.guarantee import Population
from sfumato.schemas.ranges import BASE_DEPTH
from sfumato.schemas.region import by_row
from sfumato.transforms.heatmap.schedule import population_and_budget
from sfumato.transforms.heatmap.state import Estimate, HeatmapState
from sfumato.transforms.privacy.admission import NoisyUserCounts
from sfumato.transforms.privacy.keys import RunKey
from sfumato.transforms.privacy.mechanism import epsilon_for_stddev
from sfumato.transforms.ranges.collection_spec import CollectionSpec
from sfumato.transforms.ranges.exact_counts import ExactCounts
from sfumato.transforms.ranges.methods.automatic import Automatic
from sfumato.transforms.ranges.methods.grid import PlainGrid
from sfumato.transforms.ranges.methods.range_method import RangeMethod
from sfumato.transforms.ranges.model import Model, RangeModel
from sfumato.transforms.ranges.noisy_counts import NoisyGrid
from sfumato.transforms.ranges.ranges_plan import ADAPTIVE, RangesPlan, make_method
from sfumato.transforms.ranges.tree_model import TreeModel

Counts = NoisyGrid | Estimate


@dataclass(frozen=True)
class Collected:
    """The result of the collection. Every figure is public or differentially private.

    Attributes:
        counts: noisy.
        spec: the public inputs of the method.
        method: trains on the counts; None if they answer as they are (adaptive).
        population: number of users of the logs, public or noisy.
        state: of the heatmap that counted; None if a trusted curator counted.
    """

    counts: Counts
    spec: CollectionSpec
    method: RangeMethod | None
    population: Population
    state: HeatmapState | None = None

    @property
    def method_name(self) -> str:
        """The name of the method that answers; for `auto`, of its choice."""
        if self.method is None:
            return ADAPTIVE
        chosen = self.method.chosen(self.spec) if isinstance(self.method, Automatic) else self.method
        return chosen.NAME

    def trainings(self) -> Sequence[Any]:
        if self.method is None or isinstance(self.counts, Estimate):
            return ()
        return self.method.trainings(self.counts, self.spec)

    def model(self, trained: Sequence[Any]) -> Model:
        """See RangeMethod.model. trained: the results of all `trainings`, in their order."""
        if self.method is None or isinstance(self.counts, Estimate):
            assert isinstance(self.counts, Estimate)
            return TreeModel(self.counts)
        return self.method.model(self.counts, self.spec, trained)


@dataclass(frozen=True)
class Built:
    """A model and the collection that it comes from. diverged: number of networks left out of it."""

    collected: Collected
    model: RangeModel
    diverged: int = 0


def collect(exact: ExactCounts, admission: NoisyUserCounts, plan: RangesPlan, key: RunKey) -> Collected:
    """Collects noisy counts with a trusted curator. It is the only access to the exact counts."""
    population, budget = population_and_budget(admission, plan.counting)
    left = budget.remaining
    rho = None if plan.counting.rho is None else left
    spec = replace(plan.collection_spec(population.users, plan.counting.laplace_epsilon(left)), rho=rho)
    method = make_method(plan.method, plan.options, spec)
    return Collected(method.collect(exact, spec, key), spec, method, population)


def collected_from_heatmap(state: HeatmapState, plan: RangesPlan) -> Collected:
    """Converts a heatmap's counts: the adaptive method's tree, or a grid whose cells all shards counted."""
    parameters = plan.heatmap
    assert parameters is not None
    population = state.population
    if plan.uses_tree:
        estimate = parameters.method.decode(state, parameters.depth)
        spent = parameters.laplace_epsilon(state.budget.spent - population.epsilon)
        spec = plan.collection_spec(population.users, spent)
        return Collected(estimate, spec, None, population, state)
    grid = _grid_from_estimate(state.results[-1].to_estimate())
    # The noise of all shards together equals that of a trusted curator with a smaller epsilon.
    spec = plan.collection_spec(population.users, epsilon_for_stddev(grid.noise_stddev))
    return Collected(grid, spec, make_method(plan.method, plan.options, spec), population, state)


def _grid_from_estimate(estimate: Estimate) -> NoisyGrid:
    """The estimate of a complete tree, all of whose cells have the same noise, as a grid in base cells."""
    level = estimate.tree.level
    edges = np.arange((1 << level) + 1, dtype=np.int64) << (BASE_DEPTH - level)
    return NoisyGrid(edges, edges, by_row(estimate.counts), float(estimate.stddev[0]))


def build(collected: Collected, plan: RangesPlan, trained: Sequence[Any]) -> Built:
    """Makes the model. trained: the results of all trainings, in their order; None for those that diverged."""
    model, method = collected.model(trained), collected.method_name
    diverged = sum(network is None for network in trained)
    if diverged and diverged == len(trained):
        method = PlainGrid.NAME
    return Built(collected, RangeModel(plan.field, model, method, plan.counting.epsilon), diverged)
