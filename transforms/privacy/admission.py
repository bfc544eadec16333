"""Charge and admission: the ledger is charged, then two noisy counts of users admit or refuse the run.

A user has a usable record or has none. So the two counts are of disjoint users, and their cost is paid once (parallel
composition, add-or-remove-one-user adjacency), which is a part of the charge. No exact number decides anything after
the charge. All is pure but the gate, which writes to the ledger, and one
log event.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Protocol

import numpy as np

from sfumato.schemas.errors import LedgerError, NotAdmittedError, RequestError, TooFewUsersError
from sfumato.schemas.known_digits import about
from sfumato.schemas.log_layout import DayRows
from sfumato.schemas.requests.checks import check_number
from sfumato.transforms.observability.logs import FEW_USERS
from sfumato.transforms.observability.text_tables import counted as shown
from sfumato.transforms.privacy.additive_noise import LAPLACE, AdditiveNoise
from sfumato.transforms.privacy.budget import check_epsilon
from sfumato.transforms.privacy.discrete_laplace import MAX_NOISE_EPSILON, MIN_NOISE_EPSILON
from sfumato.transforms.privacy.keys import RunKey

# Probability that the noise of one count exceeds the margin of a refusal. A clean run is refused with at most a few
# times this probability.
FALSE_REFUSAL_PROBABILITY = 1e-7
_HARDLY_EVER = 5  # standard deviations that Laplace noise exceeds with a probability of 0.0005
ADMISSION_SHARE = 0.01  # of the budget of a release, for the noisy counts of users
ZONES_SHARE = 0.002  # that of zones; a larger one refuses bad logs of fewer users, and leaves less for the zones
POPULATION_TOLERANCE = 0.1  # relative difference allowed between a public number of users and the logs'


@dataclass(frozen=True)
class UserCounts:
    """Exact numbers of users. They may be used only with noise added.

    Attributes:
        usable: users with a usable record.
        unusable: users without one. All rows without a user id count as one such user.
    """

    usable: int = 0
    unusable: int = 0

    def __add__(self, other: UserCounts) -> UserCounts:
        return UserCounts(self.usable + other.usable, self.unusable + other.unusable)


def sum_user_counts(counts: Iterable[UserCounts]) -> UserCounts:
    """Adds up user counts; a function for `beam.CombineGlobally`."""
    return sum(counts, start=UserCounts())


@dataclass(frozen=True)
class AdmissionRule:
    """The conditions under which a run continues.

    Attributes:
        cost: of both noisy counts together, in the unit of the noise: epsilon or rho.
        max_bad_fraction: largest share of users without a usable record, in 0..1.
        min_users: smallest number of users; 0 for any.
        population: a public number of users; None if there is none.
        sampling_rate: probability, in (0, 1], with which each user is counted: a secret Poisson sample, drawn with the
            run's key. Below 1 the noise must be Laplace noise.
        noise_kind: distribution of the noise of both counts.
        cohorts: number of rotating cohorts, one of which is counted; `min_users` applies to the users of all cohorts.
        area: where users count, with its public borders, for messages; None where records have no place.

    Raises:
        RequestError: max_bad_fraction is out of range.
    """

    cost: float
    max_bad_fraction: float = 0.1
    min_users: int = 0
    population: int | None = None
    sampling_rate: float = 1.0
    noise_kind: AdditiveNoise = LAPLACE
    cohorts: int = 1
    area: str | None = None

    def __post_init__(self) -> None:
        if not 0 <= self.max_bad_fraction <= 1:
            raise RequestError(f"max_bad_fraction: must be a number in [0, 1], got {self.max_bad_fraction}")

    @property
    def noise_cost(self) -> float:
        """The cost that noise is drawn for, above `cost` where only a secret sample of the users is counted.

        Sampling amplifies privacy: noise of epsilon e on a sample with rate r costs ln(1 + r (exp(e) - 1)), and this is
        the e that costs `cost`. A sample has Laplace noise, so there the cost is an epsilon.
        """
        cost = min(self.cost, MAX_NOISE_EPSILON)
        if self.sampling_rate == 1:
            return cost
        return min(math.log1p(math.expm1(cost) / self.sampling_rate), MAX_NOISE_EPSILON)


class CountedBudget:
    """A budget whose release counts its users first: a part of epsilon admits the run, the rest is for its rounds.

    A base of plans, which declare the attributes as their fields.

    Attributes:
        epsilon: budget of the whole release, > 0.
        population: number of users in the logs, publicly known. A run whose noisy number of users differs by more than
            a tenth is refused. None: unknown.
        max_bad_fraction: the largest share of users without a usable record, 0..1.
    """

    ADMISSION_RATE: ClassVar[float] = 1.0  # with which users are sampled for the counts that admit a run

    if TYPE_CHECKING:

        @property
        def epsilon(self) -> float: ...

        @property
        def population(self) -> int | None: ...

        @property
        def max_bad_fraction(self) -> float: ...

    def check_budget(self) -> None:
        """Raises RequestError for an epsilon or a population out of range."""
        check_epsilon(self.epsilon)
        if self.population is not None:
            check_number("population", self.population, int, ge=1)
        if self.admission_rule.noise_cost < MIN_NOISE_EPSILON:
            raise RequestError(f"epsilon: {self.epsilon:g} is too small for the admission of a run; raise it")

    @property
    def admission_rule(self) -> AdmissionRule:
        """Returns the rule for the noisy counts of users that admit a run, with their cost."""
        return AdmissionRule(
            cost=ADMISSION_SHARE * self.epsilon,
            max_bad_fraction=self.max_bad_fraction,
            population=self.population,
            sampling_rate=self.ADMISSION_RATE,
        )

    @property
    def rounds_epsilon(self) -> float:
        """Returns the epsilon of all rounds together."""
        return self.epsilon - self.admission_rule.cost


@dataclass(frozen=True)
class NoisyUserCounts:
    """Both numbers of users with noise, scaled to all users. Not rounded or clipped, so they are unbiased.

    Attributes:
        users: noisy number of users with a usable record.
        unusable: noisy number of users without one.
        cost: of both counts together, in the unit of the rule's noise.
        noise_stddev: standard deviation of either count, in users.
    """

    users: float
    unusable: float
    cost: float
    noise_stddev: float

    @property
    def may_be_none(self) -> bool:
        """Returns whether the noise may explain all of the users."""
        return self.users < 2 * self.noise_stddev

    def entry(self, unit: str = "epsilon") -> dict[str, float]:
        """Returns the fields that a manifest states, with the cost under the name of its unit."""
        return {unit if name == "cost" else name: value for name, value in asdict(self).items()}


class ChargeGate(Protocol):
    """Charges a ledger. Every run passes it before its first noisy value is drawn."""

    def charge(self) -> str | None:
        """Charges the whole release, once.

        Returns:
            Why an earlier run under this charge was refused; None if it was not.

        Raises:
            BudgetError, RequestError, LedgerError or NotReadyError: the release must not be made.
        """

    def settle(self, cost: float, reason: str) -> None:
        """Lowers the charge of a refused release to the cost of its admission, in the unit of the noise."""


@dataclass(frozen=True)
class ChargeAndAdmit:
    """The charge of a run, and the decision that follows it.

    Every job's graph calls it once, in the step `ChargeAndAdmitUsers`, between reading and noise.

    Attributes:
        rule: the conditions under which the run continues.
        gate: charges the ledger; None without one. While a graph is built also a side input that holds the gate, where
            the charge is bound to input that is known only when the graph runs.
        day_rows: the public days and hours whose rows are read; None for all rows. A warning names them.
        dates: the option of the order of dates in text; None without it.
        row_counts: called with the graph's PCollection of RowCounts while the graph is built; None for nobody.

    >>> from sfumato.transforms.privacy.keys import FixedSecret
    >>> key = RunKey.derive(FixedSecret(b"k" * 32), {})
    >>> charge_and_admit = ChargeAndAdmit(AdmissionRule(cost=0.5, min_users=100))
    >>> abs(charge_and_admit(UserCounts(usable=1000), key).users - 1000) < 60
    True
    >>> charge_and_admit(UserCounts(usable=20), key)  # doctest: +ELLIPSIS
    Traceback (most recent call last):
        ...
    sfumato.schemas.errors.TooFewUsersError: about ... users (± 5.9, 95%), fewer than --min_users 100 ...
    """

    rule: AdmissionRule
    gate: ChargeGate | Any | None = None
    day_rows: DayRows | None = None
    dates: str | None = None
    row_counts: Callable[[Any], None] | None = None

    def __call__(self, counts: UserCounts, key: RunKey) -> NoisyUserCounts:
        """Charges the ledger, counts the run's users with noise, and checks the rule.

        Args:
            counts: exact numbers of users. If the rule has a sampling rate below 1, of the users in the sample.
            key: of the run. The same key and counts give the same admission.

        Returns:
            The noisy counts.

        Raises:
            NotAdmittedError: the run is refused. The message holds noisy and public values only.
            SfumatoError: the gate refused the charge. Then no noise is drawn.
        """
        refused = None if self.gate is None else self.gate.charge()
        counted = count_users(counts, self.rule, key)
        read = "" if self.day_rows is None else f"only the rows of {self.day_rows} count; "
        try:
            check_admission(counted, self.rule, read + self._remedies)
        except NotAdmittedError as refusal:
            if self.gate is not None:
                self.gate.settle(self.rule.cost, str(refusal))
            raise
        if refused is not None:  # which lowered the charge to the admission's cost
            raise LedgerError("ledger: this release was refused before, and would not be now; give another release id")
        # CSV, JSON and dictionaries have no schema: there a misspelled column shows only as missing users.
        if counted.may_be_none:
            self._warn(counted)
        return counted

    @property
    def _remedies(self) -> str:
        """Returns the options that could have left all users out, for messages."""
        check = "--user_id_column and other columns, --decimal"
        if self.day_rows is not None:
            form = "dmy or mdy" if self.dates is None else f"now {self.dates}"
            # A time that cannot be read leaves its row out, and no count shows it.
            check = f"--period, --dates ({form}), --time_zone, {check}"
        return f"check {check}" if self.rule.area is None else f"check {check} and {self.rule.area}"

    def _warn(self, counted: NoisyUserCounts) -> None:
        """Logs that there may be no users, with the options that could have left them out.

        The run goes on: this count has a small share of the budget, so the map may well show users that it does not.
        """
        noise = _HARDLY_EVER * counted.noise_stddev * self.rule.cohorts
        unit = 10 ** math.floor(math.log10(max(noise, 1)))
        advice = f"; --min_users {math.ceil(noise / unit) * unit} would end it here"
        FEW_USERS.emit(
            users=counted.users,
            noise_stddev=counted.noise_stddev,
            rows="logs" if self.day_rows is None else f"rows of {self.day_rows}",
            check=self._remedies,
            advice="" if self.rule.min_users else advice,
        )


def count_users(counts: UserCounts, rule: AdmissionRule, key: RunKey) -> NoisyUserCounts:
    """Adds noise to both counts and scales them from the sample to all users."""
    streams = np.zeros(1, dtype=np.uint64)
    noise = rule.noise_kind.draw(key, "admission", streams, 2, rule.noise_cost)[0]
    rate = rule.sampling_rate
    return NoisyUserCounts(
        users=(counts.usable + int(noise[0])) / rate,
        unusable=(counts.unusable + int(noise[1])) / rate,
        cost=rule.cost,
        noise_stddev=rule.noise_kind.stddev(rule.noise_cost) / rate,
    )


def sampled_stddev(users: float, noise_stddev: float, rate: float) -> float:
    """Returns the standard deviation of a number of users that was scaled from a sample: of noise and sampling.

    users: the scaled number. noise_stddev: of it. rate: with which users were sampled, 0 < rate <= 1.

    >>> sampled_stddev(900, 12, 1), sampled_stddev(900, 40, 0.5)
    (12.0, 50.0)
    """
    return math.hypot(noise_stddev, math.sqrt((1 / rate - 1) * max(users, 0)))


def check_admission(counted: NoisyUserCounts, rule: AdmissionRule, remedies: str = "") -> None:
    """Raises NotAdmittedError if the noisy counts break the rule. remedies: for a message that there may be no users.

    Bad records or a wrong population are a reason only beyond what noise and sampling explain, except with probability
    FALSE_REFUSAL_PROBABILITY. The minimum number of users is compared with the noisy count itself.
    """
    margin = rule.noise_kind.quantile(rule.noise_cost, FALSE_REFUSAL_PROBABILITY) / rule.sampling_rate
    users, unusable = counted.users, counted.unusable
    some = f"about {shown(users, counted.noise_stddev)}"
    limit = rule.max_bad_fraction
    max_total = max(users + unusable + 2 * margin, 0.0)  # an upper bound on all users
    # A bad user adds 1 - limit and a good one subtracts limit, so the excess is at most 0 in expectation where the
    # share of bad users is within the limit. There the squared contributions sum to total * limit * (1 - limit).
    excess = (1 - limit) * unusable - limit * users
    if excess > margin + _sampling_slack(max_total * limit * (1 - limit), rule.sampling_rate):
        some_bad = f"about {shown(unusable, counted.noise_stddev)} of {about(users + unusable, counted.noise_stddev)}"
        raise NotAdmittedError(
            f"{'nearly all users' if users <= margin else some_bad} have no usable record, more than "
            f"--max_bad_fraction {limit:g} allows; check the columns (--user_id_column; are latitude and longitude "
            f"swapped?), --decimal{'' if rule.area is None else f' and {rule.area}'}, fix the files, or raise "
            "--max_bad_fraction (`sfumato inspect` shows the operator the reasons)"
        )
    if rule.population is not None:
        allowed = POPULATION_TOLERANCE * rule.population + margin + _sampling_slack(max_total, rule.sampling_rate)
        if abs(users - rule.population) > allowed:
            raise NotAdmittedError(
                f"--population states {rule.population:,} users, and the logs hold {some}; correct it, or leave it out"
            )
    if rule.min_users and users * rule.cohorts < rule.min_users:  # without a minimum, a negative count is no reason
        if rule.cohorts > 1:
            some += f" in one of {rule.cohorts} cohorts, so about {max(users, 0) * rule.cohorts:,.0f} in all"
        advice = f"; {remedies}" if remedies and counted.may_be_none else ""
        raise TooFewUsersError(f"{some}, fewer than --min_users {rule.min_users:,} (lower it if that is right){advice}")


def _sampling_slack(squares: float, rate: float) -> float:
    """Bounds how far a scaled-up sum over a Poisson sample exceeds its expectation (Bernstein's inequality).

    Args:
        squares: sum of the squared contributions of all users.
        rate: sampling rate of the sample, in 0..1.

    Returns:
        The bound in users, exceeded with probability FALSE_REFUSAL_PROBABILITY at most; 0 if all users are counted.
    """
    if rate >= 1:
        return 0.0
    exponent = -math.log(FALSE_REFUSAL_PROBABILITY)
    return math.sqrt(2 * exponent * squares * (1 - rate) / rate) + exponent / (3 * rate)
