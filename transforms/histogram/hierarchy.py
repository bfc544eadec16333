"""Distribution functions and range counts from hierarchical histograms (paper 004, Section 4.2). Pure.

Every level has a sample of its own, so a node has two estimates: its own, and what its children add up to. From the
root down a node's users are divided among its children in proportion to their level's counts; what the threshold hid
is the difference, where children are missing, and is spread over them.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from sfumato.schemas.charts import Curve, RangeAnswer
from sfumato.transforms.histogram.curve import DEVIATIONS, banded, bounds, unknown_curve
from sfumato.transforms.histogram.sampling_round import hidden_count
from sfumato.transforms.histogram.trie import Trie


@dataclass(frozen=True, eq=False)
class Hierarchy:
    """A distribution over [low, high], constant within each piece; all arrays are float64[n + 1], one value a border.

    edges: borders of the pieces. below: estimated users below each. path: what dividing nodes adds to the variance of
    `below`, in users^2. fewer, more: users that `below` may have too many and too few of, by where in a node lies what
    the threshold hid. absent: users below each border that may be there though no node of the first level shows them.
    excess: (1 - p) / p, the variance that sampling gives to the estimate of one user.
    """

    edges: NDArray[np.float64]
    below: NDArray[np.float64]
    path: NDArray[np.float64]
    fewer: NDArray[np.float64]
    more: NDArray[np.float64]
    absent: NDArray[np.float64]
    excess: float

    @property
    def users(self) -> float:
        """Estimated users in the whole range."""
        return float(self.below[-1])

    def curve(self) -> Curve:
        """The distribution function at the borders of the pieces."""
        if not self.users:
            return unknown_curve(float(self.edges[0]), float(self.edges[-1]))
        noise = DEVIATIONS * np.sqrt(self.path)
        spread = (self.fewer + noise, self.more + noise)
        low, high = bounds(self.below, self.users, spread, (self.absent, self.absent[-1] - self.absent))
        share = self.below / self.users
        return banded(self.edges, share, np.minimum(low, share), np.maximum(high, share))

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
    """The distribution that a trie over 2^bits bins of [low, high] shows; one of no users where the trie is empty."""
    sampling = trie.levels[0].sampling
    excess = (1 - sampling.rate) / sampling.rate
    top = trie.levels[0]
    users = float(top.counts.sum())
    # Pieces are nodes in order: first bin, bins, users, variance of the users below the first bin.
    first, size = np.zeros(1, np.int64), np.full(1, 1 << bits)
    mass = np.array([users])
    path, fewer, more = np.zeros(1), np.zeros(1), np.zeros(1)
    most = float(hidden_count(sampling))  # users of one node that is not published
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
        left = _before(share, starts)
        division = np.where(divided, mass, 0.0)[at] * np.clip(left * (1 - left), 0, None) * excess
        path = _between(path, left, at) + division
        # Of a node's missing users those in its first children may be none, or as many as these can hide.
        unseen = _before(absent.astype(float), starts)
        missed, guessed = missing[at], (missing / np.maximum(absent_in, 1))[at] * unseen
        least = np.maximum(missed - most * (absent_in[at] - unseen), 0)
        greatest = np.minimum(missed, most * unseen)
        division = np.array([guessed - np.minimum(least, guessed), np.maximum(greatest, guessed) - guessed])
        fewer, more = _between(fewer, left, at) + division[0], _between(more, left, at) + division[1]
        mass, first, size, row = mass[at] * share, child_first, child_size, child_row
    borders = np.append(first, 1 << bits)
    width = 1 << (bits - top.level)
    seen = np.searchsorted((top.items.astype(np.int64) + 1) * width, borders, side="right")
    return Hierarchy(
        edges=low + (high - low) * borders / (1 << bits),
        below=np.append(0, np.cumsum(mass)),
        path=np.append(path, 0),
        fewer=np.append(fewer, 0),
        more=np.append(more, 0),
        absent=np.asarray(most * (borders // width - seen), dtype=np.float64),
        excess=excess,
    )


def _before(values: NDArray[np.float64], starts: NDArray[np.int64]) -> NDArray[np.float64]:
    """For each child the sum of the values of its elder siblings. starts: the first child of each node."""
    running = np.cumsum(values) - values
    node = np.searchsorted(starts, np.arange(len(values)), side="right") - 1
    return running - running[starts][node]


def _between(values: NDArray[np.float64], left: NDArray[np.float64], at: NDArray[np.int64]) -> NDArray[np.float64]:
    """Values at nodes' starts, carried to children with a share `left` before them; 0 at the very end."""
    ends = np.append(values, 0.0)
    return values[at] + left * (ends[at + 1] - values[at])
