"""The plan of a sampled job: its budget, its sampling, and which users it contacts. Pure.

Limited contact (paper 004, Section 3.2): the paper contacts a fixed number s = m + c sqrt(m) of n users, m = n p, and
each takes part with probability m / s. That is not the Poisson sample: its size, Bin(s, m / s), varies far less than
Bin(n, p). Exact enumeration of small cases finds up to 241 times the Poisson sample's delta with c = 0.5, and no more
than its delta with the paper's c = 10 (benchmarks/accountant.py); no proof covers all cases. A run that counted its
participants and stopped if they were too many would be no better: it would reveal their number.

So here each user is contacted independently with a public probability a, and a contacted user takes part with
probability p / a. The participants are then the Poisson sample at p itself, whatever the number of users. So delta is
the delta of contacting everybody and needs no bound on the users. Of `population` users s are contacted on average, as
in the paper.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from sfumato.schemas.errors import RequestError
from sfumato.transforms.histogram.accountant import check_delta, delta
from sfumato.transforms.histogram.composition import rounds_delta
from sfumato.transforms.histogram.optimal_sampling import choose_sampling
from sfumato.transforms.histogram.paper_sampling import paper_sampling
from sfumato.transforms.histogram.sampling_round import Sampling, check_count, check_rate, hidden_count
from sfumato.transforms.privacy.admission import ADMISSION_SHARE, AdmissionRule
from sfumato.transforms.privacy.budget import check_epsilon
from sfumato.transforms.privacy.noise import MIN_NOISE_EPSILON

CONTACTS = ("everybody", "limited", "fixed")
_ADMISSION_RATE = 0.25  # sampling rate of these counts


@dataclass(frozen=True)
class ContactPlan:
    """Which share of the users to contact for a Poisson sample at `rate`.

    Attributes:
        population: number of users n, >= 1.
        rate: sampling rate p, 0 < p < 1.
        slack: c > 0 in m + c sqrt(m), m = n p: standard deviations above the expected sample size.

    Raises:
        RequestError: a value is out of range.
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
    def contacted_users(self) -> int:
        """The number of users contacted on average."""
        mean = self.population * self.rate
        return min(self.population, math.ceil(mean + self.slack * math.sqrt(mean)))

    @property
    def contact_rate(self) -> float:
        """The probability to contact a user: public, the same for all, at least `rate`."""
        return self.contacted_users / self.population


@dataclass(frozen=True)
class SamplePlan:
    """A budget for `rounds` rounds, with the sampling of least expected error within it.

    A share of epsilon pays for the admission, which has its own sample. The rounds have the rest and all of delta.

    Attributes:
        epsilon: budget of the whole release, > 0.
        delta: budget of the whole release, 0 < delta < 1.
        population: number of users in the logs, publicly known. A run on other logs is refused. None: unknown.
        items: about how many different items there are; None: unknown. It guides the choice of sampling only.
        rounds: number of samples.
        contact: `everybody` decides whether they take part, or a `limited` number of users (see ContactPlan).
        max_bad_fraction: the largest share of users without a usable record, 0..1.

    Raises:
        RequestError: a value is out of range. On first use of `sampling`: no item could be published.
    """

    epsilon: float = 1.0
    delta: float = 1e-8
    population: int | None = None
    items: int | None = None
    rounds: int = 1
    contact: str = "everybody"
    max_bad_fraction: float = 0.1

    def __post_init__(self) -> None:
        check_epsilon("epsilon", self.epsilon)
        check_delta(self.delta)
        if self.admission_rule.noise_epsilon < MIN_NOISE_EPSILON:
            raise RequestError(f"epsilon: {self.epsilon:g} is too small for the admission of a run; raise it")
        for name in ("population", "items"):
            if getattr(self, name) is not None:
                check_count(name, getattr(self, name))
        if self.contact not in CONTACTS:
            raise RequestError(f"contact: must be one of {', '.join(CONTACTS)}, got {self.contact!r}")
        if self.contact == "fixed":
            users = "" if self.population is None else f" of {self.population} users"
            raise RequestError(
                f"contact: a sample{users} of fixed size is not private. Its known size minus the sum of the published "
                "counts reveals how many samples the threshold dropped. So the sampling of a user who alone holds an "
                "item shows, and delta is at least the sampling rate. Let every user draw on their own, or contact a "
                "limited number"
            )
        if self.contact == "limited" and self.population is None:
            raise RequestError("contact: limited contact needs a number of users; give --population")

    @property
    def admission_rule(self) -> AdmissionRule:
        """The rule for the noisy counts of users that admit a run, with their cost."""
        return AdmissionRule(
            epsilon=ADMISSION_SHARE * self.epsilon,
            max_bad_fraction=self.max_bad_fraction,
            population=self.population,
            sampling_rate=_ADMISSION_RATE,
        )

    @property
    def rounds_epsilon(self) -> float:
        """The epsilon of all rounds together."""
        return self.epsilon - self.admission_rule.epsilon

    @cached_property
    def sampling(self) -> Sampling:
        """The sampling of every round."""
        return choose_sampling(self.rounds_epsilon, self.delta, self.population, self.items, self.rounds)

    @cached_property
    def contact_plan(self) -> ContactPlan | None:
        """The share of users to contact; None if everybody is contacted."""
        if self.contact != "limited":
            return None
        assert self.population is not None
        return ContactPlan(self.population, self.sampling.rate)

    @cached_property
    def delta_spent(self) -> float:
        """The exact delta of all rounds at their epsilon, at most `delta`."""
        return rounds_delta(self.rounds_epsilon, self.sampling.rate, self.sampling.threshold, self.rounds)

    @cached_property
    def round_delta(self) -> float:
        """The exact delta of one round alone at the epsilon of all."""
        return delta(self.rounds_epsilon, self.sampling.rate, self.sampling.threshold)

    @property
    def sampling_text(self) -> str:
        """Which rule chose the sampling rate and the threshold, as a clause."""
        return "the pair of least expected error within the exact guarantee"

    @property
    def contact_manifest(self) -> dict[str, Any]:
        """The manifest's entry on contacted users."""
        plan = self.contact_plan
        if plan is None:
            return {"kind": self.contact}
        return {"kind": self.contact, "contacted_users": plan.contacted_users, "contact_rate": plan.contact_rate}

    def hidden_count(self, cut: int | None = None) -> int:
        """The largest true count, in users, that an absent item can have at 99% confidence.

        cut: the largest sampled count of items that passed the threshold and were still left out (see Trie.cut).
        """
        threshold = self.sampling.threshold if cut is None else cut + 1
        return hidden_count(Sampling(self.sampling.rate_steps, threshold), rounds=self.rounds)


@dataclass(frozen=True)
class PaperSamplePlan(SamplePlan):
    """A plan with the sampling rate and the threshold of the paper's corollary (see `paper_sampling`).

    Epsilon and delta are divided evenly among the rounds, as in the paper. `delta_spent` is the exact delta, which lies
    far below the paper's bound.
    """

    @cached_property
    def sampling(self) -> Sampling:
        """The sampling of every round."""
        return paper_sampling(self.rounds_epsilon, self.delta, self.population, self.rounds)

    @property
    def sampling_text(self) -> str:
        """See SamplePlan.sampling_text."""
        return "the paper's own: p = (1 - e^-epsilon) / 6, and tau from delta <= e^(-C tau)"
