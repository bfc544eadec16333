"""The plan of a job that counts items with a trusted curator: its budget and the noise of every round. Pure.

Every round counts all users, at one prefix length. The last round counts what was asked for and has nearly all of the
budget: a cell or an item is found by its own count, and not by way of its prefixes. The rounds above it show where the
users are whose items stay hidden. They share what is left, which is enough since coarse counts are large.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from functools import cached_property

from sfumato.schemas.errors import RequestError
from sfumato.transforms.histogram.bounded_items import ItemBound
from sfumato.transforms.histogram.count_noise import CountNoise, choose_noise
from sfumato.transforms.histogram.sampling_round import check_count
from sfumato.transforms.privacy.admission import ADMISSION_SHARE, AdmissionRule
from sfumato.transforms.privacy.budget import check_epsilon
from sfumato.transforms.privacy.noise import MIN_NOISE_EPSILON

_LAST_SHARE = 0.96  # of the rounds' budget, for the last of several
MAX_DENSE_ITEMS = 4**6  # up to so many public items, all of them are published
_MAX_PUBLIC_ITEMS = 4**10


@dataclass(frozen=True)
class CentralCountPlan:
    """A budget for rounds of noisy counts, with the noise that hides least within it.

    Attributes:
        epsilon: budget of the whole release, > 0. A share pays for the admission.
        delta: budget of the whole release, 0 <= delta < 1; 0 where only public items are counted.
        bound: of each user's contributions to every round.
        domains: for each round the number of its items, where they are public (cells of a region); else None. All
            items of a small domain are published, and of any domain if delta is 0.
        noise: one of count_noise.NOISES.
        population: number of users in the logs, publicly known. A run whose noisy number of users differs by more than
            a tenth is refused. None: unknown.
        max_bad_fraction: the largest share of users without a usable record, 0..1.

    Raises:
        RequestError: a value is out of range. On first use of `noises`: no noise fits the budget.
    """

    epsilon: float = 1.0
    delta: float = 1e-8
    bound: ItemBound = field(default_factory=ItemBound)
    domains: tuple[int | None, ...] = (None,)
    noise: str = "auto"
    population: int | None = None
    max_bad_fraction: float = 0.1

    def __post_init__(self) -> None:
        check_epsilon("epsilon", self.epsilon)
        if not 0 <= self.delta < 1:
            raise RequestError(f"delta: must be a number of at least 0 and below 1, got {self.delta}")
        if self.delta == 0 and not all(one and one <= _MAX_PUBLIC_ITEMS for one in self.domains):
            raise RequestError(
                f"delta: 0 needs noise on every item, so a public list of {_MAX_PUBLIC_ITEMS:,} items at most, such as "
                "the cells of a region at a depth of 10; give a delta far below 1 / users"
            )
        if self.admission_rule.epsilon < MIN_NOISE_EPSILON:
            raise RequestError(f"epsilon: {self.epsilon:g} is too small for the admission of a run; raise it")
        if self.population is not None:
            check_count("population", self.population)

    @property
    def rounds(self) -> int:
        """The number of rounds."""
        return len(self.domains)

    @property
    def admission_rule(self) -> AdmissionRule:
        """The rule for the noisy counts of all users that admit a run, with their cost."""
        return AdmissionRule(
            epsilon=ADMISSION_SHARE * self.epsilon, max_bad_fraction=self.max_bad_fraction, population=self.population
        )

    @property
    def rounds_epsilon(self) -> float:
        """The epsilon of all rounds together."""
        return self.epsilon - self.admission_rule.epsilon

    @cached_property
    def noises(self) -> tuple[CountNoise, ...]:
        """The noise and threshold of every round. Epsilons and deltas add up (basic composition)."""
        above = self.rounds - 1
        shares = [(1 - _LAST_SHARE) / above] * above + [_LAST_SHARE] if above else [1.0]
        chosen: dict[int, CountNoise] = {}
        left, waiting = self.delta, 1.0
        # Rounds of public items first: they need no delta, unless Gaussian noise is better.
        for number in sorted(range(self.rounds), key=lambda one: not self.is_public(one)):
            delta = 0.0 if left == 0 else left * shares[number] / waiting
            epsilon = shares[number] * self.rounds_epsilon
            chosen[number] = choose_noise(epsilon, delta, self.bound, self.noise, self.is_public(number))
            left, waiting = left - chosen[number].delta, waiting - shares[number]
        return tuple(chosen[number] for number in range(self.rounds))

    def is_public(self, number: int) -> bool:
        """Whether all items of a round get noise and are published."""
        domain = self.domains[number]
        return domain is not None and (self.delta == 0 or domain <= MAX_DENSE_ITEMS)

    @property
    def delta_spent(self) -> float:
        """The delta of the rounds as spent (see CountNoise), added up; at most `delta`."""
        return sum(noise.delta for noise in self.noises)

    def without_unused_delta(self) -> CentralCountPlan:
        """The same plan with a delta of 0 where its noise needs none."""
        return self if self.delta_spent else replace(self, delta=0.0)
