"""Counts of items with a trusted curator: bounded contributions of all users, the plan, and what is published.

Which items of a user count is a function of the run's key, the user's id and the user's own records. So a retried
bundle keeps the same items, and no other user, no order and no file has an effect.

Every round counts all users, at one prefix length. The last round counts the requested items and has nearly all of the
budget: a cell or an item is found by its own count, and not by way of its prefixes. The rounds above it show where the
users are whose items stay hidden. They share what is left, which is enough since coarse counts are large. Pure.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import cached_property
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from sfumato.schemas.errors import RequestError
from sfumato.schemas.guarantee import CURATED_BY, Trust
from sfumato.schemas.known_digits import NOISE_Z
from sfumato.transforms.histogram.count_noise import CountNoise, ItemBound, TwoServerNoise, choose_noise
from sfumato.transforms.histogram.item_encoding import Items
from sfumato.transforms.histogram.sampling_round import WHOLE, Prefixes
from sfumato.transforms.histogram.user_sample import ItemCounts, Sample, add_pairs, run_starts, sum_by_item, texts_of
from sfumato.transforms.observability.text_tables import significant
from sfumato.transforms.privacy.admission import CountedBudget, NoisyUserCounts
from sfumato.transforms.privacy.keys import RunKey, random_bits

_LAST_SHARE = 0.96  # of the rounds' budget, for the last of several
MAX_DENSE_ITEMS = 4**6  # up to this many public items, all of them are published
_MAX_PUBLIC_ITEMS = 4**10


def choose_items(sample: Sample, max_items: int, key: RunKey) -> Sample:
    """Returns the distinct items of each user, at most `max_items` of them: a keyed draw without replacement.

    Each draw takes one of the user's remaining items with a probability in proportion to its records. These are the
    items with the smallest keyed exponential variates of rate `records` (Efraimidis and Spirakis, Weighted random
    sampling with a reservoir, Information Processing Letters 97, 2006). sample: all records of its users.
    """
    pairs = add_pairs(sample)  # ordered by user where a user has several items
    if pairs.has_each_user_once:
        return pairs
    users = pairs.users
    starts = run_starts(users)
    sizes = np.diff(starts, append=len(users))
    if sizes.max(initial=0) <= max_items:
        return pairs
    bits = random_bits(key.subkey("chosen items"), users, pairs.items.astype(np.uint64))[:, 0]
    uniform = ((bits >> np.uint64(11)) + np.uint64(1)).astype(np.float64) * 2.0**-53  # in (0, 1]
    order = np.lexsort((-np.log(uniform) / pairs.records, users))
    rank = np.arange(len(users)) - np.repeat(starts, sizes)
    kept = np.sort(order[rank < max_items])
    return replace(pairs, users=users[kept], items=pairs.items[kept], records=pairs.records[kept])


def count_items(
    sample: Sample, bound: ItemBound, key: RunKey, prefixes: Prefixes | None, levels: Sequence[int]
) -> list[ItemCounts]:
    """Returns the counts of every round, one for each level: of all users, with bounded contributions.

    At each level a user adds min(records, max_records) to each prefix of their chosen items, so to at most `max_items`
    prefixes. sample: all records of its users. For prefixes and levels see `count_rounds`.
    """
    chosen = choose_items(sample, bound.max_items, key)
    rounds = []
    for level in levels:
        shorter = chosen if prefixes is None or level == WHOLE else _cut(chosen, prefixes, level, key.subkey("items"))
        amounts = None if bound.max_records == 1 else np.minimum(shorter.records.astype(np.int64), bound.max_records)
        counted = sum_by_item(shorter.items, amounts)
        if shorter.texts:
            texts = texts_of(counted.items, shorter.texts)
            counted = replace(counted, texts=texts)
        rounds.append(counted)
    return rounds


def _cut(sample: Sample, prefixes: Prefixes, level: int, item_key: bytes) -> Sample:
    """Returns the sample with prefixes instead of items, each user's records of one prefix added up."""
    if not sample.texts:
        codes, _ = prefixes.cut(sample.items.astype(np.uint64), None, level, item_key)
        shorter_items = Sample.from_arrays(sample.users, codes, sample.records)
        return add_pairs(replace(shorter_items, has_each_user_once=sample.has_each_user_once))
    items, places = np.unique(sample.items.astype(np.uint64), return_inverse=True)
    texts = texts_of(items, sample.texts)
    codes, shorter = prefixes.cut(items, texts, level, item_key)
    names = {} if shorter is None else dict(zip(codes.tolist(), shorter.tolist(), strict=True))
    return add_pairs(Sample.from_arrays(sample.users, codes[places], sample.records, names))


@dataclass(frozen=True)
class CentralCountPlan(CountedBudget):
    """A budget for rounds of noisy counts, with the noise that hides least within it.

    Raises RequestError for a value out of range, and on first use of `noises` if no noise fits the budget.

    Attributes, besides those of CountedBudget:
        delta: budget of the whole release, 0 <= delta < 1; 0 where only public items are counted.
        bound: of each user's contributions to every round.
        domains: for each round the number of its items, where they are public (cells of a region); else None. All
            items of a small domain are published, and of any domain if delta is 0.
        noise: one of count_noise.ITEM_NOISES.
    """

    TRUST: ClassVar[Trust] = Trust.CENTRAL
    WHO: ClassVar[str] = "trusted curator"
    ASSUMPTIONS: ClassVar[tuple[str, ...]] = CURATED_BY[Trust.CENTRAL]
    STATED: ClassVar[Mapping[str, Any]] = {}  # further entries of the manifest's `privacy`

    epsilon: float = 1.0
    delta: float = 1e-8
    bound: ItemBound = field(default_factory=ItemBound)
    domains: tuple[int | None, ...] = (None,)
    noise: str = "auto"
    population: int | None = None
    max_bad_fraction: float = 0.1

    def __post_init__(self) -> None:
        self.check_budget()
        if not 0 <= self.delta < 1:
            raise RequestError(f"delta: must be a number of at least 0 and below 1, got {self.delta}")
        if self.delta == 0 and not all(one and one <= _MAX_PUBLIC_ITEMS for one in self.domains):
            raise RequestError(
                f"delta: 0 requires a public list of at most {_MAX_PUBLIC_ITEMS:,} items, such as the cells of a "
                "region at a depth of 10; give a delta far below 1 / users"
            )

    @property
    def rounds(self) -> int:
        return len(self.domains)

    @cached_property
    def noises(self) -> tuple[CountNoise, ...]:
        """Returns the noise and threshold of every round. Epsilons and deltas add up (basic composition)."""
        above = self.rounds - 1
        shares = [(1 - _LAST_SHARE) / above] * above + [_LAST_SHARE] if above else [1.0]
        chosen: dict[int, CountNoise] = {}
        left, waiting = self.delta, 1.0
        # Rounds of public items first: they need no delta, unless Gaussian noise is better.
        for number in sorted(range(self.rounds), key=lambda one: not self.is_public(one)):
            delta = 0.0 if left == 0 else left * shares[number] / waiting
            epsilon = shares[number] * self.rounds_epsilon
            chosen[number] = choose_noise(epsilon, delta, self.bound, self.noise, self.is_public(number))
            left, waiting = left - chosen[number].delta, waiting - shares[number]
        return tuple(chosen[number] for number in range(self.rounds))

    def is_public(self, number: int) -> bool:
        """Returns whether all items of a round get noise and are published."""
        domain = self.domains[number]
        return domain is not None and (self.delta == 0 or domain <= MAX_DENSE_ITEMS)

    @property
    def delta_spent(self) -> float:
        """Returns the delta of the rounds as spent (see CountNoise), added up; at most `delta`."""
        return sum(noise.delta for noise in self.noises)

    def without_unused_delta(self) -> CentralCountPlan:
        """Returns the same plan with a delta of 0 where its noise needs none."""
        return self if self.delta_spent else replace(self, delta=0.0)

    def accuracy(self, days: int = 1) -> str:
        """Returns the error to expect in one phrase. days: see `Items.days`."""
        noise = self.noises[-1]
        error = f"noise of ±{significant(NOISE_Z * noise.stddev / days)} (95%) on a count"
        if noise.threshold is None:
            return f"every item is shown; {error}"
        return f"an item of {noise.hidden_count() + 1:,} is shown with a probability of 99%; {error}"

    def text(self, counted: Items) -> str:
        """Returns the noise, and what the release shows, for a terminal."""
        divided = "" if counted.days == 1 else f"; each count is then divided by the {counted.days} days"
        lines = [
            f"{self.WHO}: epsilon {self.rounds_epsilon:g}, delta {self.delta_spent:.3g} of {self.delta:g}",
            f"admission: epsilon {self.admission_rule.cost:g}, for two noisy counts of users",
            self.bound.text(counted.record, counted.NOUN),
        ]
        for number, noise in enumerate(self.noises):
            level = f"level {number + 1} of {self.rounds} (epsilon {noise.epsilon:.3g}): " if self.rounds > 1 else ""
            lines.append(f"{level}{noise.text}{divided}")
            if noise.threshold is not None:
                count = noise.hidden_count() + 1
                lines.append(f"an item with a count of {count:,} or more is shown with a probability of 99%")
        return "\n".join(lines) + "\n"


@dataclass(frozen=True)
class SplitCountPlan(CentralCountPlan):
    """The same with the noise of two servers, on public items only."""

    TRUST: ClassVar[Trust] = Trust.SPLIT
    WHO: ClassVar[str] = "two servers"
    ASSUMPTIONS: ClassVar[tuple[str, ...]] = CURATED_BY[Trust.SPLIT]

    delta: float = 0.0
    noise: str = "laplace"

    @cached_property
    def noises(self) -> tuple[CountNoise, ...]:
        return tuple(TwoServerNoise(**vars(one)) for one in super().noises)


@dataclass(frozen=True, eq=False)
class NoisyHistogram:
    """The published counts of a round."""

    level: int  # length of the items' prefixes; 0 for whole items
    noise: CountNoise
    items: NDArray[np.uint64]  # uint64[m] ascending, item codes
    noisy: NDArray[np.int64]  # int64[m], noisy counts; at least the threshold, unless the items are public
    texts: tuple[str, ...] | None = None  # the texts of the codes, m of them; None if codes are numbers
    cut: int | None = None  # the largest noisy count that `top` removed; None without any
    days: int = 1  # over which the counts are means, see `Items.days`; no threshold then

    def __len__(self) -> int:
        return len(self.items)

    @property
    def counts(self) -> NDArray[np.float64]:
        """Returns the noisy counts, float64[m]. A threshold selects those whose noise is high; see `intervals`."""
        return self.noisy / self.days

    @property
    def stddev(self) -> NDArray[np.float64]:
        """Returns the standard deviation of the noise, float64[m]."""
        return np.full(len(self), self.noise.stddev / self.days)

    @cached_property
    def intervals(self) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Ends of the 95% intervals, int64[m] each, rounded outwards; see CountNoise.intervals."""
        low, high = self.noise.intervals(self.noisy, self.cut)
        return low // self.days, -(-high // self.days)

    def only(self, kept: NDArray[np.bool_] | NDArray[np.int64]) -> NoisyHistogram:
        texts = None if self.texts is None else tuple(np.array(self.texts, dtype=object)[kept].tolist())
        return replace(self, items=self.items[kept], noisy=self.noisy[kept], texts=texts)


@dataclass(frozen=True, eq=False)
class NoisyLevels:
    """The published histograms of all rounds, coarse to fine, and the noisy counts that admitted the run, if any."""

    levels: tuple[NoisyHistogram, ...]
    admission: NoisyUserCounts | None = None


def add_noise(
    counts: ItemCounts, noise: CountNoise, key: RunKey, label: str, level: int, domain: int | None
) -> NoisyHistogram:
    """Returns the published part of a round.

    counts: exact, with bounded contributions; items of a count of 0 are not among them. label: another one in each
    round. domain: where all items are public, their number: they are 0..domain - 1. Else None.
    """
    if domain is not None:
        items = np.arange(domain, dtype=np.uint64)
        exact = np.zeros(domain, np.int64)
        exact[counts.items.astype(np.int64)] = counts.counts
        counts = ItemCounts(items, exact)
    noisy = counts.counts + noise.draw(key, label, counts.items)
    shown = np.full(len(noisy), True) if noise.threshold is None else noisy >= noise.threshold
    texts = None if counts.texts is None else tuple(counts.texts[shown].tolist())
    return NoisyHistogram(level, noise, counts.items[shown], noisy[shown], texts)


def noisy_levels(
    counts: Sequence[ItemCounts], plan: CentralCountPlan, key: RunKey, levels: Sequence[int], top: int | None = None
) -> NoisyLevels:
    """Returns the published histograms of all rounds, from their exact counts and the lengths of their prefixes.

    top: how many items of the last level to keep, those with the largest noisy counts; None keeps all.
    """
    # Another noise under one key would share the draws: the difference of two releases would have next to none.
    key = key.narrowed({"noise": [{**asdict(noise), "stddev": noise.stddev} for noise in plan.noises]})
    shown = [
        add_noise(one, noise, key, f"count noise {number}", level, domain if plan.is_public(number) else None)
        for number, (one, noise, level, domain) in enumerate(
            zip(counts, plan.noises, levels, plan.domains, strict=True)
        )
    ]
    last = shown[-1]
    if top is not None and len(last) > top:
        order = np.argsort(-last.noisy, kind="stable")
        shown[-1] = replace(last.only(np.sort(order[:top])), cut=int(last.noisy[order[top]]))
    return NoisyLevels(tuple(shown))
