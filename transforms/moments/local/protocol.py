"""The protocol of bit pushing: a state that advances round by round (paper 002, Algorithms 1 and 2). Pure.

The next queries depend on the plan and the state only. So Beam and a loop in memory run the same protocol.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from sfumato.schemas.moments import EVERYBODY, PAIRS, BitMeans, FixedPoint, Method, MomentEstimate
from sfumato.transforms.moments.local.allocation import by_variance, by_weight, with_uniform_share
from sfumato.transforms.moments.local.bit_means import (
    EMPTY,
    BitEstimates,
    bit_means,
    bits_in_use,
    evidence,
    normal_quantile,
)
from sfumato.transforms.moments.local.plan import MomentsPlan
from sfumato.transforms.moments.local.quantities import CENTRED, SECOND, Quantity, Thresholds
from sfumato.transforms.moments.local.tally import Query, Tally, sum_tallies
from sfumato.transforms.moments.local.threshold_means import ThresholdEstimates
from sfumato.transforms.moments.statistic_kinds import Means, StatisticContext, evaluate

Array = NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class MomentsState:
    """The public tallies of the finished stages."""

    plan: MomentsPlan
    tallies: tuple[tuple[Query, Tally], ...] = ()  # every query so far, with its tally
    finished_stages: int = 0  # their number
    users: float = 0.0  # their number, public or noisy, by which `auto` chooses the method

    @property
    def method(self) -> Method:
        """Returns the method of the run."""
        return self.plan.method_for(self.users)

    def next_queries(self) -> list[Query]:
        """Returns the queries of the next stage; none if it is a second round and `auto` has chosen one round."""
        one_round = self.method == "weighted"
        stage = self.plan.stages[self.finished_stages]
        return [self._query(kind, number) for kind, number in stage if number == 1 or not one_round]

    def _query(self, kind: str, number: int) -> Query:
        """Returns the query for a quantity in round `number`: its interval of clients and the probability of each
        question.
        """
        plan, method, reports = self.plan, self.method, self.plan.bits_per_client
        tuning = plan.tuning.resolved(method)
        centres = self.centres() if kind in CENTRED else (0.0, 0.0)
        quantity = Quantity(plan.form, kind, centres[0], method == "threshold", plan.second, centres[1])
        slots = quantity.slots
        first, last = plan.part(kind)
        assert tuning.first_share is not None
        assert tuning.first_power is not None
        assert tuning.weighted_power is not None
        if method == "weighted":
            return Query(quantity, 1, first, last, by_weight(slots, tuning.weighted_power, reports))
        border = first + tuning.first_share * (last - first)
        if number == 1:
            return Query(quantity, 1, first, border, by_weight(slots, tuning.first_power, reports))
        if quantity.by_thresholds:
            return Query(quantity, 2, border, last, self.thresholds(kind).probabilities(reports))
        prior = plan.prior.get(kind)
        if prior is None:
            bits = self.bits(kind)
            means, variances, used_bits = bits.mean[0], bits.variance[0], bits.used_bits
        else:
            means, variances = prior.for_slots(slots)
            shares = np.clip(means * plan.response.gain + 1 - plan.response.truth_probability, 0, 1)
            reported = shares, plan.response.variance(shares) / variances
            used_bits = bits_in_use(means, variances, slots, reported, plan.response, tuning.squash)
        # A bit that was never, or always, set may still be a little different.
        margin = np.minimum(np.sqrt(variances), 0.5)
        guess, used = np.clip(means, margin, 1 - margin), used_bits.weighted().bit_probabilities()
        probabilities = by_variance(slots, guess, used, plan.response, tuning.second_power, reports)
        if prior is None:
            return Query(quantity, 2, border, last, probabilities)
        return Query(quantity, 2, first, last, with_uniform_share(probabilities, reports))

    def advance(self, queries: Sequence[Query], tallies: Sequence[Tally]) -> MomentsState:
        """Returns the state after a stage. tallies: public, one for each query."""
        joined = (*self.tallies, *zip(queries, tallies, strict=True))
        return replace(self, tallies=joined, finished_stages=self.finished_stages + 1)

    def tallies_of(self, kind: str) -> list[tuple[Query, Tally]]:
        """Returns the queries of one quantity with their tallies, by round."""
        return [(query, tally) for query, tally in self.tallies if query.quantity.kind == kind]

    def bits(self, kind: str, groups: NDArray[np.int64] | None = None) -> BitEstimates:
        """Returns the bit means of a quantity, of all users or by group.

        groups: int64[tally rows], the published group 0..G - 1 of each row of the tallies; None for all users.
        """
        rounds = self.tallies_of(kind)
        slots = rounds[0][0].quantity.slots
        all_rounds, last = sum_tallies([tally for _, tally in rounds]), rounds[-1][1]
        one_group = np.zeros(len(last.ones), np.int64)
        total, noise_variance = all_rounds.joined(one_group), self.plan.noise_stddev**2
        total_noise = noise_variance * len(rounds) * len(one_group)
        mean, variance = bit_means(total, self.plan.response, total_noise)
        tuning = self.plan.tuning.resolved(self.method)
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
        """Returns the answers on the thresholds of a quantity, of both rounds."""
        rounds = self.tallies_of(kind)
        slots = rounds[0][0].quantity.slots
        assert isinstance(slots, Thresholds)
        counted = sum_tallies([tally for _, tally in rounds])
        return ThresholdEstimates(counted, slots, self.plan.response, self.plan.noise_stddev**2 * len(rounds))

    def quantity_mean(
        self, kind: str, groups: NDArray[np.int64] | None = None, level: float = 0.95, empty: float = EMPTY
    ) -> Means:
        """Returns a quantity's mean, up to its base.

        groups: see `bits`; level, empty: see BitEstimates.quantity_mean.
        """
        quantity = self.tallies_of(kind)[0][0].quantity
        if quantity.by_thresholds:
            return self.thresholds(kind).quantity_mean(level, empty, evenly=kind == "log2")
        return self.bits(kind, groups).quantity_mean(quantity.slots, level, empty)

    def centres(self) -> tuple[float, float]:
        """Returns all users' estimated mean of each column, clipped to the range; 0 without a second column."""
        first = self._centre("value", self.plan.form)
        return first, 0.0 if self.plan.second is None else self._centre(SECOND + "value", self.plan.second)

    def _centre(self, kind: str, form: FixedPoint) -> float:
        quantity, mean = self.tallies_of(kind)[0][0].quantity, self.quantity_mean(kind)
        return float(np.clip(mean.value[0] - quantity.base, form.low, form.high))

    def clients(self, kind: str | None = None) -> Array:
        """Returns estimated clients that reported, on one quantity or at all: float64[tally rows]."""
        tallies = self.tallies if kind is None else self.tallies_of(kind)
        return np.asarray(sum(tally.reports.sum(axis=1) for _, tally in tallies) / self.plan.bits_per_client)

    def clients_variance(self, groups: NDArray[np.int64] | None = None) -> Array:
        """Returns the variance of the noise on the number of clients, of all or by group (see `bits`): float64[G]."""
        counts = 2 * sum(tally.ones.shape[1] for _, tally in self.tallies)
        variance = counts * (self.plan.noise_stddev / self.plan.bits_per_client) ** 2
        return _by_group(np.full(len(self.tallies[0][1].ones), variance), groups)

    def means(
        self, groups: NDArray[np.int64] | None = None, level: float = 0.95, of_pairs: bool = False
    ) -> dict[str, Means]:
        """Returns the mean of every quantity, of all users or by group (see `bits`).

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
        """Yields every statistic, of all users or by group (see `bits`).

        names: of the groups. level: of the intervals.
        """
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
        """Returns all users' bit means, one record a quantity. An octave of thresholds is listed as a bit."""
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
