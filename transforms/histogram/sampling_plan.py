"""What a job asks of sample and threshold, and the sampling that meets it. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any

from sfumato.schemas.errors import RequestError
from sfumato.transforms.histogram.accountant import check_delta, delta
from sfumato.transforms.histogram.composition import rounds_delta
from sfumato.transforms.histogram.contact import ContactPlan, refuse_fixed_size
from sfumato.transforms.histogram.optimal_sampling import choose
from sfumato.transforms.histogram.sampling_round import Sampling, check_count, hidden_count
from sfumato.transforms.privacy.admission import AdmissionRule
from sfumato.transforms.privacy.budget import check_epsilon
from sfumato.transforms.privacy.noise import MIN_NOISE_EPSILON

CONTACTS = ("everybody", "limited", "fixed")
_ADMISSION_SHARE = 0.01  # of epsilon, for the noisy counts of users on which a run is admitted
_ADMISSION_RATE = 0.25  # of the users, for these counts


@dataclass(frozen=True)
class SamplePlan:
    """A budget for `rounds` rounds, and the sampling rate and threshold of least expected error that keep it.

    A share of epsilon pays for the admission, which takes a sample of its own; the rounds have the rest and all of
    delta, and both add up. population: users in the logs, known from elsewhere; the run is refused where the logs hold
    others. items: how many different items there are about. Both steer the choice, and neither is needed. contact:
    everybody is asked whether they take part, or `limited`: each user with a probability (see ContactPlan). Raises
    RequestError for values out of range, and where no item of such a population could pass.
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
        if not 0 <= self.max_bad_fraction <= 1:
            raise RequestError(f"max_bad_fraction: must lie in 0..1, got {self.max_bad_fraction}")
        if self.contact not in CONTACTS:
            raise RequestError(f"contact: must be one of {', '.join(CONTACTS)}, got {self.contact!r}")
        if self.contact == "fixed":
            refuse_fixed_size(self.population)
        if self.contact == "limited" and self.population is None:
            raise RequestError("contact: limited contact asks a number of users, so it needs --population")

    @property
    def admission_rule(self) -> AdmissionRule:
        """What the noisy counts of users have to show, and what they cost."""
        return AdmissionRule(
            epsilon=_ADMISSION_SHARE * self.epsilon,
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
        return choose(self.rounds_epsilon, self.delta, self.population, self.items, self.rounds)

    @cached_property
    def contact_plan(self) -> ContactPlan | None:
        """Whom to ask, where contact is limited."""
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
    def contact_manifest(self) -> dict[str, Any]:
        """What the manifest says of whom a round asks."""
        plan = self.contact_plan
        if plan is None:
            return {"kind": self.contact}
        return {"kind": self.contact, "asked": plan.asked, "asking_rate": plan.asking_rate}

    def hidden_count(self, cut: int | None = None) -> int:
        """The largest true count that an absent item can have at 99%.

        cut: the sampled count that items had at most which were left out though they passed the threshold.
        """
        least = self.sampling.threshold if cut is None else cut + 1
        return hidden_count(Sampling(self.sampling.words, least), rounds=self.rounds)
