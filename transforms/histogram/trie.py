"""TrieHH++: heavy hitters with counts, level by level over any prefix code (paper 004, Section 4.1). Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from sfumato.transforms.histogram.prefixes import Prefixes
from sfumato.transforms.histogram.published import Histogram
from sfumato.transforms.privacy.admission import Admission


@dataclass(frozen=True, eq=False)
class Trie:
    """Published prefixes, coarse to fine.

    levels: one Histogram a level, of which every prefix extends one of the level above. parents: for each level but the
    first the rows of its prefixes' parents, int64[m]. users: estimated users of the first level's prefixes, those that
    `top` left out with them. cut: the sampled count that prefixes of the last level had at most which `top` left out,
    or None where it left none out. admission: the noisy counts of users on which the run was admitted, if it counted
    them.
    """

    levels: tuple[Histogram, ...]
    parents: tuple[NDArray[np.int64], ...]
    users: float
    cut: int | None = None
    admission: Admission | None = None

    @property
    def deepest(self) -> Histogram | None:
        """The finest level that has anything."""
        return next((one for one in reversed(self.levels) if len(one)), None)

    @property
    def published(self) -> int:
        """Number of prefixes."""
        return sum(map(len, self.levels))


def grow_trie(histograms: Sequence[Histogram], prefixes: Prefixes | None, top: int | None = None) -> Trie:
    """Drops every prefix whose parent was not published, as a trie that grows from its root never asks for it.

    That is post-processing of histograms that are private on their own. top: keep so many prefixes of the last level,
    the most frequent.
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
    users = float(histograms[0].counts.sum())
    return Trie(tuple(levels), tuple(parents), users, cut)
