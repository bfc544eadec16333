"""A sample-and-threshold round (paper 004, Section 3), and a trie of several: TrieHH++ (Section 4.1).

A round samples each user with one public probability. It publishes the items with enough sampled users; everything
that follows from these counts is post-processing. Pure.

An item is a 64-bit code. Codes of map cells, integers and bins are numbers in some base; their prefixes are quotients.
Codes of texts are keyed hashes; their prefixes are hashes of the first characters.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import scipy
from numpy.typing import NDArray

from sfumato.schemas.errors import RequestError
from sfumato.transforms.privacy.admission import NoisyUserCounts
from sfumato.transforms.privacy.keys import keyed_hash
from sfumato.transforms.statistics.bisection import bisect_integers

RATE_GRID = 2**32  # sampling rates are multiples of 1 / RATE_GRID
HIDDEN_CONFIDENCE = 0.99  # of the largest count that an absent item may have
WHOLE = 0  # the level of whole items


def check_count(name: str, value: int) -> int:
    """Returns the value. Raises RequestError unless it is an integer >= 1 (NaN, True and 2.0 are not)."""
    if isinstance(value, bool) or not isinstance(value, int | np.integer) or not value >= 1:
        raise RequestError(f"{name}: must be an integer >= 1, got {value}")
    return int(value)


def check_rate(rate: float) -> float:
    """Returns the rate. Raises RequestError unless 0 < rate < 1 (NaN is not)."""
    if isinstance(rate, bool) or not 0 < rate < 1:
        raise RequestError(f"rate: must be a number between 0 and 1, got {rate}; give the share of users to sample")
    return float(rate)


@dataclass(frozen=True)
class Sampling:
    """The parameters of a round. Raises RequestError for a value out of range.

    The sampler compares a uniform 32-bit integer with `rate_steps`, so the accountant's rate is exactly the sampler's.

    >>> Sampling.from_rate(0.25, threshold=20)
    Sampling(rate_steps=1073741824, threshold=20)
    """

    rate_steps: int  # the sampling rate in units of 2**-32, 1..2**32 - 1
    threshold: int  # the fewest sampled users of a published item, >= 1

    def __post_init__(self) -> None:
        for name in ("rate_steps", "threshold"):  # NumPy's integers become Python's, which JSON can hold
            object.__setattr__(self, name, check_count(name, getattr(self, name)))
        if self.rate_steps >= RATE_GRID:
            raise RequestError(f"rate_steps: must be below 2**32, got {self.rate_steps}; a rate of 1 hides nobody")

    @classmethod
    def from_rate(cls, rate: float, threshold: int) -> Sampling:
        """Rounds the rate down to a multiple of 2**-32, which can only improve the guarantee.

        Raises RequestError unless 2**-32 <= rate < 1.
        """
        steps = math.floor(check_rate(rate) * RATE_GRID)
        if steps < 1:
            raise RequestError(f"rate: must be at least 2**-32, the sampler's resolution, got {rate}")
        return cls(steps, threshold)

    @property
    def rate(self) -> float:
        """Returns the sampling rate p (exact: a multiple of 2**-32)."""
        return self.rate_steps / RATE_GRID


@dataclass(frozen=True, eq=False)
class Histogram:
    """The published counts of a round (paper 004, Section 3)."""

    level: int  # length of the items' prefixes; 0 for whole items
    sampling: Sampling
    items: NDArray[np.uint64]  # uint64[m] ascending, item codes
    sampled: NDArray[np.int64]  # int64[m], sampled users with each item, all at least the threshold
    texts: tuple[str, ...] | None = None  # the texts of the codes, m of them; None if codes are numbers

    def __len__(self) -> int:
        return len(self.items)

    @cached_property
    def counts(self) -> NDArray[np.float64]:
        """Returns the estimated users, float64[m]: sampled / p."""
        return self.sampled / self.sampling.rate

    @cached_property
    def stddev(self) -> NDArray[np.float64]:
        """Returns the standard deviations of the estimates, float64[m], in users: sqrt(sampled (1 - p)) / p.

        That of Bin(c, p) / p is sqrt(c (1 - p) / p); sampled / p estimates the true count c.
        """
        return np.asarray(np.sqrt(self.sampled * (1 - self.sampling.rate)) / self.sampling.rate)

    def only(self, kept: NDArray[np.bool_] | NDArray[np.int64]) -> Histogram:
        """Returns the same histogram with the kept items only, in the given order."""
        texts = None if self.texts is None else tuple(np.array(self.texts, dtype=object)[kept].tolist())
        return Histogram(self.level, self.sampling, self.items[kept], self.sampled[kept], texts)


def hidden_count(sampling: Sampling, rounds: int = 1) -> int:
    """Returns the largest true count, in users, that an absent item may have at 99% confidence.

    This is the largest c such that an item of c users is absent with a probability of at least 1%. An item is absent if
    its sampled count is below the threshold in at least one of `rounds` >= 1 independent samples.
    """
    check_count("rounds", rounds)
    present_probability = HIDDEN_CONFIDENCE ** (1 / rounds)  # in each round, at most

    def is_often_absent(count: int) -> bool:
        # P[Bin(c, p) >= tau] = I_p(tau, c - tau + 1)
        present = scipy.special.betainc(sampling.threshold, count - sampling.threshold + 1, sampling.rate)
        return bool(present <= present_probability)

    low, high = sampling.threshold - 1, 2 * sampling.threshold
    while is_often_absent(high):
        low, high = high, 2 * high
    return bisect_integers(is_often_absent, low, high)


@dataclass(frozen=True)
class NumberPrefixes:
    """A prefix code: `depth` digits in a base, 4 for map cells (x bit, y bit), 10 for integers, 2 for bins."""

    base: int
    depth: int

    def __post_init__(self) -> None:
        if self.base < 2 or self.depth < 1 or self.base**self.depth > 2**63:
            raise RequestError(f"depth: {self.depth} digits in base {self.base} do not fit in 63 bits")

    def cut(
        self, items: NDArray[np.uint64], texts: NDArray[np.object_] | None, level: int, key: bytes
    ) -> tuple[NDArray[np.uint64], NDArray[np.object_] | None]:
        """Prefixes of the given length: their codes, uint64[n], and their texts, object[n] or None."""
        return (items if level == WHOLE else items // np.uint64(self.base ** (self.depth - level))), None

    def parents(self, below: Histogram, above: Histogram) -> NDArray[np.int64]:
        """Returns for each prefix of `below` the row of its parent in `above`, int64[n]; -1 where that is not
        published.
        """
        parent_items = below.items // np.uint64(self.base ** (below.level - above.level))
        if not len(above):
            return np.full(len(below), -1)
        rows = np.minimum(np.searchsorted(above.items, parent_items), len(above) - 1)
        return np.where(above.items[rows] == parent_items, rows, -1)


@dataclass(frozen=True)
class TextPrefixes:
    """A prefix code of texts: their first characters, at most `depth`. A shorter text stays whole at deeper levels."""

    depth: int

    def __post_init__(self) -> None:
        if not self.depth >= 1:
            raise RequestError(f"depth: must be a number of characters >= 1, got {self.depth}")

    def cut(
        self, items: NDArray[np.uint64], texts: NDArray[np.object_] | None, level: int, key: bytes
    ) -> tuple[NDArray[np.uint64], NDArray[np.object_] | None]:
        """See NumberPrefixes.cut. texts: one distinct text for each item; None only where there is no item."""
        if texts is None:
            return items, None
        if level == WHOLE:
            return items, texts
        short: NDArray[np.object_] = np.array([text[:level] for text in texts.tolist()], dtype=object)
        return keyed_hash(key, short), short

    def parents(self, below: Histogram, above: Histogram) -> NDArray[np.int64]:
        rows = {text: row for row, text in enumerate(above.texts or ())}
        return np.array([rows.get(text[: above.level], -1) for text in below.texts or ()], dtype=np.int64)


Prefixes = NumberPrefixes | TextPrefixes


def spread_levels(depth: int, rounds: int) -> tuple[int, ...]:
    """Returns `rounds` levels, evenly spread over 1..depth; the last is depth. Raises RequestError unless rounds <=
    depth.

    >>> spread_levels(depth=10, rounds=3)
    (4, 7, 10)
    """
    if not 1 <= rounds <= depth:
        raise RequestError(f"levels: must be between 1 and {depth} (the depth), got {rounds}")
    return tuple(-(-depth * (number + 1) // rounds) for number in range(rounds))


@dataclass(frozen=True, eq=False)
class Trie:
    """Published prefixes, coarse to fine.

    Attributes:
        levels: one Histogram a level. Every prefix extends a prefix of the level above.
        parents: for each level but the first, the rows of its prefixes' parents in the level above, int64[m].
        users: estimated users of all prefixes that the first round published.
        cut: the largest sampled count among the prefixes of the last level that `top` removed; None without any.
        admission: the noisy counts of users that admitted the run; None if the run had no admission.
    """

    levels: tuple[Histogram, ...]
    parents: tuple[NDArray[np.int64], ...]
    users: float
    cut: int | None = None
    admission: NoisyUserCounts | None = None


def grow_trie(histograms: Sequence[Histogram], prefixes: Prefixes | None, top: int | None = None) -> Trie:
    """Drops every prefix without a published parent, as a trie that grows from its root would never query it.

    This is post-processing: each histogram is private on its own. histograms: coarse to fine. top: how many prefixes of
    the last level to keep, the most frequent first; None keeps all.
    """
    levels: list[Histogram] = []
    parents: list[NDArray[np.int64]] = []
    cut = None
    for number, histogram in enumerate(histograms):
        rows = np.zeros(len(histogram), dtype=np.int64)
        if number:
            assert prefixes is not None
            rows = prefixes.parents(histogram, levels[-1])
        kept = np.flatnonzero(rows >= 0)
        if top is not None and number == len(histograms) - 1:
            order = np.argsort(-histogram.sampled[kept], kind="stable")
            cut = int(histogram.sampled[kept[order[top]]]) if len(kept) > top else None
            kept = np.sort(kept[order[:top]])
        levels.append(histogram.only(kept))
        if number:
            parents.append(rows[kept])
    return Trie(tuple(levels), tuple(parents), float(histograms[0].counts.sum()), cut)
