"""The plan of quantiles with a trusted curator: the budget, and the expected error from public figures only. Pure.

The exponential method draws borders, see exponential_draw.py. The hierarchical one adds noise to the counts of all bins
at every level of a tree, see private_quantiles.py. A request that leaves the method open gets the one of less error.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass
from functools import cached_property
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from sfumato.schemas.errors import RequestError
from sfumato.schemas.guarantee import SERVERS, Trust
from sfumato.schemas.known_digits import Z
from sfumato.transforms.histogram.item_encoding import Items
from sfumato.transforms.observability.text_tables import TYPICAL_USERS, significant
from sfumato.transforms.privacy.admission import CountedBudget
from sfumato.transforms.privacy.mechanism import discrete_laplace_stddev
from sfumato.transforms.quantiles.curve import check_shares
from sfumato.transforms.quantiles.exponential_draw import DrawPlan, plan_draws
from sfumato.transforms.statistics.tree_least_squares import upward_variances

Array = NDArray[np.float64]

_PLACES = 1009  # a prime: they are at all distances from the borders of coarse bins
MAX_BITS = 20  # the tree holds every bin
MECHANISMS = {
    "exponential": "exponential mechanism, by recursive splitting: each level draws the middle quantile of every part",
    "hierarchical": "discrete Laplace noise on the counts of all bins, at every level of a hierarchy",
}


@dataclass(frozen=True)
class HierarchyNoise:
    """The noise of a hierarchy, from public figures only."""

    bits: int  # the finest level has 2^bits bins
    levels: tuple[int, ...]  # bits of each level, ascending; the last is `bits`
    epsilon: float  # of all levels together
    draws: int = 1  # how many parties add noise of this epsilon to each count

    @property
    def level_epsilon(self) -> float:
        """Returns the epsilon of each level."""
        return self.epsilon / len(self.levels)

    @property
    def _fan_outs(self) -> list[int]:
        return [1 << (low - high) for high, low in itertools.pairwise((0, *self.levels))]

    @property
    def variances(self) -> list[float]:
        """Returns the variance of the upward estimate of a node of each level, in users^2."""
        return upward_variances([self.own_variance] * len(self.levels), self._fan_outs[:0:-1])[::-1]

    @property
    def own_variance(self) -> float:
        """Returns the variance of each noisy count, in users^2."""
        return self.draws * discrete_laplace_stddev(self.level_epsilon) ** 2

    def covariance(self, low: Array, high: Array) -> Array:
        """Returns the variance of the estimated users below two values, in users^2.

        The total has the variance of all nodes of the first level. A node's total is independent of how its children
        divide it, so each node above both values adds a term of its own.

        low: float64[n], values in finest bins, 0..2^bits. high: float64[n], values of at least `low`.
        """
        size = float(1 << self.bits)
        found = low * high / size**2 * self._fan_outs[0] * self.variances[0]
        for fan_out, variance in zip(self._fan_outs, self.variances, strict=True):
            if size == 1 << self.bits:
                (inside, above), same = (low / size, high / size), np.ones(np.shape(low), bool)
            else:
                (inside, above), same = (low / size % 1, high / size % 1), low // size == high // size
            (child, part), (child_above, part_above) = np.divmod(inside * fan_out, 1), np.divmod(above * fan_out, 1)
            both = child + np.where(child == child_above, part * part_above, part)
            found = found + np.where(same, variance * (both - fan_out * inside * above), 0.0)
            size /= fan_out
        return found

    def rank_stddev(self, share: float) -> float:
        """Returns the root mean square error of a quantile's rank, in users, over places of the quantile all over the
        range.
        """
        place = np.linspace(0, 1 << self.bits, _PLACES, endpoint=False)
        end = np.full(_PLACES, float(1 << self.bits))
        variance = (
            self.covariance(place, place)
            - 2 * share * self.covariance(place, end)
            + share**2 * self.covariance(end, end)
        )
        return float(np.sqrt(variance.mean()))


@dataclass(frozen=True)
class QuantilesPlan(CountedBudget):
    """The budget of quantiles with a trusted curator. The guarantee is pure: delta is 0.

    Attributes, besides those of CountedBudget:
        shares: of users below the quantiles, each strictly between 0 and 1.
        bits: the range has 2^bits bins.
        method: one of MECHANISMS.
        levels: bits of each level of the hierarchy, ascending; empty for the exponential method.

    Raises:
        RequestError: a value is out of range.
    """

    TRUST: ClassVar[Trust] = Trust.CENTRAL
    WHO: ClassVar[str] = "trusted curator"
    BY_WHOM: ClassVar[str] = ""  # after the mechanism
    DRAWS: ClassVar[int] = 1

    epsilon: float
    shares: tuple[float, ...]
    bits: int
    method: str
    levels: tuple[int, ...] = ()
    population: int | None = None
    max_bad_fraction: float = 0.1

    def __post_init__(self) -> None:
        self.check_budget()
        check_shares(self.shares)
        if self.method not in MECHANISMS:
            raise RequestError(f"method: must be one of {', '.join(MECHANISMS)}, got {self.method!r}")
        if self.method == "hierarchical" and not (self.levels and self.bits <= MAX_BITS):
            raise RequestError(f"bits: the hierarchy of a curator needs a level, and {MAX_BITS} bits at most")

    @property
    def rounds(self) -> int:
        """Returns the number of rounds: all is drawn from one count of the users by bin."""
        return 1

    delta: ClassVar[float] = 0.0  # of the whole release, and what is spent of it
    delta_spent: ClassVar[float] = 0.0

    def draws(self, users: float) -> DrawPlan:
        """Returns the draws of the exponential method. users: their public or noisy number; see `plan_draws`."""
        return plan_draws(sorted(set(self.shares)), self.rounds_epsilon, users, self.bits)

    @cached_property
    def hierarchy(self) -> HierarchyNoise:
        """Returns the noise of the hierarchical method."""
        return HierarchyNoise(self.bits, self.levels, self.rounds_epsilon, self.DRAWS)

    def rank_stddev(self) -> float:
        """Returns the expected root mean square error of the quantiles' ranks, in users, from public figures only."""
        if self.method == "exponential":
            plan = self.draws(self.population or TYPICAL_USERS)
            errors = [plan.stddevs[number] for number in plan.quantiles]
        else:
            errors = [self.hierarchy.rank_stddev(share) for share in self.shares]
        return float(np.sqrt(np.mean(np.square(errors))))

    def accuracy(self) -> str:
        """Returns the error to expect in one phrase."""
        return f"±{significant(Z * self.rank_stddev())} users (95%) in a quantile's rank"

    def text(self, _: Items) -> str:
        """Returns the draws or the noise, and the error to expect, for a terminal."""
        return (
            f"{self.WHO}: epsilon {self.rounds_epsilon:g}, delta 0\n"
            f"admission: epsilon {self.admission_rule.cost:g}, for two noisy counts of users\n"
            f"{MECHANISMS[self.method]}\n"
            f"expected error of a quantile's rank: {significant(self.rank_stddev())} users (root mean square), where "
            "values lie densely\n"
        )


class SplitQuantilesPlan(QuantilesPlan):
    """The same with the noise of two servers on the counts of a hierarchy."""

    TRUST: ClassVar[Trust] = Trust.SPLIT
    WHO: ClassVar[str] = "two servers"
    BY_WHOM: ClassVar[str] = ", drawn by each of two servers"
    DRAWS: ClassVar[int] = SERVERS
