"""Ways to spend one epsilon on the nights of a month, and each night's map by each way, in memory."""

from __future__ import annotations

import functools
import math
import time
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, replace
from datetime import date
from typing import Protocol

import numpy as np
import scipy
from numpy.typing import NDArray

from benchmarks.city_nights import SIDE
from benchmarks.evaluation.density_metrics import mean_squared_error
from sfumato.schemas.guarantee import CentralOrSecagg
from sfumato.schemas.timeline import PlaceChange
from sfumato.schemas.tree import Tree
from sfumato.transforms.counting.estimator import estimate_density, unbiased_counts
from sfumato.transforms.counting.parameters import CountParameters
from sfumato.transforms.counting.state import CountState, Estimate
from sfumato.transforms.nights.nights_state import NightsState
from sfumato.transforms.nights.nights_update import update
from sfumato.transforms.privacy.keys import RunKey
from sfumato.transforms.privacy.mechanism import rho_for_delta
from sfumato.transforms.privacy.secrets import seed_secret
from sfumato.transforms.statistics.posterior.full_tree import TreeMeasurement
from sfumato.transforms.statistics.posterior.unbiased import user_intervals

EPSILON, DELTA, WINDOW = 1.0, 1e-6, 30  # what any WINDOW nights may spend
LEVEL = SIDE.bit_length() - 1
CLASSES = (1, 10, 100, 1000)
"""Cells are told apart by their exact users: from each of these up to the next."""
MEAN_OF = 11  # nights, of the peer that averages maps
_NIGHT_MIN_EPSILON = 1e-3
Array = NDArray[np.float64]


@dataclass(frozen=True)
class Way:
    """A way to publish every night.

    Attributes:
        name: in tables.
        cohorts: of which one is asked each night; 1 asks all users.
        memory: none; warm, each run starts from the map of the night before; mean, the mean of MEAN_OF nights' maps;
            posterior, over all nights.
        gaussian: whether the limit has a delta, and the noise is Gaussian.
        whole: whether each night spends the whole epsilon: the reference, which no limit of a month allows.
    """

    name: str
    cohorts: int = 1
    memory: str = "none"
    gaussian: bool = False
    whole: bool = False

    @property
    def times_queried(self) -> int:
        """The most nights of any WINDOW on which a user is asked."""
        return 1 if self.whole else math.ceil(WINDOW / self.cohorts)

    def parameters(self, trust: CentralOrSecagg) -> CountParameters:
        """Of a night's run."""
        if not self.gaussian:
            return CountParameters(trust=trust, epsilon=EPSILON / self.times_queried)
        return CountParameters(
            trust=trust, epsilon=_gaussian_epsilon(self.times_queried), delta=DELTA, noise="gaussian"
        )


@functools.cache
def _gaussian_epsilon(nights: int) -> float:
    """The epsilon, at DELTA, of one of so many equal nights that together have (EPSILON, DELTA) by zCDP."""
    rho = rho_for_delta(EPSILON, DELTA) / nights
    return float(scipy.optimize.brentq(lambda one: rho_for_delta(one, DELTA) - rho, _NIGHT_MIN_EPSILON, EPSILON))


REFERENCE = Way("all users, epsilon 1", whole=True)
WAYS = (
    Way("all users, 1/30, cold"),
    Way("all users, 1/30, warm start", memory="warm"),
    Way("all users, 1/30, posterior", memory="posterior"),
    Way("1 of 30 cohorts, alone", 30),
    Way(f"1 of 30 cohorts, mean of {MEAN_OF} nights", 30, "mean"),
    Way("1 of 30 cohorts, posterior", 30, "posterior"),
    Way("1 of 10 cohorts, 1/3, posterior", 10, "posterior"),
)
GAUSSIAN_WAYS = (
    Way("all users, Gaussian, cold", gaussian=True),
    Way("all users, Gaussian, posterior", memory="posterior", gaussian=True),
    Way("1 of 10 cohorts, Gaussian, posterior", 10, "posterior", True),
)


class SimulatedNight(Protocol):
    """A night whose users can be asked."""

    @property
    def day(self) -> date:
        """Its date."""

    @property
    def users(self) -> int:
        """All of its users."""

    @property
    def expected(self) -> Array:
        """The density that they are drawn from: float64[SIDE, SIDE]."""

    def exact(self) -> Array:
        """The density of their exact counts: float64[SIDE, SIDE]."""

    def entry_counts(self, tree: Tree) -> NDArray[np.int64]:
        """Exact users of a tree's entries."""

    def run(self, cohorts: int, parameters: CountParameters, key: RunKey, prior: Estimate | None) -> CountState:
        """The run that asks tonight's cohort of so many."""


@dataclass(frozen=True)
class Covered:
    """How many of a map's cells there are, and how many intervals hold the exact count, by size: int64[classes].

    Attributes:
        cells, held: with at least one user.
        users, users_held: the users who are in them.
    """

    cells: NDArray[np.int64]
    held: NDArray[np.int64]
    users: int
    users_held: int

    @classmethod
    def of(cls, low: Array, high: Array, truth: NDArray[np.int64]) -> Covered:
        """Of the 95% intervals of cells and their exact users."""
        size = np.searchsorted(CLASSES, truth, side="right")
        held = (low <= truth) & (truth <= high)
        by_size = (np.bincount(size[one], minlength=len(CLASSES) + 1)[1:] for one in (slice(None), held))
        return cls(*by_size, int(truth.sum()), int(truth[held].sum()))


@dataclass(frozen=True)
class Published:
    """A night's map by one way.

    Attributes:
        density: float64[SIDE, SIDE].
        expected_error, exact_error: mean squared errors against the expected density and against that of the counts.
        covered: by the 95% intervals of cells.
        seconds: of the run and of `nights.update`.
        changes: from what the nights before lead to expect; empty without a posterior.
    """

    density: Array
    expected_error: float
    exact_error: float
    covered: Covered
    seconds: tuple[float, float]
    changes: tuple[PlaceChange, ...] = ()


def run_key(number: int, way: Way, day: date, trust: str) -> RunKey:
    """The key of one run."""
    return RunKey.derive(seed_secret(number), {"benchmark": "month", "way": way.name, "day": str(day), "trust": trust})


@dataclass
class Publisher:
    """Publishes night after night by one way.

    Attributes:
        way, trust: what it does.
        number: of the keys.
        prior: the map of the night before, for a warm start.
        before: the maps of the last nights, for their mean.
        nights: what is known of the nights so far; None before the first.
    """

    way: Way
    trust: CentralOrSecagg
    number: int = 0
    prior: Estimate | None = None
    before: tuple[Array, ...] = ()
    nights: NightsState | None = None

    def publish(self, night: SimulatedNight) -> Published:
        """A night's map. The publisher then knows this night."""
        way, parameters = self.way, self.way.parameters(self.trust)
        prior = self.prior if self.nights is None else self.nights.predict(night.day, night.users)
        began = time.perf_counter()
        state = night.run(way.cohorts, parameters, run_key(self.number, way, night.day, self.trust), prior)
        ran = time.perf_counter()
        changes: tuple[PlaceChange, ...] = ()
        if way.memory == "posterior":
            measured, users, stddev = scaled_measurements(state, way.cohorts)
            self.nights, made = update(self.nights, night.day, measured, users, stddev)
            estimate, changes = made.estimate, tuple(made.changes)
            low, high = user_intervals(estimate.counts, estimate.stddev)
        else:
            estimate = parameters.method.decode(state, parameters.depth)
            low, high = intervals(estimate, state, way.cohorts)
        seconds = ran - began, time.perf_counter() - ran
        density = estimate_density(estimate, LEVEL)
        if way.memory == "warm":
            self.prior = estimate
        if way.memory == "mean":
            self.before = (*self.before, density)[-MEAN_OF:]
            density = np.mean(self.before, axis=0)
        return Published(
            density,
            mean_squared_error(density, night.expected),
            mean_squared_error(density, night.exact()),
            Covered.of(low, high, night.entry_counts(estimate.tree)),
            seconds,
            changes,
        )


def intervals(estimate: Estimate, state: CountState, cohorts: int) -> tuple[Array, Array]:
    """95% intervals of all users of the cells of a map by itself: the asked users' counts, times the cohorts."""
    unbiased = unbiased_counts(estimate, state)
    users = cohorts * unbiased.leaf_users
    variance = cohorts**2 * unbiased.leaf_variances() + (cohorts - 1) * np.maximum(cohorts * estimate.counts, 0)
    return user_intervals(users, np.sqrt(variance))


def scaled_measurements(state: CountState, cohorts: int) -> tuple[list[TreeMeasurement], float, float]:
    """The answers of a cohort as measurements of all users; the users; and their standard deviation."""
    measured = []
    for result in state.results:
        one, live = result.to_estimate(), result.shards_answered
        sampling = cohorts * state.shard_plan.shards / live - 1
        measured.append(TreeMeasurement(one.tree, cohorts * one.counts, (cohorts * one.stddev) ** 2, sampling))
    users, stddev = state.users_estimate()
    return measured, cohorts * users, math.sqrt((cohorts * stddev) ** 2 + (cohorts - 1) * cohorts * users)


def publish_all(
    nights: Iterable[SimulatedNight], publishers: Sequence[Publisher], keep: Collection[int] = ()
) -> tuple[list[list[Published]], dict[int, list[Publisher]]]:
    """Publishes every night by every publisher, night after night, so that one night at a time is in memory.

    Args:
        nights: in order.
        publishers: of the ways.
        keep: numbers of nights, from 0, before which the publishers are copied.

    Returns:
        The maps by publisher and night, and the copies by number of night.
    """
    maps: list[list[Published]] = [[] for _ in publishers]
    kept = {}
    for number, night in enumerate(nights):
        if number in keep:
            kept[number] = [replace(one) for one in publishers]
        for publisher, found in zip(publishers, maps, strict=True):
            found.append(publisher.publish(night))
    return maps, kept
