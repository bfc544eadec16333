"""Distribution functions and range counts from hierarchical histograms (paper 004, Section 4.2). Pure.

Every level has a sample of its own, so a node has two estimates: its own, and what its children add up to. From the
root down a node's users are divided among its children in proportion to their level's counts; what the threshold hid
is the difference, where children are missing, and is spread over them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from sfumato.schemas.errors import DataError
from sfumato.transforms.histogram.curve import DEVIATIONS, banded
from sfumato.transforms.histogram.trie import Trie
from sfumato.transforms.release.charts import Curve, RangeAnswer


@dataclass(frozen=True, eq=False)
class Hierarchy:
    """A distribution over [low, high], constant within each piece.

    edges: float64[n + 1], borders of the pieces. below: float64[n + 1], estimated users below each border.
    path: float64[n + 1], what dividing nodes adds to the variance of `below`, in users^2. excess: (1 - p) / p, the
    variance that sampling gives to the estimate of one user. hidden: users that a missing bin of a level may hold.
    """

    edges: NDArray[np.float64]
    below: NDArray[np.float64]
    path: NDArray[np.float64]
    excess: float
    hidden: float

    @property
    def users(self) -> float:
        """Estimated users in the whole range."""
        return float(self.below[-1])

    def curve(self) -> Curve:
        """The distribution function at the borders of the pieces."""
        share = self.below / self.users
        margin = (DEVIATIONS * np.sqrt(self.path) + np.where(self.path > 0, self.hidden, 0.0)) / self.users
        return banded(self.edges, share, margin)

    def answer(self, low: float, high: float) -> RangeAnswer:
        """Users with values in [low, high); parts of a piece count in proportion."""
        before, after = np.interp([low, high], self.edges, self.below)
        paths = np.interp([low, high], self.edges, self.path)
        inside = float(after - before)
        # The whole is known from the first level's sample, Var = excess x users, and the range's share of it from the
        # divisions on the way to both its ends.
        variance = self.excess * inside * (inside / self.users) + float(paths.sum())
        return RangeAnswer(low, high, inside, float(np.sqrt(variance)))


def build_hierarchy(trie: Trie, bits: int, low: float, high: float) -> Hierarchy:
    """The distribution that a trie over 2^bits bins of [low, high] tells of. Raises DataError where it is empty."""
    if not len(trie.levels[0]):
        raise DataError("no part of the range is held by enough users to be published; nothing is published")
    sampling = trie.levels[0].sampling
    excess = (1 - sampling.rate) / sampling.rate
    top = trie.levels[0]
    users = float(top.counts.sum())
    # Pieces are nodes in order: first bin, bins, users, variance of the users below the first bin.
    first, size = np.zeros(1, np.int64), np.full(1, 1 << bits)
    mass, path = np.array([users]), np.zeros(1)
    row = np.zeros(1, np.int64)  # of the node among the published ones of the level above; -1 where it was not
    for number, level in enumerate(trie.levels):
        width = 1 << (bits - level.level)
        parents = np.zeros(len(level), np.int64) if number == 0 else trie.parents[number - 1]
        owner = np.full(int(row.max()) + 1, -1)
        owner[row[row >= 0]] = np.flatnonzero(row >= 0)
        piece = owner[parents]  # the piece that each published node of this level lies in
        divided = np.zeros(len(mass), bool)
        divided[piece] = True
        children = np.where(divided, size // width, 1)
        at = np.repeat(np.arange(len(mass)), children)
        starts = np.cumsum(children) - children
        offset = np.arange(len(at)) - starts[at]
        child_size = np.where(divided, width, size)[at]
        child_first = first[at] + offset * child_size
        child_row = np.full(len(at), -1)
        place = starts[piece] + (level.items.astype(np.int64) * width - first[piece]) // width
        child_row[place] = np.arange(len(level))
        shown = np.zeros(len(at))
        shown[place] = level.counts
        shown_in = np.bincount(at, shown, minlength=len(mass))
        absent = divided[at] & (child_row < 0)
        absent_in = np.bincount(at, absent, minlength=len(mass))
        missing = np.where(absent_in > 0, np.maximum(mass - shown_in, 0), 0.0)
        spread = np.where(absent, (missing / np.maximum(absent_in, 1))[at], shown)
        whole = np.where(divided, shown_in + missing, 1.0)
        share = np.where(divided[at], spread / whole[at], 1.0)
        # X of a node and of what is left of it are Bin(c, p): the share's variance is s (1 - s) excess / users.
        running = np.cumsum(share) - share
        left = np.clip(running - running[starts][at], 0, 1)
        ends = np.append(path, 0.0)  # what is uncertain about the whole is not in here
        path = (
            path[at] + left * (ends[at + 1] - path[at]) + np.where(divided, mass, 0.0)[at] * left * (1 - left) * excess
        )
        mass, first, size, row = mass[at] * share, child_first, child_size, child_row
    edges = low + (high - low) * np.concatenate((first, [1 << bits])) / (1 << bits)
    below = np.concatenate(([0], np.cumsum(mass)))
    hidden = (sampling.threshold - 1) / sampling.rate
    return Hierarchy(edges, below, np.concatenate((path, [0])), excess, hidden)


def answer_ranges(hierarchy: Hierarchy, ranges: Sequence[tuple[float, float]]) -> list[RangeAnswer]:
    """The answers to several ranges [low, high)."""
    return [hierarchy.answer(low, high) for low, high in ranges]
