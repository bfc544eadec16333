"""Prefix codes: what an item is at each level of a trie (paper 004, Section 4.1). Pure.

An item is a 64-bit code. Codes of map cells, whole numbers and bins are numbers in some base, whose prefixes are
quotients; codes of texts are keyed hashes, whose prefixes are hashes of the first characters.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from sfumato.schemas.errors import RequestError
from sfumato.transforms.histogram.published import Histogram
from sfumato.transforms.privacy.keys import keyed_hash

WHOLE = 0  # the level of whole items


class Prefixes(Protocol):
    """depth: the longest prefix. Level 0 stands for whole items."""

    @property
    def depth(self) -> int: ...

    def cut(
        self, items: NDArray[np.uint64], texts: NDArray[np.object_] | None, level: int, key: bytes
    ) -> tuple[NDArray[np.uint64], NDArray[np.object_] | None]:
        """Codes, uint64[n], and texts, object[n] or None, of the items' prefixes of the given length."""
        ...

    def parents(self, below: Histogram, above: Histogram) -> NDArray[np.int64]:
        """Rows in `above` of the prefixes that those of `below` extend, int64[n]; -1 where it was not published."""
        ...


@dataclass(frozen=True)
class NumberPrefixes:
    """Codes of `depth` digits in a base: 4 for map cells (x bit, y bit), 10 for whole numbers, 2 for bins."""

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
        wanted = below.items // np.uint64(self.base ** (below.level - above.level))
        if not len(above):
            return np.full(len(below), -1)
        rows = np.minimum(np.searchsorted(above.items, wanted), len(above) - 1)
        return np.where(above.items[rows] == wanted, rows, -1)


@dataclass(frozen=True)
class TextPrefixes:
    """Texts by their characters, the first `depth` of them at most; a shorter text stays whole at deeper levels."""

    depth: int

    def __post_init__(self) -> None:
        if not self.depth >= 1:
            raise RequestError(f"depth: must be a number of characters >= 1, got {self.depth}")

    def cut(
        self, items: NDArray[np.uint64], texts: NDArray[np.object_] | None, level: int, key: bytes
    ) -> tuple[NDArray[np.uint64], NDArray[np.object_] | None]:
        """See Prefixes.cut. texts: distinct texts, one an item; None only where there is no item."""
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
    """Codes of texts, uint64[n]; equal texts have equal codes under one key."""
    return keyed_hash(key, texts)


def spread_levels(depth: int, rounds: int) -> tuple[int, ...]:
    """`rounds` levels, evenly spread over 1..depth, the last being depth. Raises RequestError where there are fewer."""
    if not 1 <= rounds <= depth:
        raise RequestError(f"levels: must lie in 1..{depth} (the depth), got {rounds}")
    return tuple(-(-depth * (number + 1) // rounds) for number in range(rounds))
