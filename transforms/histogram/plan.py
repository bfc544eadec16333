"""What a job asks of sample and threshold, and the sampling that meets it. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any

from sfumato.schemas.errors import DataError, RequestError
from sfumato.schemas.guarantee import SAMPLING_ASSUMPTIONS
from sfumato.transforms.histogram.accountant import check_delta, delta
from sfumato.transforms.histogram.choose import choose
from sfumato.transforms.histogram.composition import rounds_delta
from sfumato.transforms.histogram.contact import ContactPlan, refuse_fixed_size
from sfumato.transforms.histogram.sampling import Sampling, check_count, hidden_count
from sfumato.transforms.privacy.budget import check_epsilon

CONTACTS = ("everybody", "limited", "fixed")
_CONTACT_SHARE = 2.0**-10  # of delta, for the event that more users draw themselves than are asked


@dataclass(frozen=True)
class SamplePlan:
    """A budget for `rounds` rounds, and the sampling rate and threshold of least expected error that keep it.

    population: users in the logs, known from elsewhere. items: how many different items there are about; both only
    steer the choice, and neither is needed. contact: everybody draws herself; or `limited`: only m + c sqrt(m) users
    are asked, and delta holds if there are no more users than `population`. Raises RequestError for values out of
    range, and where no item of such a population could pass.
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

    @cached_property
    def sampling(self) -> Sampling:
        """The sampling of every round."""
        share = 1 - _CONTACT_SHARE if self.contact == "limited" else 1.0
        return choose(self.epsilon, self.delta * share, self.population, self.items, self.rounds)

    @cached_property
    def contact_plan(self) -> ContactPlan | None:
        """Whom to ask, where contact is limited."""
        if self.contact != "limited":
            return None
        assert self.population is not None
        return ContactPlan(self.population, self.sampling.rate)

    @property
    def asked(self) -> int | None:
        """How many users a round may ask, where contact is limited."""
        return self.contact_plan.asked if self.contact_plan else None

    @cached_property
    def delta_spent(self) -> float:
        """The exact delta of all rounds at epsilon, at most `delta`."""
        sampling = self.sampling
        extra = self.contact_plan.extra_delta(self.epsilon, self.rounds) if self.contact_plan else 0.0
        spent = rounds_delta(self.epsilon, sampling.rate, sampling.threshold, self.rounds) + extra
        if spent > self.delta:
            raise RequestError(
                f"delta: {spent:g} would be spent of {self.delta:g}, {extra:.2g} of it on the chance that more users "
                "draw themselves than are asked; use --contact everybody"
            )
        return spent

    @cached_property
    def round_delta(self) -> float:
        """The exact delta of one round alone at epsilon."""
        return delta(self.epsilon, self.sampling.rate, self.sampling.threshold)

    @property
    def contact_manifest(self) -> dict[str, Any]:
        """What the manifest says of whom a round asks."""
        plan = self.contact_plan
        if plan is None:
            return {"kind": self.contact}
        return {"kind": self.contact, "asked": plan.asked, "overflow_chance": plan.overflow_chance}

    @property
    def assumptions(self) -> list[str]:
        """What the guarantee rests on."""
        limited = [f"Users were asked as for a population of {self.population}: delta holds if there are no more."]
        return [*(limited if self.contact == "limited" else []), *SAMPLING_ASSUMPTIONS]

    def hidden_count(self, cut: int | None = None) -> int:
        """The largest true count that an absent item can have at 99%.

        cut: the sampled count that items had at most which were left out though they passed the threshold.
        """
        least = self.sampling.threshold if cut is None else cut + 1
        return hidden_count(Sampling(self.sampling.words, least), rounds=self.rounds)

    def check_rows(self, rows: int) -> None:
        """Raises DataError where so many rows, a bound on the users, let no item pass."""
        if rows < self.sampling.threshold:
            raise DataError(
                f"too few rows: an item is published if {self.sampling.threshold} sampled users hold it, and the files "
                "have fewer rows than that; a larger epsilon or delta lowers the threshold"
            )
