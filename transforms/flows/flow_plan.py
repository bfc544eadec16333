"""The budget and the levels of a release of flows. Pure.

Pairs of cells are the nodes of a tree with 16 children a node (`pair_codes`). A level from which the tree starts is
chosen by a noisy number of users: there all pairs are measured. A pair with many trips is split, at most
MAX_SPLITS times. A small share of the budget at each level decides which pairs are split; a pair that is not split gets
all that is left. So every trip is counted in one pair of each level down to the pair that it ends in, and the epsilons
of these add up to the budget of the tree.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from sfumato.schemas.errors import RequestError
from sfumato.transforms.checks import check_integer
from sfumato.transforms.flows.pair_codes import MAX_PAIR_DEPTH
from sfumato.transforms.privacy.admission import ADMISSION_SHARE, AdmissionRule
from sfumato.transforms.privacy.budget import check_epsilon
from sfumato.transforms.privacy.noise import MAX_NOISE_EPSILON, MIN_NOISE_EPSILON

MAX_TRIPS = 1000  # of a user
_SPLIT_SHARE = 0.05  # of the tree's epsilon, for the decisions of one level
MAX_SPLITS = 2
MAX_START = 5  # 16^5 pairs are measured at once
_SPLIT_SCALES = 30.0  # scales of the last noise that a pair's trips exceed where it is split
_PAIRS_PER_USER = 4.5  # of the level at which the tree starts, at most, with an epsilon of 1


@dataclass(frozen=True)
class FlowPlan:
    """A budget for noisy counts of trips by pair.

    Attributes:
        epsilon: budget of the whole release, > 0. A share pays for the admission.
        max_trips: K, the most trips of a user that count, 1..MAX_TRIPS.
        depth: finest level of the cells, 1..MAX_PAIR_DEPTH.
        max_bad_fraction: the largest share of users without a usable row, 0..1.

    Raises:
        RequestError: a value is out of range.
    """

    epsilon: float = 1.0
    max_trips: int = 1
    depth: int = 10
    max_bad_fraction: float = 0.1

    def __post_init__(self) -> None:
        check_epsilon("epsilon", self.epsilon)
        check_integer("max_trips_per_user", self.max_trips, 1, MAX_TRIPS)
        check_integer("depth", self.depth, 1, MAX_PAIR_DEPTH)
        if min(self.admission_rule.epsilon, self.split_epsilon / self.max_trips) < MIN_NOISE_EPSILON:
            raise RequestError(f"epsilon: {self.epsilon:g} is too small for {self.max_trips} trips a user; raise it")

    @property
    def admission_rule(self) -> AdmissionRule:
        """The rule for the noisy counts of users that admit a run, with their cost."""
        return AdmissionRule(epsilon=ADMISSION_SHARE * self.epsilon, max_bad_fraction=self.max_bad_fraction)

    @property
    def tree_epsilon(self) -> float:
        """The epsilon of all counts of trips. Beyond a limit the noise is 0 but for a probability of 2e-13 each."""
        return min(self.epsilon - self.admission_rule.epsilon, MAX_NOISE_EPSILON * self.max_trips)

    @property
    def split_epsilon(self) -> float:
        """The epsilon of the decisions of one level."""
        return _SPLIT_SHARE * self.tree_epsilon

    def levels(self, users: float) -> range:
        """The levels that are measured, coarse to fine; the last is never split.

        Args:
            users: a noisy number of users.
        """
        seen = max(users, 1.0) * self.tree_epsilon * _PAIRS_PER_USER
        start = min(max(math.floor(math.log(max(seen, 1.0), 16)), 1), MAX_START, self.depth)
        return range(start, min(start + MAX_SPLITS, self.depth) + 1)

    def final_epsilon(self, splits: int, is_last: bool) -> float:
        """What a pair that is not split gets.

        Args:
            splits: how often a pair around it was split.
            is_last: whether its level is the last, where nothing is decided.
        """
        return self.tree_epsilon - self.split_epsilon * (splits + (not is_last))

    def split_limit(self, splits: int, is_last: bool) -> float:
        """Expected trips from which a pair is split. Arguments: of its children, as of `final_epsilon`."""
        return _SPLIT_SCALES * self.max_trips / self.final_epsilon(splits, is_last)
