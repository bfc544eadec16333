"""The protocol: whom to ask what, round by round, and what follows from the answers. Pure.

A run is a `Progress`: the rounds that are over. What is asked next depends on the plan and the progress alone, so that
Beam's stages and a loop in memory run the same protocol (Algorithms 1 and 2 of paper 002).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import get_args

import numpy as np
from numpy.typing import NDArray

from sfumato.schemas.errors import RequestError
from sfumato.schemas.moments import EVERYBODY, BitMeans, FixedPoint, Method, MomentEstimate, Statistic
from sfumato.transforms.moments.allocation import Tuning, by_variance, by_weight, watching
from sfumato.transforms.moments.bit_means import EMPTY, Bits, bit_means, evidence
from sfumato.transforms.moments.derived_statistics import evaluate, kinds_of
from sfumato.transforms.moments.fixed_point import encode
from sfumato.transforms.moments.quantities import Quantity, Slots
from sfumato.transforms.moments.randomised_response import RandomisedResponse
from sfumato.transforms.moments.statistic_kinds import Means, Variance
from sfumato.transforms.moments.tally import Ask, Block, Tally, protected, tally
from sfumato.transforms.moments.used_bits import InUse, above_threshold, posterior
from sfumato.transforms.privacy.admission import AdmissionRule
from sfumato.transforms.privacy.keys import RunKey, random_bits
from sfumato.transforms.privacy.mechanism import discrete_laplace_stddev
from sfumato.transforms.privacy.noise import MAX_NOISE_EPSILON, MIN_NOISE_EPSILON

_ADMISSION = 0.01  # of the epsilon of a release, for the two counts that admit a run
_LEAST_EPSILON = 1000 * MIN_NOISE_EPSILON  # of a release, for each bit that a client tells


@dataclass(frozen=True, eq=False)
class Prior:
    """What an earlier release of the same column says of a quantity's bits: weight, mean, stddev float64[S].

    It stands for the first round, so that all clients are asked by its bit means.
    """

    weight: NDArray[np.float64]
    mean: NDArray[np.float64]
    stddev: NDArray[np.float64]

    def at(self, slots: Slots) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """Means of these bits and variances of those: float64[S] each; what it does not know is half +- a half.

        The bits of `square` depend on the centre, which is another one in every release.
        """
        known = {weight: place for place, weight in enumerate(self.weight.tolist())}
        places = np.array([known.get(weight, -1) for weight in slots.weight.tolist()])
        mean, stddev = (np.where(places >= 0, one[places], 0.5) for one in (self.mean, self.stddev))
        return mean, stddev**2


@dataclass(frozen=True, kw_only=True)
class MomentsPlan:
    """What is asked of a column, and how.

    epsilon: local, of all that a client tells; None: bits are told as they are. release_epsilon: of all that is
    released, for adding or removing one user; None: the same as epsilon, and without that none. bits_per_client:
    different bits of one quantity that a client tells. variance: about the estimated mean, in two phases (`centred`),
    or E[x^2] - E[x]^2 (`raw`). Every quantity has its own part of the clients. Raises RequestError for what cannot be.
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

    def __post_init__(self) -> None:
        names = [one.name for one in self.statistics]
        if not names or len(set(names)) < len(names):
            raise RequestError(f"statistics: name one or more, each once, got {','.join(names)!r}")
        for name, value, known in (("method", self.method, Method), ("variance", self.variance, Variance)):
            if value not in get_args(known):
                raise RequestError(f"{name}: there are {' and '.join(get_args(known))}, got {value!r}")
        for statistic in self.statistics:
            if "log2" in kinds_of(statistic, self.variance) and self.form.signed != "no":
                raise RequestError(f"statistics: {statistic.name} is of positive values, so it goes without --signed")
        most = min(len(Quantity(self.form, kind).slots) for kind in self.kinds)
        if isinstance(self.bits_per_client, bool) or not 1 <= self.bits_per_client <= most:
            raise RequestError(f"bits_per_client: must lie in 1..{most}, got {self.bits_per_client}")
        _ = self.told
        if self.released is not None:
            least = _LEAST_EPSILON * self.bits_per_client
            if not least <= self.released <= MAX_NOISE_EPSILON:
                name = "epsilon" if self.release_epsilon is None else "group_epsilon"
                raise RequestError(f"{name}: must lie in {least:g}..{MAX_NOISE_EPSILON:g}, got {self.released:g}")

    @property
    def released(self) -> float | None:
        """The epsilon of all that is released, for adding or removing one user; None: counts are exact."""
        if self.release_epsilon is not None or self.epsilon is None:
            return self.release_epsilon
        return min(self.epsilon, MAX_NOISE_EPSILON)

    def admission(self, max_bad_fraction: float = 0.1, min_users: int = 0) -> AdmissionRule:
        """What a run needs to go on: two counts of users, which cost their share of what is released."""
        return AdmissionRule((self.released or 1.0) * _ADMISSION, max_bad_fraction, min_users)

    @property
    def tally_epsilon(self) -> float | None:
        """The epsilon of all tallies together: what the admission leaves."""
        return None if self.released is None else self.released * (1 - _ADMISSION)

    @property
    def noise_stddev(self) -> float:
        """Standard deviation of what is added to every count of a tally."""
        return 0.0 if self.tally_epsilon is None else discrete_laplace_stddev(self.tally_epsilon, self.bits_per_client)

    def protected(self, asks: Sequence[Ask], tallies: Sequence[Tally], key: RunKey) -> list[Tally]:
        """The tallies of a stage as everybody may see them."""
        epsilon = self.tally_epsilon
        if epsilon is None:
            return list(tallies)
        pairs = zip(asks, tallies, strict=True)
        return [protected(counted, ask.name, self.bits_per_client, epsilon, ask.bind(key)) for ask, counted in pairs]

    @cached_property
    def told(self) -> RandomisedResponse:
        """How a bit is told."""
        return RandomisedResponse(self.epsilon, self.bits_per_client)

    @cached_property
    def settled(self) -> Tuning:
        """The tuning with nothing left open."""
        return self.tuning.chosen(self.method)

    @cached_property
    def kinds(self) -> tuple[str, ...]:
        """The quantities, in the order of their parts of the clients."""
        return tuple(dict.fromkeys(kind for one in self.statistics for kind in kinds_of(one, self.variance)))

    @cached_property
    def stages(self) -> tuple[tuple[tuple[str, int], ...], ...]:
        """The (quantity, round) pairs that are asked about at once, in order; `square` needs the mean first."""
        phases = [[kind for kind in self.kinds if kind != "square"], [kind for kind in self.kinds if kind == "square"]]
        stages = (
            tuple((kind, number) for kind in phase if number in self._rounds(kind))
            for phase in phases
            for number in (1, 2)
        )
        return tuple(stage for stage in stages if stage)

    def _rounds(self, kind: str) -> tuple[int, ...]:
        if self.method == "weighted":
            return (1,)
        return (2,) if kind in self.prior else (1, 2)

    def in_use(
        self,
        means: NDArray[np.float64],
        variances: NDArray[np.float64],
        slots: Slots,
        seen: tuple[NDArray[np.float64], NDArray[np.float64]],
    ) -> InUse:
        """Which bits are in use, by their means. seen: what `evidence` says of them."""
        multiple = self.settled.squash
        if multiple is None:
            return posterior(*seen, slots, self.told)
        return above_threshold(means, variances, slots, multiple)

    def asks(self, progress: Progress) -> list[Ask]:
        """What the next stage asks."""
        return [self._ask(kind, number, progress) for kind, number in self.stages[progress.stages]]

    def _ask(self, kind: str, number: int, progress: Progress) -> Ask:
        tuning, reports = self.settled, self.bits_per_client
        quantity = Quantity(self.form, kind, progress.centre(self) if kind == "square" else 0.0)
        slots = quantity.slots
        part = 1 / len(self.kinds)
        first, last = self.kinds.index(kind) * part, (self.kinds.index(kind) + 1) * part
        if self.kinds[-1] == kind:
            last = 1.0
        assert tuning.first_share is not None
        assert tuning.first_power is not None
        assert tuning.weighted_power is not None
        if self.method == "weighted":
            return Ask(quantity, 1, first, last, by_weight(slots, tuning.weighted_power, reports))
        border = first + tuning.first_share * part
        if number == 1:
            return Ask(quantity, 1, first, border, by_weight(slots, tuning.first_power, reports))
        prior = self.prior.get(kind)
        if prior is None:
            before = progress.bits(self, kind)
            means, variances, in_use = before.mean[0], before.variance[0], before.in_use
        else:
            means, variances = prior.at(slots)
            shares = np.clip(means * self.told.gain + 1 - self.told.truth, 0, 1)
            in_use = self.in_use(means, variances, slots, (shares, self.told.variance(shares) / variances))
        # A bit that was never, or always, set may still be not quite so.
        least = np.minimum(np.sqrt(variances), 0.5)
        guess, used = np.clip(means, least, 1 - least), in_use.weighed().of_bits()
        probabilities = by_variance(slots, guess, used, self.told, tuning.second_power, reports)
        if prior is None:
            return Ask(quantity, 2, border, last, probabilities)
        return Ask(quantity, 2, first, last, watching(probabilities, reports))


@dataclass(frozen=True, eq=False)
class Progress:
    """The rounds that are over, with their tallies of G groups, as everybody may see them."""

    rounds: tuple[tuple[Ask, Tally], ...] = ()
    stages: int = 0

    def after(self, asks: Sequence[Ask], tallies: Sequence[Tally]) -> Progress:
        """The progress once a stage is over."""
        return Progress((*self.rounds, *zip(asks, tallies, strict=True)), self.stages + 1)

    def of(self, kind: str) -> list[tuple[Ask, Tally]]:
        """The rounds about one quantity."""
        return [one for one in self.rounds if one[0].quantity.kind == kind]

    def bits(self, plan: MomentsPlan, kind: str, groups: NDArray[np.int64] | None = None) -> Bits:
        """The bit means of a quantity: of everybody, and with `groups`, int64[G], of the sums of tallies by group.

        groups: of every group that was tallied, the group that it counts in, 0..G - 1.
        """
        rounds = self.of(kind)
        slots = rounds[0][0].quantity.slots
        every, last = sum_tallies([counted for _, counted in rounds]), rounds[-1][1]
        everybody = np.zeros(len(last.ones), np.int64)
        pooled, noise = every.joined(everybody), plan.noise_stddev**2
        added = noise * len(rounds) * len(everybody)
        mean, variance = bit_means(pooled, plan.told, added)
        in_use = plan.in_use(mean[0], variance[0], slots, evidence(pooled, plan.told, added))
        counted, times = (every, len(rounds)) if plan.settled.caching else (last, 1)

        def joined(places: NDArray[np.int64], of: Bits | None = None) -> Bits:
            sums = counted.joined(places)
            mean, variance = bit_means(sums, plan.told, np.bincount(places)[:, None] * noise * times)
            return Bits(mean, variance, sums.reports.astype(np.float64), in_use, plan.bits_per_client, of)

        found = joined(everybody)
        return found if groups is None else joined(groups, found)

    def centre(self, plan: MomentsPlan) -> float:
        """Everybody's estimated mean, within the range: what `square` is about."""
        quantity = self.of("value")[0][0].quantity
        total = self.bits(plan, "value").total(quantity.slots)
        return float(np.clip(total.value[0] - quantity.base, plan.form.low, plan.form.high))

    def clients(self, plan: MomentsPlan, kind: str | None = None) -> NDArray[np.float64]:
        """How many clients of each tallied group answered, about one quantity or at all: float64[groups]."""
        rounds = self.rounds if kind is None else self.of(kind)
        return np.asarray(sum(counted.reports.sum(axis=1) for _, counted in rounds) / plan.bits_per_client)

    def clients_variance(self, plan: MomentsPlan, groups: NDArray[np.int64] | None = None) -> NDArray[np.float64]:
        """The variance of the noise on the number of clients, of all or by group (see `bits`): float64[G]."""
        counts = 2 * sum(told.ones.shape[1] for _, told in self.rounds)
        each = np.full(len(self.rounds[0][1].ones), counts * (plan.noise_stddev / plan.bits_per_client) ** 2)
        return _by_group(each, groups)

    def means(
        self, plan: MomentsPlan, groups: NDArray[np.int64] | None = None, level: float = 0.95
    ) -> dict[str, Means]:
        """Every quantity's mean, of everybody or by group (see `bits`), with intervals of this level."""
        found = {}
        for kind in plan.kinds:
            quantity = self.of(kind)[0][0].quantity
            # Under randomised response rare bits look empty, and of powers they make up much of the mean.
            empty = 0.0 if quantity.rounded and plan.epsilon is not None else EMPTY
            total = self.bits(plan, kind, groups).total(quantity.slots, level, empty)
            clients = _by_group(self.clients(plan, kind), groups)
            value, low, high = (one - quantity.base for one in (total.value, total.low, total.high))
            found[kind] = Means(value, total.variance, low, high, clients)
        return found

    def estimates(
        self,
        plan: MomentsPlan,
        names: Sequence[str] = (EVERYBODY,),
        groups: NDArray[np.int64] | None = None,
        level: float = 0.95,
    ) -> Iterator[MomentEstimate]:
        """Every statistic, of everybody or by group (see `bits`). names: of the groups. level: of the intervals."""
        means, users = self.means(plan, groups, level), self.clients(plan)
        users, users_variance = _by_group(users, groups), self.clients_variance(plan, groups)
        squares = self.of("square")
        centre = squares[0][0].quantity.centre if squares else 0.0
        for statistic in plan.statistics:
            found = evaluate(statistic, plan.variance, means, centre, users, plan.form, users_variance, level)
            columns = (found.value, found.stddev, found.low, found.high, found.clients)
            for name, *row in zip(names, *(column.tolist() for column in columns), strict=True):
                yield MomentEstimate(name, statistic.name, *row)

    def bit_charts(self, plan: MomentsPlan) -> list[BitMeans]:
        """What everybody's bits look like, a quantity each."""
        charts = []
        for kind in plan.kinds:
            slots, bits = self.of(kind)[0][0].quantity.slots, self.bits(plan, kind)
            probability = np.sum([(ask.last - ask.first) * ask.probabilities for ask, _ in self.of(kind)], axis=0)
            stddev = np.sqrt(bits.variance[0])
            reports = np.maximum(bits.reports[0], 0)
            squashed = bits.in_use.weighed().of_bits() < 0.5
            charts.append(
                BitMeans(
                    kind,
                    slots.weight,
                    bits.mean[0],
                    stddev,
                    np.maximum(reports, 0),
                    squashed,
                    plan.bits_per_client * probability,
                )
            )
        return charts


def _by_group(clients: NDArray[np.float64], groups: NDArray[np.int64] | None) -> NDArray[np.float64]:
    """Sums over tallied groups: of all, or by the group that each counts in."""
    places = np.zeros(len(clients), np.int64) if groups is None else groups
    return np.asarray(np.bincount(places, clients), dtype=np.float64)


@dataclass(frozen=True)
class Answer:
    """What a protocol run tells of everybody."""

    estimates: list[MomentEstimate]
    bits: list[BitMeans]


def answer(values: NDArray[np.float64], plan: MomentsPlan, key: RunKey) -> Answer:
    """The whole protocol in memory, for one group. values: float64[n], finite."""
    codes, _ = encode(values, plan.form)
    numbers = np.arange(len(codes), dtype=np.uint64)
    block = Block.ordered(codes, random_bits(key.subkey("clients"), np.zeros_like(numbers), numbers)[:, 0])
    progress = Progress()
    for _ in plan.stages:
        asks = plan.asks(progress)
        tallies = [tally(block, ask, 1, plan.told, key) for ask in asks]
        progress = progress.after(asks, plan.protected(asks, tallies, key))
    return Answer(list(progress.estimates(plan)), progress.bit_charts(plan))


def sum_tallies(tallies: Sequence[Tally]) -> Tally:
    """Adds up tallies of the same groups and bits, at least one."""
    total = tallies[0]
    for one in tallies[1:]:
        total = total + one
    return total
