"""The parameters of a heatmap: those of every method, and the method with its own."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field, fields
from functools import cached_property
from typing import Annotated, Any, Literal

from annotated_types import Interval

from sfumato.schemas.errors import RequestError
from sfumato.schemas.locations import MAX_CATEGORIES
from sfumato.schemas.requests.counting_options import (
    Colluding,
    Delta,
    Depth,
    Dropout,
    Epsilon,
    Fraction,
    ShardSize,
    Users,
)
from sfumato.schemas.requests.publish_request import MAX_BAD_FRACTION
from sfumato.schemas.rotation import MAX_COHORTS
from sfumato.schemas.trust import CentralOrSecagg, Trust
from sfumato.transforms.checks import check_declared, check_integer
from sfumato.transforms.heatmap.gamma import automatic_gamma
from sfumato.transforms.heatmap.methods import Adaptive, Method
from sfumato.transforms.heatmap.methods.base import Contribution
from sfumato.transforms.locations.distributions import MAX_GAMMA
from sfumato.transforms.locations.shards import Participation
from sfumato.transforms.privacy.additive_noise import GAUSSIAN, LAPLACE, AdditiveNoise
from sfumato.transforms.privacy.admission import ADMISSION_SHARE, AdmissionRule
from sfumato.transforms.privacy.budget import Budget
from sfumato.transforms.privacy.mechanism import MIN_GAUSSIAN_DELTA, rho_for_delta
from sfumato.transforms.secagg.encodings import Rounding, stored_total
from sfumato.transforms.secagg.modulus import MAX_MODULUS
from sfumato.transforms.secagg.shard_sums import NoiseSource

NoiseName = Literal["auto", "laplace", "gaussian"]


@dataclass(frozen=True)
class HeatmapParameters:
    """Everything that shapes the statistics, validated.

    Attributes:
        depth: levels of the quadtree: the finest grid has 2^depth x 2^depth cells.
        trust: who adds the noise: a curator once, or secure aggregation in the sum of each shard.
        epsilon, delta: of the complete release. Gaussian noise needs a delta above 0.
        noise: its distribution; auto takes the one with less noise in a count at the whole budget.
        shard_size: expected users of a shard (S).
        dropout: largest share of a shard's clients that may fail to answer; a shard that lacks more is lost.
        participation: planned: each planned shard reports with the planned noise, whatever its number of users; paper:
            lost shards and the noise level depend on who takes part, which is not protected.
        users: size of the cohort that takes part; None for all users.
        population: public number of users, if it is known.
        population_share: share of epsilon that the noisy user counts cost, with and without a usable record.
        contribution: what a user adds: one random location, the most frequent one (top), or a distribution over all;
            None for the method's default.
        gamma: sum of a user's distribution in whole numbers; None chooses it by noise and modulus, see `gamma`.
        rounding: how a distribution becomes whole numbers: systematic, of sensitivity gamma, or independent, entry by
            entry, of sensitivity gamma + the length of the vector.
        overflow_probability: that the sum of any shard wraps around the modulus, in the whole run.
        modulus: m of the secure sums; None chooses it.
        allow_overflow: runs with a modulus that is too small.
        noise_source: draws the noise of a shard in closed form, or the share of each client.
        colluding: share of a shard's required clients against whom epsilon holds too; None for none.
        simulated_dropout: probability that a client drops out after the noise is planned.
        max_bad_fraction: refuses where a larger share of the users has no usable record.
        categories: of the auxiliary data; 1 without.
        slots: of time, each with a map of its own; 1 without.
        records_per_user: the most slots in which a user counts, each by one record.
        rotation: the number of rotating cohorts, one of which is asked; 1 asks all users. See `schemas.rotation`.
        method: with its own parameters.

    Raises:
        RequestError: a value is out of range, or contradicts another. The message names the field.
    """

    depth: Depth = 10
    trust: CentralOrSecagg = Trust.SECAGG
    epsilon: Epsilon = 1.0
    delta: Delta = 0.0
    noise: NoiseName = "auto"
    shard_size: ShardSize = 10_000
    dropout: Dropout = 0.05
    participation: Participation = "planned"
    users: Users | None = None
    population: Users | None = None
    population_share: Annotated[float, Interval(ge=0.001, le=0.5)] = ADMISSION_SHARE
    contribution: Contribution | None = None
    gamma: Annotated[int, Interval(ge=1, le=MAX_GAMMA)] | None = None
    rounding: Rounding = "systematic"
    overflow_probability: Annotated[float, Interval(gt=0, lt=1)] = 1e-9
    modulus: Annotated[int, Interval(ge=2, le=MAX_MODULUS)] | None = None
    allow_overflow: bool = False
    noise_source: NoiseSource = "shard"
    colluding: Colluding | None = None
    simulated_dropout: Fraction = 0.0
    max_bad_fraction: Fraction = MAX_BAD_FRACTION
    categories: int = 1
    slots: int = 1
    records_per_user: int = 1
    rotation: int = 1
    method: Method = field(default_factory=Adaptive)

    def __post_init__(self) -> None:
        check_declared(self)
        self._check_noise()
        self.admission()  # which knows the bounds of max_bad_fraction
        if self.rounding != "systematic" and self.contributes != "all":
            raise RequestError(
                f"rounding: {self.rounding} rounding is of distributions, and a user gives one location; use it with "
                "contribution all"
            )
        check_integer("categories", self.categories, 1, MAX_CATEGORIES)
        self.method.check_use(self.categories, self.is_central)
        check_integer("records_per_user", self.records_per_user, 1, self.slots)
        if self.slots > 1:
            self._check_slots()
        check_integer("rotation", self.rotation, 1, MAX_COHORTS)
        if self.rotation > 1:
            self._check_rotation()
        if self.is_central and (name := self._by_client):
            raise RequestError(f"{name}: with trust central there are no shards; leave it out")
        twice = {one.name for one in fields(self)} & {one.name for one in fields(self.method)}
        if twice:  # the key is bound to options by name
            raise TypeError(
                f"{type(self.method).__name__} has options that every method has: {', '.join(sorted(twice))}"
            )
        self.method.check(self.depth)
        self.distribution_gamma  # noqa: B018  (raises if no gamma is possible)

    def admission(self, min_users: int = 0) -> AdmissionRule:
        """The conditions under which a run continues. min_users: see AdmissionRule."""
        budget = self.budget
        cost = budget.affordable(budget.total * self.population_share)
        return AdmissionRule(
            cost, self.max_bad_fraction, min_users, self.population, noise=self.count_noise, cohorts=self.rotation
        )

    @cached_property
    def rho(self) -> float | None:
        """The rho of the complete release; None unless its noise is Gaussian."""
        rho = rho_for_delta(self.epsilon, self.delta) if self.delta else None
        if rho is None or self.noise == "laplace":
            return None
        return rho if self.noise == "gaussian" or GAUSSIAN.stddev(rho) < LAPLACE.stddev(self.epsilon) else None

    @property
    def count_noise(self) -> AdditiveNoise:
        """The distribution of the noise, chosen for `auto`."""
        return LAPLACE if self.rho is None else GAUSSIAN

    @property
    def budget(self) -> Budget:
        """The budget of the complete release, in the unit of the noise, before the noisy user count."""
        return Budget(self.epsilon if self.rho is None else self.rho)

    @property
    def stated_delta(self) -> float:
        """The delta of the complete release: 0 with Laplace noise."""
        return 0.0 if self.rho is None else self.delta

    def laplace_epsilon(self, cost: float) -> float:
        """The epsilon of as much Laplace noise as a cost has."""
        return LAPLACE.cost(self.count_noise.stddev(cost)) if self.rho is not None else cost

    def _check_noise(self) -> None:
        """Raises RequestError where noise and delta contradict each other, or a protocol lacks this noise."""
        if self.noise == "gaussian" and not self.delta:
            raise RequestError("delta: gaussian noise needs one above 0, such as 1e-6")
        if 0 < self.delta < MIN_GAUSSIAN_DELTA:
            raise RequestError(f"delta: must be 0 or at least {MIN_GAUSSIAN_DELTA:g}, got {self.delta:g}")
        if self.noise == "laplace" and self.delta:
            raise RequestError("delta: laplace noise needs none; leave it out")
        if self.rho is not None and (name := self._by_client):
            raise RequestError(
                f"{name}: clients' shares do not add up to Gaussian noise; leave out this option, or --delta"
            )

    def _check_slots(self) -> None:
        """Raises RequestError for options that do not go with slots."""
        if self.categories > 1:
            raise RequestError("auxiliary: a map has slots or rates, not both; leave out --auxiliary or --slots")
        if self.contributes == "all":
            raise RequestError("contribution: with slots a user gives records, not a distribution; use one or top")
        if self.participation != "planned":
            raise RequestError("participation: paper is for maps without slots; leave it out")
        self.method.check_slots(self.slots)
        if self.records_per_user > 1:
            for name, value, needed in (
                ("contribution", self.contributes, "one"),
                ("noise_source", self.noise_source, "shard"),
                ("simulated_dropout", self.simulated_dropout, 0),
            ):
                if value != needed:
                    raise RequestError(f"{name}: with several records a user it must be {needed}, got {value}")

    def _check_rotation(self) -> None:
        """Raises RequestError for options that do not go with a rotation."""
        for name, value, usual in (
            ("population", self.population, None),
            ("users", self.users, None),
            ("participation", self.participation, "planned"),
        ):
            if value != usual:
                raise RequestError(f"{name}: a rotation asks one cohort, whose users are counted; leave it out")
        for name, number in (("slots", self.slots), ("auxiliary", self.categories)):
            if number > 1:
                raise RequestError(f"{name}: a rotation is of plain maps; leave out --{name} or --rotation")

    @property
    def bins(self) -> int:
        """In how many bins the records of a cell are counted: by category or by slot; 1 without either."""
        return self.categories * self.slots

    def max_rounds(self) -> int:
        """The largest number of sub-queries in one run."""
        return self.method.max_rounds(self.depth) + (self.slots > 1)

    @property
    def _by_client(self) -> str:
        """The option by which every client's share of the noise counts; empty where a shard's noise does."""
        if self.participation != "planned":
            return "participation"
        if self.colluding:
            return "colluding"
        return "" if self.noise_source == "shard" else "noise_source"

    @property
    def is_central(self) -> bool:
        """Whether a trusted curator adds the noise, once to the sum of all users. Then there are no shards to lose."""
        return self.trust == Trust.CENTRAL

    @property
    def shard_noise(self) -> NoiseSource | None:
        """How a shard's noise is made; None where shards have none, because a trusted curator adds it."""
        return None if self.is_central else self.noise_source

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
        return automatic_gamma(self)

    @property
    def distribution_total(self) -> int | None:
        """The sum of a user's stored weights, see `stored_total`; None with one location a user."""
        return self.distribution_gamma and stored_total(self.distribution_gamma, self.rounding)

    def metadata(self) -> dict[str, Any]:
        """The parameters and the method's own by name, in JSON's types. The key is bound to them."""
        own = {one.name: getattr(self, one.name) for one in fields(self) if one.name != "method"}
        own["gamma"] = self.distribution_gamma
        if self.slots == 1:  # the keys of maps without slots stay as they were
            del own["slots"], own["records_per_user"]
        if self.rotation == 1:
            del own["rotation"]
        if not self.colluding:
            del own["colluding"]
        return {**own, "method": self.method.NAME, **asdict(self.method)}
