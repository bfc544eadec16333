"""Prefix codes of items, and heavy hitters level by level over them: TrieHH++ (paper 004, Section 4.1). Pure.

An item is a 64-bit code. Codes of map cells, integers and bins are numbers in some base; their prefixes are quotients.
Codes of texts are keyed hashes; their prefixes are hashes of the first characters.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from sfumato.schemas.errors import RequestError
from sfumato.transforms.histogram.sampling_round import Histogram
from sfumato.transforms.privacy.admission import NoisyUserCounts
from sfumato.transforms.privacy.keys import keyed_hash

WHOLE = 0  # the level of whole items


class Prefixes(Protocol):
    """A prefix code. Level 0 (`WHOLE`) means whole items."""

    @property
    def depth(self) -> int:
        """The length of the longest prefix."""

    def cut(
        self, items: NDArray[np.uint64], texts: NDArray[np.object_] | None, level: int, key: bytes
    ) -> tuple[NDArray[np.uint64], NDArray[np.object_] | None]:
        """Prefixes of the given length: their codes, uint64[n], and their texts, object[n] or None."""
        ...

    def parents(self, below: Histogram, above: Histogram) -> NDArray[np.int64]:
        """For each prefix of `below` the row of its parent in `above`, int64[n]; -1 where that is not published."""
        ...


@dataclass(frozen=True)
class NumberPrefixes:
    """Codes of `depth` digits in a base: 4 for map cells (x bit, y bit), 10 for integers, 2 for bins."""

    base: int
    depth: int

    def __post_init__(self) -> None:
        if self.base < 2 or self.depth < 1 or self.base**self.depth > 2**63:
            raise RequestError(f"depth: {self.depth} digits in base {self.base} do not fit in 63 bits")

    def cut(
        self, items: NDArray[np.uint64], texts: NDArray[np.object_] | None, level: int, key: bytes
    ) -> tuple[NDArray[np.uint64], NDArray[np.object_] | None]:
        """See Prefixes.cut."""
        return (items if level == WHOLE else items // np.uint64(self.base ** (self.depth - level))), None

    def parents(self, below: Histogram, above: Histogram) -> NDArray[np.int64]:
        """See Prefixes.parents."""
        parent_items = below.items // np.uint64(self.base ** (below.level - above.level))
        if not len(above):
            return np.full(len(below), -1)
        rows = np.minimum(np.searchsorted(above.items, parent_items), len(above) - 1)
        return np.where(above.items[rows] == parent_items, rows, -1)


@dataclass(frozen=True)
class TextPrefixes:
    """The first characters of texts, at most `depth`. A shorter text stays whole at deeper levels."""

    depth: int

    def __post_init__(self) -> None:
        if not self.depth >= 1:
            raise RequestError(f"depth: must be a number of characters >= 1, got {self.depth}")

    def cut(
        self, items: NDArray[np.uint64], texts: NDArray[np.object_] | None, level: int, key: bytes
    ) -> tuple[NDArray[np.uint64], NDArray[np.object_] | None]:
        """See Prefixes.cut. texts: one distinct text for each item; None only where there is no item."""
        if texts is None:
            return items, None
        if level == WHOLE:
            return items, texts
        short: NDArray[np.object_] = np.array([text[:level] for text in texts.tolist()], dtype=object)
        return hash_texts(key, short), short

    def parents(self, below: Histogram, above: Histogram) -> NDArray[np.int64]:
        """See Prefixes.parents."""
        rows = {text: row for row, text in enumerate(above.texts or ())}
        return np.array([rows.get(text[: above.level], -1) for text in below.texts or ()], dtype=np.int64)


def hash_texts(key: bytes, texts: NDArray[Any]) -> NDArray[np.uint64]:
    """Codes of texts, uint64[n]. Under one key equal texts have equal codes."""
    return keyed_hash(key, texts)


def spread_levels(depth: int, rounds: int) -> tuple[int, ...]:
    """`rounds` levels, evenly spread over 1..depth; the last is depth. Raises RequestError unless rounds <= depth."""
    if not 1 <= rounds <= depth:
        raise RequestError(f"levels: must lie in 1..{depth} (the depth), got {rounds}")
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

    @property
    def deepest(self) -> Histogram | None:
        """The finest level that is not empty."""
        return next((histogram for histogram in reversed(self.levels) if len(histogram)), None)


def grow_trie(histograms: Sequence[Histogram], prefixes: Prefixes | None, top: int | None = None) -> Trie:
    """Drops every prefix without a published parent, as a trie that grows from its root would never query it.

    This is post-processing: each histogram is private on its own.

    Args:
        histograms: one for each level, coarse to fine.
        prefixes: the prefix code; None for a single level.
        top: how many prefixes of the last level to keep, the most frequent first; None keeps all.
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
