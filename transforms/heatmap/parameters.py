"""The parameters of a heatmap: those of every method, and the method with its own."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field, fields
from functools import cached_property
from typing import Any

from sfumato.schemas.errors import RequestError
from sfumato.schemas.locations import MAX_CATEGORIES
from sfumato.schemas.region import MAX_DEPTH
from sfumato.transforms.checks import check_between, check_choice, check_integer, check_within, option
from sfumato.transforms.heatmap.gamma import UNKNOWN_USERS, GammaInputs
from sfumato.transforms.heatmap.methods import Adaptive, Method
from sfumato.transforms.heatmap.methods.base import Contribution
from sfumato.transforms.locations.distributions import MAX_GAMMA
from sfumato.transforms.locations.shards import PARTICIPATIONS, Participation
from sfumato.transforms.privacy.admission import AdmissionRule
from sfumato.transforms.privacy.budget import Budget, check_epsilon
from sfumato.transforms.privacy.noise import MAX_NOISE_EPSILON
from sfumato.transforms.secagg.modulus import MAX_MODULUS
from sfumato.transforms.secagg.rounding import ROUNDINGS, Rounding, stored_total
from sfumato.transforms.secagg.shard_sums import NoiseMode

_NOISE_MODES = ("shard", "client", "central")


@dataclass(frozen=True)
class HeatmapParameters:
    """Everything that shapes the statistics, validated. The help texts of the fields explain them.

    None in a field means: the whole population (users), no public number (population), the method's default
    (contribution), and a value that the job chooses (gamma, see `GammaInputs`, and modulus).

    Attributes:
        categories: of the auxiliary data; 1 without.
        method: with its own parameters.

    Raises:
        RequestError: a value is out of range, or contradicts another. The message names the field.
    """

    depth: int = option(10, "levels of the quadtree: the finest grid has 2^depth x 2^depth cells", common=True)
    epsilon: float = option(1.0, "privacy budget of the complete release", common=True)
    shard_size: int = option(10_000, "expected users a secure-aggregation shard (S)")
    dropout: float = option(
        0.05, "largest share of a shard's clients that may fail to answer; below that the shard is lost"
    )
    participation: Participation = option(
        "planned",
        "planned: every planned shard reports with the planned noise, whatever the number of its users; paper: lost "
        "shards and the noise level depend on who takes part, which is not protected (for experiments)",
    )
    users: int | None = option(None, "size of the cohort that takes part; default: everybody", common=True)
    population: int | None = option(
        None,
        "public number of users in the logs: the run is planned for it, and refused if the noisy user count differs by "
        "more than a tenth",
        common=True,
    )
    population_share: float = option(
        0.01, "share of epsilon that the noisy user counts, with and without a usable record, cost"
    )
    contribution: Contribution | None = option(
        None,
        "what a user adds: one, a random one of their locations; top, their most frequent location; all, a "
        "distribution over all their locations; default: all for emd, else one",
    )
    gamma: int | None = option(
        None, "whole number that a user's distribution adds up to, with contribution all; auto: by noise and modulus"
    )
    rounding: Rounding = option(
        "systematic",
        "how a distribution becomes whole numbers: systematic (sensitivity gamma), or independent, entry by entry "
        "(gamma + the vector's length)",
    )
    overflow_probability: float = option(
        1e-9, "probability that any shard's sum wraps around the modulus, in the whole run"
    )
    modulus: int | None = option(None, "auto, or the modulus m of the secure sums")
    allow_overflow: bool = option(False, "run with a modulus that is too small")
    noise: NoiseMode = option(
        "shard",
        "shard: a shard's noise in closed form; client: every client's share (slow); central: no secure aggregation, "
        "a trusted server adds noise once",
    )
    simulated_dropout: float = option(0.0, "probability that a client drops out after the noise is planned")
    max_bad_fraction: float = option(0.1, "refuse if a larger share of the users has no usable record, by noisy counts")
    categories: int = 1
    method: Method = field(default_factory=Adaptive)

    def __post_init__(self) -> None:
        check_epsilon("epsilon", self.epsilon)
        if not 1e-4 <= self.epsilon <= MAX_NOISE_EPSILON:
            raise RequestError(
                f"epsilon: {self.epsilon} is out of range; give 0.0001 to {MAX_NOISE_EPSILON:g} (1 is a common choice)"
            )
        check_integer("depth", self.depth, 1, MAX_DEPTH)
        check_integer("shard_size", self.shard_size, 2, 1 << 24)
        check_within("dropout", self.dropout, 0, 0.9)
        check_within("simulated_dropout", self.simulated_dropout, 0, 1)
        check_within("max_bad_fraction", self.max_bad_fraction, 0, 1)
        for name in ("users", "population"):
            if getattr(self, name) is not None:
                check_integer(name, getattr(self, name), 1, 1 << 40)
        check_within("population_share", self.population_share, 0.001, 0.5)
        if self.contribution not in (None, "one", "top", "all"):
            raise RequestError(f"contribution: must be one, top or all, got {self.contribution!r}")
        if self.gamma is not None:
            check_integer("gamma", self.gamma, 1, MAX_GAMMA)
        check_choice("rounding", self.rounding, ROUNDINGS)
        if self.rounding != "systematic" and self.contributes != "all":
            raise RequestError(
                f"rounding: {self.rounding} rounding is of distributions, and a user gives one location; use it with "
                "contribution all"
            )
        check_integer("categories", self.categories, 1, MAX_CATEGORIES)
        self.method.check_use(self.categories, self.noise == "central")
        check_between("overflow_probability", self.overflow_probability, 0, 1)
        if self.modulus is not None:
            check_integer("modulus", self.modulus, 2, MAX_MODULUS)
        check_choice("noise", self.noise, _NOISE_MODES)
        check_choice("participation", self.participation, PARTICIPATIONS)
        if self.participation == "paper" and self.noise == "central":
            raise RequestError("participation: with central noise there are no shards; leave it out")
        twice = {one.name for one in fields(self)} & {one.name for one in fields(self.method)}
        if twice:  # the key is bound to options by name
            raise TypeError(
                f"{type(self.method).__name__} has options that every method has: {', '.join(sorted(twice))}"
            )
        self.method.check(self.depth)
        self.distribution_gamma  # noqa: B018  (raises if no gamma is possible)

    def admission(self, min_users: int = 0) -> AdmissionRule:
        """The conditions under which a run continues. min_users: see AdmissionRule."""
        epsilon = Budget(self.epsilon).affordable(self.epsilon * self.population_share)
        return AdmissionRule(epsilon, self.max_bad_fraction, min_users, self.population)

    @property
    def contributes(self) -> Contribution:
        """The given contribution, or the method's default."""
        return self.contribution or self.method.CONTRIBUTION

    @cached_property
    def distribution_gamma(self) -> int | None:
        """The given or chosen gamma, the sum of a user's weights; None with one location a user."""
        if self.contributes != "all":
            return None
        if self.gamma is not None:
            return self.gamma
        return GammaInputs(
            epsilon=self.epsilon,
            counting_epsilon=self.admission().epsilon,
            max_rounds=self.method.max_rounds(self.depth),
            max_cells=self.categories << (2 * self.depth),
            users=min(self.users or UNKNOWN_USERS, self.population or UNKNOWN_USERS),
            shard_size=self.shard_size,
            dropout=self.dropout,
            participation=self.participation,
            is_central=self.noise == "central",
            rounding=self.rounding,
            modulus=self.modulus,
            overflow_probability=self.overflow_probability,
        ).automatic_gamma()

    @property
    def distribution_total(self) -> int | None:
        """The sum of a user's stored weights, see `stored_total`; None with one location a user."""
        return self.distribution_gamma and stored_total(self.distribution_gamma, self.rounding)

    def metadata(self) -> dict[str, Any]:
        """The parameters and the method's own by name, in JSON's types. The key is bound to them."""
        own = {one.name: getattr(self, one.name) for one in fields(self) if one.name != "method"}
        own["gamma"] = self.distribution_gamma
        return {**own, "method": self.method.NAME, **asdict(self.method)}
