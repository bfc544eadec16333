"""The one look at the people, and what is public from then on. Pure.

people, or a heatmap's final state -> Collected -> trainings, each trained on its own -> Built
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from sfumato.schemas.guarantee import Population
from sfumato.schemas.ranges import BASE_DEPTH
from sfumato.transforms.heatmap.raster import by_row
from sfumato.transforms.heatmap.schedule import admitted
from sfumato.transforms.heatmap.state import Estimate, HeatmapState
from sfumato.transforms.privacy.admission import Admission
from sfumato.transforms.privacy.keys import RunKey
from sfumato.transforms.privacy.mechanism import epsilon_for_stddev
from sfumato.transforms.ranges.counts import NoisyGrid, Partition
from sfumato.transforms.ranges.methods.automatic import Automatic
from sfumato.transforms.ranges.methods.base import CollectionSpec, RangeMethod
from sfumato.transforms.ranges.methods.grid import PlainGrid
from sfumato.transforms.ranges.model import Model, RangeModel
from sfumato.transforms.ranges.people import ExactCounts
from sfumato.transforms.ranges.plan import ADAPTIVE, RangesPlan, make_method
from sfumato.transforms.ranges.tree_model import TreeModel

Counts = NoisyGrid | Partition | Estimate


@dataclass(frozen=True)
class Collected:
    """All that is known from here on; every figure is public or differentially private.

    counts: with noise. method: what learns from them, None where they answer as they are (adaptive). population: of
    the logs. state: of the heatmap that counted, None where a trusted server did.
    """

    counts: Counts
    wanted: CollectionSpec
    method: RangeMethod | None
    population: Population
    state: HeatmapState | None = None

    @property
    def answered_by(self) -> str:
        """The name of the method that answers: of `auto`, the one that it chose."""
        if self.method is None:
            return ADAPTIVE
        chosen = self.method.chosen(self.wanted) if isinstance(self.method, Automatic) else self.method
        return chosen.NAME

    def trainings(self) -> Sequence[Any]:
        """See RangeMethod.trainings."""
        if self.method is None or isinstance(self.counts, Estimate):
            return ()
        return self.method.trainings(self.counts, self.wanted)

    def model(self, trained: Sequence[Any]) -> Model:
        """See RangeMethod.model. trained: of every one of `trainings`, in their order."""
        if self.method is None or isinstance(self.counts, Estimate):
            assert isinstance(self.counts, Estimate)
            return TreeModel(self.counts)
        return self.method.model(self.counts, self.wanted, trained)


@dataclass(frozen=True)
class Built:
    """A model, and what it was made of. diverged: how many networks were left out, as their training diverged."""

    collected: Collected
    model: RangeModel
    diverged: int = 0


def collect(people: ExactCounts, admission: Admission, plan: RangesPlan, key: RunKey) -> Collected:
    """The only look at the people of a trusted server: their noisy counts, once the run is admitted."""
    population, budget = admitted(admission, plan.counting)
    wanted = plan.wanted(population.users, budget.remaining)
    method = make_method(plan.method, plan.options, wanted)
    return Collected(method.collect(people, wanted, key), wanted, method, population)


def of_state(state: HeatmapState, plan: RangesPlan) -> Collected:
    """What a heatmap's answers amount to: the adaptive method's tree, or a grid of which shards counted every cell."""
    parameters = plan.heatmap
    assert parameters is not None
    population = state.population
    if plan.method == ADAPTIVE:
        estimate = parameters.method.decode(state, parameters.depth)
        wanted = plan.wanted(population.users, state.budget.spent - population.epsilon)
        return Collected(estimate, wanted, None, population, state)
    grid = grid_of(state.results[-1].to_estimate())
    # The noise of all shards together is that of a trusted server with less epsilon.
    wanted = plan.wanted(population.users, epsilon_for_stddev(grid.noise_stddev))
    return Collected(grid, wanted, make_method(plan.method, plan.options, wanted), population, state)


def grid_of(estimate: Estimate) -> NoisyGrid:
    """The estimate of a complete tree, all of whose cells have the same noise, as a grid in base cells."""
    level = estimate.tree.level
    borders = np.arange((1 << level) + 1, dtype=np.int64) << (BASE_DEPTH - level)
    return NoisyGrid(borders, borders, by_row(estimate.counts), float(estimate.stddev[0]))


def build(collected: Collected, plan: RangesPlan, trained: Sequence[Any]) -> Built:
    """The finished model. trained: of all trainings, in their order; None for those that diverged."""
    model, method = collected.model(trained), collected.answered_by
    diverged = sum(one is None for one in trained)
    if diverged and diverged == len(trained):
        method = PlainGrid.NAME
    return Built(collected, RangeModel(plan.field, model, method, plan.counting.epsilon), diverged)
