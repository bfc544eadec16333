"""The protocol of bit pushing: a plan, and a state that advances round by round (paper 002, Algorithms 1 and 2). Pure.

A query asks clients about one quantity, in the paper's round 1 or 2: for a bit, or whether it reaches a threshold. A
stage is the queries that need only the tallies of earlier stages, so they run at the same time. The next queries depend
on the plan and the state only. So Beam and a loop in memory run the same protocol.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import cached_property
from typing import Any, get_args

import numpy as np
from numpy.typing import NDArray

from sfumato.schemas.errors import RequestError
from sfumato.schemas.moments import EVERYBODY, PAIRS, BitMeans, FixedPoint, Method, MomentEstimate, Statistic
from sfumato.transforms.moments.local.allocation import (
    Prior,
    Tuning,
    by_variance,
    by_weight,
    chosen_method,
    with_uniform_share,
)
from sfumato.transforms.moments.local.bit_means import (
    EMPTY,
    BitEstimates,
    bit_means,
    bits_in_use,
    evidence,
    normal_quantile,
)
from sfumato.transforms.moments.local.quantities import CENTRED, SECOND, Quantity, Thresholds
from sfumato.transforms.moments.local.tally import Query, RandomisedResponse, Tally, sum_tallies, with_noise
from sfumato.transforms.moments.local.threshold_means import ThresholdEstimates
from sfumato.transforms.moments.statistic_kinds import (
    MeanEstimate,
    Means,
    StatisticContext,
    Variance,
    check_statistics,
    evaluate,
    quantities_of,
)
from sfumato.transforms.privacy.admission import ADMISSION_SHARE, AdmissionRule
from sfumato.transforms.privacy.keys import RunKey
from sfumato.transforms.privacy.mechanism import discrete_laplace_stddev
from sfumato.transforms.privacy.noise import MAX_NOISE_EPSILON, MIN_NOISE_EPSILON

Array = NDArray[np.float64]

_MIN_EPSILON = 1000 * MIN_NOISE_EPSILON  # of a release, for each bit that a client reports
_CODE_BITS = 64  # of both columns together


@dataclass(frozen=True, kw_only=True)
class MomentsPlan:
    """The queries of one column or of two, and their privacy. Every quantity has its own part of the clients.

    Attributes:
        form: of the values.
        statistics: to estimate; each name once.
        method: `threshold` (two rounds), `adaptive` (two) or `weighted` (one); `auto` chooses by the number of users
            (allocation.py). Thresholds are for all users, not for groups.
        epsilon: local, of all that a client reports; None: no randomised response.
        release_epsilon: of the whole release, for adding or removing one user. None: the same as epsilon; if that is
            None too, counts are exact.
        bits_per_client: different bits of one quantity that a client reports.
        variance: about the estimated mean in two phases (`centred`), or as E[x^2] - E[x]^2 (`raw`).
        tuning: the protocol's parameters.
        prior: by quantity, an earlier release instead of the first round.
        second: form of a second column; None without one.

    Raises:
        RequestError: a value is out of range.
    """

    form: FixedPoint
    statistics: tuple[Statistic, ...] = (Statistic("mean"),)
    method: Method = "adaptive"
    epsilon: float | None = None
    release_epsilon: float | None = None
    bits_per_client: int = 1
    variance: Variance = "centred"
    tuning: Tuning = field(default_factory=Tuning)
    prior: Mapping[str, Prior] = field(default_factory=dict)
    second: FixedPoint | None = None

    def __post_init__(self) -> None:
        check_statistics(self.statistics, self.second is not None)
        for name, value, choices in (("method", self.method, Method), ("variance", self.variance, Variance)):
            if value not in get_args(choices):
                raise RequestError(f"{name}: there are {', '.join(get_args(choices))}, got {value!r}")
        for statistic in self.statistics:
            if "log2" in quantities_of(statistic, self.variance) and self.form.signed != "no":
                raise RequestError(f"statistics: {statistic.name} is of positive values, so it goes without --signed")
        if self.second is not None and self.form.code_bits + self.second.code_bits > _CODE_BITS:
            raise RequestError(
                f"second_bits: both columns have {_CODE_BITS} bits in all at most, with their signs; got "
                f"{self.form.code_bits} and {self.second.code_bits}"
            )
        max_bits = min(len(Quantity(self.form, kind, second=self.second).slots) for kind in self.quantities)
        if isinstance(self.bits_per_client, bool) or not 1 <= self.bits_per_client <= max_bits:
            raise RequestError(f"bits_per_client: must lie in 1..{max_bits}, got {self.bits_per_client}")
        _ = self.response  # checks epsilon
        if self.released_epsilon is not None:
            min_epsilon = _MIN_EPSILON * self.bits_per_client
            if not min_epsilon <= self.released_epsilon <= MAX_NOISE_EPSILON:
                name = "epsilon" if self.release_epsilon is None else "group_epsilon"
                raise RequestError(
                    f"{name}: must lie in {min_epsilon:g}..{MAX_NOISE_EPSILON:g}, got {self.released_epsilon:g}"
                )

    def stated(self) -> dict[str, Any]:
        """What tells this plan from others: the run's key is bound to it."""
        fields = {name: value for name, value in vars(self).items() if name in self.__dataclass_fields__}
        return {
            **fields,
            "prior": {
                kind: [bits.weight.tolist(), bits.mean.tolist(), bits.stddev.tolist()]
                for kind, bits in self.prior.items()
            },
            "form": asdict(self.form),
            "tuning": asdict(self.tuning),
            "statistics": [statistic.name for statistic in self.statistics],
            "second": None if self.second is None else asdict(self.second),
        }

    @property
    def forms(self) -> tuple[FixedPoint, ...]:
        """The forms of the values, of one column or of two."""
        return (self.form,) if self.second is None else (self.form, self.second)

    @property
    def released_epsilon(self) -> float | None:
        """The epsilon of the whole release, for adding or removing one user; None: counts are exact."""
        if self.release_epsilon is not None or self.epsilon is None:
            return self.release_epsilon
        return min(self.epsilon, MAX_NOISE_EPSILON)

    def admission(self, max_bad_fraction: float = 0.1, min_users: int = 0) -> AdmissionRule:
        """The rule for the two noisy counts of users that admit a run, with their share of the epsilon."""
        return AdmissionRule((self.released_epsilon or 1.0) * ADMISSION_SHARE, max_bad_fraction, min_users)

    @property
    def tally_epsilon(self) -> float | None:
        """The epsilon of all tallies together: the rest after the admission."""
        return None if self.released_epsilon is None else self.released_epsilon * (1 - ADMISSION_SHARE)

    @property
    def noise_stddev(self) -> float:
        """Standard deviation of the noise on every count of a tally, in reports."""
        return 0.0 if self.tally_epsilon is None else discrete_laplace_stddev(self.tally_epsilon, self.bits_per_client)

    def protect(self, queries: Sequence[Query], tallies: Sequence[Tally], key: RunKey) -> list[Tally]:
        """The tallies of a stage with the noise that makes them public."""
        epsilon = self.tally_epsilon
        if epsilon is None:
            return list(tallies)
        return [
            with_noise(tally, query.name, self.bits_per_client, epsilon, query.bound_key(key))
            for query, tally in zip(queries, tallies, strict=True)
        ]

    @cached_property
    def response(self) -> RandomisedResponse:
        """How clients report a bit."""
        return RandomisedResponse(self.epsilon, self.bits_per_client)

    def method_of(self, state: MomentsState) -> Method:
        """The method of a run: as planned, or chosen by its number of users."""
        return chosen_method(state.users, self.epsilon, self.form.bits) if self.method == "auto" else self.method

    @cached_property
    def quantities(self) -> tuple[str, ...]:
        """The kinds of the queried quantities, in the order of their parts of the clients."""
        return tuple(
            dict.fromkeys(kind for statistic in self.statistics for kind in quantities_of(statistic, self.variance))
        )

    @cached_property
    def stages(self) -> tuple[tuple[tuple[str, int], ...], ...]:
        """The stages in order, each with the (quantity, round) of its queries. What is about a mean needs it first."""
        centred = [kind for kind in self.quantities if kind in CENTRED]
        others = [kind for kind in self.quantities if kind not in CENTRED]
        stages = (
            tuple((kind, number) for kind in phase if number in self._rounds(kind))
            for phase in (others, centred)
            for number in (1, 2)
        )
        return tuple(stage for stage in stages if stage)

    def _rounds(self, kind: str) -> tuple[int, ...]:
        if self.method == "weighted":
            return (1,)
        return (2,) if kind in self.prior else (1, 2)

    def part(self, kind: str) -> tuple[float, float]:
        """The interval of the positions of the clients who are asked about a quantity."""
        part, place = 1 / len(self.quantities), self.quantities.index(kind)
        return place * part, 1.0 if self.quantities[-1] == kind else (place + 1) * part

    def next_queries(self, state: MomentsState) -> list[Query]:
        """The queries of the next stage; none if it is a second round and `auto` has chosen one round."""
        one_round = self.method_of(state) == "weighted"
        stage = self.stages[state.finished_stages]
        return [self._query(kind, number, state) for kind, number in stage if number == 1 or not one_round]

    def _query(self, kind: str, number: int, state: MomentsState) -> Query:
        """The query for a quantity in round `number`: its interval of clients and the probability of each question."""
        method, reports = self.method_of(state), self.bits_per_client
        tuning = self.tuning.resolved(method)
        centres = state.centres() if kind in CENTRED else (0.0, 0.0)
        quantity = Quantity(self.form, kind, centres[0], method == "threshold", self.second, centres[1])
        slots = quantity.slots
        first, last = self.part(kind)
        assert tuning.first_share is not None
        assert tuning.first_power is not None
        assert tuning.weighted_power is not None
        if method == "weighted":
            return Query(quantity, 1, first, last, by_weight(slots, tuning.weighted_power, reports))
        border = first + tuning.first_share * (last - first)
        if number == 1:
            return Query(quantity, 1, first, border, by_weight(slots, tuning.first_power, reports))
        if quantity.by_thresholds:
            return Query(quantity, 2, border, last, state.thresholds(kind).probabilities(reports))
        prior = self.prior.get(kind)
        if prior is None:
            bits = state.bits(kind)
            means, variances, used_bits = bits.mean[0], bits.variance[0], bits.used_bits
        else:
            means, variances = prior.for_slots(slots)
            shares = np.clip(means * self.response.gain + 1 - self.response.truth_probability, 0, 1)
            reported = shares, self.response.variance(shares) / variances
            used_bits = bits_in_use(means, variances, slots, reported, self.response, tuning.squash)
        # A bit that was never, or always, set may still be a little different.
        margin = np.minimum(np.sqrt(variances), 0.5)
        guess, used = np.clip(means, margin, 1 - margin), used_bits.weighted().bit_probabilities()
        probabilities = by_variance(slots, guess, used, self.response, tuning.second_power, reports)
        if prior is None:
            return Query(quantity, 2, border, last, probabilities)
        return Query(quantity, 2, first, last, with_uniform_share(probabilities, reports))


@dataclass(frozen=True, eq=False)
class MomentsState:
    """The public tallies of the finished stages.

    Attributes:
        plan: the plan.
        tallies: every query so far, with its tally.
        finished_stages: their number.
        users: their number, public or noisy, by which `auto` chooses the method.
    """

    plan: MomentsPlan
    tallies: tuple[tuple[Query, Tally], ...] = ()
    finished_stages: int = 0
    users: float = 0.0

    def advance(self, queries: Sequence[Query], tallies: Sequence[Tally]) -> MomentsState:
        """The state after a stage. tallies: public, one for each query."""
        joined = (*self.tallies, *zip(queries, tallies, strict=True))
        return replace(self, tallies=joined, finished_stages=self.finished_stages + 1)

    def tallies_of(self, kind: str) -> list[tuple[Query, Tally]]:
        """The queries of one quantity with their tallies, by round."""
        return [(query, tally) for query, tally in self.tallies if query.quantity.kind == kind]

    def bits(self, kind: str, groups: NDArray[np.int64] | None = None) -> BitEstimates:
        """The bit means of a quantity, of all users or by group.

        groups: int64[tally rows], the published group 0..G - 1 of each row of the tallies; None for all users.
        """
        rounds = self.tallies_of(kind)
        slots = rounds[0][0].quantity.slots
        all_rounds, last = sum_tallies([tally for _, tally in rounds]), rounds[-1][1]
        one_group = np.zeros(len(last.ones), np.int64)
        total, noise_variance = all_rounds.joined(one_group), self.plan.noise_stddev**2
        total_noise = noise_variance * len(rounds) * len(one_group)
        mean, variance = bit_means(total, self.plan.response, total_noise)
        tuning = self.plan.tuning.resolved(self.plan.method_of(self))
        reported = evidence(total, self.plan.response, total_noise)
        used_bits = bits_in_use(mean[0], variance[0], slots, reported, self.plan.response, tuning.squash)
        counted, added = (all_rounds, len(rounds)) if tuning.caching else (last, 1)

        def estimates_of(published_group: NDArray[np.int64], everybody: BitEstimates | None = None) -> BitEstimates:
            sums = counted.joined(published_group)
            # Every row of every added tally has its own noise.
            noise = np.bincount(published_group)[:, None] * noise_variance * added
            mean, variance = bit_means(sums, self.plan.response, noise)
            reports = sums.reports.astype(np.float64)
            return BitEstimates(mean, variance, reports, used_bits, self.plan.bits_per_client, everybody)

        everybody = estimates_of(one_group)
        return everybody if groups is None else estimates_of(groups, everybody)

    def thresholds(self, kind: str) -> ThresholdEstimates:
        """The answers on the thresholds of a quantity, of both rounds."""
        rounds = self.tallies_of(kind)
        slots = rounds[0][0].quantity.slots
        assert isinstance(slots, Thresholds)
        counted = sum_tallies([tally for _, tally in rounds])
        return ThresholdEstimates(counted, slots, self.plan.response, self.plan.noise_stddev**2 * len(rounds))

    def quantity_mean(
        self, kind: str, groups: NDArray[np.int64] | None = None, level: float = 0.95, empty: float = EMPTY
    ) -> MeanEstimate:
        """A quantity's mean, up to its base. groups: see `bits`; level, empty: see BitEstimates.quantity_mean."""
        quantity = self.tallies_of(kind)[0][0].quantity
        if quantity.by_thresholds:
            return self.thresholds(kind).quantity_mean(level, empty, evenly=kind == "log2")
        return self.bits(kind, groups).quantity_mean(quantity.slots, level, empty)

    def centres(self) -> tuple[float, float]:
        """Everybody's estimated mean of each column, clipped to the range; 0 without a second column."""
        first = self._centre("value", self.plan.form)
        return first, 0.0 if self.plan.second is None else self._centre(SECOND + "value", self.plan.second)

    def _centre(self, kind: str, form: FixedPoint) -> float:
        quantity, mean = self.tallies_of(kind)[0][0].quantity, self.quantity_mean(kind)
        return float(np.clip(mean.value[0] - quantity.base, form.low, form.high))

    def clients(self, kind: str | None = None) -> Array:
        """Estimated clients that reported, on one quantity or at all: float64[tally rows]."""
        tallies = self.tallies if kind is None else self.tallies_of(kind)
        return np.asarray(sum(tally.reports.sum(axis=1) for _, tally in tallies) / self.plan.bits_per_client)

    def clients_variance(self, groups: NDArray[np.int64] | None = None) -> Array:
        """The variance of the noise on the number of clients, of all or by group (see `bits`): float64[G]."""
        counts = 2 * sum(tally.ones.shape[1] for _, tally in self.tallies)
        variance = counts * (self.plan.noise_stddev / self.plan.bits_per_client) ** 2
        return _by_group(np.full(len(self.tallies[0][1].ones), variance), groups)

    def means(
        self, groups: NDArray[np.int64] | None = None, level: float = 0.95, of_pairs: bool = False
    ) -> dict[str, Means]:
        """The mean of every quantity, of all users or by group (see `bits`).

        Args:
            groups: see `bits`.
            of_pairs: for statistics of two columns. A product has bits of both signs, so counting all of them as if
                they were in use would make nearly all intervals useless.
        """
        means = {}
        for kind in self.plan.quantities:
            quantity = self.tallies_of(kind)[0][0].quantity
            # Under randomised response rare bits look empty, and they make up much of the mean of a power.
            empty = 0.0 if quantity.is_rounded and self.plan.epsilon is not None and not of_pairs else EMPTY
            mean = self.quantity_mean(kind, groups, level, empty)
            clients = _by_group(self.clients(kind), groups)
            value, low, high = (column - quantity.base for column in (mean.value, mean.low, mean.high))
            means[kind] = Means(value, mean.variance, low, high, clients)
        return means

    def estimates(
        self, names: Sequence[str] = (EVERYBODY,), groups: NDArray[np.int64] | None = None, level: float = 0.95
    ) -> Iterator[MomentEstimate]:
        """Every statistic, of all users or by group (see `bits`). names: of the groups. level: of the intervals."""
        plan = self.plan
        means = {of_pairs: self.means(groups, level, of_pairs) for of_pairs in {False, plan.second is not None}}
        centred = [query.quantity for query, _ in self.tallies if query.quantity.kind in CENTRED]
        centres = (centred[0].centre, centred[0].second_centre) if centred else (0.0, 0.0)
        users, noise = _by_group(self.clients(), groups), self.clients_variance(groups)
        context = StatisticContext(plan.variance, users, noise, *centres, normal_quantile(1 - level))
        for statistic in plan.statistics:
            result = evaluate(statistic, means[statistic.name in PAIRS], context, plan.forms)
            yield from result.rows(statistic, names)

    def bit_charts(self) -> list[BitMeans]:
        """Everybody's bit means, one record a quantity. An octave of thresholds stands for a bit."""
        charts = []
        for kind in self.plan.quantities:
            queries = [query for query, _ in self.tallies_of(kind)]
            slots = queries[0].quantity.slots
            probability = np.sum([(query.last - query.first) * query.probabilities for query in queries], axis=0)
            if isinstance(slots, Thresholds):
                columns = self.thresholds(kind).octaves()
                probability = np.bincount(slots.octave, probability)
            else:
                bits = self.bits(kind)
                squashed = bits.used_bits.weighted().bit_probabilities() < 0.5
                reports = np.maximum(bits.reports[0], 0)
                columns = slots.weight, bits.mean[0], np.sqrt(bits.variance[0]), reports, squashed
            charts.append(BitMeans(kind, *columns, read_probability=self.plan.bits_per_client * probability))
        return charts


def _by_group(numbers: Array, groups: NDArray[np.int64] | None) -> Array:
    """Sums over the rows of the tallies: over all, or by published group."""
    published_group = np.zeros(len(numbers), np.int64) if groups is None else groups
    return np.asarray(np.bincount(published_group, numbers), dtype=np.float64)
