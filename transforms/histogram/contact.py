"""Asking only some users, without giving away how many were sampled (paper 004, Section 3.2).

The paper asks s = m + c sqrt(m) of n users, m = n p, and each takes part with probability m / s on her own. That is
not the Poisson sample: its size, Bin(s, m / s), varies far less than Bin(n, p), and exact enumeration of small cases
finds up to 240 times the Poisson sample's delta where few more than m are asked (a test keeps that case; at c = 10 no
excess was found above epsilon 0.1, but nothing proves it). So here the coins come first: every user has one keyed
uniform word, the s users of the smallest words are asked, and one who is asked takes part if her word is below p. Those
who take part are the Poisson sample itself unless more than s words lie below p; then the round is abandoned. What an
asked user does is as uncertain as in the paper: m of s take part on average.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property
from typing import NoReturn

from scipy import special

from sfumato.schemas.errors import RequestError
from sfumato.transforms.histogram.sampling import check_count, check_rate
from sfumato.transforms.privacy.budget import check_epsilon

_SAFETY = 1e-9  # of scipy's tails, as in the accountant
_FLOOR = 1e-300


@dataclass(frozen=True)
class ContactPlan:
    """How many of `population` users to ask for a Poisson sample at `rate`: m + slack sqrt(m), m = population * rate.

    population: users, or a bound on them; if there are more, more overflows happen than `overflow_chance` says. Raises
    RequestError unless population >= 1, 0 < rate < 1 and slack > 0 is finite.
    """

    population: int
    rate: float
    slack: float = 10.0

    def __post_init__(self) -> None:
        check_count("population", self.population)
        check_rate(self.rate)
        if isinstance(self.slack, bool) or not (math.isfinite(self.slack) and self.slack > 0):
            raise RequestError(f"slack: must be a finite number of standard deviations > 0, got {self.slack}")

    @cached_property
    def asked(self) -> int:
        """The number s of users to ask: public, and the same whoever takes part."""
        mean = self.population * self.rate
        return min(self.population, math.ceil(mean + self.slack * math.sqrt(mean)))

    @cached_property
    def overflow_chance(self) -> float:
        """Pr[Bin(population, rate) > asked], rounded up: the chance that a round has to be abandoned."""
        if self.asked == self.population:
            return 0.0
        tail = float(special.betainc(self.asked + 1, self.population - self.asked, self.rate))
        return min(1.0, max(tail * (1 + _SAFETY), _FLOOR))

    def extra_delta(self, epsilon: float, rounds: int = 1) -> float:
        """What to add to the delta of `rounds` rounds at this total epsilon: rounds (1 + e^epsilon) overflow_chance.

        Mechanisms that agree but for an event of chance o give P'(S) <= P(S) + o <= e^eps Q(S) + delta + o
        <= e^eps (Q'(S) + o) + delta + o. Raises RequestError unless epsilon > 0 is finite and rounds >= 1.
        """
        check_epsilon("epsilon", epsilon)
        check_count("rounds", rounds)
        if not self.overflow_chance:
            return 0.0
        log_extra = math.log(rounds * self.overflow_chance) + math.log1p(math.exp(-epsilon)) + epsilon
        return math.exp(min(log_extra, 0.0))


def refuse_fixed_size(population: int | None = None, rate: float | None = None) -> NoReturn:
    """Raises RequestError: a sample of a fixed size is never private, whatever the threshold.

    One user alone with her item is sampled with probability m / n, and is then missing from the published total.
    """
    known = "" if rate is None else f" (here {rate:g})"
    users = "" if population is None else f" of {population} users"
    raise RequestError(
        f"contact: a sample{users} of fixed size leaks: the known size minus the sum of the published counts tells how "
        "many samples the threshold held back, so whoever alone holds an item is noticed when she is sampled, and "
        f"delta is at least the sampling rate{known}; let every user draw on her own, or ask a limited number of them"
    )
