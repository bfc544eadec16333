"""The parameters of noisy counts: those of every method, and the method with its own.

The automatic gamma, the sum of a user's weights, is chosen from public figures only: users are bounded before their
number is known, so gamma depends neither on the data nor on a noisy figure.

Rounding. It moves an entry of one user's vector, a run of cells in the quadtree's order, to one of the integers around
gamma times its share. That has a variance of at most 1/4 (more where a node that lacks children is several runs, and
less where a user has much or nothing there). Users round independently, so the sum of a shard of S users has at most
S / 4 of it. The noise of a sub-query at epsilon e has at least the variance of the discrete Laplace distribution,
1 / (2 sinh^2(e / (2 gamma))) (Eq. 5), which falls with e. With e the whole budget, rounding has at most a hundredth
(COST) of any sub-query's noise variance if

    S / 4 <= COST / (2 sinh^2(epsilon / (2 gamma)))   or   gamma >= epsilon / (2 asinh(sqrt(2 COST / S))),

about epsilon sqrt(12.5 S): 363 for shards of 10,000, which may be 5% larger, and epsilon 1. A larger gamma costs bits.
Without shards S is the number of users. Where that is not given, or is larger, S is the largest shard size.

Independent rounding widens the noise by 1 + d / gamma, where d is the vector's length. A gamma of at least
d / (sqrt(1 + COST) - 1), about 200 d, keeps that below a hundredth of the variance too. d is not known before the run,
but at most U / t cells have more than t users. Let t be two standard deviations of the noise,
t = 2 sqrt(U / S) sqrt(2) / epsilon. With four children each, trees of the cells above t have about 4 U / t entries on a
level, and there are no more than cells. A method with more entries has more noise.

Three upper bounds: the type of gamma; noise, which can be drawn down to an epsilon of MIN_NOISE_EPSILON gamma, and that
share of the budget is at most COST over all sub-queries; and a given modulus. The modulus must hold every sub-query
that costs at least a hundredth (MIN_QUERY_SHARE) of the budget. With independent rounding its entries are at most that
share of d, because epsilon is in proportion to entries by Eq. 7. A smaller sub-query may still be refused when it is
planned, as with an explicit gamma.
"""

from __future__ import annotations

import hashlib
import math
from dataclasses import asdict, dataclass, field, fields, replace
from functools import cached_property
from typing import Annotated, Any, Literal

import numpy as np
from annotated_types import Interval

from sfumato.schemas.errors import RequestError
from sfumato.schemas.guarantee import SERVERS, CentralSplitOrSecagg, NoiseKind, Trust
from sfumato.schemas.locations import MAX_CATEGORIES
from sfumato.schemas.requests.checks import check_declared, check_integer
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
from sfumato.transforms.counting.methods import Adaptive, Method
from sfumato.transforms.counting.state import Estimate
from sfumato.transforms.locations.distributions import MAX_GAMMA
from sfumato.transforms.locations.shards import Participation, ShardPlan
from sfumato.transforms.locations.users import Contribution
from sfumato.transforms.privacy.additive_noise import AUTO_NOISES, LAPLACE, NOISES, AdditiveNoise
from sfumato.transforms.privacy.admission import (
    ADMISSION_SHARE,
    FALSE_REFUSAL_PROBABILITY,
    POPULATION_TOLERANCE,
    AdmissionRule,
)
from sfumato.transforms.privacy.budget import Budget
from sfumato.transforms.privacy.discrete_laplace import MIN_NOISE_EPSILON
from sfumato.transforms.privacy.mechanism import MIN_GAUSSIAN_DELTA, noise_quantile
from sfumato.transforms.privacy.shared_noise import Noise
from sfumato.transforms.secagg.encodings import Rounding, l1_sensitivity, stored_total
from sfumato.transforms.secagg.modulus import MAX_MODULUS, min_window
from sfumato.transforms.secagg.shard_sums import NoiseSource
from sfumato.transforms.statistics.bisection import bisect_integers

NoiseName = Literal["auto", NoiseKind]
COST = 0.01  # of the noise's variance, and of the budget
MIN_QUERY_SHARE = 0.01  # of the budget, for one sub-query
UNKNOWN_USERS = 1 << 30  # used if the number of users is not given
LARGEST_SHARD = 1 << 24
SHARD_TOLERANCE = 1.05  # largest expected users of a shard, in shard sizes (`ShardPlan.for_users`)
MORE_USERS_SHARE = 0.1  # of the overflow probability, for more users than the noisy user count suggests


@dataclass(frozen=True)
class CountParameters:
    """Everything that shapes the statistics, validated.

    Raises:
        RequestError: a value is out of range, or contradicts another. The message names the field.
    """

    depth: Depth = 10  # levels of the quadtree: the finest grid has 2^depth x 2^depth cells
    # Who adds the noise: a curator once, two servers once each, or secure aggregation in the sum of each shard.
    trust: CentralSplitOrSecagg = Trust.SECAGG
    epsilon: Epsilon = 1.0  # epsilon, delta: of the complete release. Gaussian noise needs a delta above 0.
    delta: Delta = 0.0
    noise: NoiseName = "auto"  # its distribution; auto takes the one with less noise in a count at the whole budget
    shard_size: ShardSize = 10_000  # expected users of a shard (S)
    # Largest share of a shard's clients that may fail to answer; a shard that lacks more is lost.
    dropout: Dropout = 0.05
    # planned: each planned shard reports with the planned noise, whatever its number of users; paper: lost shards and
    # the noise level depend on who takes part, which is not protected.
    participation: Participation = "planned"
    users: Users | None = None  # number of users who take part; None for all users
    population: Users | None = None  # public number of users, if it is known
    # Share of the budget that the noisy user counts cost, with and without a usable record.
    population_share: Annotated[float, Interval(ge=0.001, le=0.5)] = ADMISSION_SHARE
    # What a user adds: one random location, the most frequent one (top), or a distribution over all; None for the
    # method's default.
    contribution: Contribution | None = None
    # Sum of a user's distribution in whole numbers; None chooses it by noise and modulus, see the module.
    gamma: Annotated[int, Interval(ge=1, le=MAX_GAMMA)] | None = None
    # How a distribution becomes whole numbers: systematic, of sensitivity gamma, or independent, entry by entry, of
    # sensitivity gamma + the length of the vector.
    rounding: Rounding = "systematic"
    # Probability that the sum of any shard wraps around the modulus, in the whole run.
    overflow_probability: Annotated[float, Interval(gt=0, lt=1)] = 1e-9
    modulus: Annotated[int, Interval(ge=2, le=MAX_MODULUS)] | None = None  # m of the secure sums; None chooses it
    allow_overflow: bool = False  # runs with a modulus that is too small
    noise_source: NoiseSource = "shard"  # draws the noise of a shard in closed form, or the share of each client
    # Share of a shard's required clients against which epsilon holds too; None for none.
    colluding: Colluding | None = None
    simulated_dropout: Fraction = 0.0  # probability that a client drops out after the noise is planned
    max_bad_fraction: Fraction = MAX_BAD_FRACTION  # refuses where a larger share of the users has no usable record
    categories: int = 1  # of the auxiliary data; 1 without
    slots: int = 1  # of time, each with a map of its own; 1 without
    records_per_user: int = 1  # the most slots in which a user counts, each by one record
    # The number of rotating cohorts, one of which is active: only its users are counted; 1 counts all users. See
    # `schemas.rotation`.
    rotation: int = 1
    method: Method = field(default_factory=Adaptive)  # with its own parameters

    def __post_init__(self) -> None:
        check_declared(self)
        self._check_noise()
        self.admission()  # which knows the bounds of max_bad_fraction
        if self.rounding != "systematic" and self.contributes != "all":
            raise RequestError(
                f"rounding: {self.rounding} rounding applies only to distributions; use it with contribution all"
            )
        check_integer("categories", self.categories, 1, MAX_CATEGORIES)
        self.method.check_use(self.categories, self.is_one_batch)
        check_integer("records_per_user", self.records_per_user, 1, self.slots)
        if self.slots > 1:
            self._check_slots()
        check_integer("rotation", self.rotation, 1, MAX_COHORTS)
        if self.rotation > 1:
            self._check_rotation()
        if self.is_one_batch and (name := self._by_client):
            raise RequestError(f"{name}: has no effect with --trust {self.trust}, which has no shards; leave it out")
        twice = {one.name for one in fields(self)} & {one.name for one in fields(self.method)}
        if twice:  # the key is bound to options by name
            raise TypeError(
                f"{type(self.method).__name__} has options that every method has: {', '.join(sorted(twice))}"
            )
        self.method.check(self.depth)
        self.distribution_gamma  # noqa: B018  (raises if no gamma is possible)

    def admission(self, min_users: int = 0) -> AdmissionRule:
        """Returns the conditions under which a run continues. min_users: see AdmissionRule."""
        budget = self.budget
        cost = budget.affordable(budget.total * self.population_share)
        return AdmissionRule(
            cost, self.max_bad_fraction, min_users, self.population, noise_kind=self.noise_kind, cohorts=self.rotation
        )

    @cached_property
    def noise_kind(self) -> AdditiveNoise:
        """The distribution of the noise, chosen for `auto`."""
        return min(self.possible_noises, key=lambda kind: kind.stddev(kind.total(self.epsilon, self.delta)))

    @property
    def possible_noises(self) -> list[AdditiveNoise]:
        """The distributions that `noise` allows: the named one, or for `auto` its candidates that fit delta."""
        if self.noise != "auto":
            return [NOISES[self.noise]]
        return [kind for kind in AUTO_NOISES if self.delta or not kind.NEEDS_DELTA]

    @property
    def rho(self) -> float | None:
        """The rho of the complete release, which a ledger adds up; None for noise with another unit of cost."""
        return self.budget.total if self.noise_kind.UNIT == "rho" else None

    def with_trust(self, trust: Trust) -> CountParameters:
        """Returns the parameters with another trust model; only shards' noise has clients who may collude.

        Raises RequestError: the trust model is not offered, or not with these parameters.
        """
        colluding = self.colluding if trust == Trust.SECAGG else None
        return replace(self, trust=trust, colluding=colluding)  # type: ignore[arg-type]

    def plan_shards(self, users: float) -> ShardPlan:
        """Returns how the `self.users` users who take part are spread over shards."""
        return ShardPlan.for_users(users, self.users, self.shard_size, self.dropout, self.participation)

    def noise_of(self, shard_plan: ShardPlan, kind: AdditiveNoise | None = None) -> Noise:
        """Returns the noise of a planned shard's sums, or of the sum of all users. kind: None for `noise_kind`."""
        required = 1 if self.is_one_batch else shard_plan.required_survivors
        return Noise(kind or self.noise_kind, required, self.colluding or 0.0)

    @property
    def budget(self) -> Budget:
        """The budget of the complete release, in the unit of the noise, before the noisy user count."""
        return Budget(self.noise_kind.total(self.epsilon, self.delta))

    @property
    def stated_delta(self) -> float:
        """The delta of the complete release: 0 with Laplace noise."""
        return self.delta if self.noise_kind.NEEDS_DELTA else 0.0

    def _check_noise(self) -> None:
        """Raises RequestError where noise and delta contradict each other, or a protocol lacks this noise."""
        needs_delta = None if self.noise == "auto" else NOISES[self.noise].NEEDS_DELTA
        if needs_delta and not self.delta:
            raise RequestError(f"delta: {self.noise} noise needs one above 0, such as 1e-6")
        if 0 < self.delta < MIN_GAUSSIAN_DELTA:
            raise RequestError(f"delta: must be 0 or at least {MIN_GAUSSIAN_DELTA:g}, got {self.delta:g}")
        if needs_delta is False and self.delta:
            raise RequestError(f"delta: {self.noise} noise needs none; leave it out")
        if not self.noise_kind.HAS_SHARES and (name := self._by_client):
            raise RequestError(
                f"{name}: clients' shares do not add up to {self.noise_kind.NAME.capitalize()} noise; leave out this "
                "option, or --delta"
            )

    def _check_slots(self) -> None:
        if self.categories > 1:
            raise RequestError("auxiliary: a map has slots or rates, not both; leave out --auxiliary or --slots")
        if self.contributes == "all":
            raise RequestError("contribution: with slots a user gives records, not a distribution; use one or top")
        if not self.protects_participation:
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
        for name, value, usual in (
            ("population", self.population, None),
            ("users", self.users, None),
            ("participation", self.participation, "planned"),
        ):
            if value != usual:
                raise RequestError(
                    f"{name}: cannot be combined with --rotation, which counts the users of one cohort; leave it out"
                )
        for name, number in (("slots", self.slots), ("auxiliary", self.categories)):
            if number > 1:
                raise RequestError(f"{name}: cannot be combined with --rotation, which supports only plain maps")

    @property
    def bins(self) -> int:
        """In how many bins the records of a cell are counted: by category or by slot; 1 without either."""
        return self.categories * self.slots

    def most_sub_queries(self) -> int:
        """Returns the largest number of sub-queries in one run."""
        return self.method.most_sub_queries(self.depth) + (self.slots > 1)

    @property
    def _by_client(self) -> str:
        """The option by which every client's share of the noise counts; empty where a shard's noise does."""
        if not self.protects_participation:
            return "participation"
        if self.colluding:
            return "colluding"
        return "" if self.noise_source == "shard" else "noise_source"

    @property
    def protects_participation(self) -> bool:
        """Whether nothing that is published depends on who takes part, so that adding a user is covered."""
        return self.participation == "planned"

    @property
    def is_one_batch(self) -> bool:
        """Whether noise is added to one sum of all users, by a curator or two servers: there are no shards to lose."""
        return self.trust != Trust.SECAGG

    @property
    def servers(self) -> int:
        """The number of servers that each add noise to the sum of all users; 0 with other trust models."""
        return SERVERS if self.trust == Trust.SPLIT else 0

    def noisy_sums(self, shard_plan: ShardPlan) -> int:
        """Returns the number of sums with independent noise that are added up."""
        return max(self.servers, 1) if self.is_one_batch else shard_plan.shards

    @property
    def shard_noise_source(self) -> NoiseSource | None:
        """How a shard's noise is drawn; None where shards have none, because central noise is added to their sum."""
        return None if self.is_one_batch else self.noise_source

    @property
    def contributes(self) -> Contribution:
        """The given contribution, or the method's default."""
        return self.contribution or self.method.CONTRIBUTION

    @cached_property
    def distribution_gamma(self) -> int | None:
        """The given or chosen gamma, the sum of a user's weights; None with one location a user."""
        if self.contributes != "all":
            return None
        return automatic_gamma(self) if self.gamma is None else self.gamma

    @property
    def distribution_total(self) -> int | None:
        """The sum of a user's stored weights, see `stored_total`; None with one location a user."""
        return self.distribution_gamma and stored_total(self.distribution_gamma, self.rounding)

    def metadata(self) -> dict[str, Any]:
        """Returns the parameters and the method's own by name, in JSON's types. The key is bound to them."""
        own = {one.name: getattr(self, one.name) for one in fields(self) if one.name != "method"}
        own["gamma"] = self.distribution_gamma
        if self.slots == 1:  # the keys of maps without slots stay as they were
            del own["slots"], own["records_per_user"]
        if self.rotation == 1:
            del own["rotation"]
        if not self.colluding:
            del own["colluding"]
        return {**own, "method": self.method.NAME, **asdict(self.method)}


def automatic_gamma(parameters: CountParameters) -> int:
    """Returns the gamma of `auto`. Raises RequestError if none fits the modulus, or epsilon is too small for noise."""
    # With Gaussian noise, the epsilon of as much Laplace noise.
    epsilon = parameters.noise_kind.laplace_epsilon(parameters.budget.total)
    max_sub_queries = parameters.most_sub_queries()
    users = min(parameters.users or UNKNOWN_USERS, parameters.population or UNKNOWN_USERS)
    shard_size, is_one_batch = parameters.shard_size, parameters.is_one_batch
    shard_plan = parameters.plan_shards(users)
    in_sum = min(users, LARGEST_SHARD if is_one_batch else SHARD_TOLERANCE * shard_size)
    max_cells = parameters.categories << (2 * parameters.depth)
    length = vector_length(epsilon, max_cells, users, parameters.noisy_sums(shard_plan))
    needed = epsilon / (2 * math.asinh(math.sqrt(2 * COST / in_sum)))
    if parameters.rounding == "independent":
        needed = max(needed, length / (math.sqrt(1 + COST) - 1))
    gamma = min(
        math.ceil(needed),
        MAX_GAMMA,
        int(COST * epsilon / (MIN_NOISE_EPSILON * max_sub_queries)),
        math.ceil(MAX_MODULUS / users) - 1,
    )
    if gamma < 1:
        raise RequestError(
            f"epsilon: {epsilon} is too small for distributions in {max_sub_queries} sub-queries; give a larger one"
        )
    if is_one_batch or parameters.modulus is None:
        return gamma
    return _largest_within(parameters.modulus, gamma, parameters, shard_plan, length)


def _largest_within(
    modulus: int, max_gamma: int, parameters: CountParameters, shard_plan: ShardPlan, length: int
) -> int:
    """Returns the largest gamma in 1..max_gamma whose sums fit the modulus."""
    counting_epsilon = parameters.noise_kind.laplace_epsilon(parameters.admission().cost)
    probability = parameters.overflow_probability / parameters.most_sub_queries()
    counted = max_counted(min(shard_plan.users, SHARD_TOLERANCE * parameters.shard_size), counting_epsilon, probability)

    def min_modulus(gamma: int) -> int:
        return min_window(
            expected_size=counted + noise_quantile(counting_epsilon, MORE_USERS_SHARE * probability),
            noise=parameters.noise_of(shard_plan, LAPLACE),
            cost=MIN_QUERY_SHARE * parameters.noise_kind.laplace_epsilon(parameters.budget.total),
            sensitivity=l1_sensitivity(gamma, parameters.rounding, math.ceil(MIN_QUERY_SHARE * length)),
            gamma=gamma,
            entries=length,
            shards=shard_plan.shards,
            probability=(1 - MORE_USERS_SHARE) * probability,
            is_planned=parameters.protects_participation,
        ).modulus

    if (smallest := min_modulus(1)) > modulus:
        raise RequestError(
            f"modulus: {modulus} holds the sums of no gamma, the least that would do for gamma 1 is {smallest}; "
            "give a larger modulus, auto, or a gamma of your own"
        )
    return bisect_integers(lambda gamma: min_modulus(gamma) <= modulus, 1, max_gamma + 1)


def max_counted(population: float, epsilon: float, probability: float) -> float:
    """Returns the largest noisy user count of this epsilon that does not contradict a public population."""
    margin = noise_quantile(epsilon, min(MORE_USERS_SHARE * probability, FALSE_REFUSAL_PROBABILITY))
    return (1 + POPULATION_TOLERANCE) * population + margin


def vector_length(epsilon: float, max_cells: int, users: float, noisy_sums: int) -> int:
    """Returns the expected entries of a tree of the cells above the noise; see the module."""
    threshold = 2 * math.sqrt(2 * noisy_sums) / epsilon
    return min(max_cells, math.ceil(4 * users / threshold))


def check_prior(prior: Estimate | None, parameters: CountParameters) -> None:
    """Raises RequestError if a heatmap of these parameters cannot start from an earlier map."""
    if prior is None:
        return
    if parameters.slots > 1:
        raise RequestError("warm_start: a map with slots cannot start from an earlier release; leave it out")
    parameters.method.check_warm_start()
    if prior.tree.depth != parameters.depth:
        raise RequestError(f"warm_start: the map has depth {prior.tree.depth}, not {parameters.depth}")


def digest(estimate: Estimate) -> str:
    """Returns the SHA-256 of an estimate. The key of a run that starts from the estimate is bound to it."""
    columns = [estimate.tree.nodes, estimate.counts, estimate.stddev]
    if estimate.memory != 1:
        columns.append(np.array([estimate.memory]))
    return hashlib.sha256(b"".join(np.ascontiguousarray(column).tobytes() for column in columns)).hexdigest()
