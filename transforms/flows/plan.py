"""The plan of a release of flows: its budget, and its cost and accuracy from public figures only. Pure.

A share of epsilon pays for the admission, the rest for the tree of pairs (`flow_tree`). A small share of that at each
level decides which pairs are split; a pair that is not split gets all that is left. Pairs of zones are all measured at
once, with all of it.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from sfumato.schemas.errors import RequestError
from sfumato.schemas.known_digits import NOISE_Z
from sfumato.schemas.requests.checks import check_integer
from sfumato.transforms.flows.user_trips import MAX_PAIR_DEPTH
from sfumato.transforms.observability.text_tables import significant
from sfumato.transforms.privacy.admission import ADMISSION_SHARE, AdmissionRule
from sfumato.transforms.privacy.budget import check_epsilon
from sfumato.transforms.privacy.discrete_laplace import MAX_NOISE_EPSILON, MIN_NOISE_EPSILON
from sfumato.transforms.privacy.mechanism import discrete_laplace_stddev

MAX_TRIPS = 1000  # of a user
MAX_ZONES = 2000  # four million pairs are measured at once
_SPLIT_SHARE = 0.05  # of the tree's epsilon, for the decisions of one level
MAX_SPLITS = 2
MAX_START = 5  # 16^5 pairs are measured at once
_SPLIT_SCALES = 30.0  # scales of the last noise that a pair's trips exceed where it is split
_PAIRS_PER_USER = 4.5  # of the level at which the tree starts, at most, with an epsilon of 1


@dataclass(frozen=True)
class FlowPlan:
    """A budget for noisy counts of trips by pair. Raises RequestError if a value is out of range."""

    epsilon: float = 1.0  # budget of the whole release, > 0. A share pays for the admission
    max_trips: int = 1  # K, the most trips of a user that count, 1..MAX_TRIPS
    depth: int = 10  # finest level of the cells, 1..MAX_PAIR_DEPTH
    max_bad_fraction: float = 0.1  # the largest share of users without a usable row, 0..1

    def __post_init__(self) -> None:
        check_epsilon(self.epsilon)
        check_integer("max_trips_per_user", self.max_trips, 1, MAX_TRIPS)
        check_integer("depth", self.depth, 1, MAX_PAIR_DEPTH)
        if min(self.admission_rule.cost, self.split_epsilon / self.max_trips) < MIN_NOISE_EPSILON:
            raise RequestError(f"epsilon: {self.epsilon:g} is too small for {self.max_trips} trips a user; raise it")

    @property
    def admission_rule(self) -> AdmissionRule:
        """The rule for the noisy counts of users that admit a run, with their cost."""
        return AdmissionRule(cost=ADMISSION_SHARE * self.epsilon, max_bad_fraction=self.max_bad_fraction)

    @property
    def tree_epsilon(self) -> float:
        """The epsilon of all counts of trips. Beyond a limit the noise is 0 but for a probability of 2e-13 each."""
        return min(self.epsilon - self.admission_rule.cost, MAX_NOISE_EPSILON * self.max_trips)

    @property
    def split_epsilon(self) -> float:
        """Returns the epsilon of the decisions of one level."""
        return _SPLIT_SHARE * self.tree_epsilon

    def levels(self, users: float) -> range:
        """Returns the levels to measure, coarse to fine, for a noisy number of users; the last is never split."""
        seen = max(users, 1.0) * self.tree_epsilon * _PAIRS_PER_USER
        start = min(max(math.floor(math.log(max(seen, 1.0), 16)), 1), MAX_START, self.depth)
        return range(start, min(start + MAX_SPLITS, self.depth) + 1)

    def final_epsilon(self, splits: int, is_last: bool) -> float:
        """Returns what a pair that is not split gets.

        splits: how often a pair around it was split. is_last: whether its level is the last, where nothing is decided.
        """
        return self.tree_epsilon - self.split_epsilon * (splits + (not is_last))

    def split_limit(self, splits: int, is_last: bool) -> float:
        """Returns expected trips from which a pair is split. Arguments: of its children, as of `final_epsilon`."""
        return _SPLIT_SCALES * self.max_trips / self.final_epsilon(splits, is_last)

    def accuracy(self, zones: int | None = None) -> str:
        """Returns the error to expect in one phrase. zones: how many there are; None for cells."""
        epsilon = self.final_epsilon(0, False) if zones is None else self.tree_epsilon
        stddev = discrete_laplace_stddev(epsilon, self.max_trips)
        return f"noise of ±{significant(NOISE_Z * stddev)} trips (95%) on a pair"

    def text(self, zones: int | None = None) -> str:
        """Returns the cost and the accuracy, for a terminal. zones: how many there are; None for cells."""
        tree = (
            f"splits: epsilon {self.split_epsilon:.3g} a level, at most twice, to choose the pairs that are split\n"
            f"trips: {self.accuracy()}\n"
            f"the parts of a pair that was split get {self.split_epsilon / self.tree_epsilon:.0%} less of the budget\n"
        )
        return (
            f"trusted curator: epsilon {self.epsilon:g}, delta 0; at most {self.max_trips} trips of a user count\n"
            f"admission: epsilon {self.admission_rule.cost:g}, for two noisy counts of users\n"
            + (tree if zones is None else f"trips: {self.accuracy(zones)}, of {zones:,} x {zones:,} zones\n")
        )
