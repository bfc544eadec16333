"""The plan of a sampled job: its budget, its sampling rate and threshold, and which users it contacts.

For one (epsilon, delta) a larger threshold allows a larger rate: better estimates of frequent items, fewer rare items.
The best choice depends on the catalogue, that is on the numbers of users and items. The model is Zipf's law: the count
of rank r is proportional to 1 / r or, with the same probability, to 1 / r^2. (With one exponent, the threshold would be
just below the count of the last item, as if that were known.) With many users and few items, such as a million and 64,
few items are rare and the best thresholds are in the hundreds, with high rates. With unlimited items they are 10 to 35.

With `--parameters paper` they are those of the paper (paper 004, Section 3.1), to reproduce it: the exact guarantee
allows a larger rate at the same (epsilon, delta).

Limited contact (paper 004, Section 3.2): the paper contacts a fixed number s = m + c sqrt(m) of n users, m = n p, and
each takes part with probability m / s. That is not the Poisson sample: its size, Bin(s, m / s), varies far less than
Bin(n, p). Exact enumeration of small cases finds up to 241 times the Poisson sample's delta with c = 0.5, and no more
than its delta with the paper's c = 10 (benchmarks/accountant.py); no proof covers all cases. A run that counted its
participants and stopped if they were too many would be no better: it would reveal their number.

So here each user is contacted independently with a public probability a, and a contacted user takes part with
probability p / a. The participants are then the Poisson sample at p itself, whatever the number of users. So delta is
the delta of contacting all users and needs no bound on the users. Of `population` users s are contacted on average, as
in the paper. Pure.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache, cached_property
from typing import Any, ClassVar

import numpy as np
import scipy
from numpy.typing import NDArray

from sfumato.schemas.errors import RequestError
from sfumato.transforms.histogram.accountant import check_delta, delta, largest_rate, max_rate, rounds_delta
from sfumato.transforms.histogram.item_encoding import CellItems, Items, NumberItems, ZoneItems
from sfumato.transforms.histogram.sampling_round import Sampling, check_count, hidden_count
from sfumato.transforms.observability.text_tables import significant
from sfumato.transforms.privacy.admission import CountedBudget
from sfumato.transforms.privacy.budget import check_epsilon

# Users and items of the catalogue where items are unlimited: counts from 10^9 down to less than 1.
_UNLIMITED = 2**31
_MAX_THRESHOLD = 2**10  # bounds the search time; only catalogues without rare items would gain from more
# Grid points of rounds_delta and the tolerance of rates: to compare thresholds, and for the final rate.
_COARSE_STEPS, _COARSE_RATE = 40, 1e-3
_FINE_STEPS, _FINE_RATE = 200, 1e-6
_ALPHA = 1 / 6  # of the paper's experiments (Section 5)
_EXPONENT = -math.log(_ALPHA) - 1 / (1 + _ALPHA)  # C_alpha
CONTACTS = ("everybody", "limited", "fixed")


@cache  # a job states its plan several times
def choose_sampling(
    epsilon: float, delta: float, population: int | None = None, items: int | None = None, rounds: int = 1
) -> Sampling:
    """Returns the sampling of least expected error whose `rounds` rounds together are (epsilon, delta)-private.

    Unless both the population and the number of items are given, items are unlimited and the population hardly matters.
    Raises RequestError for an argument out of range, or a population so small that even an item of all users would
    probably stay below the threshold.
    """
    check_epsilon(epsilon)
    check_delta(delta)
    check_count("rounds", rounds)
    catalogue = Catalogue.from_numbers(population, items)
    rates: dict[int, float] = {}  # of the thresholds tried

    def rate_of(threshold: int, steps: int, tolerance: float) -> float:
        """Returns the largest rate that the guarantee allows, on a grid of this many privacy losses."""
        nearest = min(rates, key=lambda other: abs(other - threshold), default=None)
        # First guess: the rounds share the budget evenly.
        guess = max_rate(epsilon / rounds, delta / rounds, threshold) if nearest is None else rates[nearest]
        return largest_rate(lambda rate: rounds_delta(epsilon, rate, threshold, rounds, steps), delta, tolerance, guess)

    @cache
    def error(threshold: int) -> float:
        """Returns the mean absolute error per user; infinite if no item can be expected to pass the threshold at its
        rate.
        """
        try:
            rates[threshold] = rate_of(threshold, _COARSE_STEPS, _COARSE_RATE)
        except RequestError:  # no rate on the grid is private at so low a threshold
            return math.inf
        if population is not None and threshold > population * rates[threshold]:
            return math.inf
        return catalogue.error(rates[threshold], threshold)

    threshold = _best_threshold(error, catalogue)
    if not rates:
        raise RequestError(
            f"delta: {delta} is out of reach with epsilon {epsilon} in {rounds} round(s); raise one of them"
        )
    if math.isinf(error(threshold)):
        needed = math.ceil(min(tried / rate for tried, rate in rates.items()))
        raise RequestError(
            f"population: with {population} users no item would pass the threshold even if all of them held it; "
            f"epsilon {epsilon:g} and delta {delta:g} in {rounds} round(s) need about {needed} users"
        )
    return Sampling.from_rate(rate_of(threshold, _FINE_STEPS, _FINE_RATE), threshold)


def relative_error(counts: NDArray[np.int64], rate: float, threshold: int) -> NDArray[np.float64]:
    """Returns E|estimate - c| / c, float64[n], exactly, for items of c users, int64[n] >= 1.

    With X ~ Bin(c, p), de Moivre's identity E[(X - c p) 1{X >= t}] = c p (1 - p) b(t - 1; c - 1) gives
    Pr[X < tau] + (1 - p) (2 b(max(tau, m) - 1; c - 1) - b(tau - 1; c - 1)), with m the first integer above c p.
    """
    below = 1 - scipy.special.betainc(threshold, np.maximum(counts - threshold + 1, 0.5), rate)
    absent = np.where(counts < threshold, 1.0, below)
    above = np.maximum(threshold, np.floor(counts * rate) + 1)
    probability = scipy.stats.binom.pmf
    peaks = 2 * probability(above - 1, counts - 1, rate) - probability(threshold - 1, counts - 1, rate)
    return np.asarray(absent + (1 - rate) * peaks)


@dataclass(frozen=True, eq=False)
class Catalogue:
    """Groups of items of about equal counts: int64[n] users of one item, float64[n] share of all users in the group."""

    counts: NDArray[np.int64]
    shares: NDArray[np.float64]

    @classmethod
    def from_numbers(cls, population: int | None, items: int | None) -> Catalogue:
        """Returns Zipf's law for both exponents: the first 200 ranks one by one, then 200 groups of ranks."""
        users = _UNLIMITED if population is None else check_count("population", population)
        ranks = _UNLIMITED if items is None else check_count("items", items)
        if population is None or items is None:
            users = ranks = _UNLIMITED
        tail = np.rint(np.geomspace(min(200, ranks), ranks, 201))
        last = np.unique(np.concatenate([np.arange(1, min(200, ranks) + 1), tail]))  # the last rank of each group
        counts, shares = [], []
        for total in (
            scipy.special.digamma(last + 1) + np.euler_gamma,
            scipy.special.zeta(2, 1) - scipy.special.zeta(2, last + 1),
        ):
            held = np.diff(total, prepend=0) / total[-1]
            counts.append(users * held / np.diff(last, prepend=0))
            shares.append(held / 2)
        return cls(np.maximum(np.rint(np.concatenate(counts)), 1).astype(np.int64), np.concatenate(shares))

    def error(self, rate: float, threshold: int) -> float:
        """Returns the mean absolute error per user: the sum over items of |estimate - count|, by the number of users.

        The estimate of an absent item is 0, so an empty release has an error of 1. The result is the average over both
        exponents.
        """
        return float(self.shares @ relative_error(self.counts, rate, threshold))

    def hidden(self, threshold: int) -> float:
        """Returns the share of users whose items cannot pass at any rate: a lower bound of the error."""
        return float(self.shares[self.counts < threshold].sum())


def _best_threshold(error: Callable[[int], float], catalogue: Catalogue) -> int:
    """Tries thresholds 1, 2, 3, 5, 7, 10, ... as far as they can matter, then smaller steps around the best one."""
    best, threshold = 1, 1
    while threshold <= _MAX_THRESHOLD and catalogue.hidden(threshold) < error(best):
        best = min(best, threshold, key=error)
        threshold = max(threshold + 1, round(threshold * 1.5))
    step = max(1, best // 4)
    while step:
        near = min(best, max(1, best - step), min(best + step, _MAX_THRESHOLD), key=error)
        best, step = near, step if near != best else step // 2
    return best


def corollary_rate(epsilon: float) -> float:
    """Returns the paper's corollary: sampling rate p = alpha (1 - e^-epsilon)."""
    return _ALPHA * -math.expm1(-check_epsilon(epsilon))


def corollary_threshold(delta: float) -> int:
    """Returns the paper's corollary: threshold tau = ceil(ln(1 / delta) / C_alpha), whatever epsilon is."""
    return math.ceil(-math.log(check_delta(delta)) / _EXPONENT)


def paper_sampling(epsilon: float, delta: float, population: int | None = None, rounds: int = 1) -> Sampling:
    """Returns the paper's sampling of `rounds` rounds that are (epsilon, delta)-private together.

    Each round has epsilon / rounds and delta / rounds (Section 4.1, basic composition). Raises as `choose_sampling`.
    """
    check_count("rounds", rounds)
    check_epsilon(epsilon)
    check_delta(delta)
    sampling = Sampling.from_rate(corollary_rate(epsilon / rounds), corollary_threshold(delta / rounds))
    if population is not None and sampling.threshold > check_count("population", population) * sampling.rate:
        raise RequestError(
            f"population: with {population} users no item would pass the paper's threshold of {sampling.threshold}, "
            f"even if all of them held it; about {math.ceil(sampling.threshold / sampling.rate)} users are needed, and "
            "fewer without --parameters paper"
        )
    return sampling


def contacts(population: int, rate: float, slack: float = 10.0) -> int:
    """Returns how many of the users to contact on average for a Poisson sample: m + c sqrt(m), m = n p, c the slack."""
    mean = population * rate
    return min(population, math.ceil(mean + slack * math.sqrt(mean)))


@dataclass(frozen=True)
class SamplePlan(CountedBudget):
    """A budget for `rounds` rounds, with the sampling of least expected error within it.

    A share of epsilon pays for the admission, which has its own sample. The rounds have the rest and all of delta.
    Raises RequestError for a value out of range, and on first use of `sampling` if no item could be published.

    Attributes, besides those of CountedBudget:
        delta: budget of the whole release, 0 < delta < 1.
        items: about how many different items there are; None: unknown. It guides the choice of sampling only.
        rounds: number of samples.
        contact: `everybody` decides whether they take part, or a `limited` number of users (see the module).
    """

    ADMISSION_RATE: ClassVar[float] = 0.25

    epsilon: float = 1.0
    delta: float = 1e-8
    population: int | None = None
    items: int | None = None
    rounds: int = 1
    contact: str = "everybody"
    max_bad_fraction: float = 0.1

    def __post_init__(self) -> None:
        self.check_budget()
        check_delta(self.delta)
        if self.items is not None:
            check_count("items", self.items)
        if self.contact not in CONTACTS:
            raise RequestError(f"contact: must be one of {', '.join(CONTACTS)}, got {self.contact!r}")
        if self.contact == "fixed":
            users = "" if self.population is None else f" of {self.population} users"
            raise RequestError(
                f"contact: a sample{users} of fixed size is not private. Its known size minus the sum of the published "
                "counts reveals how many samples the threshold dropped. So the sampling of a user who alone holds an "
                "item shows, and delta is at least the sampling rate. Let every user draw on their own, or contact a "
                "limited number"
            )
        if self.contact == "limited" and self.population is None:
            raise RequestError("contact: limited contact needs a number of users; give --population")

    @cached_property
    def sampling(self) -> Sampling:
        return choose_sampling(self.rounds_epsilon, self.delta, self.population, self.items, self.rounds)

    @property
    def contacted_users(self) -> int | None:
        """The number of users contacted on average in each round; None if all users are contacted."""
        if self.contact != "limited":
            return None
        assert self.population is not None
        return contacts(self.population, self.sampling.rate)

    @cached_property
    def delta_spent(self) -> float:
        """Returns the exact delta of all rounds at their epsilon, at most `delta`."""
        return rounds_delta(self.rounds_epsilon, self.sampling.rate, self.sampling.threshold, self.rounds)

    @cached_property
    def round_delta(self) -> float:
        """Returns the exact delta of a single round at the epsilon of all."""
        return delta(self.rounds_epsilon, self.sampling.rate, self.sampling.threshold)

    @property
    def sampling_text(self) -> str:
        """Returns which rule chose the sampling rate and the threshold, as a clause."""
        return "the pair of least expected error within the exact guarantee"

    @property
    def contact_manifest(self) -> dict[str, Any]:
        """Returns the manifest's entry on contacted users.

        The rate is public and the same for all, at least the sampling's.
        """
        if (contacted := self.contacted_users) is None or self.population is None:
            return {"kind": self.contact}
        return {"kind": self.contact, "contacted_users": contacted, "contact_rate": contacted / self.population}

    def hidden_count(self, cut: int | None = None) -> int:
        """Returns the largest true count, in users, that an absent item can have at 99% confidence.

        cut: the largest sampled count of items that passed the threshold and were still left out (see Trie.cut).
        """
        threshold = self.sampling.threshold if cut is None else cut + 1
        return hidden_count(Sampling(self.sampling.rate_steps, threshold), rounds=self.rounds)

    def accuracy(self) -> str:
        """Returns the error to expect in one phrase."""
        return f"an item of {self.hidden_count() + 1:,} users is shown with a probability of 99%"

    def text(self, counted: Items) -> str:
        """Returns the cost for a client, and what the release shows, for a terminal. Raises RequestError."""
        sampling, rounds = self.sampling, self.rounds
        each = "" if rounds == 1 else f" in each of {rounds} rounds, drawn independently"
        bits = _item_bits(counted)
        lines = [
            f"sample and threshold: epsilon {self.rounds_epsilon:g}, delta {self.delta_spent:.3g} of {self.delta:g}",
            f"admission: epsilon {self.admission_rule.cost:g}, for two noisy counts of users",
            f"sampling: {self.sampling_text}",
            f"p = {sampling.rate:.4g}: the probability that a user takes part{each}",
            f"tau = {sampling.threshold}: an item is shown if this many of the users who take part share it",
        ]
        if (contacted := self.contacted_users) is not None:
            users = f"{contacted:,} of {self.population:,} users"
            lines.append(f"about {users} are contacted{' in each round' if rounds > 1 else ''}")
        if bits is None:
            lines.append(
                "a client who takes part sends one of their values: 64 bits if it is an integer, else its text"
            )
        else:
            most, total = "", ""
            if rounds > 1:
                most, total = " at most", f", {rounds * bits} bits in {rounds} rounds at most"
            lines.append(f"a client who takes part sends one item: {bits} bits{most}{total}")
            lines.append(f"(the mean over all users is {significant(sampling.rate * bits * rounds)} bits)")
        lines += [
            f"an item of fewer than {sampling.threshold} users is never shown",
            f"an item of {self.hidden_count() + 1:,} users or more is shown with a probability of at least 99%",
        ]
        return "\n".join(lines) + "\n"


@dataclass(frozen=True)
class PaperSamplePlan(SamplePlan):
    """A plan with the sampling rate and the threshold of the paper's corollary (see `paper_sampling`).

    Epsilon and delta are divided evenly among the rounds, as in the paper. `delta_spent` is the exact delta, which lies
    far below the paper's bound.
    """

    @cached_property
    def sampling(self) -> Sampling:
        return paper_sampling(self.rounds_epsilon, self.delta, self.population, self.rounds)

    @property
    def sampling_text(self) -> str:
        return "the paper's own: p = (1 - e^-epsilon) / 6, and tau from delta <= e^(-C tau)"


def _item_bits(counted: Items) -> int | None:
    """Returns bits of an item's code; None if clients send the values of a column unchanged."""
    if isinstance(counted, CellItems):
        return 2 * counted.grid.depth
    if isinstance(counted, ZoneItems):
        return (len(counted.zones) - 1).bit_length()
    return counted.bits if isinstance(counted, NumberItems) else None
