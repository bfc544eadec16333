"""The plan of a build of a model of range queries, checked before any budget is spent, and its steps. Pure.

ExactCounts, or a heatmap's final state -> Collected -> trainings, trained one at a time -> Built
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Mapping, Sequence
from dataclasses import MISSING, asdict, dataclass, fields, replace
from functools import cached_property
from typing import Any

import numpy as np

from sfumato.schemas.errors import RequestError
from sfumato.schemas.guarantee import Population
from sfumato.schemas.known_digits import NOISE_Z
from sfumato.schemas.ranges import BASE_DEPTH, Boxes, Field, Sizes
from sfumato.schemas.region import Grid, Region, by_row
from sfumato.schemas.requests.checks import check_choice, owners_of
from sfumato.transforms.counting.methods import Adaptive
from sfumato.transforms.counting.methods.base import Flat
from sfumato.transforms.counting.parameters import CountParameters
from sfumato.transforms.counting.plan import count_plan_text
from sfumato.transforms.counting.state import CountState, Estimate
from sfumato.transforms.counting.sub_queries import population_and_budget
from sfumato.transforms.locations.shards import ShardPlan
from sfumato.transforms.observability.text_tables import TYPICAL_USERS, significant
from sfumato.transforms.privacy.additive_noise import LAPLACE, AdditiveNoise
from sfumato.transforms.privacy.admission import NoisyUserCounts
from sfumato.transforms.privacy.keys import RunKey
from sfumato.transforms.privacy.mechanism import epsilon_for_stddev
from sfumato.transforms.ranges.field_counts import CollectionSpec, ExactCounts, NoisyGrid
from sfumato.transforms.ranges.methods import MAX_SIDE, METHODS, PlainGrid, RangeMethod
from sfumato.transforms.ranges.model import Model, RangeModel, TreeModel
from sfumato.transforms.ranges.tuner import Tuner

ADAPTIVE = Adaptive.NAME
_ADAPTIVE_TEXT = "the adaptive tree of a heatmap"
_WIDTH = "cell_width"
_GRID_BYTES = 88  # of memory for one cell of a grid, with all tables
Counts = NoisyGrid | Estimate


def method_texts() -> dict[str, str]:
    """Returns one line of help for each method, by name."""
    return {**{name: method.TEXT for name, method in METHODS.items()}, ADAPTIVE: _ADAPTIVE_TEXT}


def make_method(name: str, options: Mapping[str, Any], spec: CollectionSpec) -> RangeMethod:
    """Makes the method that the given options and the public inputs come to.

    A required cell width that is not given gets the default rule.
    """
    arguments = dict(options)
    if _WIDTH not in arguments and _needs_width(name):
        arguments[_WIDTH] = spec.default_width
    return METHODS[name](**arguments).chosen(spec)


def _needs_width(name: str) -> bool:
    return any(field.name == _WIDTH and field.default is MISSING for field in fields(METHODS[name]))


@dataclass(frozen=True)
class RangesPlan:
    """The plan. Raises RequestError, naming the option, if an option is out of range or has no effect.

    Attributes:
        region: that the model covers.
        sizes: sides of the squares to be queried, in metres.
        method: a name in METHODS, or adaptive.
        options: of the method, those that were given.
        count_parameters: who adds the noise (trust), epsilon, the number of users, the shards of secure aggregation;
            for adaptive the whole heatmap.
    """

    region: Region
    sizes: Sizes
    method: str
    options: Mapping[str, Any]
    count_parameters: CountParameters

    def __post_init__(self) -> None:
        check_choice("method", self.method, (*METHODS, ADAPTIVE))
        self.sizes.check(self.field)
        owners = owners_of(METHODS)
        for name in self.options:
            if self.method not in owners[name]:
                raise RequestError(f"{name}: applies only with --method {' or '.join(owners[name])}, got {self.method}")
        if _WIDTH in self.options:
            self._check_width(self.options[_WIDTH])
        if self.method != ADAPTIVE:
            options = {_WIDTH: self.sizes.high, **self.options} if _needs_width(self.method) else self.options
            METHODS[self.method](**options)  # checks its own options
        self.heatmap  # noqa: B018  (raises if it cannot be planned)

    @cached_property
    def field(self) -> Field:
        """Returns the base cells. Every counted part is made of them."""
        return Field(Grid(self.region, BASE_DEPTH))

    @cached_property
    def heatmap(self) -> CountParameters | None:
        """Returns the heatmap that counts: adaptive, or all cells of one level. None where a trusted curator counts."""
        if self.uses_tree:
            return self.count_parameters
        if self.count_parameters.is_one_batch:
            return None
        return replace(self.count_parameters, depth=self._level, method=Flat())

    @cached_property
    def uses_tree(self) -> bool:
        """Returns whether a heatmap's adaptive tree answers: method adaptive, or auto if that should have the least
        error.

        The tree is collected in another way than a grid, so auto chooses it by figures that are known before the logs
        are read. Without a public number of users, or with an option of networks or of the grid, it does not.
        """
        if self.method == ADAPTIVE or self.options or self.count_parameters.population is None:
            return self.method == ADAPTIVE
        parameters = self.count_parameters
        by_budget = parameters.noise_kind.laplace_epsilon(parameters.budget.total)
        epsilon = by_budget if parameters.is_one_batch else self._central_epsilon
        return METHODS[self.method].prefers_tree(self.collection_spec(self._population, epsilon))

    @property
    def trains(self) -> bool:
        """Returns whether the method may have trainings."""
        return not self.uses_tree and METHODS[self.method].TRAINS

    def collection_spec(self, users: float, cost: float, noise_kind: AdditiveNoise = LAPLACE) -> CollectionSpec:
        """Returns the public inputs of the method, once the number of users is known. cost: in the noise's unit."""
        return CollectionSpec(self.field, users, cost, self.sizes, noise_kind)

    def metadata(self) -> dict[str, Any]:
        """Returns the plan in JSON's types. The run's key is bound to it."""
        stated = {
            name: getattr(self.count_parameters, name)
            for name in ("epsilon", "delta", "noise", "population", "population_share")
        }
        return {
            "region": asdict(self.region),
            "sizes": [self.sizes.low, self.sizes.high],
            "method": self.method,
            "options": {name: _json_value(value) for name, value in self.options.items()},
            "trust": self.count_parameters.trust,
            **stated,
            "max_bad_fraction": self.count_parameters.max_bad_fraction,
            "heatmap": None if self.heatmap is None else self.heatmap.metadata(),
        }

    def _check_width(self, width: float) -> None:
        least, most = max(self.field.cell_metres), min(self.field.metres)
        if not (math.isfinite(width) and width > 0):
            raise RequestError(f"{_WIDTH}: must be auto or a number of metres > 0, got {width}")
        if width > most:
            raise RequestError(f"{_WIDTH}: {width:g} m is more than the region's shorter side, {most:,.0f} m")
        if width < METHODS[self.method].min_width(self.field):
            raise RequestError(
                f"{_WIDTH}: {width:g} m makes more than {MAX_SIDE:,} cells a side, too many to train networks "
                "on one worker; give wider cells, a smaller region, or use method grid"
            )
        if width < least:
            raise RequestError(
                f"{_WIDTH}: {width:g} m is less than a base cell of so large a region, {least:.2g} m; give a larger "
                "width or a smaller region"
            )

    @cached_property
    def _level(self) -> int:
        """Returns the level of the grid that shards count, with cells nearest to the chosen width.

        Raises RequestError.
        """
        if _WIDTH in self.options:
            cells = math.sqrt(math.prod(self.field.metres)) / self.options[_WIDTH]
        else:
            cells = self._cells_per_side(self._population, self._central_epsilon)
        return min(max(round(math.log2(cells)), 1), BASE_DEPTH)

    def _cells_per_side(self, users: float, epsilon: float) -> float:
        spec = self.collection_spec(users, epsilon)
        return make_method(self.method, self.options, spec).cells_per_side(spec)

    def model_bytes(self, rows: int) -> int:
        """Returns expected bytes of memory of a model and its tables, as measured (`python -m benchmarks.speed`).

        They follow from public figures only. rows: of the logs, at least as many as users.
        """
        most, users = 1 << 2 * BASE_DEPTH, max(rows, self.count_parameters.population or 0)
        epsilon = self.count_parameters.noise_kind.laplace_epsilon(self.count_parameters.budget.total)
        if self.heatmap is not None:
            return 0 if self.uses_tree else _GRID_BYTES * (1 << 2 * self.heatmap.depth)
        return _GRID_BYTES * min(most, math.ceil(self._cells_per_side(users, epsilon)) ** 2)

    @property
    def _population(self) -> float:
        if self.count_parameters.population is None:
            raise RequestError(
                "population: with trust secagg the width of cells must be known before the logs are read; give the "
                "public number of users, or --cell_width METRES"
            )
        return float(self.count_parameters.population)

    @property
    def _central_epsilon(self) -> float:
        """The epsilon of a trusted curator whose noise equals that of all shards together."""
        return LAPLACE.cost(self.shards_stddev(self._population, self.count_parameters.budget.total))

    def shards_stddev(self, users: float, cost: float) -> float:
        """Returns the standard deviation of all shards' noise on one count, at a cost in the noise's unit."""
        parameters = self.count_parameters
        shards = ShardPlan.for_users(users, None, parameters.shard_size, parameters.dropout).shards
        return math.sqrt(shards) * parameters.noise_kind.stddev(cost)

    def accuracy(self) -> str:
        """Returns the error to expect in one phrase."""
        parameters = self.count_parameters
        left = parameters.budget.total - parameters.admission().cost
        if parameters.is_one_batch:
            return (
                f"noise of ±{significant(NOISE_Z * parameters.noise_kind.stddev(left))} users (95%) on a cell's count"
            )
        users = parameters.population or TYPICAL_USERS
        noise = self.shards_stddev(users, left)
        return f"noise of ±{significant(NOISE_Z * noise)} users (95%) on a cell's count, if {users:,} take part"

    def text(self) -> str:
        """Returns the cost and the noise of a model of range queries, for a terminal. Raises RequestError."""
        if self.uses_tree:
            head = "" if self.method == ADAPTIVE else f"method {self.method}: {method_texts()[ADAPTIVE]}\n\n"
            return head + count_plan_text(self.count_parameters)
        parameters, heatmap = self.count_parameters, self.heatmap
        squares = f"squares of {self.sizes.low:g} to {self.sizes.high:g} m"
        lines = [f"method {self.method}: {method_texts()[self.method]}, for {squares}"]
        if heatmap is not None:
            width, height = (metres / (1 << heatmap.depth) for metres in self.field.metres)
            lines.append(
                f"secure aggregation counts every cell of level {heatmap.depth}, {width:.3g} x {height:.3g} m:"
            )
            return "\n".join([*lines, "", count_plan_text(heatmap)])
        spent, total, kind = parameters.admission().cost, parameters.budget.total, parameters.noise_kind
        delta = f", delta {parameters.delta:g}: {kind.UNIT} {total:.4g}" if kind.NEEDS_DELTA else ""
        lines.append(f"epsilon {parameters.epsilon:g}{delta} in all, of which the count of users costs {spent:.3g}")
        chosen = self.options.get("cell_width")
        if chosen is None:
            lines.append("a trusted curator adds the noise; the cells follow from the number of users and epsilon")
        else:
            noise = significant(NOISE_Z * kind.stddev(total - spent))
            lines.append(
                f"a trusted curator adds noise of ±{noise} (95%) to the users of every cell of about {chosen:g} x "
                f"{chosen:g} m"
            )
        return "\n".join(lines) + "\n"


def _json_value(value: Any) -> Any:
    """Returns an option's value in JSON's types: a workload as its number of squares and digest, a tuner as its
    metadata.
    """
    if isinstance(value, Tuner):
        return value.metadata()
    if not isinstance(value, Boxes):
        return value
    edges = np.stack([value.x0, value.y0, value.x1, value.y1])
    return {"squares": len(value), "digest": hashlib.sha256(edges.tobytes()).hexdigest()}


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
    state: CountState | None = None

    def trainings(self) -> Sequence[Any]:
        if self.method is None or isinstance(self.counts, Estimate):
            return ()
        return self.method.trainings(self.counts, self.spec)

    def model(self, trained: Sequence[Any]) -> Model:
        """Makes the model. trained: the results of all `trainings`, in their order."""
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
    population, budget = population_and_budget(admission, plan.count_parameters)
    spec = plan.collection_spec(population.users, budget.remaining, plan.count_parameters.noise_kind)
    method = make_method(plan.method, plan.options, spec)
    return Collected(method.collect(exact, spec, key), spec, method, population)


def collected_from_heatmap(state: CountState, plan: RangesPlan) -> Collected:
    """Converts a heatmap's counts: the adaptive method's tree, or a grid whose cells all shards counted."""
    parameters = plan.heatmap
    assert parameters is not None
    population = state.population
    if plan.uses_tree:
        estimate = parameters.method.decode(state, parameters.depth)
        spent = parameters.noise_kind.laplace_epsilon(state.budget.spent - population.cost)
        spec = plan.collection_spec(population.users, spent)
        return Collected(estimate, spec, None, population, state)
    grid = _grid_from_estimate(state.results[-1].to_estimate())
    # The noise of all shards together equals that of a trusted curator with a smaller epsilon.
    spec = plan.collection_spec(population.users, epsilon_for_stddev(grid.noise_stddev))
    return Collected(grid, spec, make_method(plan.method, plan.options, spec), population, state)


def _grid_from_estimate(estimate: Estimate) -> NoisyGrid:
    """Returns the estimate of a complete tree, all of whose cells have the same noise, as a grid in base cells."""
    level = estimate.tree.level
    edges = np.arange((1 << level) + 1, dtype=np.int64) << (BASE_DEPTH - level)
    return NoisyGrid(edges, edges, by_row(estimate.counts), float(estimate.stddev[0]))


def build(collected: Collected, plan: RangesPlan, trained: Sequence[Any]) -> Built:
    """Makes the model. trained: the results of all trainings, in their order; None for those that diverged."""
    model, method = collected.model(trained), ADAPTIVE if collected.method is None else collected.method.NAME
    diverged = sum(network is None for network in trained)
    if diverged and diverged == len(trained):
        method = PlainGrid.NAME
    return Built(collected, RangeModel(plan.field, model, method, plan.count_parameters.epsilon), diverged)
