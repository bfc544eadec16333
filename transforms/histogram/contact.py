"""Asking only some users, while who takes part stays a Poisson sample (paper 004, Section 3.2).

The paper asks a fixed number s = m + c sqrt(m) of n users, m = n p, and each takes part with probability m / s. That is
not the Poisson sample: its size, Bin(s, m / s), varies far less than Bin(n, p), and exact enumeration of small cases
finds up to 240 times the Poisson sample's delta (a test keeps that case). Nor may a run count who takes part and end
where they are too many: whether it ends would tell the exact number of users.

So here each user is asked independently with a public probability a, and takes part with probability p / a if they are
asked. Those who take part are the Poisson sample at p itself, whatever the number of users: delta is that of everybody
being asked, and does not rest on a bound on the users. Of `population` users s are asked on average, as in the paper.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import NoReturn

from sfumato.schemas.errors import RequestError
from sfumato.transforms.histogram.sampling_round import check_count, check_rate


@dataclass(frozen=True)
class ContactPlan:
    """How many of `population` users to ask for a Poisson sample at `rate`: m + slack sqrt(m), m = population * rate.

    Raises RequestError unless population >= 1, 0 < rate < 1 and slack > 0 is finite.
    """

    population: int
    rate: float
    slack: float = 10.0

    def __post_init__(self) -> None:
        check_count("population", self.population)
        check_rate(self.rate)
        if isinstance(self.slack, bool) or not (math.isfinite(self.slack) and self.slack > 0):
            raise RequestError(f"slack: must be a finite number of standard deviations > 0, got {self.slack}")

    @property
    def asked(self) -> int:
        """The number of users that are asked on average."""
        mean = self.population * self.rate
        return min(self.population, math.ceil(mean + self.slack * math.sqrt(mean)))

    @property
    def asking_rate(self) -> float:
        """The probability with which each user is asked: public, the same for all, at least `rate`."""
        return self.asked / self.population


def refuse_fixed_size(population: int | None = None, rate: float | None = None) -> NoReturn:
    """Raises RequestError: a sample of a fixed size is never private, whatever the threshold.

    One user alone with their item is sampled with probability m / n, and is then missing from the published total.
    """
    known = "" if rate is None else f" (here {rate:g})"
    users = "" if population is None else f" of {population} users"
    raise RequestError(
        f"contact: a sample{users} of fixed size leaks: the known size minus the sum of the published counts tells how "
        "many samples the threshold held back, so whoever alone holds an item is noticed when they are sampled, and "
        f"delta is at least the sampling rate{known}; let every user draw on their own, or ask a limited number of them"
    )
